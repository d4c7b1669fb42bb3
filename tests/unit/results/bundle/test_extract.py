"""The ledger's rows for others: this figure's and no others, without whose they are, and read back as they were."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ReproError
from orchestrator.ledger.attempts import job_rows, rows_of_attempts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import Measurement, losses_of, record_measurements
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import Attempt, IterationLine, Run
from orchestrator.results.bundle.extract import (
    TABLES,
    Extract,
    attempt_folders,
    columns_of,
    extract_of,
    iterations_of,
    line_of,
    memory_ledger,
    read_extract,
    read_rows,
)
from tests.examples import examples
from tests.recorded_jobs import new_ledger, new_run, record_jobs

pytestmark = pytest.mark.slow

FIGURE_13 = ("sc21/figure-13", "cpu", "local", {"pretrain"})


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Figure 13 asked for `a` and `b`; figure 14 had asked for `b` before, and for `c`."""
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "b", "c", run=new_run("sc21/figure-14"), token="1")
    record_jobs(ledger, "a", "b", run=new_run(), token="2")
    record_jobs(ledger, "a", run=new_run(scale="quad"), token="3")
    return ledger


def written(ledger: Ledger, extract: Extract, folder: Path) -> Path:
    """The rows as a bundle has them."""
    (folder / "ledger").mkdir(parents=True)
    folders = attempt_folders(extract)
    for table in TABLES:
        rows = iterations_of(ledger, extract.attempts) if table == "iterations" else extract.of(table)
        with (folder / "ledger" / f"{table}.jsonl").open("wb") as file:
            for row in rows:
                paths: dict[str, Any] = {"profile": f"runs/{row['id']}/profile.json"} if table == "runs" else {}
                if table == "attempts":
                    paths = {"folder": folders[row["id"]], "script": None, "file": None}
                file.write(line_of(table, row, paths, extract.users))
    return folder


def test_it_has_this_figures_jobs_and_the_runs_that_made_their_attempts_and_no_others(ledger: Ledger) -> None:
    found = extract_of(ledger, *FIGURE_13)
    assert [row["id"] for row in found.jobs] == ["a-id", "b-id"]
    assert [(row["job_id"], row["case_name"]) for row in found.run_jobs] == [("a-id", "a"), ("b-id", "b")]
    made_in = {row["job_id"]: row["run_id"] for row in found.attempts}
    experiments = {row["id"]: (row["experiment"], row["scale"]) for row in found.runs}
    assert {job: experiments[run] for job, run in made_in.items()} == {
        "a-id": ("sc21/figure-13", "cpu"),
        "b-id": ("sc21/figure-14", "cpu"),
    }
    assert found.last_run["experiment"] == "sc21/figure-13" and found.last_run["scale"] == "cpu"
    attempts = {row["id"] for row in found.attempts}
    assert {row["attempt_id"] for row in found.events} <= attempts | {None}
    own = [row for row in found.events if row["attempt_id"] is None]
    assert {experiments[row["run_id"]] for row in own} == {("sc21/figure-13", "cpu")}
    assert extract_of(ledger, "sc21/figure-13", "cpu", "local", {"megatron-2021"}).jobs == []


def test_nobody_is_in_it(ledger: Ledger, tmp_path: Path) -> None:
    with ledger.writing() as session:
        session.execute(sa.update(Run).values(user="mia", host="login-7", command=["repro", "/home/mia/x"]))
        session.execute(sa.update(Run).values(profile_file="/home/mia/clusters/here.yaml"))
        session.execute(sa.update(Attempt).values(user="mia", host="login-7", reason="see /scratch/mia/y"))
    folder = written(ledger, extract_of(ledger, *FIGURE_13), tmp_path / "bundle")
    text = "".join(path.read_text() for path in sorted(folder.rglob("*.jsonl")))
    assert "mia" not in text and "login-7" not in text
    assert '"/home/user/x"' in text and "see /scratch/user/y" in text and '"profile_file": "here.yaml"' in text


