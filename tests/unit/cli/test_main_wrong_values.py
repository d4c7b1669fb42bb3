"""Tests of a ledger that a user has edited: a wrong value is one line with table, row and column."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.column_types import CheckedText, JsonObject, JsonTexts
from orchestrator.ledger.database import ledger_url, open_ledger
from orchestrator.ledger.tables import Attempt, Table
from tests.unit.cli.calling import Caller, Done

pytestmark = pytest.mark.slow

COLUMNS = [column for table in Table.metadata.sorted_tables for column in table.columns]
# A row whose key leads nowhere belongs to no job, and is not read.
KEYS = {str(column) for column in COLUMNS if column.primary_key or column.foreign_keys}
NUMBERED = ("attempts.id", "events.id")  # SQLite itself refuses a text there

VALUES: dict[type, list[object]] = {
    CheckedText: [b"\xff\xfe"],
    JsonObject: ["{broken", "[]", "3"],
    JsonTexts: ["{broken", "{}", "[1]"],
}
OTHERS: list[object] = ["abc", b"\xff", 2**62 + 0.5]


@contextmanager
def edited(file: Path, column: str, values: Sequence[object], row: int = 0) -> Iterator[None]:
    """The ledger with other values in a column, one in each row from this one on; put back afterwards."""
    table, _, name = column.partition(".")
    good = file.read_bytes()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for number, value in enumerate(values, row):
            rowid = f"(SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET {number})"
            connection.execute(f'UPDATE {table} SET "{name}" = ? WHERE rowid = {rowid}', (value,))
    try:
        yield
    finally:
        file.write_bytes(good)


def wrong_values(file: Path, column: str) -> list[Sequence[object]]:
    """The wrong values of a column, by edited ledger: all in one, in different rows, if the table has so many rows."""
    kind = next(one.type for one in COLUMNS if str(one) == column)
    values = VALUES.get(type(kind), OTHERS)
    with closing(sqlite3.connect(file)) as connection:
        (rows,) = connection.execute(f"SELECT count(*) FROM {column.partition('.')[0]}").fetchone()
    return [values] if rows >= len(values) else [[value] for value in values]


def require_cells_or_success(done: Done, column: str) -> None:
    """A command that reads wrong cells names each. It fails only if it finds no other row."""
    table, _, name = column.partition(".")
    named = [line for line in done.stderr.splitlines() if f"results.db: table {table}, row " in line]
    errors = [line for line in done.complaints if line.startswith("repro: ") and line not in named]
    assert done.returncode == (2 if errors else 0), done.stderr
    assert named or not errors, done.stderr
    assert all(f", column {name}: " in line and line.startswith("repro: ") for line in named)
    assert len(named) == len(set(named))


@pytest.mark.fault(
    section="Ledger",
    fault="A wrong value in any column of an edited ledger: a text for a number, a date or a state, invalid JSON",
    promise="One line with table, row and column. No traceback. The command fails only if it asks for no other row.",
)
@pytest.mark.parametrize("column", [str(column) for column in COLUMNS if str(column) not in NUMBERED])
def test_a_wrong_value_in_any_column_is_one_line_that_names_its_cell(looking: Caller, column: str) -> None:
    file = looking.site.folder / "results.db"
    with closing(sqlite3.connect(file)) as connection:
        (job,) = connection.execute("SELECT job_id FROM attempts ORDER BY id LIMIT 1 OFFSET 1").fetchone()
    for values in wrong_values(file, column):
        with edited(file, column, values):
            for words in (["status"], ["history", job], ["collect"]):
                done = looking(*words)
                assert "defect" not in done.stderr and "Traceback" not in done.stderr, done.stderr
                if column not in KEYS:
                    require_cells_or_success(done, column)


@pytest.mark.fault(
    section="Ledger",
    fault="A wrong value in one row, and other jobs are listed",
    promise="The other jobs are shown, exit code 0.",
)
@pytest.mark.parametrize("column", ["attempts.number", "attempts.phase", "attempts.created_at", "jobs.gpus"])
def test_the_other_jobs_are_still_shown(looking: Caller, column: str) -> None:
    with edited(looking.site.folder / "results.db", column, ["abc"]):
        done = looking("status", "--json")
        assert (done.returncode, len(done.complaints)) == (0, 2)  # the cell, and the bar of all jobs
        assert re.fullmatch(
            rf"repro: \S.*/results\.db: table {column.replace('.', ', row id=[^,]+, column ')}: 'abc' is not .*\. "
            "Hint: correct it with sqlite3, or restore a copy of the ledger",
            done.complaints[0],
        )
        assert len(json.loads(done.stdout)["jobs"]) == 5


@pytest.mark.parametrize(
    "command", ["list", "report --force -o", "plot --force -o", "claims", "compare --json", "logs"]
)
@pytest.mark.parametrize("column", ["attempts.ended_at", "jobs.configuration", "runs.created_at", "metrics.value"])
def test_other_commands_name_the_cell_as_well(looking: Caller, tmp_path: Path, command: str, column: str) -> None:
    words = [*command.split(), *([str(tmp_path / "page.png")] if command.endswith("-o") else [])]
    with edited(looking.site.folder / "results.db", column, ["abc"]):
        done = looking(*words)
    assert "defect" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.fault(
    section="Ledger",
    fault="A metric that is not a finite number, as an older repro recorded it from a log",
    promise="`status`, `collect`, `claims` and `report` name the row and continue without it, exit code 0.",
)
@pytest.mark.parametrize("command", ["status", "status --json", "collect", "claims", "report --force -o"])
def test_a_metric_that_is_not_finite_disables_only_itself(looking: Caller, tmp_path: Path, command: str) -> None:
    words = [*command.split(), *([str(tmp_path / "page.html")] if command.endswith("-o") else [])]
    with edited(looking.site.folder / "results.db", "metrics.value", [float("inf")], row=3):
        done = looking(*words)
    cells = [line for line in done.complaints if "results.db: table metrics, row attempt_id=1, name=" in line]
    assert done.returncode == 0 and len(cells) <= 1, done.stderr
    assert cells or command == "collect"
    if command == "status --json":
        assert len(json.loads(done.stdout)["jobs"]) == 6


def test_a_claim_about_losses_with_a_damaged_row_is_not_judged(looking: Caller) -> None:
    with edited(looking.site.folder / "results.db", "iterations.loss", ["abc"]):
        done = looking("claims", "figure-13")
    assert done.returncode == 0 and "losses were not read" in done.stdout + done.stderr, done.stderr


def test_a_damaged_row_that_is_the_only_one_asked_for_is_a_user_error(looking: Caller) -> None:
    file = looking.site.folder / "results.db"
    with closing(sqlite3.connect(file)) as connection:
        (job,) = connection.execute("SELECT job_id FROM attempts ORDER BY id LIMIT 1").fetchone()
    with edited(file, "attempts.created_at", ["abc"]):
        done = looking("history", job)
    assert done.returncode == 2 and "table attempts, row id=1, column created_at" in done.stderr


def test_a_ledger_without_a_listener_refuses_to_read_a_wrong_row(looking: Caller) -> None:
    file = looking.site.folder / "results.db"
    with edited(file, "attempts.phase", ["paused"], row=2):
        strict = open_ledger(ledger_url(str(file), file.parent), create=False)
        assert strict is not None
        with pytest.raises(Exception, match=r"row id=3, column phase: 'paused' is not one of submitting, waiting, "):
            job_rows(strict)
        strict.engine.dispose()


@pytest.mark.fault(
    section="Ledger",
    fault="A wrong value in one row, and a command writes to that row",
    promise="The command stops. Nothing is written.",
)
def test_nothing_is_written_to_a_wrong_row(looking: Caller) -> None:
    file = looking.site.folder / "results.db"
    with edited(file, "attempts.options", ["{broken"]):
        found: list[str] = []
        ledger = open_ledger(
            ledger_url(str(file), file.parent), create=False, listener=lambda one: found.append(str(one))
        )
        assert ledger is not None
        with pytest.raises(Exception, match="row id=1, column options"), ledger.writing() as session:
            session.get_one(Attempt, 1)
        ledger.engine.dispose()
