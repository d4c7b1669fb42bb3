"""Changes of a program's arguments for a run: `--arg` and `--no-arg`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ADDED, DROPPED = "--arg=", "--no-arg="
"""Beginnings of the two kinds of changes of a program's arguments (megatron/programs/argument_changes.py)."""


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
