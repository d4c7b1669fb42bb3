"""Changes of a program's arguments for a run: `--arg --name=value` and `--no-arg --name`.

A change is an option word, `--arg=--lr=0.001` or `--no-arg=--overlap-sp-ag`. Cases, jobs and commands contain it so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from orchestrator.errors import Problem, ReproError

ADDED, DROPPED = "--arg=", "--no-arg="
"""Beginnings of the two kinds of changes of a program's arguments."""
_NAME = re.compile(r"--[A-Za-z][A-Za-z0-9_-]*")


def changed_flag(change: str) -> str:
    """Return the flag that a change adds, replaces or leaves out: `--lr` of `--arg=--lr=0.001`."""
    return change.partition("=")[2].partition("=")[0]


def without_flags(arguments: Sequence[str], changes: Iterable[str]) -> list[str]:
    """Return the arguments without the flags that these changes name, and without the values of these flags."""
    names = {changed_flag(change) for change in changes}
    kept: list[str] = []
    is_named = False
    for word in arguments:
        if word.startswith("--"):
            is_named = word.partition("=")[0] in names
        if not is_named:
            kept.append(word)
    return kept


def parse_changes(arguments: Sequence[str], dropped: Sequence[str]) -> tuple[str, ...]:
    """Return the changes that these values of `--arg` and `--no-arg` request, in the order of the flags.

    ReproError has every value that is not a flag or is given twice.
    """
    problems: list[Problem] = []
    changes: dict[str, str] = {}
    for option, words in (("--arg", arguments), ("--no-arg", dropped)):
        for word in words:
            flag, equals, value = word.partition("=")
            given = f"{option} {word}"
            if not _NAME.fullmatch(flag) or (equals and option == "--no-arg") or "\0" in value:
                form = "--name or --name=value" if option == "--arg" else "--name"
                example = "--arg --lr=0.001" if option == "--arg" else "--no-arg --overlap-sp-ag"
                problems.append(Problem(f"{given}: must be {form}", hint=f"for example {example}"))
            elif flag in changes:
                problems.append(Problem(f"{given}: {flag} is given twice", hint="give it once"))
            else:
                changes[flag] = f"{option}={word}"
    if problems:
        raise ReproError(*problems)
    return tuple(changes[flag] for flag in sorted(changes))


def changes_of(changes: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the changes of several jobs of one run, in the order of the flags."""
    return tuple(sorted({change for of_job in changes for change in of_job}, key=changed_flag))


def read_flags(arguments: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each flag; the last one if a flag is given twice, as in argparse.

    >>> read_flags(["--save", "a b", "--lr=0.1", "--mock-data", "--lr", "0.2"])
    {'--save': ('a b',), '--lr': ('0.2',), '--mock-data': ()}
    """
    flags: dict[str, tuple[str, ...]] = {}
    flag = None
    for argument in arguments:
        if argument.startswith("--"):
            flag, given, value = argument.partition("=")
            flags[flag] = (value,) if given else ()
        elif flag is not None:
            flags[flag] += (argument,)
    return flags
