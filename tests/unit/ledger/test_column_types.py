"""Tests of the types of columns: a wrong value cannot be written, and one in a damaged file is an error line."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.errors import ReproError
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.tables import (
    Attempt,
    Event,
    FiniteNumber,
    JsonObject,
    JsonTexts,
    Masked,
    Metric,
    Table,
    Time,
    Word,
)
from tests.recorded_jobs import new_ledger, record_jobs

COLUMNS = [column for table in Table.metadata.sorted_tables for column in table.columns]


def stored_type(column: sa.Column[object]) -> object:
    """Return the type of the stored value, also of a column that is stored without secrets."""
    return column.type.impl_instance if isinstance(column.type, Masked) else column.type


def right_value(column: sa.Column[object]) -> object:
    """Return a value that a column can have."""
    kind = stored_type(column)
    if isinstance(kind, sa.JSON):
        return "[]" if isinstance(kind, JsonTexts) else "{}"
    if isinstance(kind, Time):
        return "2026-01-02 03:04:05.000006"
    return kind.words[0] if isinstance(kind, Word) else 1


def wrong_values(column: sa.Column[object]) -> list[object]:
    """Return values that a column cannot have."""
    kind = stored_type(column)
    if isinstance(kind, JsonTexts):
        return ["{broken", "{}", b"\xff", 3]
    if isinstance(kind, JsonObject):
        return ["{broken", "[]", b"\xff", 3]
    if isinstance(kind, (sa.String, Word)):
        return [b"\xff", *(["paused"] if isinstance(kind, Word) else [])]
    return ["abc", b"\xff", *([] if isinstance(kind, FiniteNumber) else [0.5])]


@pytest.mark.fault(
    section="Ledger",
    fault="A program writes a text for a number, an unknown phase or invalid JSON into a SQLite ledger",
    promise="SQLite refuses it.",
)
def test_a_wrong_value_is_refused_by_the_database(tmp_path: Path) -> None:
    new_ledger(tmp_path)
    with closing(sqlite3.connect(tmp_path / "results.db")) as connection:
        for column in COLUMNS:
            columns = list(column.table.columns)
            names = ", ".join(f'"{other.name}"' for other in columns)
            insert = f"INSERT INTO {column.table.name} ({names}) VALUES ({', '.join('?' * len(columns))})"
            row = [right_value(other) for other in columns]
            connection.execute(insert, row)
            connection.rollback()
            for value in wrong_values(column):
                wrong = [value if other is column else right for other, right in zip(columns, row, strict=True)]
                with pytest.raises(sqlite3.IntegrityError, match="CHECK|datatype mismatch"):
                    connection.execute(insert, wrong)


def test_a_number_that_is_not_finite_is_refused_by_the_database(tmp_path: Path) -> None:
    new_ledger(tmp_path)
    with closing(sqlite3.connect(tmp_path / "results.db")) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT INTO iterations (loss) VALUES (9e999)")


def test_a_time_with_a_zone_and_a_metric_that_is_not_finite_are_not_stored(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    for row in (
        Event(at=datetime.now(timezone.utc), kind="x"),
        Metric(attempt_id=1, name="x", value=math.inf, unit="ms"),
    ):
        with pytest.raises(ReproError), ledger.writing() as session:
            session.add(row)
            session.flush()


@pytest.mark.fault(
    section="Ledger",
    fault="A wrong value in a damaged SQLite ledger: a time or JSON that cannot be read",
    promise="One line, no traceback.",
)
@pytest.mark.parametrize(("table", "column"), [("attempts", "created_at"), ("jobs", "configuration")])
def test_a_wrong_value_in_a_damaged_file_is_an_error_line(tmp_path: Path, table: str, column: str) -> None:
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a")
    with closing(sqlite3.connect(tmp_path / "results.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        connection.execute(f"UPDATE {table} SET {column} = 'abc'")
    with pytest.raises(ReproError, match=rf"results\.db: not a readable SQLite database \(.*{table}"):
        job_rows(ledger)


def test_an_error_of_the_program_is_not_reported_as_damage(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="a defect"), ledger.writing() as session:
        assert session.get(Attempt, 1) is None and now()
        raise ValueError("a defect")
