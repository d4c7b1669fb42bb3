"""A ledger on a PostgreSQL server: what becomes of it when the server is killed, away, stopped, or says no."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.errors import EXIT_UNREACHABLE, EXIT_USER_ERROR, ReproError, Unreachable
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger, ledger_url, open_ledger
from orchestrator.ledger.tables import Run
from tests.postgresql import PostgresqlServer
from tests.recorded_jobs import ledger_at, record_jobs
from tests.unavailable import give_up
from tests.unit.ledger.test_survival import begin, check_whole, count, mount, start_writer


@pytest.fixture
def on_server(postgresql: PostgresqlServer) -> Iterator[Ledger]:
    with postgresql.new_database() as url:
        ledger = ledger_at(url)
        yield ledger
        ledger.engine.dispose()


@pytest.mark.fault(
    section="Ledger",
    fault="The PostgreSQL server is killed (SIGKILL) during a write",
    promise="The ledger has whole transactions once the server is back.",
)
def test_a_server_killed_while_somebody_writes_has_whole_transactions_once_it_is_back(
    postgresql: PostgresqlServer, on_server: Ledger
) -> None:
    for number in range(3):
        writer = start_writer(on_server.url, f"w{number}", jobs=20)
        begin(writer)
        time.sleep(0.1 + 0.12 * number)
        postgresql.kill()
        code, output = writer.end()
        assert code != 0 and "Unreachable" in output.splitlines()[-1], output
        turns = sum(line.isdecimal() for line in output.splitlines())
        postgresql.start()
        # The connection that this process held is gone with the server: the next command makes another.
        check_whole(on_server, 20)
        assert count(on_server, Run.id.startswith(f"w{number}-"), table=Run) >= turns
    record_jobs(on_server, *(str(one) for one in range(20)), token="afterwards")


@pytest.mark.fault(
    section="Ledger",
    fault="The PostgreSQL server is stopped",
    promise="One line, exit code 3. The next command reconnects.",
)
def test_a_server_that_is_away_is_out_of_reach_in_one_line_and_found_again(
    postgresql: PostgresqlServer, on_server: Ledger
) -> None:
    record_jobs(on_server, "a")
    postgresql.stop()
    try:
        for attempt in (
            lambda: open_ledger(on_server.url),
            lambda: job_rows(on_server),
            lambda: record_jobs(on_server, "b"),
        ):
            with pytest.raises(Unreachable, match="does not answer .* Hint: repeat the command once it does") as caught:
                attempt()
            assert caught.value.exit_code == EXIT_UNREACHABLE and "\n" not in str(caught.value)
    finally:
        postgresql.start()
    assert [row.case_name for row in job_rows(on_server)] == ["a"]
    record_jobs(on_server, "b")


@pytest.mark.fault(
    section="Ledger",
    fault="The administrator ends our connection during a write",
    promise="No partial write.",
)
def test_a_connection_that_an_administrator_ends_in_a_write_is_out_of_reach_and_nothing_is_half_written(
    on_server: Ledger,
) -> None:
    with pytest.raises(Unreachable, match="does not answer"), on_server.writing() as session:
        record_nothing = sa.text("insert into events (at, kind) values (now(), 'half')")
        session.execute(record_nothing)
        engine = sa.create_engine(on_server.url)
        with engine.connect() as administrator:
            others = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
            administrator.execute(sa.text(f"{others} and pid <> pg_backend_pid()"))
        engine.dispose()
        session.execute(record_nothing)
    with on_server.reading() as session:
        assert session.scalar(sa.text("select count(*) from events")) == 0


@pytest.mark.fault(
    section="Ledger",
    fault="The PostgreSQL server does not exist",
    promise="One line, without the password.",
)
@pytest.mark.parametrize("url", ["postgresql://me@no-such-host.invalid/db", "postgresql://me:secret@127.0.0.1:1/db"])
def test_a_server_that_is_not_there_is_out_of_reach_in_one_line_without_its_password(url: str) -> None:
    with pytest.raises(Unreachable, match="does not answer") as caught:
        open_ledger(ledger_url(url, Path("/nowhere")))
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.fault(
    section="Ledger",
    fault="The database or user does not exist",
    promise="One line, exit code 2.",
)
def test_a_database_or_a_user_that_is_not_there_is_yours_to_mend(postgresql: PostgresqlServer) -> None:
    for url, reason in (
        (postgresql.url("nowhere"), 'database "nowhere" does not exist'),
        (postgresql.url("postgres", user="nobody"), 'role "nobody" does not exist'),
    ):
        with pytest.raises(ReproError, match=f"refused .{reason}.. Hint: check user, password and database") as caught:
            open_ledger(url)
        assert caught.value.exit_code == EXIT_USER_ERROR and "\n" not in str(caught.value)


def test_an_option_that_there_is_not_is_yours_to_mend(on_server: Ledger) -> None:
    with pytest.raises(ReproError, match="invalid connection option") as caught:
        open_ledger(on_server.url.update_query_dict({"no_such_option": "1"}))
    assert caught.value.exit_code == EXIT_USER_ERROR and "\n" not in str(caught.value)


def test_a_writer_sees_what_the_one_it_waited_for_wrote_whatever_the_servers_default_is(on_server: Ledger) -> None:
    with on_server.engine.begin() as connection:
        default = "set default_transaction_isolation = 'repeatable read'"
        connection.exec_driver_sql(f"alter database {on_server.url.database} {default}")
    second = ledger_at(on_server.url)
    seen: list[int] = []

    def write() -> None:
        with second.writing() as session:
            seen.append(session.scalar(sa.text("select count(*) from events")) or 0)

    with on_server.writing() as session:
        waiting = threading.Thread(target=write)
        waiting.start()
        time.sleep(0.3)
        session.execute(sa.text("insert into events (at, kind) values (now(), 'first')"))
    waiting.join()
    assert seen == [1]
    second.engine.dispose()


@pytest.mark.fault(
    section="Ledger",
    fault="The user may not write",
    promise="Reported. The ledger can be read.",
)
def test_a_user_who_may_not_write_is_told_so_and_can_read(postgresql: PostgresqlServer, on_server: Ledger) -> None:
    record_jobs(on_server, "a")
    with on_server.engine.begin() as connection:
        connection.exec_driver_sql("create role reader login")
        connection.exec_driver_sql("grant select on all tables in schema public to reader")
    assert on_server.url.database is not None
    ledger = ledger_at(postgresql.url(on_server.url.database, user="reader"))
    assert [row.case_name for row in job_rows(ledger)] == ["a"]
    with pytest.raises(ReproError, match=r"cannot be written \(permission denied for table \w+\). Hint: ask") as caught:
        record_jobs(ledger, "b")
    assert caught.value.exit_code == EXIT_USER_ERROR and "\n" not in str(caught.value)
    ledger.engine.dispose()


@pytest.mark.fault(
    section="Ledger",
    fault="The database is read-only",
    promise="Reported.",
)
def test_a_database_set_to_read_only_says_so(on_server: Ledger) -> None:
    name = on_server.url.database
    with on_server.engine.begin() as connection:
        connection.exec_driver_sql(f"alter database {name} set default_transaction_read_only = on")
    on_server.engine.dispose()
    assert job_rows(on_server) == []
    with pytest.raises(ReproError, match=r"cannot be written \(cannot execute INSERT in a read-only transaction\)"):
        record_jobs(on_server, "a")


@pytest.mark.fault(
    section="Ledger",
    fault="The server has no free connection",
    promise="Exit code 3.",
)
def test_a_server_without_a_free_connection_is_out_of_reach(postgresql: PostgresqlServer, on_server: Ledger) -> None:
    assert on_server.url.database is not None
    with on_server.engine.begin() as connection:
        connection.exec_driver_sql(f"alter database {on_server.url.database} connection limit 0")
        connection.exec_driver_sql("create role guest login")
    with pytest.raises(Unreachable, match="does not answer .*too many connections"):
        open_ledger(postgresql.url(on_server.url.database, user="guest"))


@pytest.mark.fault(
    section="Ledger",
    fault="The server's disk is full",
    promise="Reported.",
)
def test_a_full_disk_of_the_server_is_said(postgresql: PostgresqlServer, on_server: Ledger) -> None:
    """The server's own words, made by a table space on a small file system."""
    folder = postgresql.folder / "small"
    folder.mkdir()
    if refused := mount("-t", "tmpfs", "-o", "size=200k,mode=777", "tmpfs", str(folder)):
        give_up(f"no file system for this test: {refused}")
    try:
        space = folder / "space"
        space.mkdir()
        subprocess.run(["chown", "postgres", str(space)], check=True)
        admin = on_server.engine.execution_options(isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.exec_driver_sql(f"create tablespace small location '{space}'")
            connection.exec_driver_sql("alter table attempts set tablespace small")
        with pytest.raises(
            ReproError, match="the server's disk is full. Hint: its administrator must make room"
        ) as caught:
            record_jobs(on_server, *(f"job {number}" for number in range(2000)))
        assert caught.value.exit_code == EXIT_USER_ERROR
        assert job_rows(on_server) == []
        with admin.connect() as connection:
            connection.exec_driver_sql("alter table attempts set tablespace pg_default")
            connection.exec_driver_sql("drop tablespace small")
        assert len(record_jobs(on_server, *(f"job {number}" for number in range(2000))).to_submit) == 2000
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
