"""Questions in SQL: they see everything, and whatever they are, nothing is changed."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import EXIT_USER_ERROR, ReproError
from orchestrator.ledger.database import Ledger, ledger_url, open_ledger
from orchestrator.ledger.readonly_sql import asked, relations
from orchestrator.ledger.tables import VIEWS, Table
from tests.recorded_jobs import ledger_at, new_ledger, record_jobs

ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n where i < 0"


def answer(ledger: Ledger, question: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    with asked(ledger, question) as found:
        return found.columns, [tuple(row) for row in found.rows]


def everything(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    return {name: sorted(answer(ledger, f"select * from {name}")[1], key=repr) for name in Table.metadata.tables}


def test_a_question_is_answered_with_columns_and_rows(ledger: Ledger) -> None:
    record_jobs(ledger, "a", "b")
    assert answer(ledger, "select id, gpus from jobs order by id") == (("id", "gpus"), [("a-id", 4), ("b-id", 4)])
    assert answer(ledger, "select case_name from v_results where case_name like '%b%' and 7 % 4 = 3")[1] == [("b",)]
    assert answer(ledger, "select id from jobs where id = 'c'") == (("id",), [])


def test_columns_with_one_name_can_be_told_apart(ledger: Ledger) -> None:
    columns, rows = answer(ledger, "select 1 as n, 2 as n, 3 as n_2, 4 as n")
    assert (columns, rows) == (("n", "n_2", "n_2_2", "n_3"), [(1, 2, 3, 4)])


def test_rows_are_fetched_as_they_are_taken(ledger: Ledger) -> None:
    """So many would not fit into memory."""
    many = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000000) select i from n"
    if ledger.url.get_backend_name() == "postgresql":
        many = "select generate_series(1, 100000000)"  # it would compute all of a recursion first
    with asked(ledger, many) as found:
        assert next(found.rows)[0] == 1


@pytest.mark.fault(
    section="Ledger",
    fault="A recursive SELECT of `repro sql` has no end",
    promise="It is ended after 10 minutes without a row. One line, exit code 2.",
)
def test_an_endless_question_ends(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.ledger.readonly_sql.LONGEST_S", 0.2)
    with pytest.raises(ReproError, match=r"^no row within 0\.2 s\. Hint: limit the recursion") as caught:
        answer(ledger, ENDLESS)
    assert caught.value.exit_code == EXIT_USER_ERROR


CHANGES = [
    "delete from jobs",
    "update attempts set verdict = 'verified'",
    "insert into events (at, kind) values ('2026-01-01', 'mine')",
    "drop table metrics",
    "drop view v_results",
    "create table mine (id integer)",
    "create temporary table mine (id integer)",
    "alter table jobs add column mine integer",
    "select 1; delete from jobs",
    "select 1; commit; delete from jobs",
    "begin",
    "commit",
    "vacuum",
    "",
    "-- nothing",
]


def test_whatever_is_asked_nothing_is_changed(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    before = everything(ledger), relations(ledger)
    for question in CHANGES:
        assert_refused(ledger, question)
        assert (everything(ledger), relations(ledger)) == before, question


def assert_refused(ledger: Ledger, question: str) -> None:
    """In one line that is yours to mend."""
    try:
        answer(ledger, question)
    except ReproError as error:
        assert error.exit_code == EXIT_USER_ERROR and "\n" not in str(error), question
    else:
        pytest.fail(f"was done: {question}")


CHANGES_IN_SQLITE = [
    "attach database '{folder}/other.db' as other",
    "attach database ':memory:' as other",
    "detach database main",
    "pragma query_only = off",
    "pragma writable_schema = on",
    "pragma journal_mode = wal",
    "pragma user_version = 7",
    "pragma optimize",
    "vacuum into '{folder}/copy.db'",
    "select load_extension('{folder}/mine.so')",
    "savepoint mine",
    "reindex",
    "analyze",
]


def test_sqlite_lets_a_question_out_of_nothing(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a")
    before = (tmp_path / "results.db").read_bytes()
    for question in CHANGES_IN_SQLITE:
        assert_refused(ledger, question.format(folder=tmp_path))
        assert (tmp_path / "results.db").read_bytes() == before, question
        assert [path.name for path in tmp_path.iterdir()] == ["results.db"], question


def test_sqlite_does_not_write_even_what_is_not_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the two locks holds by itself."""
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a")
    monkeypatch.setattr("orchestrator.ledger.readonly_sql._allowed", lambda *_words: sqlite3.SQLITE_OK)
    with pytest.raises(ReproError, match=r"the ledger can only be read \(attempt to write a readonly database\)"):
        answer(ledger, "delete from jobs")


