"""SQL statements of users. They can read everything in the ledger, and change nothing."""

from __future__ import annotations

import itertools
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.ledger.database import BUSY_TIMEOUT_S, Ledger, explained, sqlite_file
from orchestrator.ledger.sqlite_file import read_only

_STEPS = 100_000
"""Instructions of SQLite between two checks for Ctrl-C: some hundred checks a second."""
LONGEST_S = 600.0
"""Time for the first row, and between two rows, after which a statement is ended: a recursion may have no end."""

_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_HARMLESS_PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}
)
"""Pragmas that change nothing, whatever their arguments."""
_HARMFUL_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer"})
"""Functions with effects."""

# Errors of SQLite and of PostgreSQL for names that do not exist.
_NO_COLUMN = re.compile(r"no such column: (\S+)|column \"?([^\s\"]+)\"? does not exist")
_NO_TABLE = re.compile(r"no such table: (\S+)|relation \"([^\"]+)\" does not exist")
_HINT = "give one SELECT"
_FORBIDDEN = re.compile(r"not authorized|is prohibited|read-?only")


@dataclass(frozen=True, slots=True)
class Relation:
    """A view or a table, with its columns in order."""

    name: str
    kind: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns with unique names, and rows, which are fetched during the iteration."""

    columns: tuple[str, ...]
    rows: Iterator[Sequence[object]]


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
    """Execute one SQL statement that only reads.

    Raise ReproError if it is not valid, names something that does not exist, or would change something.
    """
    execute = _asked_of_sqlite if ledger.url.get_backend_name() == "sqlite" else _asked_of_server
    with explained(ledger.url):
        try:
            with execute(ledger, question) as answer:
                yield answer
        except DBAPIError as error:
            problem = _problem(ledger, str(error.orig))
            if problem is not None:
                raise ReproError(problem) from error
            raise


@contextmanager
def _asked_of_sqlite(ledger: Ledger, question: str) -> Iterator[Answer]:
    """Execute it by its own connection, which cannot write. SQLite asks `_allowed` about each action."""
    try:
        with closing(_reading_connection(ledger)) as connection:
            connection.execute("PRAGMA query_only=ON")
            connection.set_authorizer(_allowed)
            ends = time.monotonic() + LONGEST_S
            # Python handles signals only in Python code.
            connection.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)
            cursor = connection.execute(question)
            if cursor.description is None:
                raise ReproError(Problem("the query is empty", hint=_HINT))

            def next_row() -> Sequence[object] | None:
                nonlocal ends
                ends = time.monotonic() + LONGEST_S
                return cursor.fetchone()  # type: ignore[no-any-return]

            yield Answer(_own_names(column[0] for column in cursor.description), iter(next_row, None))
    except (sqlite3.Error, sqlite3.Warning) as error:
        if str(error) == "interrupted":
            if time.monotonic() > ends:
                raise ReproError(_too_long()) from error
            raise KeyboardInterrupt from error
        raise sa.exc.OperationalError(question, {}, error) from error


def _reading_connection(ledger: Ledger) -> sqlite3.Connection:
    file = sqlite_file(ledger.url)
    if file is not None:
        return read_only(file, BUSY_TIMEOUT_S)
    pooled = ledger.engine.raw_connection()  # the ledger has a URI of SQLite, or is in memory
    own = pooled.driver_connection
    pooled.detach()
    assert isinstance(own, sqlite3.Connection)
    return own


def _allowed(action: int, first: str | None, second: str | None, _database: str | None, _inside: str | None) -> int:
    """Return whether a statement may do something, for sqlite3_set_authorizer."""
    reads = (
        action in _READING
        or (action == sqlite3.SQLITE_FUNCTION and second not in _HARMFUL_FUNCTIONS)
        or (action == sqlite3.SQLITE_PRAGMA and first in _HARMLESS_PRAGMAS)
    )
    return sqlite3.SQLITE_OK if reads else sqlite3.SQLITE_DENY


@contextmanager
def _asked_of_server(ledger: Ledger, question: str) -> Iterator[Answer]:
    """Execute it in a read-only transaction, by a server-side cursor, which accepts a single SELECT."""
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {LONGEST_S * 1000:.0f}")  # of each fetch
        connection.exec_driver_sql("SELECT 1")  # after a first statement READ ONLY can no longer be undone
        streaming = connection.execution_options(stream_results=True)
        with streaming.exec_driver_sql(question.replace("%", "%%")) as result:
            yield Answer(_own_names(result.keys()), iter(result))


def _own_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return unique names, so that a row can be a mapping: `id, id` becomes `id, id_2`."""
    unique: dict[str, None] = {}
    for name in names:
        others = (f"{name}_{number}" for number in itertools.count(2))
        unique[next(other for other in itertools.chain([name], others) if other not in unique)] = None
    return tuple(unique)


def _too_long() -> Problem:
    return Problem(f"no row within {LONGEST_S:g} s", hint="limit the recursion or the rows that are joined")


def _problem(ledger: Ledger, message: str) -> Problem | None:
    """Return the problem of a wrong statement with a hint; None for other errors."""
    first = message.strip().partition("\n")[0]
    if "statement timeout" in first:
        return _too_long()
    if _FORBIDDEN.search(first):
        return Problem(f"the ledger can only be read ({first})", hint=_HINT)
    for pattern, kind in ((_NO_COLUMN, "column"), (_NO_TABLE, "table or view")):
        match = pattern.search(first)
        if match is not None:
            name = (match[1] or match[2]).rpartition(".")[2]
            known = relations(ledger)
            names = [each for of in known for each in (of.columns if kind == "column" else [of.name])]
            hint = did_you_mean(name, names) or "`repro sql` without a question lists what there is"
            return Problem(f"{name}: no such {kind}", hint=hint)
    return None
