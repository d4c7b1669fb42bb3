"""Declared fields of rows: a field's name, type, meaning and unit, from which columns, JSON and schemas derive.

A row is a frozen dataclass with fields such as `mfu_percent: Annotated[float | None, Field("share of the peak", "%")]`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

ColumnKind = Literal["text", "integer", "number", "boolean", "time"]
_KINDS: Mapping[object, ColumnKind] = {bool: "boolean", int: "integer", float: "number", str: "text"}

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Field:
    """Declaration of a field of a row. `unit` is None for a value without a unit.

    `of` is the path of the value in the objects that a row is made from, `row.job_id`; by default the field's name.
    `main` is the position among the columns that readers look at first; 0 is none of them.
    """

    meaning: str = ""
    unit: str | None = None
    of: str | None = None
    main: int = 0
    kind: ColumnKind | None = None

    def __get_pydantic_json_schema__(self, core_schema: object, handler: Callable[[object], dict[str, Any]]) -> object:
        """Return the schema of the value with the meaning."""
        text = ", ".join(filter(None, [self.meaning, self.unit]))
        return handler(core_schema) | ({"description": text} if text else {})


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table. Times are texts in ISO 8601 and UTC."""

    name: str
    kind: ColumnKind
    meaning: str
    unit: str | None = None
    main: int = 0


@dataclass(frozen=True, slots=True)
class Columns:
    """Declaration of a field that is a mapping: each of its names is a column.

    A row of another program may have other names, in their own order. A function gives columns that programs have.
    """

    columns: tuple[Column, ...] | Callable[[], tuple[Column, ...]]


class TableRow(Mapping[str, Any]):
    """Base class of rows that are also mappings from the names of their columns to values.

    A field without a declaration is not a column.
    """

    @cached_property
    def _cells(self) -> dict[str, Any]:
        cells: dict[str, Any] = {}
        for name, declared in _declared(type(self)).items():
            value = getattr(self, name)
            if isinstance(declared, Columns):
                cells.update(value)
            elif declared is not None:
                cells[name] = value
        return cells

    def __getitem__(self, name: str) -> Any:
        return self._cells[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)


@cache
def _declared(row_type: type) -> dict[str, Field | Columns | None]:
    """Return the declaration of each field."""
    hints = get_type_hints(row_type, include_extras=True)
    return {
        field.name: next((part for part in get_args(hints[field.name]) if isinstance(part, (Field, Columns))), None)
        for field in dataclasses.fields(row_type)
    }


@cache
def columns_of(row_type: type, **mappings: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the columns of a row: one for each field with a declaration, or all those of a mapping.

    `mappings` are other columns of these fields than the declared ones.
    """
    hints = get_type_hints(row_type)
    columns: list[Column] = []
    for name, declared in _declared(row_type).items():
        if isinstance(declared, Columns):
            declared_columns = declared.columns() if callable(declared.columns) else declared.columns
            columns += mappings.get(name, declared_columns)
        elif declared is not None:
            kind = declared.kind or kind_of(hints[name])
            columns.append(Column(name, kind, declared.meaning, declared.unit, declared.main))
    return tuple(columns)


def main_names(columns: Iterable[Column]) -> list[str]:
    """Return the names of the main columns in the order of their positions."""
    main = sorted((column for column in columns if column.main), key=lambda column: column.main)
    return [column.name for column in main]


def kind_of(hint: object) -> ColumnKind:
    """Return the kind of a column with values of a type: `int | None` is an integer. Other types are texts."""
    if get_origin(hint) is typing.Annotated:
        return kind_of(get_args(hint)[0])
    kinds = {kind_of(part) for part in get_args(hint) if part is not NoneType and not isinstance(part, str)}
    return kinds.pop() if len(kinds) == 1 else _KINDS.get(hint, "text")


_ABSENT = object()


@cache
def _paths(row_type: type) -> dict[str, list[str]]:
    """Return the path of each field in its source."""
    declared = _declared(row_type).items()
    return {name: ((field.of if isinstance(field, Field) else None) or name).split(".") for name, field in declared}


def values_of(row_type: type, *sources: object, **values: object) -> dict[str, Any]:
    """Return the fields of a row: each one from `values`, else from the first source that has its path.

    A field that no source has is left out.
    """
    for name, (first, *rest) in _paths(row_type).items():
        if name in values:
            continue
        for source in sources:
            value = getattr(source, first, _ABSENT)
            if value is not _ABSENT:
                for part in rest:
                    value = None if value is None else getattr(value, part)
                values[name] = value
                break
    return values


def row_of(row_type: type[R], *sources: object, **values: object) -> R:
    """Return a row with the fields of `values_of`."""
    return row_type(**values_of(row_type, *sources, **values))


def rows_of(row_type: type[R], sources: Iterable[object], **values: object) -> list[R]:
    """Return a row of each source, with the same further values."""
    return [row_of(row_type, source, **values) for source in sources]