def test_what_is_read_back_is_the_row_that_the_ledger_gives(ledger: Ledger, tmp_path: Path) -> None:
    lines = (
        IterationLine(1, 0.1 + 0.2, 1e-300, None, False, nan=0),
        IterationLine(2, math.nan, math.inf, 1.0, True),
    )
    row = next(row for row in job_rows(ledger, experiment="sc21/figure-13") if row.job_id == "b-id")
    record_measurements(ledger, [Measurement(row.attempt_id, 2, "failed", "a \u2028 b", lines, (), "nan")])
    folder = written(ledger, extract_of(ledger, *FIGURE_13), tmp_path / "bundle")
    copy = memory_ledger(read_extract(folder), read_rows(folder, "iterations"), Path("/there"))
    (recorded,), (found,) = (
        [row for row in job_rows(one, experiment="sc21/figure-13") if row.job_id == "b-id" and row.scale == "cpu"]
        for one in (ledger, copy)
    )
    left_out = {"host", "token", "user", "folder", "file", "pid", "pid_start_ticks", "machine"}
    names = [field.name for field in dataclasses.fields(JobRow) if field.name not in left_out]
    assert [getattr(found, name) for name in names] == [getattr(recorded, name) for name in names]
    assert found.folder == "/there/jobs/b-id-b-id/attempt-1" and found.user is None
    assert losses_of(copy, [found.attempt_id]) == losses_of(ledger, [found.attempt_id])
    every = [row["id"] for row in read_extract(folder).attempts]
    assert [row.attempt_id for row in rows_of_attempts(copy, every)] == every
    read = [(one["iteration"], one["elapsed_ms"], one["loss"], one["used"]) for one in read_rows(folder, "iterations")]
    assert read == [(1, 0.1 + 0.2, 1e-300, False), (2, None, None, True)]


def test_attempts_whose_folders_have_one_name_or_a_strange_one_have_their_own_in_the_bundle(ledger: Ledger) -> None:
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(folder="/runs/x/../../.. a\n'b"))
    folders = attempt_folders(extract_of(ledger, *FIGURE_13))
    assert sorted(folders.values()) == ["jobs/a-b-a-id/attempt-1", "jobs/a-b-b-id/attempt-1"]


def values(column: sa.ColumnClause[Any]) -> st.SearchStrategy[Any]:
    """What a column may hold; texts that nothing is masked in."""
    kinds: dict[type, st.SearchStrategy[Any]] = {
        dict: st.dictionaries(st.sampled_from("abc"), st.lists(st.integers() | st.booleans() | st.none())),
        list: st.lists(st.sampled_from("abc")),
        str: st.text(st.sampled_from("ab \n\u2028\x00\u00e9\U0001f600\"'\\{}")),
        int: st.integers(-(2**63), 2**63 - 1),
        bool: st.booleans(),
        datetime: st.datetimes(),
        float: st.floats(allow_nan=False, allow_infinity=False),
    }
    return kinds[column.type.python_type] | (st.none() if column.nullable else st.nothing())


@settings(max_examples=examples(30))
@given(data=st.data(), table=st.sampled_from(["runs", "attempts", "metrics", "events", "iterations"]))
def test_any_row_reads_back_as_it_was(data: st.DataObject, table: str) -> None:
    columns = columns_of(table)
    row = {column.name: data.draw(values(column)) for column in columns} | PATHS.get(table, {})
    row |= NAMES.get(table, {})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ledger").mkdir()
        (Path(folder) / "ledger" / f"{table}.jsonl").write_bytes(line_of(table, row, PATHS.get(table, {}), set()))
        assert [*read_rows(Path(folder), table)] == [row]


PATHS: dict[str, dict[str, Any]] = {"runs": {"profile": "p"}, "attempts": {"folder": "f", "script": None, "file": None}}
NAMES = {"runs": {"profile_file": "x.yaml"}}


BAD: dict[str, Callable[[dict[str, Any]], object]] = {
    "no JSON": lambda _: "{",
    "a list": lambda _: [1],
    "a number": lambda _: 7,
    "a column too many": lambda row: row | {"more": 1},
    "a column too few": lambda row: {name: row[name] for name in list(row)[1:]},
    "a text for a number": lambda row: row | {"number": "1"},
    "a switch for a number": lambda row: row | {"number": True},
    "a number for a text": lambda row: row | {"state": 1},
    "nothing where something is due": lambda row: row | {"state": None},
    "no time": lambda row: row | {"created_at": "yesterday"},
    "a number for a time": lambda row: row | {"created_at": 1},
    "NaN": lambda row: json.dumps(row).replace('"number": 1', '"number": NaN'),
    "very deep": lambda _: "[" * 100_000,
}


@pytest.mark.parametrize("how", BAD)
def test_a_line_that_is_no_row_is_named_with_its_place(ledger: Ledger, tmp_path: Path, how: str) -> None:
    folder = written(ledger, extract_of(ledger, *FIGURE_13), tmp_path / "bundle")
    file = folder / "ledger" / "attempts.jsonl"
    first, second = file.read_text().splitlines()
    made = BAD[how](json.loads(second))
    file.write_text(f"{first}\n{made if isinstance(made, str) else json.dumps(made)}\n")
    with pytest.raises(ReproError, match=r"^ledger/attempts\.jsonl:2: no row of that table \(.+\)$"):
        read_extract(folder)


def test_a_table_that_is_not_there_is_named(ledger: Ledger, tmp_path: Path) -> None:
    folder = written(ledger, extract_of(ledger, *FIGURE_13), tmp_path / "bundle")
    (folder / "ledger" / "jobs.jsonl").unlink()
    with pytest.raises(ReproError, match=r"^ledger/jobs\.jsonl: missing$"):
        read_extract(folder)
