"""Attempts of described programs in a bundle: verdict, metrics and rows follow from its logs and its record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.programs import output
from orchestrator.results.bundle.extract import (
    TABLES,
    attempt_folders,
    extract_of,
    iterations_of,
    line_of,
    read_extract,
)
from orchestrator.results.bundle.verify import Derived, read_logs
from orchestrator.results.bundle.write import Contents, add_attempts
from tests.described_jobs import Described, record_described
from tests.unit.programs.programs import SWEEP, SWEEP_OUTPUT

FIGURE = ("sc21/figure-13", "cpu", "local", {"sweep"})


@pytest.fixture
def job(tmp_path: Path) -> Described:
    """Return a verified job of a sweep."""
    job = record_described(tmp_path)
    job.write(SWEEP_OUTPUT)
    record = "exit_code=0\nat=2026-01-01T12:{}:00Z\nhost=n1\nscheduler_id=none\npid=1\n"
    job.write(record.format("00"), "start")
    job.write(record.format("01"), "end")
    assert job.ends().verdict == "verified"
    return job


def unpacked(job: Described, folder: Path) -> Path:
    """Write the rows and the job's files as an unpacked bundle has them."""
    extract = extract_of(job.ledger, *FIGURE)
    (folder / "ledger").mkdir(parents=True)
    (attempt,) = attempt_folders(extract).values()
    paths: Mapping[str, dict[str, Any]] = {
        "runs": {"profile": "profile.json"},
        "attempts": {"folder": attempt, "script": None, "file": None},
    }
    for table in TABLES:
        rows = iterations_of(job.ledger, extract.attempts) if table == "iterations" else extract.of(table)
        lines = [line_of(table, row, paths.get(table, {}), extract.users) for row in rows]
        if lines or table != "output_rows":
            (folder / "ledger" / f"{table}.jsonl").write_bytes(b"".join(lines))
    (folder / "profile.json").write_text("{}")
    shutil.copytree(job.folder, folder / attempt)
    return folder


def derived(folder: Path) -> Derived:
    return read_logs(folder, read_extract(folder), {}, (), keeps_iterations=True)


def edit(folder: Path, table: str, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / "ledger" / f"{table}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    change(rows[0])
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_verdict_metrics_and_rows_follow_from_the_log(job: Described, tmp_path: Path) -> None:
    result = derived(unpacked(job, tmp_path / "bundle"))
    assert result.differences == []
    assert result.what == "1 attempt read again: 0 iterations, 0 metrics, 3 rows"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda row: row["metrics"].update(busbw=99.0), "busbw is 99.0 in the ledger, 0.0 from its log"),
        (lambda row: row.update(row_key={"size": 16}), 'row {"size": 16} is in the ledger and not in its log'),
        (lambda row: row.update(position=4), "position is 4 in the ledger, 1 from its log"),
    ],
)
def test_a_changed_row_is_a_difference(
    job: Described, tmp_path: Path, change: Callable[[dict[str, Any]], object], expected: str
) -> None:
    folder = unpacked(job, tmp_path / "bundle")
    edit(folder, "output_rows", change)
    assert expected in "\n".join(derived(folder).differences)


def test_rows_that_are_left_out_are_a_difference(job: Described, tmp_path: Path) -> None:
    folder = unpacked(job, tmp_path / "bundle")
    (folder / "ledger" / "output_rows.jsonl").unlink()
    assert 'row {"size": 8} is in its log and not in the ledger' in "\n".join(derived(folder).differences)


def test_a_changed_log_is_a_difference(job: Described, tmp_path: Path) -> None:
    job.write(SWEEP_OUTPUT.replace("67.04       0", "67.04       1"))
    differences = derived(unpacked(job, tmp_path / "bundle")).differences
    assert "verdict is verified in the ledger, failed from its log" in differences[0]


def _damage(row: dict[str, Any]) -> None:
    row["configuration"]["program"]["output"]["values"] = {"x": "("}


def _slow(row: dict[str, Any]) -> None:
    row["configuration"]["program"]["output"]["values"] = {"x": "(a|a|aa)+$ {number}"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_damage, "the record of the job's program is not valid: output.values.x"),
        (_slow, "verdict is verified in the ledger, failed from its log"),
    ],
)
@pytest.mark.fault(
    section="Verdicts of described programs",
    fault="A bundle has a damaged record of its program, or a pattern that takes exponential time",
    promise="`bundle verify` prints it as a difference; no pattern runs longer than a second.",
)
def test_a_record_in_a_bundle_is_not_trusted(
    job: Described,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "SLOWEST_S", 0.05)
    job.write("a" * 5000 + "!\n" + SWEEP_OUTPUT)
    folder = unpacked(job, tmp_path / "bundle")
    edit(folder, "jobs", change)
    assert expected in "\n".join(derived(folder).differences)


def test_the_output_file_of_the_program_is_in_the_bundle(tmp_path: Path) -> None:
    job = record_described(tmp_path, SWEEP.replace("output:\n", "output:\n  file: result.txt\n"))
    job.write(SWEEP_OUTPUT, "result.txt")
    job.write("anything", "other.txt")
    job.ends()
    contents = Contents()
    add_attempts(contents, extract_of(job.ledger, *FIGURE), job.ledger)
    assert [path.rpartition("/")[2] for path in contents.files if "attempt-1/" in path] == ["job.sh", "result.txt"]
