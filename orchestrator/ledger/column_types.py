"""Types of columns. SQLite stores any value in any column, so each column has a CHECK that its type makes.

A wrong value is refused when it is written, by whichever program.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import sqlalchemy as sa

_LARGEST = "1.7976931348623157e308"
_TIME = "[12][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9][0-9][0-9][0-9]"


class Word(sa.String):
    """Text that is one of a few words."""

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.words = words


class Number(sa.types.TypeDecorator[float]):
    """A finite number. NaN and infinity become NULL, because only some databases can store them."""

    impl = sa.Double
    cache_ok = True

    def process_bind_param(self, value: float | None, _dialect: sa.Dialect) -> float | None:
        """Return the number; None if it is not finite."""
        return value if value is not None and math.isfinite(value) else None

    @property
    def python_type(self) -> type[float]:
        """The type of the values."""
        return float


class Time(sa.types.TypeDecorator[datetime]):
    """A time in UTC, without a zone."""

    impl = sa.DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: sa.Dialect) -> datetime | None:
        """Return the time. Raise ValueError if it has a zone, which the database would drop."""
        if value is not None and value.tzinfo is not None:
            raise ValueError(f"{value} has a time zone")
        return value

    @property
    def python_type(self) -> type[datetime]:
        """The type of the values."""
        return datetime


class _Json(sa.JSON):
    def __init__(self, none_as_null: bool = True) -> None:
        super().__init__(none_as_null)


class JsonObject(_Json):
    """JSON: an object."""

    @property
    def python_type(self) -> type[object]:
        """The type of the values."""
        return dict


class JsonTexts(_Json):
    """JSON: a list of texts."""

    @property
    def python_type(self) -> type[object]:
        """The type of the values."""
        return list


class Masked(sa.types.TypeDecorator[object]):
    """Text, or JSON of the given type, that is stored without secrets."""

    impl: sa.types.TypeEngine[Any] | type[sa.types.TypeEngine[Any]] = sa.Text
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


def check_in_sqlite(column: sa.Column[object]) -> sa.CheckConstraint:
    """Return the constraint that a value of the column has its type. NOT NULL is a constraint of its own."""
    name, kind = f'"{column.name}"', column.type
    kind = kind.impl_instance if isinstance(kind, Masked) else kind
    if isinstance(kind, Word):
        condition = f"{name} IN ({', '.join(map(repr, kind.words))})"
    elif isinstance(kind, _Json):
        json_type = "array" if isinstance(kind, JsonTexts) else "object"
        condition = f"CASE WHEN json_valid({name}) THEN json_type({name}) = '{json_type}' ELSE {name} IS NULL END"
    elif isinstance(kind, Time):
        condition = f"typeof({name}) IN ('text', 'null') AND {name} GLOB '{_TIME}'"
    elif isinstance(kind, Number):
        condition = f"typeof({name}) IN ('real', 'null') AND abs({name}) <= {_LARGEST}"
    elif isinstance(kind, sa.Boolean):
        condition = f"{name} IN (0, 1)"
    else:
        condition = f"typeof({name}) IN ('{'integer' if isinstance(kind, sa.Integer) else 'text'}', 'null')"
    return sa.CheckConstraint(sa.literal_column(condition)).ddl_if(dialect="sqlite")
