"""A program that an experiment describes: its fields, its axes and metrics, and the verdict on its output."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, create_model, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.config.model import Count, NonNegative, Strict, Text, optional, required
from orchestrator.errors import did_you_mean, names_hint
from orchestrator.fields import Column, ColumnKind
from orchestrator.programs.axes import SAMPLED, MetricDefinition, ProgramAxes, ProgramNames
from orchestrator.programs.output import (
    OutputFields,
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
from orchestrator.programs.plug_ins import plug_ins
from orchestrator.programs.verification import Row, condition_of

_AXIS = re.compile(r"\{([A-Za-z_]\w*)\}", re.ASCII)
_PLAIN = re.compile(r"[\w./=:+-]+")
"""Word that needs no quotes in YAML."""
_PROGRAM = re.compile(r"[A-Za-z_][\w.+-]*", re.ASCII)
_INTERPRETER = re.compile(r"python[\d.]*|bash|sh|env|mpirun|torchrun")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+)([KMGT]?)(?:i?B)?")

BUILT_IN_NAMES = ("rows", "iterations", "seconds", "exit_code")
"""Names that each condition may use: the number of rows and iterations, the time of the job, and its exit code."""


BYTES = "B"
"""Unit of axes whose values may have a suffix: 16G."""


def shown_bytes(value: float) -> str:
    """Return a number of bytes with the largest suffix that keeps it short: 8, 1.5K, 16G."""
    for unit, size in reversed(_UNITS.items()):
        if value >= size and float(f"{value / size:.4g}") * size == value:
            return f"{value / size:.4g}{unit}"
    return f"{value:.10g}"


def _checked_condition(text: str) -> str:
    condition_of(text)
    return text


class AxisFields(Strict):
    """Axis of a program."""

    unit: Text | None = optional("Unit of the values. B: bytes, of which 16G is 2^34.", "B")
    about: Text | None = optional("What the axis is.", "Size of the message")


class MetricFields(Strict):
    """Metric of a program."""

    better: Literal["higher", "lower"] = required("Direction of better values.", "higher")
    unit: Text | None = optional("Unit of the values.", "GB/s")
    label: Text | None = optional("Name in tables and plots. Without it: the metric's.", "Bus bandwidth")
    take: Literal["median", "largest", "smallest", "last"] = optional(
        "Number of the iterations that counts.", default="median"
    )
    rate: bool = optional(
        "true: it depends on the host and the nodes, so that small differences are noise. false: repeats are exact.",
        default=True,
    )


def _failure_name(name: str) -> str:
    if not re.fullmatch("[a-z][a-z0-9-]{0,39}", name):
        raise ValueError("a class has lower-case letters, digits and -")
    return name


def _failure_pattern(text: str) -> str:
    if pattern_of(text, of_numbers=False).find("") is not None:
        raise ValueError("matches an empty line")
    return text


FailureName = Annotated[str, AfterValidator(_failure_name)]
FailurePattern = Annotated[Text, AfterValidator(_failure_pattern)]
Processes = Annotated[
    Annotated[Literal["one", "one per node", "one per GPU"], Tag("words")] | Annotated[Count, Tag("number")],
    Discriminator(lambda value: "words" if isinstance(value, str) else "number"),
]
RESOURCES = ("gpus", "nodes", "processes")
"""Values of the job that each command may name, as it names axes."""

OWN_FILES = ("job.sh", "start", "end", "claimed", "cancelled", "log.txt", "batch.txt")
"""Files of a job's folder that a program cannot replace."""


def _not_text(words: object) -> object:
    if isinstance(words, str):
        listed = ", ".join(word if _PLAIN.fullmatch(word) else json.dumps(word) for word in words.split())
        raise PydanticCustomError("list_of_words", "must be a list of words", {"hint": f"write [{listed}]"})
    return words


def _quoted(word: object) -> object:
    if isinstance(word, (bool, int, float)):
        raise PydanticCustomError("word", "must be text", {"hint": "quote it"})
    return word


Word = Annotated[Text, BeforeValidator(_quoted, json_schema_input_type=Text)]
Words = Annotated[list[Word], BeforeValidator(_not_text, json_schema_input_type=list[Word]), Field(min_length=1)]
"""Words of a command; no shell splits a text."""