def test_the_schema_can_be_asked_for(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    assert ("id",) in [row[1:2] for row in answer(ledger, "pragma table_info(jobs)")[1]]
    assert ("jobs",) in answer(ledger, "select name from sqlite_master")[1]
    assert len(answer(ledger, "explain query plan select * from jobs")[1]) == 1


CHANGES_ON_A_SERVER = [
    "copy jobs to program 'true'",
    "do $$ begin delete from jobs; end $$",
    "set transaction read write",
    "set default_transaction_read_only = off",
    "with gone as (delete from jobs returning id) select * from gone",
    "select nextval('attempts_id_seq')",
    "select set_config('transaction_read_only', 'off', true)",
    "lock table jobs",
]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_server_lets_a_question_out_of_nothing(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    before = everything(ledger)
    for question in CHANGES_ON_A_SERVER:
        assert_refused(ledger, question)
        assert everything(ledger) == before, question


NOT_THERE = {
    "select verdikt from v_results": 'verdikt: no such column. Did you mean "verdict"?',
    "select v.verdikt from v_results v": 'verdikt: no such column. Did you mean "verdict"?',
    "select * from v_result": 'v_result: no such table or view. Did you mean "v_results"?',
    "select * from xyzzy": "xyzzy: no such table or view. Hint: `repro sql` without a question lists what there is",
}


def test_a_name_that_there_is_not_is_answered_with_the_nearest(ledger: Ledger) -> None:
    for question, expected in NOT_THERE.items():
        with pytest.raises(ReproError) as caught:
            answer(ledger, question)
        assert (str(caught.value), caught.value.exit_code) == (expected, EXIT_USER_ERROR)


def test_what_is_no_sql_is_said_in_the_databases_words(ledger: Ledger) -> None:
    with pytest.raises(ReproError, match="syntax error") as caught:
        answer(ledger, "selekt 1")
    assert "\n" not in str(caught.value)


def test_views_come_first_and_every_table_is_listed(ledger: Ledger) -> None:
    found = relations(ledger)
    assert [one.name for one in found if one.kind == "view"] == sorted(VIEWS)
    tables = {one.name: set(one.columns) for one in found if one.kind == "table"}
    assert tables == {name: set(table.columns.keys()) for name, table in Table.metadata.tables.items()}
    assert [one.kind for one in found] == ["view"] * len(VIEWS) + ["table"] * len(tables)


def test_ctrl_c_ends_a_question_that_takes_long(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        answer(ledger, ENDLESS)


def test_a_folder_with_signs_that_mean_something_in_a_uri_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "50% of #1?mode=rwc"
    folder.mkdir()
    ledger = new_ledger(folder)
    record_jobs(ledger, "a")
    assert answer(ledger, "select id from jobs")[1] == [("a-id",)]


def test_a_ledger_that_is_named_by_a_uri_is_as_safe(tmp_path: Path) -> None:
    new_ledger(tmp_path)
    ledger = ledger_at(ledger_url(f"sqlite:///file:{tmp_path}/results.db?uri=true", tmp_path))
    record_jobs(ledger, "a")
    with pytest.raises(ReproError, match="the ledger can only be read"):
        answer(ledger, "delete from jobs")
    assert answer(ledger, "select id from jobs")[1] == [("a-id",)]
    assert open_ledger(ledger.url) is not None
