"""A program that an experiment describes: its axes and metrics, and the verdict on its output."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from orchestrator.config.model import Count, NonNegative, Strict, Text
from orchestrator.fields import Column, ColumnKind
from orchestrator.programs.axes import SAMPLED, MetricDefinition, ProgramAxes, ProgramNames
from orchestrator.programs.output import (
    OutputProblem,
    OutputReader,
    PatternSearch,
    ProblemKind,
    ProgramOutput,
    Scalar,
    key_text,
    line_text,
    pattern_of,
)
from orchestrator.programs.program import AxisFields, ProgramFields, bytes_of
from orchestrator.programs.verification import Row, condition_of

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


def mapping_of(value: object) -> Mapping[str, object]:
    """Return a mapping of a YAML file; an empty one for any other value, which the model of the file reports."""
    return value if isinstance(value, dict) else {}


def values_of(experiment: Mapping[str, object]) -> dict[str, list[object]]:
    """Return every value that the file gives to an axis, by axis, in the order of the file."""
    values: dict[str, list[object]] = {}
    for block in map(mapping_of, (experiment, *mapping_of(experiment.get("scales")).values())):
        rows = block.get("cases")
        matrix, fixed, rules = (mapping_of(block.get(key)) for key in ("matrix", "fixed", "rules"))
        given = [("gpus", [block["gpus"]])] if "gpus" in block else []
        given += [(axis, listed if isinstance(listed, list) else [listed]) for axis, listed in matrix.items()]
        given += [(axis, [value]) for axis, value in fixed.items()]
        given += [(axis, []) for axis in rules]
        for row in rows if isinstance(rows, list) else ():
            given += [(axis, [value]) for axis, value in mapping_of(row).items() if axis not in _NO_AXES]
        for axis, listed in given:
            values.setdefault(str(axis), []).extend(value for value in listed if value is not None)
    return values


_NO_AXES = {"published", "expect", "reference_only", "script", "note", "arguments"}
"""Fields of a row that are no axes."""


def metric_definitions(program: ProgramFields) -> Mapping[str, MetricDefinition]:
    """Return the metrics of a program by name in the order of the record, then those of GPU samples."""
    own = {}
    for name, fields in program.metrics.items():
        label, unit = fields.label or name, fields.unit or ""
        is_of_iterations = name in program.output.of_iterations
        source = f"{fields.take} of the iterations" if is_of_iterations else "as the program prints it"
        own[name] = MetricDefinition(
            name,
            unit,
            f"{label}, {source}",
            fields.better,
            is_rate=fields.rate,
            take=fields.take,
            least_uncertainty=None if fields.rate else 0.0,
            published=True,
            label=f"{label} ({unit})" if unit and unit not in label else label,
        )
    return own | {name: replace(metric, published=True) for name, metric in SAMPLED.items() if name not in own}


@dataclass(frozen=True)
class JudgedOutput:
    """Values of an output and its problems. Without a problem the output is verified."""

    output: ProgramOutput
    problems: tuple[OutputProblem, ...]


def judge_output(
    program: ProgramFields,
    settings: Mapping[str, Scalar],
    lines: Iterable[bytes],
    exit_code: int | None = 0,
    seconds: float | None = None,
) -> JudgedOutput:
    """Read the lines of an output, and judge it. `settings` are those of the case, `seconds` the time of the job.

    The exit code and the time are None if they are not known.
    """
    reader = OutputReader(program.output, program.numbers())
    for number, line in enumerate(lines, 1):
        reader.feed(number, line_text(line))
    output = reader.finish()
    problems = [*output.problems, *_wrong_metrics(program, output)]
    if program.verified is not None:
        values = {name: program.value(name, value) for name, value in settings.items()}
        values |= {name: found.value for name, found in output.values.items()}
        values |= {"rows": len(output.rows), "iterations": len(output.iterations)}
        job = {"exit_code": exit_code, "seconds": seconds}
        values |= {name: value for name, value in job.items() if value is not None}
        for part in condition_of(program.verified).unmet(values, _rows_of(program, output)):
            kind: ProblemKind = "iterations" if "iterations" in part.names else "missing"
            is_wrong = not part.names & {"iterations", "rows"}
            problems.append(OutputProblem(part.why, part.line, "wrong" if is_wrong else kind))
    return JudgedOutput(output, tuple({problem.text: problem for problem in reversed(problems)}.values())[::-1])


@dataclass(frozen=True)
class FailureLine:
    """Number of a log line that a failure class of the program names; `problems` are patterns that were stopped."""

    failure: str | None
    line: int
    problems: tuple[str, ...] = ()


def failure_line(program: ProgramFields, lines: Iterable[bytes]) -> FailureLine:
    """Return the first line of the first class with a line in this log."""
    searches = [
        (name, PatternSearch(f"failures.{name}", pattern_of(text, of_numbers=False)))
        for name, text in program.failures.items()
    ]
    left, failure, deciding = searches, None, 0
    for number, line in enumerate(lines if searches else (), 1):
        text = line_text(line)
        for order, (name, search) in enumerate(left):
            if search.find(number, text) is not None:
                failure, deciding, left = name, number, left[:order]
                break
    problems = (search.problem for _, search in searches if search.problem is not None)
    return FailureLine(failure, deciding, tuple(problems))


def _wrong_metrics(program: ProgramFields, output: ProgramOutput) -> Iterator[OutputProblem]:
    """Yield each metric that is not a finite number, or no column of a CSV file; the reader finds all others."""
    places = [(f" at {key_text(program.output.key, key)}", row) for key, row in output.rows.items()]
    places += [(f" at iteration {number}", numbers) for number, numbers in output.iterations.items()]
    for at, row in (*places, ("", output.values)):
        for name in program.metrics:
            found = row.get(name)
            if found is not None and (isinstance(found.value, str) or not math.isfinite(found.value)):
                yield OutputProblem(f"{name} is {found.value}{at} (line {found.line})", found.line, "wrong")
    if program.output.csv_ is not None and output.rows:
        absent = [name for name in program.metrics if name not in next(iter(output.rows.values()))]
        yield from (OutputProblem(f"{name}: no such column in the header") for name in absent)


def _rows_of(program: ProgramFields, output: ProgramOutput) -> list[Row]:
    """Return the rows of a condition: those of the output, and its iterations."""
    places = [
        (key_text(program.output.key, key), next(iter(row.values())).line, row) for key, row in output.rows.items()
    ]
    places += [(f"iteration {number}", 0, found) for number, found in output.iterations.items()]
    return [Row(key, line, {name: found.value for name, found in row.items()}) for key, line, row in places]
