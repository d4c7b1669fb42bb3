"""Opening the ledger: made on first use, and every fault one line that leaves the file as it was."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import orchestrator.ledger.database as database
from orchestrator.errors import ReproError, Unreachable
from orchestrator.ledger.database import SCHEMA, Ledger, ledger_url, open_ledger
from orchestrator.ledger.jobs import job_rows
from orchestrator.ledger.tables import Table
from tests.unit.ledger.making import new_ledger, record


def test_the_ledger_is_made_on_first_use_with_its_schema_noted(tmp_path: Path) -> None:
    new_ledger(tmp_path)
    with sqlite3.connect(tmp_path / "results.db") as raw:
        assert raw.execute("select version_num from alembic_version").fetchall() == [(SCHEMA,)]


def test_looking_for_a_ledger_does_not_make_one(tmp_path: Path) -> None:
    assert open_ledger(ledger_url(None, tmp_path), create=False) is None
    assert (
        open_ledger(ledger_url(f"sqlite+pysqlite:///{tmp_path}/results.db?timeout=1", tmp_path), create=False) is None
    )
    assert list(tmp_path.iterdir()) == []


def test_the_migrations_make_exactly_the_tables_of_the_models(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    with ledger.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Table.metadata) == []


def test_the_schema_the_code_names_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA]


def test_a_ledger_of_an_older_repro_is_migrated_with_its_jobs_and_a_copy_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    ledger = new_ledger(tmp_path)
    record(ledger, "a", "b")
    ledger.engine.dispose()
    with sqlite3.connect(file) as raw:  # as the first version made the table
        raw.executescript(
            "create table old (run_id varchar not null, job_id varchar not null, position integer not null, "
            "case_name varchar not null, constraint pk_run_jobs primary key (run_id, job_id), "
            "constraint fk_run_jobs_job_id_jobs foreign key(job_id) references jobs (id), "
            "constraint fk_run_jobs_run_id_runs foreign key(run_id) references runs (id));"
            "insert into old select run_id, job_id, position, case_name from run_jobs;"
            "drop table run_jobs; alter table old rename to run_jobs;"
            "create index ix_run_jobs_job_id on run_jobs (job_id);"
            "update alembic_version set version_num = '0001';"
        )
    migrated = open_ledger(ledger_url(None, tmp_path))
    assert migrated is not None
    assert [row.case_name for row in job_rows(migrated)] == ["a", "b"]
    with sqlite3.connect(file.with_name(f"results.db.before-{SCHEMA}")) as kept:
        assert kept.execute("select version_num from alembic_version").fetchall() == [("0001",)]
    with migrated.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Table.metadata) == []
        keys = sa.inspect(connection).get_pk_constraint("run_jobs")["constrained_columns"]
    assert keys == ["run_id", "position"]


def test_a_ledger_of_a_newer_repro_is_refused_and_kept(tmp_path: Path) -> None:
    new_ledger(tmp_path)
    with sqlite3.connect(tmp_path / "results.db") as raw:
        raw.execute("update alembic_version set version_num = '9999'")
    before = (tmp_path / "results.db").read_bytes()
    with pytest.raises(ReproError, match=r"results\.db: made by a newer repro \(schema 9999, this knows \d+\)"):
        open_ledger(ledger_url(None, tmp_path))
    assert (tmp_path / "results.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"these are notes, and no database at all\n" * 50, None])
def test_a_corrupt_file_is_named_and_left_as_it_was(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "results.db"
    if content is None:  # a real one, its first page of tables overwritten
        new_ledger(tmp_path)
        content = file.read_bytes()[:100] + b"\xff" * 4000 + file.read_bytes()[4100:]
    file.write_bytes(content)
    with pytest.raises(ReproError, match="results.db: not a readable SQLite database") as caught:
        ledger = open_ledger(ledger_url(None, tmp_path))
        assert ledger is not None
        job_rows(ledger)
    assert "it was left as it is" in str(caught.value) and "\n" not in str(caught.value)
    assert file.read_bytes() == content


@contextlib.contextmanager
def locked_by_another_process(file: Path) -> Iterator[None]:
    script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
    script += "c.execute('begin immediate'); print('locked', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        try:
            yield
        finally:
            holder.communicate("")


def test_a_locked_ledger_is_out_of_reach_and_still_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_ledger(tmp_path)
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.2)
    ledger = new_ledger(tmp_path)
    with locked_by_another_process(tmp_path / "results.db"):
        with pytest.raises(Unreachable, match="results.db: locked for more than .*; another repro is writing"):
            record(ledger, "a")
        assert job_rows(ledger) == []
    record(ledger, "a")
    assert [row.case_name for row in job_rows(ledger)] == ["a"]


def test_a_read_only_ledger_can_be_read_and_says_why_it_is_not_written(tmp_path: Path) -> None:
    record(new_ledger(tmp_path), "a")
    read_only = ledger_url(f"sqlite:///file:{tmp_path}/results.db?mode=ro&uri=true", tmp_path)
    ledger = open_ledger(read_only, create=False)
    assert ledger is not None and len(job_rows(ledger)) == 1
    with pytest.raises(ReproError, match=r"cannot be written \(.*readonly.*\); check its owner and permissions"):
        record(ledger, "b")


def test_a_full_disk_is_said_and_what_was_there_stays(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    record(ledger, "a")

    def fill_up(connection: sqlite3.Connection, _record: object) -> None:
        pages = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count = {pages}")

    ledger.engine.dispose()
    sa.event.listen(ledger.engine, "connect", fill_up)
    with pytest.raises(ReproError, match=r"results\.db: the disk is full; make room and repeat the command"):
        record(ledger, *(f"job {number}" for number in range(200)))
    assert [row.case_name for row in job_rows(ledger)] == ["a"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match="missing: no such folder for the ledger; make it first"):
        open_ledger(ledger_url(str(tmp_path / "missing" / "results.db"), tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_given_for_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match="cannot be opened; check the path"):
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
    with pytest.raises(ReproError, match=r"^--database.*; for example sqlite:////path/results\.db$") as caught:
        open_ledger(ledger_url(url, tmp_path))
    assert caught.value.exit_code == 2 and "secret" not in str(caught.value)


def test_a_database_program_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"u:\*\*\*@host/db: needs .*; pip install "):
        open_ledger(ledger_url("oracle+oracledb://u:secret@host/db", tmp_path))


def test_an_empty_file_becomes_a_ledger(tmp_path: Path) -> None:
    """A first use that was killed between making the file and its tables."""
    (tmp_path / "results.db").touch()
    ledger = open_ledger(ledger_url(None, tmp_path), create=False)
    assert isinstance(ledger, Ledger) and job_rows(ledger) == []


def test_another_programs_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    with sqlite3.connect(file) as other:
        other.execute("create table invoices (id integer)")
    other.close()
    before = file.read_bytes()
    with pytest.raises(ReproError, match="holds something else .invoices.; give --database a file of its own"):
        open_ledger(ledger_url(None, tmp_path))
    assert file.read_bytes() == before
