"""Tests of `repro collect`: formats, files and stdout, no overwriting without a question, errors of one line."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.export.rows import ITERATION_COLUMNS, case_columns
from tests.recorded_jobs import SimulatedSlurm, log_text
from tests.stand_in_site import REPRO, Site
from tests.unit.catalog.entries import figure_13
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

VERDICTS = [*["not judged"] * 5, "holds"]
CASES = [f"pp={pp},tp={4 // pp},gbs={gbs}" for pp in (1, 2, 4) for gbs in (4, 16)]
NAMES = [column.name for column in case_columns(figure_13())]


class Typed(io.StringIO):
    """A terminal with somebody at it."""

    def isatty(self) -> bool:
        return True


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl", "ndjson", "md", "markdown", "tex", "CSV"])
def test_the_ending_of_a_file_selects_the_format_and_stdout_has_the_same_bytes(
    looking: Caller, tmp_path: Path, ending: str
) -> None:
    file = tmp_path / f"x.{ending}"
    done = looking("collect", "figure-13", "-o", str(file))
    assert (done.returncode, done.stdout) == (0, f"{file}\n"), done.stderr
    name = {"tex": "latex", "markdown": "md", "ndjson": "jsonl"}.get(ending, ending.lower())
    printed = looking("collect", "figure-13", "--export", name)
    assert printed.stdout == file.read_bytes().decode() and printed.stderr == done.stderr
    assert all(case in file.read_text().replace(r"\_", "_") for case in CASES)


def test_csv_and_json_have_every_column_and_the_claims_go_to_stderr(looking: Caller) -> None:
    rows = read_csv(looking("collect").stdout)
    done = looking("collect", "--export", "json")
    read = json.loads(done.stdout)
    assert list(rows[0]) == list(read["cases"][0]) == [one["name"] for one in read["columns"]] == NAMES
    assert [row["case"] for row in rows] == [row["case"] for row in read["cases"]] == CASES
    assert {(row["state"], row["verdict"], row["iterations_used"]) for row in rows} == {("COMPLETED", "verified", "6")}
    assert all(row["git_dirty"] in ("", "true", "false") and row["started_at"].endswith("Z") for row in rows)
    assert [claim["verdict"] for claim in read["claims"]] == VERDICTS
    assert done.stderr.count("holds") == 1


def test_cases_are_chosen_and_the_claims_stay_about_all(looking: Caller) -> None:
    read = json.loads(looking("collect", "--where", "gbs=4", "--export", "json").stdout)
    assert [row["case"] for row in read["cases"]] == CASES[::2]
    assert [claim["verdict"] for claim in read["claims"]] == VERDICTS


def test_parquet_goes_through_a_pipe_as_it_is(finished: Site) -> None:
    words = [REPRO, "collect", "--export", "parquet"]
    done = subprocess.run(words, cwd=finished.folder, env=finished.environment, capture_output=True, check=True)
    assert done.stdout[:4] == done.stdout[-4:] == b"PAR1"


def test_the_series_has_every_line_of_every_job(looking: Caller) -> None:
    rows = read_csv(looking("collect", "figure-13", "--iterations").stdout)
    assert list(rows[0]) == [column.name for column in ITERATION_COLUMNS]
    assert [(row["case"], row["iteration"]) for row in rows] == [(case, str(n)) for case in CASES for n in range(1, 9)]
    assert [row["used"] for row in rows[:3]] == ["false", "false", "true"] and rows[0]["loss"] == "6.939"
    done = looking("collect", "--iterations", "--where", "pp=1,gbs=4", "--export", "json")
    read = json.loads(done.stdout)
    assert set(read) == {"columns", "iterations"} and len(read["iterations"]) == 8


def test_the_series_of_a_running_job_is_read_at_once(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = SimulatedSlurm.install(repro.site.folder, monkeypatch)
    slurm.submit(CASES[0])
    slurm.start(f"{CASES[0]}-id", log_text(3))
    for last in (3, 5):
        rows = read_csv(repro("collect", "figure-13", "--iterations").stdout)
        assert [row["iteration"] for row in rows] == [str(n) for n in range(1, last + 1)]
        assert {(row["state"], row["verdict"]) for row in rows} == {("RUNNING", "")}
        slurm.write_log(f"{CASES[0]}-id", log_text(5).removeprefix(log_text(3)))
    (row, *_) = read_csv(repro("collect", "figure-13").stdout)
    assert (row["state"], row["verdict"], row["iteration_ms"], row["ended_at"]) == ("RUNNING", "", "", "")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            "--export json -o x.csv",
            "x.csv: the ending is of csv, but --export is json. Hint: leave --export out, or change the ending",
        ),
        (
            "-o numbers.txt",
            "numbers.txt: no export format has this ending. "
            "Hint: add --export with one of csv, json, jsonl, parquet, md, latex",
        ),
        ("-o numbers", "numbers: no export format has this ending. Hint: add --export with one of csv, json"),
        ("--export csv -o clusters", "clusters: a folder, not a file. Hint: name a file in it"),
        ("-o none/x.csv", "none/x.csv: there is no folder none. Hint: mkdir -p none"),
        ("-o there.csv", "there.csv: exists already. Hint: --force replaces it"),
        ("--iterations --export md", "--iterations: md is a table of cases. Hint: use csv, json, jsonl or parquet"),
        ("--iterations -o x.tex", "--iterations: latex is a table of cases. Hint: use csv, json"),
        ("--where nonsense=1", "nonsense"),
        ("--columns case,tflps", '--columns: unknown column "tflps". Did you mean "tflops_per_gpu"?'),
        ("--columns case --export md", "--columns: md is a table with its own columns. Hint: use csv, json, jsonl or"),
    ],
)
def test_a_refused_export_is_one_line_and_nothing_is_written(looking: Caller, words: str, complaint: str) -> None:
    there = looking.site.folder / "there.csv"
    there.write_text("mine")
    before = sorted(looking.site.folder.iterdir())
    done = looking("collect", *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.complaints[-1].startswith("repro: ") and complaint in done.complaints[-1]
    assert there.read_text() == "mine" and sorted(looking.site.folder.iterdir()) == before


@pytest.mark.parametrize("command", ["collect -o x.csv", "plot -o x.svg", "bundle figure-13 -o x.tar.zst"])
def test_a_file_is_replaced_only_after_force_or_yes(
    looking: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    words = command.split()
    file = tmp_path / words[-1]
    file.write_bytes(b"mine")
    refused = looking(*words, folder=tmp_path)
    assert refused.returncode == 2 and f"{file.name}: exists already. Hint: --force replaces it" in refused.stderr
    for answer, code in (("n\n", 1), ("y\n", 0)):
        monkeypatch.setattr(sys, "stdin", Typed(answer))
        done = looking(*words, folder=tmp_path)
        assert done.returncode == code and f"Replace {file.name}?" in done.stderr
        assert (file.read_bytes() == b"mine") is (code == 1)
    file.write_bytes(b"mine")
    assert looking(*words, "--force", folder=tmp_path).returncode == 0
    assert file.read_bytes() != b"mine" and list(tmp_path.iterdir()) == [file]


def test_a_terminal_gets_the_main_columns_and_the_path_of_a_file_with_all(
    looking: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = looking("collect").stdout
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    done = looking("collect")
    lines = done.stdout.splitlines()
    assert lines[4].split() == ["CASE", "VERDICT", "ITERATION_MS", "ITERATION_MS_SPREAD", "TFLOPS_PER_GPU"]
    assert lines[-1] == f"figure-13-cpu-here.csv  (6 rows, {len(NAMES)} columns)"
    assert done.stdout.count("holds") == 2 and "holds" not in done.stderr, "the counts, and the claim"
    written = looking.site.folder / "figure-13-cpu-here.csv"
    assert written.read_bytes().decode() == piped
    assert looking("collect", "--export", "parquet").stdout.splitlines()[-1].startswith("figure-13-cpu-here.parquet  (")
    assert looking("collect", "--iterations").stdout == "figure-13-cpu-here-iterations.csv\n"
    assert looking("collect", "--export", "md").stdout.startswith("Figure 13 ")


def test_chosen_columns_are_those_of_the_table_and_of_the_file(
    looking: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("collect", "--columns", "tflops_per_gpu, case")
    rows = read_csv(looking(*words).stdout)
    assert list(rows[0]) == ["tflops_per_gpu", "case"] and [row["case"] for row in rows] == CASES
    read = json.loads(looking(*words, "--export", "json").stdout)
    assert [one["name"] for one in read["columns"]] == list(read["cases"][0]) == ["tflops_per_gpu", "case"]
    assert set(read_csv(looking("collect", "--columns", "main").stdout)[0]) < set(NAMES)
    lines = read_csv(looking("collect", "--iterations", "--columns", "iteration,loss").stdout)
    assert list(lines[0]) == ["iteration", "loss"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    shown = looking(*words).stdout.splitlines()
    assert shown[4].split() == ["TFLOPS_PER_GPU", "CASE"]
    assert shown[-1] == "figure-13-cpu-here.csv  (6 rows, 2 columns)"


def test_missing_pyarrow_is_one_line_with_the_install_command(looking: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: Any) -> None:
        pytest.fail("the ledger was opened")

    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr("orchestrator.api.figures.updated_ledger", nobody)
    done = looking("collect", "-o", "x.parquet")
    assert done.complaints == ["repro: parquet needs pyarrow. Hint: pip install '.[parquet]'"] and done.returncode == 2
