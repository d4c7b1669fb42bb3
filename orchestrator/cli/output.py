"""What every command prints the same way: tables and JSON to stdout, talk to stderr.

What comes from a file, a log or a scheduler must not steer the terminal it is shown on.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.text import printable


class VisibleLog:
    """A log for a terminal, block by block; a block may end in the middle of a character, or of a line's end.

    Lines end as this machine's do: a progress bar that writes over itself becomes lines. What is no UTF-8 is `?`.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._after_return = False

    def feed(self, block: bytes, last: bool = False) -> bytes:
        """What to write for this block; with `last` also for the beginning of a character that never came."""
        text = self._decoder.decode(block, last)
        if not text:
            return b""
        if self._after_return:  # its line has ended already
            text = text.removeprefix("\n")
        self._after_return = text.endswith("\r")
        text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufffd", "?")
        return printable(text).encode()


def say(text: str) -> None:
    """Talk: to stderr, so that stdout stays data."""
    print(printable(text), file=sys.stderr, flush=True)


def data(text: str) -> None:
    """Data: to a file or another program exactly as it is."""
    print(printable(text) if sys.stdout.isatty() else text, flush=True)


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


def as_json(value: Any) -> None:
    data(json.dumps(value, indent=2, default=str))


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    return printable(str(value)).replace("\n", "?").replace("\t", "?")