class FileFields(Strict):
    """Template of an input file."""

    template: Text = required("File beside this one. Each `{axis}` in it is replaced.", "HPL.dat.in")


TextOrTemplate = Annotated[
    Annotated[Text, Tag("text")] | Annotated[FileFields, Tag("block")],
    Discriminator(lambda value: "block" if isinstance(value, (dict, FileFields)) else "text"),
]


def _plain_name(name: str) -> str:
    if "/" in name or name in (".", "..", *OWN_FILES):
        raise ValueError("must be a file name that the records of a job do not have")
    return name


class StepFields(Strict):
    """Program that runs at the same time as the command, such as a server. It starts first and ends with the job."""

    run: Words = required("Words of its command, with `{axis}`.", ["redis-server", "--port", "{port}"])
    ready: Words | None = optional(
        "Words of a command that ends with exit code 0 when the step is ready.", ["redis-cli", "-p", "{port}", "ping"]
    )
    log: Annotated[str, Field(pattern=r"^[^\n\x00]+$")] | None = optional(
        "Pattern (extended regular expression) of a line that the step prints when it is ready.",
        "Ready to accept connections",
    )
    timeout_s: Count = optional("Time in seconds after which a step that is not ready fails the job.", 60, default=300)

    @model_validator(mode="after")
    def _has_one_probe(self) -> StepFields:
        if (self.ready is None) is (self.log is None):
            raise ValueError("must have one of ready and log: how to see that the step is ready")
        return self


