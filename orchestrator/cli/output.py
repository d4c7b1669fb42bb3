"""What every command prints the same way: tables and JSON to stdout, talk to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def say(text: str) -> None:
    """Talk: to stderr, so that stdout stays data."""
    print(text, file=sys.stderr, flush=True)


def data(text: str) -> None:
    print(text, flush=True)


def next_command(command: str, why: str) -> None:
    """The last line of a command: what to type next."""
    say(f"next: {command}   # {why}")


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Aligned columns, never boxed, wrapped or cropped; numbers to the right."""
    texts = [[_shown(row.get(column)) for column in columns] for row in rows]
    numeric = [all(isinstance(row.get(c), (int, float, type(None))) for row in rows) for c in columns]
    widths = [max(len(line[i]) for line in [list(columns), *texts]) for i in range(len(columns))]
    for line in [[column.upper() for column in columns], *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        data("  ".join(cells).rstrip())


def filled_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of which some row has something, in the order in which they first come."""
    columns = dict.fromkeys(column for row in rows for column in row)
    return [column for column in columns if any(row.get(column) not in (None, "") for row in rows)]


def counted(number: int, what: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def as_json(value: Any) -> None:
    data(json.dumps(value, indent=2, default=str))


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    # What comes from a log or a scheduler must not steer the terminal.
    return "".join(character if character.isprintable() else "?" for character in str(value))
