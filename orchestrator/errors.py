"""The one error type: what is wrong, where, and the mend, each problem one line for a person.

Exit codes: 0 fine, 1 a job or a claim failed, 2 yours to fix, 3 the scheduler or the machine is out of reach.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_YOURS = 2
EXIT_UNREACHABLE = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; prints as `where what; mend`."""

    what: str
    where: str | None = None
    mend: str | None = None

    def __str__(self) -> str:
        place = f"{self.where} " if self.where else ""
        mend = f"; {self.mend}" if self.mend else ""
        return " ".join(f"{place}{self.what}{mend}".splitlines())  # one line, whatever a file says


class ReproError(Exception):
    """One or more problems that the person at the keyboard can mend (exit code 2)."""

    exit_code = EXIT_YOURS

    def __init__(self, *problems: Problem | str) -> None:
        self.problems: tuple[Problem, ...] = tuple(p if isinstance(p, Problem) else Problem(p) for p in problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Unreachable(ReproError):
    """The scheduler, the machine or the database does not answer; nothing can be concluded (exit code 3)."""

    exit_code = EXIT_UNREACHABLE


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return `did you mean "gbs"?` for the nearest known word; None if none is as similar as `cutoff` (0 to 1)."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f'did you mean "{near[0]}"?' if near else None