class ProgramFields(Strict):
    """Program that the experiment describes, and no Python."""

    name: Text | None = optional(
        "Name of the program. Without it: the one that the interpreters of the command run.", "nccl-tests"
    )
    command: Words = required(
        "Words of the command. `{axis}` is the value of an axis; no shell reads them.",
        ["python3", "train_toy.py", "--width", "{width}"],
    )
    processes: Processes = optional("Number of processes of a job.", "one per GPU", default="one")
    image: Text | None = optional("Container image, if the profile names none.", "nvidia/pytorch:25.12-py3")
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = optional(
        "Environment of the command and of `setup`. A value may have `{axis}`.", {"OMP_NUM_THREADS": "8"}, default={}
    )
    files: dict[Annotated[Text, AfterValidator(_plain_name)], TextOrTemplate] = optional(
        "Input files that are written to the job's folder, where the command runs: the text with `{axis}`, or its "
        "template. Files beside this one that a command names are copied there without an entry.",
        {"HPL.dat": {"template": "HPL.dat.in"}},
        default={},
    )
    setup: list[StepFields] = optional(
        "Programs that run at the same time as the command. They start in this order; the command starts when "
        "all are ready.",
        [{"run": ["redis-server"], "ready": ["redis-cli", "ping"]}],
        default=[],
    )
    axes: dict[Text, AxisFields] = optional(
        "Units and meanings of axes. Those of the matrix and of fixed values need no entry.", default={}
    )
    output: OutputFields = required("Numbers in the output.")
    metrics: dict[Text, MetricFields] = required("Metrics among these numbers.", {"loss": {"better": "lower"}})
    verified: Annotated[Text, AfterValidator(_checked_condition)] | None = optional(
        "Condition of a verified output. The exit code must also be 0, and the output must have all declared values.",
        "out_of_bounds == 0 and rows == 32 and all(wrong == 0)",
    )

    failures: dict[FailureName, FailurePattern] = optional(
        "Failure classes of the program: the pattern of a log line for each. The first class that matches counts.",
        {"nccl-error": "NCCL WARN|Test NCCL failure"},
        default={},
    )
    warmup: NonNegative = optional("First iterations that are no samples.", 2, default=0)

    def stored(self) -> dict[str, object]:
        """Return the block in JSON, as the ledger stores it."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def of_job(self) -> dict[str, object]:
        """Return the part of the block that decides what a job runs; files are only named."""
        names = {"command", "processes", "environment", "files", "setup"}
        return self.model_dump(mode="json", include=names, exclude_defaults=True)

    @property
    def shown_name(self) -> str:
        """Name in messages and tables: without a name, the program that the interpreters of the command run."""
        words = [word.rpartition("/")[2] for word in self.command if not word.startswith("-")]
        programs = [word for word in words if _PROGRAM.fullmatch(word) and not _INTERPRETER.fullmatch(word)]
        return self.name or next(iter(programs), self.command[0].rpartition("/")[2])

    def numbers(self) -> set[str]:
        """Return the names that must have numbers: metrics, and what the condition compares."""
        return {*self.metrics}.union(*self._compared)

    @property
    def _compared(self) -> tuple[set[str], set[str]]:
        """The names that the condition compares: outside of `all()` and `any()`, and inside."""
        return condition_of(self.verified).names() if self.verified is not None else (set(), set())

    def value(self, axis: str, text: Scalar) -> Scalar:
        """Return the value of an axis as a command has it. 16G of an axis in bytes is the integer 2^34."""
        fields = self.axes.get(axis)
        return bytes_of(text) if fields is not None and fields.unit == BYTES else text

    def filled(self, text: str, settings: Mapping[str, Scalar]) -> str:
        """Return a text with the values of its axes. KeyError for an axis without a value."""
        return _AXIS.sub(lambda match: _shown(self.value(match[1], settings[match[1]])), text)

    def texts(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield each text that may have `{axis}`, with its path in the block."""
        yield from ((("command", i), word) for i, word in enumerate(self.command))
        yield from ((("environment", name), value) for name, value in self.environment.items())
        yield from ((("files", name), text) for name, text in self.files.items() if isinstance(text, str))
        for i, step in enumerate(self.setup):
            yield from ((("setup", i, "run", j), word) for j, word in enumerate(step.run))
            yield from ((("setup", i, "ready", j), word) for j, word in enumerate(step.ready or ()))

    def problems(self, settings: Iterable[str]) -> Iterator[tuple[tuple[str | int, ...], str, str | None]]:
        """Yield the path, the problem and the hint of each name that does not exist. `settings` are the given axes."""
        given = set(settings)
        for path, name in ((path, name) for path, text in self.texts() for name in _AXIS.findall(text)):
            if name not in {*given, *RESOURCES}:
                yield path, f"{{{name}}}: no such axis", did_you_mean(name, given) or _there_are(given)
        for name in given & set(self.output.key):
            yield ("output",), f"{name} names a row of the output, so the matrix cannot set it", None
        outside, inside = self._compared
        for name in sorted(given & (outside | inside) & {*self.output.names, *BUILT_IN_NAMES}):
            yield ("verified",), f"{name}: an axis and a number of the output have this name", "rename one of them"
        known = given | set(self.output.key)
        for name in self.axes:
            if name not in known:
                yield ("axes", name), f"{name}: neither given nor a key of rows", did_you_mean(name, known)
        if (reader := self.output.reader) is not None:
            if reader not in (readers := plug_ins("repro.readers")):
                yield ("output", "reader"), f"{reader}: no such reader", names_hint(reader, readers)
            for name in sorted(self.model_fields_set & {"verified", "failures", "warmup"}):
                yield (name,), f"the reader {reader} decides", f"remove {name}"
        if self.output.csv_ is not None or reader is not None:
            return
        found = self.output.names
        for name in self.metrics:
            if name not in found:
                yield ("metrics", name), f"{name}: not in the output", did_you_mean(name, found) or _there_are(found)
        single = {*self.output.single_values, *given, *BUILT_IN_NAMES}
        for names, allowed in ((outside, single), (inside, single | found | known)):
            for name in sorted(names - allowed):
                hint = "write all(...) or any(...) around columns of rows" if name in found else None
                near = hint or did_you_mean(name, allowed) or _there_are(allowed)
                yield ("verified",), f"{name}: no such number", near


def bytes_of(value: Scalar) -> Scalar:
    """Return a size as the number of its bytes, 2^34 for 16G; any other value unchanged."""
    match = _SIZE.fullmatch(str(value))
    return int(match[1]) * _UNITS[match[2]] if match is not None else value


def _shown(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _there_are(names: Iterable[str]) -> str:
    return f"there are: {', '.join(sorted(names))}" if names else "there are none"


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
