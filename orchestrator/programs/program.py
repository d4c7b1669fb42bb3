"""A program that an experiment describes: its command, axes, output, metrics, and when its output is verified."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.config.model import Count, NonNegative, Strict, Text, optional, required
from orchestrator.errors import did_you_mean, names_hint
from orchestrator.programs.output import OutputFields, Scalar, pattern_of
from orchestrator.programs.plug_ins import plug_ins
from orchestrator.programs.verification import condition_of

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
