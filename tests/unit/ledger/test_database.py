"""Opening the ledger: made on first use, what it keeps, and what is refused in one line."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

import orchestrator.ledger.database as database
from orchestrator.errors import ReproError, Unreachable
from orchestrator.ledger.attempts import job_rows, record_observations
from orchestrator.ledger.database import Ledger, ledger_url, now, open_ledger
from orchestrator.ledger.measurements import (
    MeasuredMetric,
    Measurement,
    losses_of,
    metrics_of,
    record_measurements,
)
from orchestrator.ledger.rows import Observation
from orchestrator.ledger.sqlite_file import SCHEMA
from orchestrator.ledger.tables import ENDED, VERIFIED, Attempt, Event, Iteration, IterationLine, Run, rows_of
from tests.forked_repro import ForkedProgram
from tests.recorded_jobs import job_spec, ledger_at, new_ledger, new_run, record_jobs

CHECKOUT = Path(__file__).resolve().parents[3]


def schema_of(ledger: Ledger) -> list[tuple[str, ...]]:
    with ledger.engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql("select version_num from alembic_version")]


def everything(ledger: Ledger) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table."""
    with ledger.engine.connect() as connection:
        tables = sorted(sa.inspect(connection).get_table_names())
        return {name: [tuple(row) for row in connection.exec_driver_sql(f"select * from {name}")] for name in tables}


def test_the_ledger_is_made_on_first_use_with_its_schema_noted(ledger: Ledger) -> None:
    assert schema_of(ledger) == [(SCHEMA,)]


def test_looking_for_a_ledger_does_not_make_one(tmp_path: Path) -> None:
    assert open_ledger(ledger_url(None, tmp_path), create=False) is None
    assert (
        open_ledger(ledger_url(f"sqlite+pysqlite:///{tmp_path}/results.db?timeout=1", tmp_path), create=False) is None
    )
    assert list(tmp_path.iterdir()) == []


def test_what_is_stored_comes_back_the_same_from_either_database(ledger: Ledger) -> None:
    """Text of any script, nested JSON, doubles to the last bit, times to the microsecond."""
    run = replace(new_run(), versions={"naïve": [1.5, None, True, {"Größe": "日本語 🚀"}]}, git_dirty=None, profile={})
    record_jobs(ledger, "π=3,'\"%_\\", run=run)
    (row,) = job_rows(ledger)
    metrics = [MeasuredMetric("third", 1 / 3, "ms", 1e-300, 3), MeasuredMetric("huge", 1.7976931348623157e308, "B")]
    lines = (IterationLine(2**31 - 1, 0.1, 1e-17, None, True),)
    record_measurements(ledger, [Measurement(row.attempt_id, 2, VERIFIED, None, lines, tuple(metrics))])
    seen = Observation("COMPLETED", ENDED, started_at=datetime(2026, 7, 26, 23, 59, 59, 999999), exit_code=-9)
    record_observations(ledger, {row.attempt_id: seen}, [])
    (row,) = job_rows(ledger)
    assert (row.case_name, row.spec.to_json()) == ("π=3,'\"%_\\", job_spec().to_json())
    assert (row.started_at, row.exit_code) == (seen.started_at, -9)
    assert metrics_of(ledger, [row.attempt_id])[row.attempt_id] == {metric.name: metric for metric in metrics}
    assert losses_of(ledger, [row.attempt_id]) == {row.attempt_id: [(2**31 - 1, 1e-17)]}
    with ledger.reading() as session:
        stored = session.get_one(Run, run.id)
        assert (stored.versions, stored.git_dirty, stored.profile) == (run.versions, None, {})
        assert stored.created_at.tzinfo is None and abs((now() - stored.created_at).total_seconds()) < 60


