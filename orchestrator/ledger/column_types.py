"""Column types that check what they read, and the session that names the cell which holds a wrong value.

SQLite stores any value in any column, and people edit a ledger. A wrong value becomes one line with its table, row and
column, and a reader can go on without that row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.sql import visitors

from orchestrator.errors import Problem

_LONGEST_QUOTED = 60
_FIRST_YEAR, _LAST_YEAR = 1970, 2999
_MEND = "correct it with sqlite3, or restore a copy of the ledger"


class WrongValue(ValueError):
    """A cell holds a value that its column cannot have."""


class _Checked(sa.types.TypeDecorator[Any]):
    """A type that raises WrongValue instead of passing on what is stored and cannot be right."""

    impl: sa.types.TypeEngine[Any] | type[sa.types.TypeEngine[Any]] = sa.types.String
    cache_ok = True
    expected: ClassVar[str] = "text"

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return the conversion of a stored value, with a check before and after it."""
        convert = super().result_processor(dialect, coltype)
        is_right = self.is_right

        def checked(value: Any) -> Any:
            if value is None:
                return None
            try:
                result = convert(value) if convert is not None else value
                if is_right(result):
                    return result
            except (ArithmeticError, RecursionError, TypeError, ValueError):
                pass
            raise WrongValue(f"{_quoted(value)} is not {self.expected}")

        return checked

    @property
    def python_type(self) -> type[Any]:
        """The type of the values, as of the type that is checked."""
        return self.impl_instance.python_type

    def is_right(self, result: Any) -> bool:
        """Return whether the column can have this value."""
        return type(result) is str


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

    def is_right(self, result: Any) -> bool:
        """Return whether the value has the type of the column."""
        return result in self.words


class CheckedInteger(_Checked):
    """A whole number of 32 bits, as every database can keep it."""

    impl = sa.Integer
    cache_ok = True
    expected = "a whole number of 32 bits"

    def is_right(self, result: Any) -> bool:
        """Return whether the value has the type of the column."""
        return type(result) is int and -(2**31) <= result < 2**31


class CheckedBigInteger(_Checked):
    """A whole number of 64 bits."""

    impl = sa.BigInteger
    cache_ok = True
    expected = "a whole number"

    def is_right(self, result: Any) -> bool:
        """Return whether the value has the type of the column."""
        return type(result) is int


class CheckedNumber(_Checked):
    """A finite number."""

    impl = sa.Double
    cache_ok = True
    expected = "a finite number"

    def is_right(self, result: Any) -> bool:
        """Return whether the value has the type of the column."""
        return type(result) in (int, float) and math.isfinite(result)


class CheckedBoolean(_Checked):
    """True or false."""

    impl = sa.Boolean
    cache_ok = True
    expected = "0 or 1"

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return the conversion; SQLAlchemy's own takes any value for a truth value."""
        convert = super().result_processor(dialect, coltype)

        def checked(value: Any) -> Any:
            if value is None or (isinstance(value, int) and value in (0, 1)):
                return convert(value)
            raise WrongValue(f"{_quoted(value)} is not {self.expected}")

        return checked

    def is_right(self, result: Any) -> bool:
        """Return whether the value has the type of the column."""
        return type(result) is bool


class CheckedTime(_Checked):
    """A time within the years in which a job can have run."""

    impl = sa.DateTime
    cache_ok = True
    expected = f"a time of the years {_FIRST_YEAR} to {_LAST_YEAR}"

    def is_right(self, result: Any) -> bool:
        """Return whether the value has the type of the column."""
        return type(result) is datetime and result.tzinfo is None and _FIRST_YEAR <= result.year <= _LAST_YEAR


class JsonObject(_Checked):
    """JSON: an object."""

    impl = sa.JSON
    cache_ok = True
    expected = "a JSON object"

    def is_right(self, result: Any) -> bool:
        """Return whether the value has the type of the column."""
        return isinstance(result, dict)


class JsonTexts(_Checked):
    """JSON: a list of texts."""

    impl = sa.JSON
    cache_ok = True
    expected = "a JSON list of texts"

    def is_right(self, result: Any) -> bool:
        """Return whether the value has the type of the column."""
        return isinstance(result, list) and all(isinstance(item, str) for item in result)


