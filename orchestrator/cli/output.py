"""Output of commands: tables and JSON on stdout, messages on stderr.

Text from files, logs and schedulers is escaped before it reaches a terminal.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.json_output import JsonOutput
from orchestrator.errors import Problem
from orchestrator.text import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from orchestrator.ledger.rows import JobRow  # loads the database


class VisibleLog:
    """Filter that makes a log safe for a terminal, in blocks that may end within a character or a line end.

    A progress bar that overwrites itself becomes lines. Bytes that are not UTF-8 become `?`.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._after_return = False

    def feed(self, block: bytes, last: bool = False) -> bytes:
        """Return what to print for the block; with `last`, also for an incomplete character at its end."""
        text = self._decoder.decode(block, last)
        if not text:
            return b""
        if self._after_return:  # that line has ended already
            text = text.removeprefix("\n")
        self._after_return = text.endswith("\r")
        text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufffd", "?")
        return printable(text).encode()


def message(text: str) -> None:
    """Print a message to stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def data(text: str) -> None:
    """Print data to stdout, unchanged unless stdout is a terminal."""
    print(printable(text) if sys.stdout.isatty() else text, flush=True)


def as_row(value: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass. Unlike `dataclasses.asdict`, it copies no values: tables have 10,000 rows."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def next_command(command: str, purpose: str) -> None:
    """Print the command to type next."""
    message(f"next: {command}   # {purpose}")


class Console:
    """Reporter of this process. `show_progress` draws the jobs that a command waits for; `json` is for --json."""

    def __init__(self) -> None:
        self.json = JsonOutput(data)
        self.wrong_values: list[Problem] = []
        self.waiting_for: Sequence[JobRow] = ()
        self.show_progress: Callable[[Sequence[JobRow]], None] = lambda _: None

    def message(self, text: str) -> None:
        """Print a line to stderr."""
        message(text)

    def progress(self, jobs: Sequence[JobRow]) -> None:
        """Draw the jobs that a command waits for."""
        self.waiting_for = jobs
        self.show_progress(jobs)

    def wrong_value(self, problem: Problem) -> None:
        """Print a wrong value of the ledger once. The command continues and ends with exit code 2."""
        if problem not in self.wrong_values:
            self.wrong_values.append(problem)
            message(f"repro: {problem}")


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Print aligned columns, never wrapped or cropped, numbers to the right."""
    texts = [[_cell(row.get(column)) for column in columns] for row in rows]
    numeric = [all(isinstance(row.get(c), (int, float, type(None))) for row in rows) for c in columns]
    widths = [max(len(line[i]) for line in [list(columns), *texts]) for i in range(len(columns))]
    for line in [[column.upper() for column in columns], *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        data("  ".join(cells).rstrip())


def filled_columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the columns that have a value in some row, in the order of their first row."""
    columns = dict.fromkeys(column for row in rows for column in row)
    return [column for column in columns if any(row.get(column) not in (None, "") for row in rows)]


MOST_LINES = 10
"""Number of lines of a list on stderr. A command for the other lines follows."""


def print_shortened(lines: Sequence[str], command: str) -> None:
    """Print the first lines of a list to stderr, then the number of the others and the command that shows them."""
    for line in lines[:MOST_LINES]:
        message(line)
    if len(lines) > MOST_LINES:
        message(f"... and {len(lines) - MOST_LINES} more: {command}")


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    return printable(str(value)).replace("\n", "?").replace("\t", "?")