@pytest.mark.parametrize("none", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_none_in_either_database(ledger: Ledger, none: float) -> None:
    """SQLite makes NULL of NaN and keeps inf, PostgreSQL keeps both: who reads later must not have to know."""
    record_jobs(ledger, "a")
    (row,) = job_rows(ledger)
    lines = tuple(IterationLine(n, 800.0, none if n == 2 else 9.5, none, True) for n in (1, 2, 3))
    record_measurements(ledger, [Measurement(row.attempt_id, 3, VERIFIED, None, lines, ())])
    with ledger.reading() as session:
        table = rows_of(Iteration).c
        stored = sa.select(table.loss, table.grad_norm).order_by(table.iteration)
        assert session.execute(stored).all() == [(9.5, None), (None, None), (9.5, None)]
    assert losses_of(ledger, [row.attempt_id]) == {row.attempt_id: [(1, 9.5), (3, 9.5)]}


def test_a_transaction_that_fails_leaves_nothing_of_itself(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    before = everything(ledger)
    with pytest.raises(RuntimeError, match="half way"), ledger.writing() as session:
        session.execute(sa.update(Attempt).values(state="RUNNING"))
        session.execute(sa.insert(Event), [{"at": now(), "kind": "half"}])
        raise RuntimeError("half way")
    assert everything(ledger) == before


def test_a_ledger_of_a_newer_repro_is_refused_and_kept(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("update alembic_version set version_num = '9999'")
    before = everything(ledger)
    with pytest.raises(
        ReproError, match=r"made by a newer repro \(schema 9999, this knows \d+\). Hint: upgrade$"
    ) as caught:
        open_ledger(ledger.url)
    assert caught.value.exit_code == 2 and everything(ledger) == before


@pytest.mark.fault(
    section="Ledger",
    fault="A ledger of an older version",
    promise="Refused with the command that prints its results. Nothing changes.",
)
@pytest.mark.parametrize("schema", ["0001", "0015"])
def test_a_ledger_of_an_older_repro_is_refused_with_a_command_that_prints_its_results(
    ledger: Ledger, schema: str
) -> None:
    record_jobs(ledger, "the-case")
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(f"update alembic_version set version_num = '{schema}'")
    before = everything(ledger)
    found = rf"made by an older repro \(schema {schema}, this knows {SCHEMA}\). Hint: name a new ledger with"
    with pytest.raises(ReproError, match=found) as caught:
        open_ledger(ledger.url)
    assert caught.value.exit_code == 2 and everything(ledger) == before
    command = str(caught.value).partition("the results in this one: ")[2]
    assert "the-case" in subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout


NEW_VERSION = "drop table alembic_version; create table alembic_version (version_num {}); "


@pytest.mark.fault(
    section="Ledger",
    fault="The version of its schema is not one number, is damaged, or is missing; a table is missing",
    promise="Refused with its file, the reason and a hint. Nothing changes.",
)
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ("update alembic_version set version_num = 'abc'", "alembic_version contains 'abc', this knows"),
        ("delete from alembic_version", "alembic_version contains nothing"),
        ("insert into alembic_version values ('0001')", "alembic_version contains '0001', '00"),
        (NEW_VERSION.format("integer") + "insert into alembic_version values (18)", "contains '18', this knows"),
        (NEW_VERSION.format("text"), "contains nothing"),
        ("drop table alembic_version", "contains nothing"),
        ("drop view v_results; drop table metrics", "a ledger without its table metrics. Hint: restore it from a copy"),
    ],
    ids=["a word", "no row", "two rows", "another type", "another table", "no table", "no metrics"],
)
def test_a_ledger_whose_schema_is_not_known_is_refused_and_kept(tmp_path: Path, changes: str, what: str) -> None:
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "the-case")
    ledger.engine.dispose()
    file = tmp_path / "results.db"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(changes)
    before = file.read_bytes()
    with pytest.raises(ReproError) as caught:
        open_ledger(ledger.url)
    message = str(caught.value)
    assert message.startswith(f"{file}: a ledger ") and what in message and "Hint: " in message
    assert caught.value.exit_code == 2 and file.read_bytes() == before
    command = message.partition("the results in this one: ")[2]
    if command:
        assert "the-case" in subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("tables", [["invoices"], ["alembic_version", "experiments", "runs"]])
def test_another_programs_database_is_refused_and_left_as_it_was(database_url: sa.URL, tables: list[str]) -> None:
    """Also that of one which uses alembic, and has runs, as experiment trackers do."""
    theirs = Ledger(database_url, sa.create_engine(database_url))
    with theirs.engine.begin() as connection:
        for table in tables:
            connection.exec_driver_sql(f"create table {table} (version_num varchar(32))")
        connection.exec_driver_sql(f"insert into {tables[0]} values ('1975ea83b712')")
    before = everything(theirs)
    found = next(name for name in tables if name != "alembic_version")
    with pytest.raises(
        ReproError, match=f"is a database of another program .table {found}.. Hint: name another file with --database"
    ):
        open_ledger(database_url)
    assert everything(theirs) == before
    theirs.engine.dispose()


@contextlib.contextmanager
def locked_by_another_process(url: sa.URL) -> Iterator[None]:
    """The write lock is held by a process that does not give it up."""
    script = "import sys; import sqlalchemy as sa; from tests.recorded_jobs import ledger_at\n"
    script += "with ledger_at(sa.make_url(sys.argv[1])).writing(): print('locked', flush=True); sys.stdin.read()"
    holder = ForkedProgram(script, [url.render_as_string(hide_password=False)])
    assert holder.output.readline() == "locked\n", holder.end()
    try:
        yield
    finally:
        holder.end()


