"""Rows declare each field once: its columns, its JSON and its values follow from the declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Literal

import pytest
from pydantic import TypeAdapter

from orchestrator.fields import Column, Columns, Field, TableRow, columns_of, main_names, row_of, rows_of

SIZES = (Column("layers", "integer", "number of layers"), Column("width", "integer", "width", "elements"))


@dataclass(frozen=True, kw_only=True)
class Measured(TableRow):
    source: object = None
    case: Annotated[str, Field("name of the case", of="case.name", main=2)]
    fit: Annotated[Literal["fits", "OOM"] | None, Field("whether it fits", of="cost.fit")]
    sizes: Annotated[Mapping[str, int], Columns(SIZES)]
    time_ms: Annotated[float | None, Field("time of an iteration", "ms", main=1)] = None
    ended_at: Annotated[str | None, Field("time of the end", kind="time")] = None


def measured(**cost: object) -> Measured:
    source = SimpleNamespace(case=SimpleNamespace(name="pp=2"), cost=SimpleNamespace(**cost) if cost else None)
    return row_of(Measured, source, SimpleNamespace(time_ms=2.5), sizes={"layers": 24, "width": None})


def test_columns_have_the_type_of_their_field_and_a_mapping_has_all_of_its_columns() -> None:
    assert columns_of(Measured) == (
        Column("case", "text", "name of the case", main=2),
        Column("fit", "text", "whether it fits"),
        *SIZES,
        Column("time_ms", "number", "time of an iteration", "ms", main=1),
        Column("ended_at", "time", "time of the end"),
    )
    assert main_names(columns_of(Measured)) == ["time_ms", "case"]


def test_a_row_is_a_mapping_with_a_value_or_none_for_each_column() -> None:
    row = measured(fit="OOM")
    assert (row.case, row["fit"], row.time_ms) == ("pp=2", "OOM", 2.5)
    assert dict(row) == {
        "case": "pp=2",
        "fit": "OOM",
        "layers": 24,
        "width": None,
        "time_ms": 2.5,
        "ended_at": None,
    }


def test_a_path_ends_at_none() -> None:
    assert measured().fit is None


def test_a_field_without_a_value_is_an_error() -> None:
    with pytest.raises(TypeError, match="fit"):
        rows_of(Measured, [SimpleNamespace(case=SimpleNamespace(name="pp=2"))], sizes={})


def test_the_schema_of_a_field_has_its_meaning_and_unit() -> None:
    schema = TypeAdapter(Annotated[float, Field("time of an iteration", "ms")]).json_schema()
    assert schema == {"type": "number", "description": "time of an iteration, ms"}