class WrongRows:
    """The rows of a ledger that hold wrong values, and whoever is to be told of each once.

    Without a listener a wrong value is an error; with one, readers go on without the row. `require_whole` raises if the
    file itself is damaged: then there are wrong values that nobody wrote.
    """

    def __init__(
        self, name: str, require_whole: Callable[[], None], listener: Callable[[Problem], None] | None = None
    ) -> None:
        self.name = name
        self._require_whole = require_whole
        self._listener = listener
        self._keys: dict[str, dict[tuple[Any, ...], None]] = {}

    @property
    def are_left_out(self) -> bool:
        """Return whether readers leave out wrong rows."""
        return self._listener is not None

    def find(self, engine: sa.Engine, tables: Iterable[sa.Table]) -> list[Problem]:
        """Read all rows of these tables; return a line for each wrong cell."""
        return [problem for _, _, found in self._wrong_rows(engine, tables) for problem in found]

    def leave_out(self, engine: sa.Engine, tables: Iterable[sa.Table]) -> bool:
        """Leave out the wrong rows of these tables from now on, and tell the listener; False if there are none."""
        assert self._listener is not None
        found = False
        for table, key, problems in self._wrong_rows(engine, tables):
            found = True
            if key not in self._keys.setdefault(table.name, {}):
                self._keys[table.name][key] = None
                for problem in problems:
                    self._listener(problem)
        return found

    def _wrong_rows(
        self, engine: sa.Engine, tables: Iterable[sa.Table]
    ) -> Iterator[tuple[sa.Table, tuple[Any, ...], list[Problem]]]:
        self._require_whole()
        with engine.connect() as connection:
            for table in tables:
                for key, cells in _wrong_rows(connection, table):
                    yield table, key, [self._problem(table, key, column, why) for column, why in cells]

    def without(self, statement: sa.Select[Any]) -> sa.Select[Any]:
        """Return the statement without the wrong rows of the tables that it reads directly."""
        for table in tables_of(statement):
            for key in self._keys.get(table.name, ()):
                columns = zip(table.primary_key.columns, key, strict=True)
                same = [sa.type_coerce(column, sa.types.NullType()) == value for column, value in columns]
                statement = statement.where(sa.not_(sa.and_(*same)))
        return statement

    def _problem(self, table: sa.Table, key: tuple[Any, ...], column: str, why: str) -> Problem:
        row = ", ".join(
            f"{one.name}={_quoted(value)}" for one, value in zip(table.primary_key.columns, key, strict=True)
        )
        return Problem(f"table {table.name}, row {row}, column {column}: {why}", f"{self.name}:", _MEND)


class CheckedSession(Session):
    """A session whose SELECTs are fetched at once, and without wrong rows where these are left out."""

    def __init__(self, engine: sa.Engine, wrong: WrongRows, *, leaves_out: bool, expire_on_commit: bool = True) -> None:
        super().__init__(engine, expire_on_commit=expire_on_commit)
        self._engine = engine
        self._wrong = wrong
        self._leaves_out = leaves_out and wrong.are_left_out
        self._last: sa.Select[Any] = sa.select()

    def execute(self, statement: Any, *arguments: Any, **options: Any) -> Any:
        """As a session's own; a SELECT that meets a wrong value is made again without the row that holds it."""
        if not isinstance(statement, sa.Select):
            return super().execute(statement, *arguments, **options)
        self._last = statement
        asked = self._wrong.without(statement) if self._leaves_out else statement
        result = super().execute(asked, *arguments, **options)
        if "yield_per" in statement.get_execution_options():
            return result
        try:
            return result.freeze()()
        except WrongValue:
            if not self._leaves_out or not self._wrong.leave_out(self._engine, tables_of(statement)):
                raise
            return super().execute(self._wrong.without(statement), *arguments, **options).freeze()()

    def scalars(self, statement: Any, *arguments: Any, **options: Any) -> Any:
        """Return the first column of each row of `execute`."""
        return self.execute(statement, *arguments, **options).scalars()

    def scalar(self, statement: Any, *arguments: Any, **options: Any) -> Any:
        """Return the first column of the first row of `execute`."""
        return self.execute(statement, *arguments, **options).scalar()

    def problems(self) -> list[Problem]:
        """Return a line for each wrong cell in the tables of the last SELECT, those of its subqueries included."""
        tables = {one.name: one for one in visitors.iterate(self._last) if isinstance(one, sa.Table)}
        return self._wrong.find(self._engine, tables.values())


def tables_of(statement: sa.Select[Any]) -> list[sa.Table]:
    """Return the tables that a SELECT reads itself, its subqueries left out."""
    found: dict[str, sa.Table] = {}
    waiting: list[Any] = list(statement.get_final_froms())
    while waiting:
        one = waiting.pop()
        if isinstance(one, sa.Join):
            waiting += [one.left, one.right]
        elif isinstance(one, sa.Table):
            found[one.name] = one
    return list(found.values())


def _wrong_rows(connection: sa.Connection, table: sa.Table) -> Iterator[tuple[tuple[Any, ...], list[tuple[str, str]]]]:
    """Yield the primary key of each row with wrong values, and those with the column of each."""
    columns = list(table.columns)
    checks: Mapping[str, Callable[[Any], Any] | None] = {
        column.name: _check(column, connection.dialect) for column in columns
    }
    raw = [sa.type_coerce(column, _Raw()).label(column.name) for column in columns]
    for row in connection.execute(sa.select(*raw)).mappings():
        cells = [(name, str(why)) for name, check in checks.items() if (why := _complaint(check, row[name]))]
        if cells:
            yield tuple(row[column.name] for column in table.primary_key.columns), cells


def _check(column: sa.Column[Any], dialect: sa.Dialect) -> Callable[[Any], Any] | None:
    kind = column.type
    return kind.dialect_impl(dialect).result_processor(dialect, None) if isinstance(kind, _Checked) else None


def _complaint(check: Callable[[Any], Any] | None, value: Any) -> WrongValue | None:
    try:
        if check is not None:
            check(value)
    except WrongValue as wrong:
        return wrong
    return None


class _Raw(sa.types.UserDefinedType[Any]):
    """A value as the database gives it."""

    cache_ok = True


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}..."
