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
from orchestrator.programs.output import OutputValue, Scalar, key_text
from orchestrator.programs.patterns import LONGEST_LINE


@dataclass(frozen=True, slots=True)
class OutputNumber:
    """A number of an output."""

    line: Annotated[int, Field("line of the output, from 1")]
    at: Annotated[str | None, Field("row or iteration of the number; none for a number of the whole output")]
    name: Annotated[str, Field("name of the number")]
    value: Annotated[Scalar, Field("the number, or a text")]
    unit: Annotated[str | None, Field("unit of a metric")]


@dataclass(frozen=True, slots=True)
class CheckedOutput:
    """Numbers of an output, judged as the output of a job of `case` that ended with exit code 0."""

    file: Path
    case: Case
    numbers: tuple[OutputNumber, ...]
    problems: tuple[Problem, ...]


def check_output(
    entry: Entry, log: str | None = None, scale: str | None = None, where: str | None = None
) -> CheckedOutput | None:
    """Read an output as that of a job of the experiment: of the first case at a scale, or of the first with `where`.

    Without `log` it is the example of the experiment, of the first case at any scale that it verifies, else of the one
    with the fewest problems; None if there is no example. ReproError if the experiment describes no program, or the
    file cannot be read.
    """
    program = entry.described
    if program is None or program.output.reader is not None:
        if log is None:
            return None
        what = "describes no program" if program is None else "has a reader of a package"
        hint = "repro logs shows what was read of the log of a job"
        raise ReproError(Problem(f"{entry.short_name} {what}, so its output is not declared", hint=hint))
    example = program.output.example
    if log is None and example is None:
        return None
    file = absolute_path(log) if log is not None else entry.file.parent / str(example)
    wanted = parse_where(where, entry.names.axes)
    if log is not None:
        cases = select(expand(entry, scale or PAPER), wanted)[:1]
    else:
        scales = scale_names(entry.experiment) if scale is None else [scale]
        cases = select([case for name in scales for case in expand(entry, name)], wanted)
    best: tuple[Case, JudgedOutput] | None = None
    for case in cases:
        try:
            judged = judge_output(program, {"gpus": case.gpus, **case.settings}, lines_of(file))
        except OSError as error:
            at = entry.location("program", "output", "example") if log is None else f"{log}:"
            raise ReproError(Problem(f"cannot be read ({error.strerror})", at, "correct the path")) from None
        if best is None or len(judged.problems) < len(best[1].problems):
            best = case, judged
        if not judged.problems:
            break
    assert best is not None
    case, judged = best
    problems = tuple(Problem(problem.text, f"{file.name}:") for problem in judged.problems)
    return CheckedOutput(file, case, tuple(_numbers(entry, judged)), problems)


def lines_of(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file; the rest of a long line is left out."""
    with file.open("rb") as opened:
        while line := opened.readline(8 * LONGEST_LINE):
            yield line
            while line and not line.endswith(b"\n"):
                line = opened.readline(8 * LONGEST_LINE)


def _numbers(entry: Entry, judged: JudgedOutput) -> Iterator[OutputNumber]:
    """Yield the numbers in the order of their lines."""
    assert entry.described is not None
    output, key = judged.output, entry.described.output.key
    found: list[tuple[str | None, str, OutputValue]] = [(None, name, one) for name, one in output.values.items()]
    for row, columns in output.rows.items():
        found += [(key_text(key, row), name, one) for name, one in columns.items() if name not in key]
    for number, metrics in output.iterations.items():
        found += [(f"iteration {number}", name, one) for name, one in metrics.items()]
    for at, name, one in sorted(found, key=lambda each: each[2].line):
        metric = entry.metrics.get(name)
        yield OutputNumber(one.line, at, name, one.value, (metric.unit or None) if metric is not None else None)
