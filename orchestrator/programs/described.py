"""Axes and metrics of a program that an experiment describes, from its record and the values of the experiment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from orchestrator.config.model import Count, NonNegative, Strict, Text
from orchestrator.fields import Column, ColumnKind
from orchestrator.programs.axes import ProgramAxes, ProgramNames
from orchestrator.programs.metrics import metric_definitions
from orchestrator.programs.program import AxisFields, ProgramFields, bytes_of

_KEYS = ("matrix", "fixed", "rules")
_RESERVED: Mapping[str, tuple[object, Column]] = {
    "case": (Text, Column("row", "text", "name of a row")),
    "label": (Text, Column("label", "text", "name of the case in the source")),
    "gpus": (NonNegative, Column("gpus", "integer", "number of GPUs of the job")),
    "nodes": (Count, Column("nodes", "integer", "number of nodes of the job")),
}
"""Axes of every program."""


def _number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("must be a number")
    return value


_TYPES: Mapping[ColumnKind, object] = {
    "integer": Annotated[int, Field(strict=True)],
    "number": Annotated[object, AfterValidator(_number)],  # an integer stays an integer
    "boolean": Annotated[bool, Field(strict=True)],
    "text": Text,
}
_BYTES = Annotated[int, BeforeValidator(bytes_of), Field(strict=True, ge=0)]


def names_of(program: ProgramFields, experiment: Mapping[str, object]) -> ProgramNames:
    """Return the names that an experiment with this program may use; `experiment` is its file as YAML has it.

    The type of an axis is that of the experiment's own values, and for the key of rows the one of the output.
    """
    values = values_of(experiment)
    keys = program.output.key
    given = [name for name in values if name not in _RESERVED]
    types: dict[str, object] = {name: kind for name, (kind, _) in _RESERVED.items()}
    columns = {name: column for name, (_, column) in _RESERVED.items() if name in values or name in ("case", "label")}
    for name in dict.fromkeys((*given, *keys)):
        fields = program.axes.get(name, AxisFields())
        is_text = program.output.rows is not None and name in (program.output.rows.text or ())
        kind = "text" if is_text else _kind(values.get(name, ()), of_key=name in keys)
        columns[name] = Column(name, "integer" if fields.unit == "B" else kind, fields.about or name, fields.unit)
        types[name] = _BYTES if fields.unit == "B" else _TYPES[kind]
    columns |= {name: column for name, (_, column) in _RESERVED.items()}
    fields_of: dict[str, Any] = {  # an axis can have the name of an attribute of the model, such as `copy`
        f"axis_{i}": (kind | None, Field(None, alias=name))  # type: ignore[operator]
        for i, (name, kind) in enumerate(types.items())
    }
    model = create_model("DescribedSettings", __base__=Strict, **fields_of)
    axes = ProgramAxes(model, columns)
    return ProgramNames(axes, metric_definitions(program), frozenset(values))


def _kind(values: Iterable[object], *, of_key: bool) -> ColumnKind:
    kinds = {type(value) for value in values}
    if not kinds:
        return "number" if of_key else "integer"  # a rule gives a whole number
    if kinds == {bool}:
        return "boolean"
    if kinds <= {int, float}:
        return "integer" if kinds == {int} else "number"
    return "text"


def values_of(experiment: Mapping[str, object]) -> dict[str, list[object]]:
    """Return every value that the file gives to an axis, by axis, in the order of the file."""
    values: dict[str, list[object]] = {}
    for axis, value in _given(experiment):
        values.setdefault(axis, []).extend([] if value is None else [value])
    return values


def _given(experiment: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    scales = experiment.get("scales")
    blocks = [experiment, *(scales.values() if isinstance(scales, Mapping) else ())]
    for block in (block for block in blocks if isinstance(block, Mapping)):
        if "gpus" in block:
            yield "gpus", block["gpus"]
        rows = block.get("cases")
        parts = [block.get(key) for key in _KEYS] + (rows if isinstance(rows, list) else [])
        for part in (part for part in parts if isinstance(part, Mapping)):
            for axis, value in part.items():
                if part is block.get("rules"):
                    yield str(axis), None
                elif part is block.get("matrix"):
                    yield from ((str(axis), one) for one in (value if isinstance(value, list) else [value]))
                elif axis not in _NO_AXES:
                    yield str(axis), value


_NO_AXES = {"published", "expect", "reference_only", "script", "note", "arguments"}
"""Fields of a row that are no axes."""
