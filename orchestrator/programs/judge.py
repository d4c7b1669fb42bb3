"""Verdict on an output of a described program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.programs.output import Found, OutputReader, ProgramOutput, Scalar, key_text
from orchestrator.programs.patterns import line_text
from orchestrator.programs.program import ProgramFields
from orchestrator.programs.verification import Scope, condition_of


@dataclass(frozen=True)
class JudgedOutput:
    """What an output has, and why it is not verified; without a problem it is."""

    output: ProgramOutput
    problems: tuple[str, ...]


def judge_output(
    program: ProgramFields, settings: Mapping[str, Scalar], lines: Iterable[bytes], exit_code: int | None = 0
) -> JudgedOutput:
    """Read the lines of an output, and judge it. `settings` are those of the case; None is an unknown exit code."""
    reader = OutputReader(program.output, program.numbers())
    for number, line in enumerate(lines, 1):
        reader.feed(number, line_text(line))
    output = reader.finish()
    problems = [f"exit code {exit_code}"] if exit_code not in (0, None) else []
    problems += output.problems
    problems += _problems_of_metrics(program, output)
    if program.verified is not None:
        problems += condition_of(program.verified).problems(_scope(program, settings, output, exit_code))
    return JudgedOutput(output, tuple(dict.fromkeys(problems)))


def _problems_of_metrics(program: ProgramFields, output: ProgramOutput) -> Iterator[str]:
    """Yield a problem for each metric that is absent from a row, or not a finite number."""
    rows = [(f" at {key_text(program.output.key, key)}", row) for key, row in output.rows.items()]
    iterations = [(f" at iteration {number}", numbers) for number, numbers in output.iterations.items()]
    for at, row in [*rows, *iterations, ("", output.values)]:
        for name in program.metrics:
            found = row.get(name)
            if found is not None and (isinstance(found.value, str) or not math.isfinite(found.value)):
                yield f"{name} is {found.value}{at} (line {found.line})"
    absent = [name for name in program.metrics if name not in program.output.of_iterations]
    for at, row in rows:
        yield from (f"{name} is missing{at}" for name in absent if name not in row and name not in output.values)


def _scope(
    program: ProgramFields, settings: Mapping[str, Scalar], output: ProgramOutput, exit_code: int | None
) -> Scope:
    values: dict[str, object] = {name: program.value(name, value) for name, value in settings.items()}
    values |= {name: found.value for name, found in output.values.items()}
    values |= {"rows": len(output.rows), "iterations": len(output.iterations)}
    if exit_code is not None:
        values["exit_code"] = exit_code
    rows = [
        (f"{key_text(program.output.key, key)} (line {next(iter(row.values())).line})", _values(row))
        for key, row in output.rows.items()
    ]
    rows += [(f"iteration {number}", _values(found)) for number, found in output.iterations.items()]
    return Scope(values, rows)


def _values(row: Mapping[str, Found]) -> dict[str, object]:
    return {name: found.value for name, found in row.items()}
