"""Older ledgers: brought to today's schema with every row, copied first, and unharmed by whatever interrupts it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from orchestrator.errors import ReproError
from orchestrator.job_spec import JobSpec
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger, ledger_url, open_ledger
from orchestrator.ledger.measurements import iterations_of, losses_of, metrics_of
from orchestrator.ledger.readonly_file import SCHEMA
from orchestrator.ledger.reports import job_history
from orchestrator.ledger.runs import run_record
from orchestrator.ledger.submissions import queued_attempts
from orchestrator.ledger.tables import VERIFIED, Table
from tests.forked_repro import run_forked
from tests.recorded_jobs import ledger_at, record_jobs
from tests.unit.ledger.old_ledger import create_old_ledger

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[3]
OLDER = [f"{number:04d}" for number in range(1, int(SCHEMA)) if number not in (8, 13)]

MIGRATES = """
import os, signal, sys
import sqlalchemy as sa
from orchestrator.ledger.database import open_ledger
last, spilling = int(sys.argv[2]), sys.argv[3] == "spilling"
done = 0

@sa.event.listens_for(sa.Engine, "connect")
def no_room_in_memory(connection, _record):  # what is written goes to the file before the commit, behind a journal
    if spilling:
        connection.execute("pragma cache_size=1")

@sa.event.listens_for(sa.Engine, "after_cursor_execute")
def count(_connection, _cursor, statement, *_rest):
    global done
    if not statement.lstrip().upper().startswith(("SELECT", "PRAGMA", "BEGIN", "SET", "SHOW")):
        done += 1
        if done == last:
            os.kill(os.getpid(), signal.SIGKILL)

open_ledger(sa.make_url(sys.argv[1]))
print(done)
"""


KILLED_IN_A_WRITE = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("pragma cache_size=1")
connection.execute("begin immediate")
for number in range(400):
    connection.execute("insert into events (at, kind, detail) values (?, 'half', ?)", (number, "x" * 999))
os.kill(os.getpid(), signal.SIGKILL)
"""


def rows_of(url: sa.URL) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        names = sorted(sa.inspect(connection).get_table_names())
        rows = {name: [tuple(row) for row in connection.exec_driver_sql(f"select * from {name}")] for name in names}
    engine.dispose()
    return rows


def migrates(url: sa.URL, killed_after: int = 0, how: str = "in memory") -> subprocess.CompletedProcess[str]:
    """Open, and so migrate, in another process that is killed after so many of its changes."""
    words = [url.render_as_string(hide_password=False), str(killed_after), how]
    return run_forked(words, CHECKOUT, os.environ, MIGRATES)


def check_migrated(ledger: Ledger) -> None:
    """The old rows are there with today's columns, and today's commands work on them."""
    rows = {row.case_name: row for row in job_rows(ledger, experiment="sc21/figure-13")}
    verified, queued = rows["a"], rows["b"]
    assert (verified.job_id, verified.verdict, verified.scheduler_id) == ("a-id", VERIFIED, "17_0")
    assert (verified.iteration, verified.exit_code, verified.spec) == (20, 0, JobSpec(gpus_per_node=8))
    assert (queued.state, queued.phase, queued.repeat) == ("PENDING", "waiting", 1)
    assert losses_of(ledger, [verified.attempt_id]) == {verified.attempt_id: [(10, 10.25), (20, 9.875)]}
    assert metrics_of(ledger, [verified.attempt_id])[verified.attempt_id]["iteration_ms"].value == 800.1
    assert verified.execution is None, "no older repro read the execution mode"
    assert {line.host_wait_ms for line in iterations_of(ledger, verified.attempt_id)} == {None}
    again = record_jobs(ledger, "a", "b", "c")
    assert (again.done, again.under_way, again.to_submit) == (["a-id"], ["b-id"], {"c-id": 1})
    with ledger.engine.connect() as connection:
        if ledger.url.get_backend_name() == "sqlite":  # rows of nothing are refused, as ever
            assert connection.exec_driver_sql("pragma foreign_keys").scalar() == 1
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Table.metadata) == []
        keys = sa.inspect(connection).get_pk_constraint("run_jobs")["constrained_columns"]
    assert keys == ["run_id", "position"]


def test_a_queued_attempt_of_an_older_ledger_keeps_its_state_its_events_and_its_run_options(
    database_url: sa.URL,
) -> None:
    create_old_ledger(database_url, "0006")
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE attempts SET state = 'IN_TURN', token = '' WHERE job_id = 'b-id'")
        connection.exec_driver_sql("""UPDATE runs SET wishes = '{"max_parallel": 2}'""")
        event = (
            "INSERT INTO events (at, run_id, attempt_id, kind, detail) VALUES ('2026-01-02 03:04:05.000006', 'old', 2,"
        )
        connection.exec_driver_sql(f"{event} 'in turn', 'the queue is full')")
        connection.exec_driver_sql(f"{event} 'state', 'PENDING -> IN_TURN')")
    engine.dispose()
    ledger = ledger_at(database_url)
    assert [attempt.job_id for attempt in queued_attempts(ledger)] == ["b-id"]
    assert run_record(ledger, "old").run_options == {"max_parallel": 2}
    (attempt,) = job_history(ledger, "b-id")
    assert ("queued", "the queue is full") in {(event.kind, event.detail) for event in attempt.events}
    assert ("state", "PENDING -> QUEUED") in {(event.kind, event.detail) for event in attempt.events}
    ledger.engine.dispose()


