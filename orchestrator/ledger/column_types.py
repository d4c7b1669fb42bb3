"""Column types that check what they read, and the session that names the cell which holds a wrong value.

SQLite stores any value in any column, and people edit a ledger. A wrong value becomes one line with its table, row and
column, and a reader can go on without that row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.orm import ORMExecuteState, Session
from sqlalchemy.sql import visitors

from orchestrator.errors import Problem

_LONGEST_QUOTED = 60
_FIRST_YEAR, _LAST_YEAR = 1970, 2999
_HINT = "correct it with sqlite3, or restore a copy of the ledger"

Processor = Callable[[object], object]
"""Conversion of a stored value. It raises WrongValue for a value that the column cannot have."""
Key = tuple[object, ...]
"""Primary key of a row."""
Query = sa.Select[Any]


class WrongValue(ValueError):
    """A cell holds a value that its column cannot have."""


@dataclass(frozen=True, slots=True)
class _WrongRow:
    """A row with wrong values. `cells` has the column and the error of each."""

    table: sa.Table
    key: Key
    cells: tuple[tuple[str, str], ...]


class _Checked(sa.types.TypeDecorator[object]):
    """Type that raises WrongValue instead of returning a value that the column cannot have."""

    impl: sa.types.TypeEngine[Any] | type[sa.types.TypeEngine[Any]] = sa.types.String
    cache_ok = True
    expected: ClassVar[str] = "text"

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Processor:
        """Return the conversion of a stored value, with a check of the result."""
        convert = super().result_processor(dialect, coltype)
        is_right = self._is_right

        def checked(value: object) -> object:
            if value is None:
                return None
            try:
                result = convert(value) if convert is not None else value
                if is_right(result):
                    return result
            except (ArithmeticError, RecursionError, TypeError, ValueError):
                pass
            raise self._wrong(value)

        return checked

    @property
    def python_type(self) -> type[Any]:
        """The type of the values, as of the type that is checked."""
        return self.impl_instance.python_type

    def _is_right(self, result: object) -> bool:
        """Return whether the column can have this value."""
        return type(result) is str

    def _wrong(self, value: object) -> WrongValue:
        return WrongValue(f"{_quoted(value)} is not {self.expected}")


class CheckedText(_Checked):
    """Text."""

    cache_ok = True


class Word(_Checked):
    """Text that is one of a few words."""

    cache_ok = True

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.words = words

    @property
    def expected(self) -> str:  # type: ignore[override]  # of this column's words
        """Return the description of a right value."""
        return f"one of {', '.join(self.words)}"

    def _is_right(self, result: object) -> bool:
        return result in self.words


class CheckedInteger(_Checked):
    """A whole number of 32 bits, as every database can keep it."""

    impl = sa.Integer
    cache_ok = True
    expected = "a whole number of 32 bits"

    def _is_right(self, result: object) -> bool:
        return type(result) is int and -(2**31) <= result < 2**31


class CheckedBigInteger(_Checked):
    """A whole number of 64 bits."""

    impl = sa.BigInteger
    cache_ok = True
    expected = "a whole number"

    def _is_right(self, result: object) -> bool:
        return type(result) is int


class CheckedNumber(_Checked):
    """A finite number."""

    impl = sa.Double
    cache_ok = True
    expected = "a finite number"

    def _is_right(self, result: object) -> bool:
        return isinstance(result, (int, float)) and type(result) is not bool and math.isfinite(result)


class CheckedBoolean(_Checked):
    """True or false."""

    impl = sa.Boolean
    cache_ok = True
    expected = "0 or 1"

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Processor:
        """Return the conversion of 0 and 1; SQLAlchemy's own accepts any value."""
        convert = super().result_processor(dialect, coltype)

        def checked(value: object) -> object:
            if value is None or (isinstance(value, int) and value in (0, 1)):
                return convert(value)
            raise self._wrong(value)

        return checked

    def _is_right(self, result: object) -> bool:
        return type(result) is bool


class CheckedTime(_Checked):
    """A time within the years in which a job can have run."""

    impl = sa.DateTime
    cache_ok = True
    expected = f"a time of the years {_FIRST_YEAR} to {_LAST_YEAR}"

    def _is_right(self, result: object) -> bool:
        return type(result) is datetime and result.tzinfo is None and _FIRST_YEAR <= result.year <= _LAST_YEAR


class JsonObject(_Checked):
    """JSON: an object."""

    impl = sa.JSON
    cache_ok = True
    expected = "a JSON object"

    def _is_right(self, result: object) -> bool:
        return isinstance(result, dict)


class JsonTexts(_Checked):
    """JSON: a list of texts."""

    impl = sa.JSON
    cache_ok = True
    expected = "a JSON list of texts"

    def _is_right(self, result: object) -> bool:
        return isinstance(result, list) and all(isinstance(item, str) for item in result)


class Masked(sa.types.TypeDecorator[object]):
    """Text, or JSON of the given type, that is stored without secrets."""

    impl: sa.types.TypeEngine[Any] | type[sa.types.TypeEngine[Any]] = CheckedText
    cache_ok = True

    def __init__(self, json: sa.types.TypeEngine[Any] | None = None) -> None:
        super().__init__()
        self.impl = json or self.impl

    @property
    def python_type(self) -> type[Any]:
        """The type of the values."""
        return self.impl_instance.python_type

    def process_bind_param(self, value: object, _dialect: sa.Dialect) -> object:
        """Return the value without secrets."""
        from orchestrator.masking import masked, masked_tree  # what only reads needs no patterns

        return masked(value) if isinstance(value, str) else masked_tree(value)


