"""Output of commands: tables and JSON on stdout, messages on stderr.

Text from files, logs and schedulers is escaped before it reaches a terminal.
"""

from __future__ import annotations

import codecs
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.cli.output import JsonOutput
from orchestrator.text import option_words, printable

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


def next_command(command: str, purpose: str) -> None:
    """Print the command to type next."""
    message(f"next: {command}   # {purpose}")


def suggest(purpose: str, command: str, *words: str, **options: object) -> None:
    """Print a command of `repro` to type next, with these arguments and options."""
    next_command(repro_command(command, *words, **options), purpose)


OF_LEDGER = {
    *("list", "status", "logs", "history", "sql", "submit", "adopt", "wait", "retry", "cancel"),
    *("collect", "compare", "claims", "plot", "report", "bundle", "config show"),
}
"""Commands that read or write the ledger. They have `--database`."""


def repro_command(command: str, *words: str, **options: object) -> str:
    """Return a command of `repro` for a shell: arguments, then options. Options that are None or False are left out.

    The ledger of this process is kept.
    """
    ledger = {"database": Console.database} if command in OF_LEDGER else {}
    return shlex.join(["repro", *command.split(), *words, *option_words({**options, **ledger})])


def only(names: Sequence[str]) -> Sequence[str]:
    """Return the name as the words of a command that takes at most one; nothing if there are several."""
    distinct = list(dict.fromkeys(names))
    return distinct if len(distinct) == 1 else []


def data(text: str) -> None:
    """Print data to stdout, unchanged unless stdout is a terminal."""
    if Console.prints_data:
        _print(printable(text) if sys.stdout.isatty() else text)


def _print(text: str) -> None:
    """Print to stdout. An error, for example of a full disk, has the name stdout."""
    try:
        print(text, flush=True)
    except OSError as error:
        error.filename = "stdout"
        raise


def as_row(value: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass. Unlike `dataclasses.asdict`, it copies no values: tables have 10,000 rows."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


class Console:
    """Reporter of this process. `show_progress` draws the jobs that a command waits for; `database` is the option.

    With `--json`, stdout has only the document: `data` and `table` print nothing.
    """

    prints_data: ClassVar[bool] = True
    database: ClassVar[str | None] = None

    def __init__(self) -> None:
        self.json = JsonOutput(_print)
        Console.prints_data, Console.database = True, None
        self.waiting_for: Sequence[JobRow] = ()
        self.show_progress: Callable[[Sequence[JobRow]], None] = lambda _: None

    @property
    def is_json(self) -> bool:
        """Return whether the command prints a JSON document."""
        return self.json.command is not None

    def print_document(self, command: str) -> None:
        """Print the JSON document of this command at its end, and nothing else on stdout."""
        self.json.command = command
        Console.prints_data = False

    def message(self, text: str) -> None:
        """Print a line to stderr."""
        message(text)

    def progress(self, jobs: Sequence[JobRow]) -> None:
        """Draw the jobs that a command waits for."""
        self.waiting_for = jobs
        self.show_progress(jobs)


_STYLES = {
    **dict.fromkeys(("verified", "holds", "ok", "yes", "COMPLETED"), "green"),
    **dict.fromkeys(("failed", "fails", "wrong", "no", "regression", "now fails"), "red"),
    **dict.fromkeys(("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "LOST"), "red"),
    **dict.fromkeys(("CANCELLED", "PENDING", "QUEUED", "SUBMITTING", "partial", "open", "not judged"), "yellow"),
    **dict.fromkeys(("RUNNING", "COMPLETING"), "cyan"),
}
"""Colours of states and verdicts on a terminal."""
_COLOURED = ("state", "verdict", "result", "within", "change")
WIDE_HINT = "--wide shows all"
_LEAST_WIDTH = 16
"""Least width of a column whose texts are cut to fit a terminal."""


def table(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    *,
    wide: bool = False,
    important: Sequence[str] = (),
    hint: str = "a pipe shows all",
) -> None:
    """Print aligned columns, numbers to the right. On a terminal, a row is one line unless `wide`.

    If there is no room for all columns, those of `important` are kept first, then the others in their order. `hint`
    tells how to see the others.
    """
    if not Console.prints_data:
        return
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal and not wide else None
    shown, lines = table_lines(rows, columns, width, important, style=_styled if _has_colours() else None)
    for line in lines:
        _print(line)
    if hidden := [column for column in columns if column not in shown]:
        message(f"not shown: {', '.join(hidden)} ({hint})")


def table_lines(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    width: int | None = None,
    important: Sequence[str] = (),
    style: Callable[[str], str] | None = None,
) -> tuple[list[str], list[str]]:
    """Return the columns that fit in the width, in their order, and the lines of the table. None: any width."""
    texts = {column: [_cell(row.get(column)) for row in rows] for column in columns}
    widths = {column: max(map(len, [column, *texts[column]])) for column in columns}
    shown = list(columns)
    if width is not None:
        shown = _fitting([*(name for name in important if name in columns), *columns], widths, width)
        shown.sort(key=list(columns).index)
    numeric = {c: all(isinstance(row.get(c), (int, float, type(None))) for row in rows) for c in shown}
    lines = ["  ".join(_aligned(printable(c.upper()), widths[c], numeric[c]) for c in shown).rstrip()]
    for number in range(len(rows)):
        cells = []
        for c in shown:
            cell = texts[c][number]
            aligned = _aligned(cell, widths[c], numeric[c])
            cells.append(aligned.replace(cell, style(cell), 1) if style and c in _COLOURED else aligned)
        lines.append("  ".join(cells).rstrip())
    return shown, lines


def _fitting(columns: Sequence[str], widths: dict[str, int], room: int) -> list[str]:
    """Return the columns that fit, in order of importance; the first one that does not is cut, and its width set."""
    shown: list[str] = []
    left = room
    for column in dict.fromkeys(columns):
        needed = widths[column] + (2 if shown else 0)
        if needed > left:
            available = left - (2 if shown else 0)
            if available < _LEAST_WIDTH and shown:
                continue
            widths[column] = max(available, 1)
            needed = left
        shown.append(column)
        left -= needed
    return shown


def _aligned(cell: str, width: int, right: bool) -> str:
    if len(cell) > width:
        return f"{cell[: width - 1]}…"
    return cell.rjust(width) if right else cell.ljust(width)


def _has_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def _styled(cell: str) -> str:
    """Return a state or a verdict in its colour."""
    if cell not in _STYLES:
        return cell
    from rich.style import Style  # only on a terminal

    return Style.parse(_STYLES[cell]).render(cell)


def print_beside(label: str, text: str, width: int = 10) -> None:
    """Print the label, padded to the width, and the text. On a terminal, wrap the text, and colour the label."""
    if not sys.stdout.isatty():
        data(f"{label:<{width}}  {text}")
        return
    indent = " " * (width + 2)
    lines = textwrap.wrap(printable(text), shutil.get_terminal_size().columns - len(indent)) or [""]
    shown = _styled(label) if _has_colours() else label
    if Console.prints_data:
        _print(shown + indent[len(label) :] + f"\n{indent}".join(lines))


def filled_columns(rows: Sequence[Mapping[str, object]], columns: Iterable[str] | None = None) -> list[str]:
    """Return the columns that have a value in some row: those of `columns`, or all in the order of their first row."""
    columns = dict.fromkeys(column for row in rows for column in row) if columns is None else columns
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
