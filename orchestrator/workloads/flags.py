"""Flags of a program -> the words of its command line; and what a program has no words for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.catalog.case import Case
from orchestrator.errors import Problem, ReproError

Flags = Mapping[str, object]
"""Flag -> its value, in the order of the command line. True is a switch that stands alone; what is None or False is
left out."""


def words(flags: Flags) -> list[str]:
    """
    >>> words({"--lr": "6.0e-5", "--bf16": True, "--swiglu": False, "--train-iters": 100})
    ['--lr', '6.0e-5', '--bf16', '--train-iters', '100']
    """
    result: list[str] = []
    for flag, value in flags.items():
        if value is True:
            result.append(flag)
        elif value is not None and value is not False:
            result += [flag, str(value)]
    return result


def refuse(case: Case, lacking: str, unknown: Iterable[str]) -> None:
    """ReproError with all of a case that its program cannot be told, instead of running another under its name."""
    named = list(unknown)
    if named:
        raise ReproError(Problem(f"{case.name}: {lacking} {', no '.join(named)}"))
