"""Questions of a person's own to the ledger, in SQL: they can read everything in it and change nothing."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.ledger.database import BUSY_TIMEOUT_S, Ledger, explained, sqlite_file

_STEPS = 100_000
"""Of SQLite's machine between two looks at whether somebody pressed Ctrl-C; some hundred looks a second."""

_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_TELLING = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"})
"""Pragmas that change nothing, whatever they are given."""
_DOING = frozenset({"load_extension", "fts3_tokenizer"})
"""Functions that do more than compute."""

# What is not there, in the words of SQLite and of PostgreSQL.
_NO_COLUMN = re.compile(r"no such column: (\S+)|column \"?([^\s\"]+)\"? does not exist")
_NO_TABLE = re.compile(r"no such table: (\S+)|relation \"([^\"]+)\" does not exist")
_MEND = "give one SELECT"
_FORBIDDEN = re.compile(r"not authorized|is prohibited|read-?only")


@dataclass(frozen=True, slots=True)
class Relation:
    """A view or a table, with its columns in order."""

    name: str
    kind: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The columns, each with a name of its own, and the rows, which are fetched as they are taken."""

    columns: tuple[str, ...]
    rows: Iterator[Sequence[Any]]


def relations(ledger: Ledger) -> list[Relation]:
    """Return the names of the views, then of the tables."""
    with explained(ledger.url), ledger.engine.connect() as connection:
        inspector = sa.inspect(connection)
        named = [(name, "view") for name in sorted(inspector.get_view_names())]
        named += [(name, "table") for name in sorted(inspector.get_table_names()) if name != "alembic_version"]
        return [
            Relation(name, kind, tuple(column["name"] for column in inspector.get_columns(name)))
            for name, kind in named
        ]


@contextmanager
def asked(ledger: Ledger, question: str) -> Iterator[Answer]:
    """Return the result of one SQL statement, which may only read.

    ReproError in one line for a statement that is none, asks for what is not there, or would change something.
    """
    ask = _asked_of_sqlite if ledger.url.get_backend_name() == "sqlite" else _asked_of_server
    with explained(ledger.url):
        try:
            with ask(ledger, question) as answer:
                yield answer
        except DBAPIError as error:
            problem = _problem(ledger, str(error.orig))
            if problem is not None:
                raise ReproError(problem) from error
            raise


@contextmanager
def _asked_of_sqlite(ledger: Ledger, question: str) -> Iterator[Answer]:
    """Through a connection of its own that cannot write, and is asked about each thing that a statement would do."""
    try:
        with closing(_reading_connection(ledger)) as connection:
            connection.execute("PRAGMA query_only=ON")
            connection.set_authorizer(_allowed)
            connection.set_progress_handler(lambda: 0, _STEPS)  # Python hears of signals only when it is called
            cursor = connection.execute(question)
            if cursor.description is None:
                raise ReproError(Problem("no question", hint=_MEND))
            yield Answer(_own_names(column[0] for column in cursor.description), cursor)
    except (sqlite3.Error, sqlite3.Warning) as error:
        if str(error) == "interrupted":
            raise KeyboardInterrupt from error
        raise sa.exc.OperationalError(question, {}, error) from error


def _reading_connection(ledger: Ledger) -> sqlite3.Connection:
    file = sqlite_file(ledger.url)
    if file is not None:
        return sqlite3.connect(f"file:{quote(str(file.resolve()))}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
    pooled = ledger.engine.raw_connection()  # of a URI of SQLite's own, or in memory
    own = pooled.driver_connection
    pooled.detach()
    assert isinstance(own, sqlite3.Connection)
    return own


def _allowed(action: int, first: str | None, second: str | None, _database: str | None, _inside: str | None) -> int:
    """SQLite's question whether a statement may do something (sqlite3_set_authorizer)."""
    reads = (
        action in _READING
        or (action == sqlite3.SQLITE_FUNCTION and second not in _DOING)
        or (action == sqlite3.SQLITE_PRAGMA and first in _TELLING)
    )
    return sqlite3.SQLITE_OK if reads else sqlite3.SQLITE_DENY


@contextmanager
def _asked_of_server(ledger: Ledger, question: str) -> Iterator[Answer]:
    """In a transaction that only reads, through a cursor of the server's, which takes one statement, a reading one."""
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        connection.exec_driver_sql("SELECT 1")  # after a first statement it can no longer be taken back
        streaming = connection.execution_options(stream_results=True)
        with streaming.exec_driver_sql(question.replace("%", "%%")) as result:
            yield Answer(_own_names(result.keys()), iter(result))


def _own_names(names: Iterable[str]) -> tuple[str, ...]:
    """`id, id` -> `id, id_2`: a row may then be a mapping."""
    found: dict[str, None] = {}
    for name in names:
        others = (f"{name}_{number}" for number in itertools.count(2))
        found[next(one for one in itertools.chain([name], others) if one not in found)] = None
    return tuple(found)


def _problem(ledger: Ledger, said: str) -> Problem | None:
    """Return the problem of a wrong statement with a hint; None for other errors."""
    first = said.strip().partition("\n")[0]
    if _FORBIDDEN.search(first):
        return Problem(f"the ledger can only be read ({first})", hint=_MEND)
    for pattern, kind in ((_NO_COLUMN, "column"), (_NO_TABLE, "table or view")):
        match = pattern.search(first)
        if match is not None:
            name = (match[1] or match[2]).rpartition(".")[2]
            there = relations(ledger)
            known = [one.name for one in there] if kind != "column" else [name for one in there for name in one.columns]
            hint = did_you_mean(name, known) or "`repro sql` without a question lists what there is"
            return Problem(f"{name}: no such {kind}", hint=hint)
    return None