class WrongRows:
    """Rows of a ledger that hold wrong values, and the listener that gets each wrong cell once.

    Without a listener a wrong value is an error. With a listener, readers leave out the row. `require_whole` raises if
    the file itself is damaged: then its wrong values are not those of single cells.
    """

    def __init__(
        self, name: str, require_whole: Callable[[], None], listener: Callable[[Problem], None] | None = None
    ) -> None:
        self.name = name
        self._require_whole = require_whole
        self._listener = listener
        self._keys: dict[str, set[Key]] = {}

    @property
    def are_left_out(self) -> bool:
        """Return whether readers leave out wrong rows."""
        return self._listener is not None

    def problems(self, engine: sa.Engine, tables: Iterable[sa.Table]) -> list[Problem]:
        """Read all rows of these tables, and return a problem for each wrong cell."""
        return [problem for row in self._read(engine, tables) for problem in self._problems_of(row)]

    def leave_out(self, engine: sa.Engine, tables: Iterable[sa.Table]) -> bool:
        """Leave out the wrong rows of these tables from now on, and notify the listener; False if there are none."""
        assert self._listener is not None
        rows = list(self._read(engine, tables))
        for row in rows:
            keys = self._keys.setdefault(row.table.name, set())
            if row.key not in keys:
                keys.add(row.key)
                for problem in self._problems_of(row):
                    self._listener(problem)
        return bool(rows)

    def without(self, statement: Query) -> Query:
        """Return the statement without the wrong rows of the tables that it reads directly."""
        if not self._keys:  # tables_of compiles parts of the statement
            return statement
        for table in tables_of(statement):
            for key in self._keys.get(table.name, ()):
                columns = zip(table.primary_key.columns, key, strict=True)
                same = [sa.type_coerce(column, sa.types.NullType()) == value for column, value in columns]
                statement = statement.where(sa.not_(sa.and_(*same)))
        return statement

    def _read(self, engine: sa.Engine, tables: Iterable[sa.Table]) -> Iterator[_WrongRow]:
        self._require_whole()
        with engine.connect() as connection:
            for table in tables:
                yield from _wrong_rows(connection, table)

    def _problems_of(self, row: _WrongRow) -> Iterator[Problem]:
        columns = zip(row.table.primary_key.columns, row.key, strict=True)
        key = ", ".join(f"{column.name}={_quoted(value)}" for column, value in columns)
        for column, error in row.cells:
            yield Problem(f"table {row.table.name}, row {key}, column {column}: {error}", f"{self.name}:", _HINT)


class CheckedSession(Session):
    """A session whose SELECTs are fetched at once, and without wrong rows if these are left out."""

    def __init__(self, engine: sa.Engine, wrong: WrongRows, *, leaves_out: bool, expire_on_commit: bool = True) -> None:
        super().__init__(engine, expire_on_commit=expire_on_commit)
        self._engine = engine
        self._wrong = wrong
        self._leaves_out = leaves_out and wrong.are_left_out
        self._last: Query = sa.select()

    def fetch(self, state: ORMExecuteState, statement: Query) -> object:
        """Execute a SELECT. If it meets a wrong value and wrong rows are left out, execute it again without the row."""
        self._last = statement
        result = state.invoke_statement(self._wrong.without(statement) if self._leaves_out else statement)
        if "yield_per" in statement.get_execution_options():
            return result
        try:
            return result.freeze()()
        except WrongValue:
            if not self._leaves_out or not self._wrong.leave_out(self._engine, tables_of(statement)):
                raise
            return state.invoke_statement(self._wrong.without(statement)).freeze()()

    def problems(self) -> list[Problem]:
        """Return a problem for each wrong cell in the tables of the last SELECT, those of its subqueries included."""
        tables = {part.name: part for part in visitors.iterate(self._last) if isinstance(part, sa.Table)}
        return self._wrong.problems(self._engine, tables.values())


@sa.event.listens_for(CheckedSession, "do_orm_execute")
def _fetch_select(state: ORMExecuteState) -> object:
    if isinstance(state.session, CheckedSession) and isinstance(state.statement, sa.Select):
        return state.session.fetch(state, state.statement)
    return None


def tables_of(statement: Query) -> list[sa.Table]:
    """Return the tables that a SELECT reads itself, without those of its subqueries."""
    tables: dict[str, sa.Table] = {}
    sources = list(statement.get_final_froms())
    while sources:
        source = sources.pop()
        if isinstance(source, sa.Join):
            sources += [source.left, source.right]
        elif isinstance(source, sa.Table):
            tables[source.name] = source
    return list(tables.values())


def _wrong_rows(connection: sa.Connection, table: sa.Table) -> Iterator[_WrongRow]:
    checks = {column.name: _check_of(column.type, connection.dialect) for column in table.columns}
    stored = [sa.type_coerce(column, _Stored()).label(column.name) for column in table.columns]
    for row in connection.execute(sa.select(*stored)).mappings():
        errors = [(name, _error(check, row[name])) for name, check in checks.items()]
        cells = tuple((name, error) for name, error in errors if error)
        if cells:
            yield _WrongRow(table, tuple(row[column.name] for column in table.primary_key.columns), cells)


def _check_of(kind: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> Processor | None:
    return kind.dialect_impl(dialect).result_processor(dialect, None) if isinstance(kind, (_Checked, Masked)) else None


def _error(check: Processor | None, value: object) -> str | None:
    """Return why the column cannot have this value; None if it can."""
    try:
        if check is not None:
            check(value)
    except WrongValue as error:
        return str(error)
    return None


class _Stored(sa.types.UserDefinedType[object]):
    """A value as the database returns it."""

    cache_ok = True


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}..."