def test_an_attempt_of_an_older_ledger_that_ran_out_of_gpu_memory_gets_its_failure_class(database_url: sa.URL) -> None:
    create_old_ledger(database_url, "0002")
    engine = sa.create_engine(database_url)
    failed = "UPDATE attempts SET phase = 'ended', verdict = 'failed', verdict_reason = :reason WHERE job_id = :job"
    reasons = {"a-id": "out of GPU memory: torch.OutOfMemoryError: CUDA out of memory.", "b-id": "exit code 1"}
    with engine.begin() as connection:
        for job, reason in reasons.items():
            connection.execute(sa.text(failed), {"reason": reason, "job": job})
    engine.dispose()
    ledger = ledger_at(database_url)
    assert {row.job_id: row.failure for row in job_rows(ledger)} == {"a-id": "gpu-oom", "b-id": None}
    ledger.engine.dispose()


@pytest.mark.parametrize("schema", OLDER)
def test_a_ledger_of_an_older_repro_is_migrated_with_its_rows(database_url: sa.URL, schema: str) -> None:
    create_old_ledger(database_url, schema)
    ledger = ledger_at(database_url)
    check_migrated(ledger)
    ledger.engine.dispose()


@pytest.mark.parametrize("schema", OLDER)
def test_a_copy_of_the_older_file_is_kept_and_is_what_it_was(tmp_path: Path, schema: str) -> None:
    url = ledger_url(None, tmp_path)
    create_old_ledger(url, schema)
    (tmp_path / "results.db").chmod(0o640)
    before = rows_of(url)
    ledger_at(url).engine.dispose()
    copy = tmp_path / f"results.db.before-{SCHEMA}"
    assert rows_of(sa.make_url(f"sqlite:///{copy}")) == before != rows_of(url)
    assert copy.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.db", copy.name]


@pytest.mark.fault(
    section="Ledger",
    fault="A killed writer left a journal beside an older ledger",
    promise="The journal is rolled back before the copy is made.",
)
def test_the_copy_has_what_a_killed_writer_left_in_its_journal_taken_back(tmp_path: Path) -> None:
    """The file alone is then half of a transaction: to copy it without its journal would keep the damage."""
    url = ledger_url(None, tmp_path)
    create_old_ledger(url, "0001")
    before = rows_of(url)
    subprocess.run([sys.executable, "-c", KILLED_IN_A_WRITE, str(tmp_path / "results.db")], check=False)
    assert (tmp_path / "results.db-journal").stat().st_size > 0
    assert (tmp_path / "results.db").read_bytes().count(b"x" * 999) > 0, "nothing was half written"
    ledger_at(url).engine.dispose()
    assert rows_of(sa.make_url(f"sqlite:///{tmp_path}/results.db.before-{SCHEMA}")) == before


@pytest.mark.fault(
    section="Ledger",
    fault="SIGKILL during a migration",
    promise="The old ledger remains. The migration can be repeated.",
)
@pytest.mark.parametrize(
    ("database_url", "how"),
    [("sqlite", "in memory"), ("sqlite", "spilling"), ("postgresql", "in memory")],
    indirect=["database_url"],
)
def test_a_migration_killed_anywhere_leaves_the_old_ledger_and_can_be_repeated(
    database_url: sa.URL, tmp_path: Path, how: str
) -> None:
    create_old_ledger(database_url, "0001")
    old = rows_of(database_url)
    file = tmp_path / "results.db"
    is_file = database_url.get_backend_name() == "sqlite"
    for killed_after in (1, 4, 9, 14):
        assert migrates(database_url, killed_after, how).returncode == -signal.SIGKILL
        if is_file and how == "spilling" and killed_after == 14:
            assert file.with_name("results.db-journal").exists(), "nothing had reached the file"
        assert rows_of(database_url) == old
    done = migrates(database_url)
    assert done.returncode == 0 and int(done.stdout) > 14, done.stderr
    ledger = ledger_at(database_url)
    check_migrated(ledger)
    ledger.engine.dispose()
    if is_file:
        assert rows_of(sa.make_url(f"sqlite:///{tmp_path}/results.db.before-{SCHEMA}")) == old


@pytest.mark.fault(
    section="Ledger",
    fault="A migration fails",
    promise="The old ledger remains. The migration can be repeated.",
)
def test_a_migration_that_fails_leaves_the_old_ledger_and_can_be_repeated(database_url: sa.URL) -> None:
    create_old_ledger(database_url, "0001")
    old = rows_of(database_url)

    def fails(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if "CREATE TABLE looks" in statement:
            raise RuntimeError("stopped")

    sa.event.listen(sa.Engine, "after_cursor_execute", fails)
    try:
        with pytest.raises(RuntimeError, match="stopped"):
            open_ledger(database_url)
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", fails)
    assert rows_of(database_url) == old
    ledger = ledger_at(database_url)
    check_migrated(ledger)
    ledger.engine.dispose()


@pytest.mark.fault(
    section="Ledger",
    fault="An older ledger is damaged",
    promise="The damage is reported, and the ledger is not migrated.",
)
def test_an_older_ledger_that_is_damaged_is_named_and_not_migrated(tmp_path: Path) -> None:
    url = ledger_url(None, tmp_path)
    file = tmp_path / "results.db"
    create_old_ledger(url, "0002")
    with sqlite3.connect(file) as raw:  # a root page that no check of the schema reads
        (page,) = raw.execute("select rootpage from sqlite_master where name = 'metrics'").fetchone()
    raw.close()
    content = bytearray(file.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = os.urandom(4096)
    file.write_bytes(content)
    with pytest.raises(ReproError, match="results.db: not a readable SQLite database .* Hint: it was left as it is"):
        open_ledger(url)
    assert file.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["results.db"]