@pytest.mark.slow
@pytest.mark.fault(
    section="Ledger",
    fault="Another process holds the lock",
    promise="Exit code 3. The ledger can still be read.",
)
def test_a_locked_ledger_is_out_of_reach_and_still_readable(
    database_url: sa.URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.2)
    ledger = ledger_at(database_url)
    with locked_by_another_process(database_url):
        with pytest.raises(Unreachable, match="locked for more than .* Hint: another repro is writing") as caught:
            record_jobs(ledger, "a")
        assert caught.value.exit_code == 3
        assert job_rows(ledger) == []
    record_jobs(ledger, "a")
    assert [row.case_name for row in job_rows(ledger)] == ["a"]
    ledger.engine.dispose()


def test_a_read_only_ledger_can_be_read_and_says_why_it_is_not_written(tmp_path: Path) -> None:
    record_jobs(new_ledger(tmp_path), "a")
    read_only = ledger_url(f"sqlite:///file:{tmp_path}/results.db?mode=ro&uri=true", tmp_path)
    ledger = open_ledger(read_only, create=False)
    assert ledger is not None and len(job_rows(ledger)) == 1
    with pytest.raises(ReproError, match=r"cannot be written \(.*readonly.*\). Hint: check its owner and permissions"):
        record_jobs(ledger, "b")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match="missing: no such folder for the ledger. Hint: make it first"):
        open_ledger(ledger_url(str(tmp_path / "missing" / "results.db"), tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_given_for_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match="cannot be opened. Hint: check the path"):
        open_ledger(ledger_url(str(tmp_path), tmp_path))


@pytest.mark.parametrize("name", ["plain.db", "two words.db", "100%20sure.db", "what?mode=ro.db", "a#b;c.db"])
def test_a_path_is_taken_as_it_is_written(tmp_path: Path, name: str) -> None:
    ledger = open_ledger(ledger_url(str(tmp_path / name), tmp_path / "home"))
    assert ledger is not None
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_relative_path_is_of_the_working_folder_and_a_url_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ledger_url("mine.db", Path("/home")).database == str(tmp_path / "mine.db")
    assert ledger_url("~/mine.db", Path("/home")).database == os.path.expanduser("~/mine.db")  # noqa: PTH111
    assert ledger_url("sqlite:////tmp/x.db", Path("/home")).render_as_string() == "sqlite:////tmp/x.db"
    assert ledger_url(None, Path("/home")).database == "/home/results.db"


@pytest.mark.parametrize("url", ["postgresql://host:port/db", "nosuch://u:secret@host/db", "sqlite://host/x.db", "://"])
def test_a_url_that_is_none_is_one_line_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(
        ReproError, match=r"^--database.* Hint: for example sqlite:////path/results\.db or [^ ]+$"
    ) as caught:
        open_ledger(ledger_url(url, tmp_path))
    assert caught.value.exit_code == 2 and "secret" not in str(caught.value)


def test_a_url_as_libpq_writes_it_is_taken_for_the_driver_that_is_recommended() -> None:
    for given in ("postgresql://me@host/db", "postgres://me@host/db"):
        assert ledger_url(given, Path("/home")).drivername == "postgresql+psycopg"
    assert ledger_url("postgresql+psycopg2://me@host/db", Path("/home")).drivername == "postgresql+psycopg2"


def test_a_database_program_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"u:\*\*\*@host/db: needs .* Hint: pip install "):
        open_ledger(ledger_url("oracle+oracledb://u:secret@host/db", tmp_path))


def test_an_empty_file_becomes_a_ledger(tmp_path: Path) -> None:
    """A first use that was killed between making the file and its tables."""
    (tmp_path / "results.db").touch()
    ledger = open_ledger(ledger_url(None, tmp_path), create=False)
    assert isinstance(ledger, Ledger) and job_rows(ledger) == []


@pytest.mark.fault(
    section="Safety",
    fault="A password in the URL of a server that does not answer, or in its query",
    promise="No error message contains it.",
)
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2-Zq9x@127.0.0.1:1/runs",
        "postgresql://me@127.0.0.1:1/runs?password=hunter2-Zq9x",
        "postgresql://127.0.0.1:1/runs?user=me&password=hunter2-Zq9x&connect_timeout=2",
        "postgresql://me@127.0.0.1:1/runs?sslpassword=hunter2-Zq9x",
        "postgresql://me:hunter2-Zq9x@127.0.0.1:port/runs",
        "oracle://me@127.0.0.1/runs?password=hunter2-Zq9x",
    ],
)
def test_no_error_shows_the_password_of_a_url(url: str, tmp_path: Path) -> None:
    with pytest.raises(ReproError) as raised:
        open_ledger(ledger_url(url, tmp_path))
    assert "hunter2" not in str(raised.value) and "127.0.0.1" in str(raised.value) + url
