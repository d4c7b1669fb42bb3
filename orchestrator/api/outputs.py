"""Outputs of described programs, read before there is a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from orchestrator.catalog.case import Case, parse_where, select
from orchestrator.catalog.expand import expand
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.catalog.library import Entry, absolute_path
from orchestrator.errors import Problem, ReproError
from orchestrator.fields import Field
from orchestrator.programs.judge import JudgedOutput, judge_output
from orchestrator.programs.output import Found, Scalar, key_text
from orchestrator.programs.patterns import LONGEST_LINE


@dataclass(frozen=True, slots=True)
class FoundNumber:
    """A number of an output."""

    line: Annotated[int, Field("line of the output, from 1")]
    at: Annotated[str | None, Field("row or iteration of the number; none for a number of the whole output")]
    name: Annotated[str, Field("name of the number")]
    value: Annotated[Scalar, Field("the number, or a text")]
    unit: Annotated[str | None, Field("unit of a metric")]


@dataclass(frozen=True, slots=True)
class CheckedOutput:
    """What an output of a program has, judged as that of a job of `case` that ended with exit code 0."""

    file: Path
    case: Case
    numbers: tuple[FoundNumber, ...]
    problems: tuple[Problem, ...]


def check_output(entry: Entry, log: str | None = None, where: str | None = None) -> CheckedOutput | None:
    """Read an output as that of a job of the experiment: of the first case, or of the first with `where`.

    Without `log` it is the example of the experiment, read as that of the first case of any scale that it verifies;
    None if there is none. ReproError if the experiment describes no program, or the file cannot be read.
    """
    program = entry.program
    if program is None:
        if log is None:
            return None
        hint = "repro logs shows what was read of the log of a job"
        raise ReproError(Problem(f"{entry.short_name} describes no program, so its output is not declared", hint=hint))
    example = program.output.example
    if log is None and example is None:
        return None
    file = absolute_path(log) if log is not None else entry.file.parent / str(example)
    scales = scale_names(entry.experiment) if log is None else [PAPER]
    every = [case for scale in scales for case in expand(entry, scale)]
    cases = select(every, parse_where(where, entry.names.axes))
    try:
        reads = (
            (case, judge_output(program, {**case.settings, **_resources(case)}, _lines(file)))
            for case in (cases if log is None else cases[:1])
        )
        case, judged = first = next(reads)
        case, judged = next((read for read in (first, *reads) if not read[1].problems), first)
    except OSError as error:
        at = entry.location("program", "output", "example") if log is None else f"{log}:"
        raise ReproError(Problem(f"cannot be read ({error.strerror})", at, "correct the path")) from None
    problems = tuple(Problem(problem, f"{file.name}:") for problem in judged.problems)
    return CheckedOutput(file, case, tuple(_numbers(entry, judged)), problems)


def _resources(case: Case) -> dict[str, Scalar]:
    return {"gpus": case.gpus} if "gpus" not in case.settings else {}


def _lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file; the rest of a long line is left out."""
    with file.open("rb") as opened:
        while line := opened.readline(8 * LONGEST_LINE):
            yield line
            while line and not line.endswith(b"\n"):
                line = opened.readline(8 * LONGEST_LINE)


def _numbers(entry: Entry, judged: JudgedOutput) -> Iterator[FoundNumber]:
    """Yield the numbers in the order of their lines."""
    assert entry.program is not None
    output, key = judged.output, entry.program.output.key
    found: list[tuple[str | None, str, Found]] = [(None, name, one) for name, one in output.values.items()]
    for row, columns in output.rows.items():
        found += [(key_text(key, row), name, one) for name, one in columns.items() if name not in key]
    for number, metrics in output.iterations.items():
        found += [(f"iteration {number}", name, one) for name, one in metrics.items()]
    for at, name, one in sorted(found, key=lambda each: each[2].line):
        metric = entry.metrics.get(name)
        yield FoundNumber(one.line, at, name, one.value, (metric.unit or None) if metric is not None else None)
