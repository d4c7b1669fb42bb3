"""Verdict on an output of a described program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.programs.output import OutputProblem, OutputReader, OutputValue, ProgramOutput, Scalar, key_text
from orchestrator.programs.patterns import PatternSearch, line_text, pattern_of
from orchestrator.programs.program import ProgramFields
from orchestrator.programs.verification import Row, Scope, Unmet, condition_of


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
    problems = [*output.problems, *_numbers_not_finite(program, output), *_missing_metrics(program, output)]
    if program.verified is not None:
        scope = _scope(program, settings, output, {"exit_code": exit_code, "seconds": seconds})
        problems += [_of_condition(part) for part in condition_of(program.verified).unmet(scope)]
    return JudgedOutput(output, tuple({problem.text: problem for problem in reversed(problems)}.values())[::-1])


def _of_condition(part: Unmet) -> OutputProblem:
    kinds: dict[str, Literal["missing", "iterations"]] = {"iterations": "iterations", "rows": "missing"}
    return OutputProblem(part.why, part.line, next((kinds[name] for name in kinds if name in part.names), "wrong"))


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


def _places(program: ProgramFields, output: ProgramOutput) -> Iterator[tuple[str, Mapping[str, OutputValue]]]:
    """Yield the rows with their places."""
    yield from ((f" at {key_text(program.output.key, key)}", row) for key, row in output.rows.items())


def _numbers_not_finite(program: ProgramFields, output: ProgramOutput) -> Iterator[OutputProblem]:
    """Yield a problem for each metric that is not a finite number."""
    iterations = ((f" at iteration {number}", numbers) for number, numbers in output.iterations.items())
    for at, row in (*_places(program, output), *iterations, ("", output.values)):
        for name in program.metrics:
            found = row.get(name)
            if found is not None and (isinstance(found.value, str) or not math.isfinite(found.value)):
                yield OutputProblem(f"{name} is {found.value}{at} (line {found.line})", found.line, "wrong")


def _missing_metrics(program: ProgramFields, output: ProgramOutput) -> Iterator[OutputProblem]:
    """Yield a problem for each metric that is no column of a CSV file. The reader finds what else is missing."""
    columns = next(iter(output.rows.values()), None) if program.output.csv_ is not None else None
    if columns is not None:
        absent = (name for name in program.metrics if name not in columns)
        yield from (OutputProblem(f"{name}: no such column in the header") for name in absent)


def _scope(
    program: ProgramFields, settings: Mapping[str, Scalar], output: ProgramOutput, job: Mapping[str, float | None]
) -> Scope:
    values: dict[str, object] = {name: program.value(name, value) for name, value in settings.items()}
    values |= {name: found.value for name, found in output.values.items()}
    values |= {"rows": len(output.rows), "iterations": len(output.iterations)}
    values |= {name: value for name, value in job.items() if value is not None}
    rows = [
        Row(key_text(program.output.key, key), next(iter(row.values())).line, _values(row))
        for key, row in output.rows.items()
    ]
    rows += [Row(f"iteration {number}", 0, _values(found)) for number, found in output.iterations.items()]
    return Scope(values, rows)


def _values(row: Mapping[str, OutputValue]) -> dict[str, object]:
    return {name: found.value for name, found in row.items()}
