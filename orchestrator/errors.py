"""The error type of the project. Each problem is one line: location, what is wrong, hint.

Exit codes: 0 success, 1 a job or a claim failed, 2 user error, 3 the scheduler or the machine is unreachable.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_UNREACHABLE = 3
EXIT_TIMEOUT = 124
"""As timeout(1): `wait --timeout` ended and jobs are still open."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. It prints as `location: what. Hint: hint`."""

    what: str
    location: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        location = f"{self.location} " if self.location else ""
        hint = f". Hint: {self.hint}" if self.hint else ""
        hint = hint.replace(". Hint: did you mean", ". Did you mean", 1)  # a question needs no introduction
        return " ".join(f"{location}{self.what}{hint}".splitlines())  # one line, whatever a file contains


class ReproError(Exception):
    """One or more problems that the user can correct (exit code 2)."""

    exit_code = EXIT_USER_ERROR

    def __init__(self, *problems: Problem | str) -> None:
        self.problems: tuple[Problem, ...] = tuple(p if isinstance(p, Problem) else Problem(p) for p in problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Unreachable(ReproError):
    """The scheduler, the machine or the database does not answer; nothing can be concluded (exit code 3)."""

    exit_code = EXIT_UNREACHABLE


def for_each(items: Iterable[T], function: Callable[[T], R]) -> list[R]:
    """Return the result of the function for each item. ReproError has the problems of all items, each once.

    Unreachable is raised at once.
    """
    results: list[R] = []
    problems: list[Problem] = []
    for item in items:
        with added_to(problems):
            results.append(function(item))
    require_none(dict.fromkeys(problems))
    return results


def require_none(problems: Iterable[Problem]) -> None:
    """Raise ReproError with these problems, if there are any."""
    if listed := list(problems):
        raise ReproError(*listed)


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return `did you mean "gbs"?` for the nearest known word; None if none is as similar as `cutoff` (0 to 1)."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f'did you mean "{near[0]}"?' if near else None


def there_are(names: Iterable[str]) -> str:
    """Return the hint that lists all names."""
    return f"there are: {', '.join(names) or 'none'}"


def names_hint(word: str, known: Iterable[str]) -> str:
    """Return the hint for a word that must be a known one: the nearest known word, else all of them."""
    names = list(known)
    return did_you_mean(word, names) or there_are(names)


@contextmanager
def added_to(problems: list[Problem]) -> Iterator[None]:
    """Add the problems of the block's ReproError to the list, and continue after the block. Unreachable is raised."""
    try:
        yield
    except Unreachable:
        raise
    except ReproError as error:
        problems.extend(error.problems)
