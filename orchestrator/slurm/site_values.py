"""How scontrol and sacctmgr print times, numbers, lists and records; pure."""

from __future__ import annotations

import re

_TIME = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):(\d{2}):(\d{2})", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_]*)=(\S*)")
_NOTHING = frozenset({"", "(null)", "N/A"})


def seconds(text: str) -> int | None:
    """`[D-]HH:MM:SS` in seconds; None for `UNLIMITED`, `NONE`, "" and whatever else is no time."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + rest


def number(text: str) -> int | None:
    """A whole number; None for `UNLIMITED`, "" and whatever else is none."""
    text = text.strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def names(text: str) -> tuple[str, ...]:
    """A comma-separated list; empty for `(null)`, `N/A` and ""."""
    return tuple(word for part in text.split(",") if (word := part.strip()) not in _NOTHING)


def fields(line: str) -> dict[str, str]:
    """`Name=value ...` of one line of `scontrol --oneliner`; of a name that comes twice the first.

    Free text (a node's Reason) stands at the end, so that nothing in it can take a field's place.
    """
    found: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        found.setdefault(name, value)
    return found


def records(stdout: str, first: str) -> list[dict[str, str]]:
    """The fields of every line that begins with `first=`."""
    return [fields(line) for line in stdout.splitlines() if line.startswith(f"{first}=")]
