"""Output of commands: tables and JSON on stdout, messages on stderr.

Text from files, logs and schedulers is escaped before it reaches a terminal.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from orchestrator.errors import EXIT_OK, Problem
from orchestrator.text import option_words, printable, utc_stamp

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
    ledger = {"database": console.database} if command in OF_LEDGER else {}
    return shlex.join(["repro", *command.split(), *words, *option_words({**options, **ledger})])


def only(names: Sequence[str]) -> Sequence[str]:
    """Return the name as the words of a command that takes at most one; nothing if there are several."""
    distinct = list(dict.fromkeys(names))
    return distinct if len(distinct) == 1 else []


def data(text: str) -> None:
    """Print data to stdout, unchanged unless stdout is a terminal."""
    if not console.is_json:
        _print(printable(text) if sys.stdout.isatty() else text)


def _print(text: str) -> None:
    """Print to stdout. An error, for example of a full disk, has the name stdout."""
    try:
        print(text, flush=True)
    except OSError as error:
        error.filename = "stdout"
        raise


_PLAIN_VALUE = re.compile(r"[A-Za-z/][\w./-]*|[0-9]+(?:-[0-9]+)?(?::[0-9]+){2}", re.ASCII)


def as_yaml(text: str) -> str:
    """Return the text as a YAML value that is read as this text. JSON's quotes are YAML's."""
    is_plain = _PLAIN_VALUE.fullmatch(text) and text not in ("true", "false", "null")
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def as_row(value: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass. Unlike `dataclasses.asdict`, it copies no values: tables have 10,000 rows."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


Rows = Mapping[str, str]
"""Name of a list -> type of its rows: a class of `orchestrator.api`, `str`, or `object` for any value."""

DOCUMENTS: dict[str, Rows] = {
    "list": {"experiments": "ListedExperiment", "clusters": "str"},
    "show": {"papers": "ShownPaper", "experiments": "ShownExperiment", "cases": "ShownCase", "claims": "StatedClaim"},
    "plan": {"cases": "PlanRow", "totals": "PlanTotals", "warnings": "str", "notes": "str"},
    "render": {"scripts": "CaseScript", "lines": "Explained"},
    "status": {"jobs": "JobStatus", "experiments": "ExperimentStatus", "notes": "str"},
    "logs": {"lines": "str"},
    "history": {"attempts": "JobAttempt"},
    "sql": {"relations": "Relation", "columns": "str", "rows": "object"},
    "submit": {"plans": "PlannedJob", "jobs": "JobRef", "cases": "CaseRow", "claims": "JudgedClaim"},
    "adopt": {"jobs": "JobRef", "adopted_before": "str", "not_submitted": "str"},
    "wait": {"jobs": "JobStatus"},
    "retry": {"jobs": "RetriedJob"},
    "cancel": {"jobs": "JobRef"},
    "collect": {"cases": "CaseRow", "iterations": "object", "claims": "JudgedClaim", "files": "WrittenFile"},
    "compare": {"numbers": "ComparedNumber", "sides": "Side", "cases": "CaseDiff"},
    "claims": {"claims": "JudgedClaim", "failed_jobs": "JobRef"},
    "plot": {"files": "WrittenFile", "claims": "JudgedClaim"},
    "report": {"files": "WrittenFile", "claims": "JudgedClaim"},
    "bundle": {"files": "WrittenFile", "missing": "MissingFile", "left_out": "LeftOutAttempt"},
    "bundle verify": {"checks": "BundleCheckRow"},
    "clusters list": {"clusters": "ClusterRow"},
    "clusters show": {"clusters": "ClusterRow", "fields": "ProfileField", "profiles": "object"},
    "clusters check": {"checks": "Finding"},
    "clusters new": {"files": "WrittenFile"},
    "images list": {"images": "ImageFile"},
    "images import": {"imports": "ImageImport"},
    "nodes deny": {"nodes": "DeniedNode"},
    "nodes list": {"nodes": "DeniedNode"},
    "nodes allow": {"nodes": "DeniedNode"},
    "experiments new": {"files": "WrittenFile"},
    "experiments check": {"scales": "CheckedScale", "numbers": "OutputNumber"},
    "config show": {"settings": "ConfigRow"},
    "programs list": {"programs": "ProgramRow"},
    "programs show": {"programs": "ProgramRow", "needs": "NeedRow"},
    "programs fetch": {"fetched": "FetchedFile", "settings": "FetchedSetting", "commands": "str"},
}
"""Command -> its lists of rows. A test validates the output of each command."""


VERSION = 1
"""Version of the documents. A document of the same version may get more fields; no field changes its meaning."""


class JsonOutput:
    """The one JSON document of `command`: lists of rows by name. `finish` prints it with errors and exit code."""

    def __init__(self) -> None:
        self.command: str | None = None  # until --json is read
        self.lists: Mapping[str, Sequence[object]] | None = None
        self.problems: Sequence[Problem] = ()
        self._open_list = ""
        self._is_series = False
        self._has_rows = False

    def print_line(self, errors: Sequence[object] = (), exit_code: int = EXIT_OK, **lists: Sequence[object]) -> None:
        """Print a document on one line now. Further documents may follow; that of `put` is the last one."""
        self._is_series = True
        _print(_json({**self._head(), **self._complete(lists), "errors": errors, "exit_code": exit_code}))

    def print_rows(self, rows: Sequence[object], **lists: Sequence[object]) -> None:
        """Print more rows of the last list of the document now. `lists` are other lists, the same in each call."""
        if not self._open_list:
            complete = self._complete(lists)
            *_, self._open_list = complete
            del complete[self._open_list]
            self._print_fields(self._head() | complete)
            _print(f' "{self._open_list}": [')
        if rows:
            lines = ",\n".join(f"  {_json(row)}" for row in rows)
            _print(f"  ,\n{lines}" if self._has_rows else lines)
            self._has_rows = True

    def finish(self, errors: Sequence[Problem], exit_code: int) -> None:
        """Print the document, or the rest of it. Without rows, all lists of the command are empty."""
        rows = [{"location": one.location, "problem": one.what, "hint": one.hint} for one in (*self.problems, *errors)]
        if self._is_series:
            if self.lists is not None or rows:
                self.print_line(rows, exit_code, **(self.lists or {}))
            return
        if self._open_list:
            _print(" ],")
        else:
            self._print_fields(self._head() | self._complete(self.lists or {}))
        self._print_fields({"errors": rows})
        _print(f' "exit_code": {exit_code}}}')

    def _head(self) -> dict[str, object]:
        return {"version": VERSION, "command": self.command}

    def _complete(self, lists: Mapping[str, Sequence[object]]) -> dict[str, object]:
        """Return all lists of the command; those that are not given are empty."""
        return {name: lists.get(name, []) for name in DOCUMENTS.get(self.command or "", {})}

    def _print_fields(self, fields: Mapping[str, object]) -> None:
        """Print the fields; a list has a row on each line."""
        for name, value in fields.items():
            opening = "{" if name == "version" else " "
            if isinstance(value, (list, tuple)) and value:
                rows = ",\n".join(f"  {_json(row)}" for row in value)
                _print(f'{opening}"{name}": [\n{rows}\n ],')
            else:
                _print(f'{opening}"{name}": {_json(value)},')


def _json(value: object) -> str:
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(json.loads(json.dumps(value, default=_plain))))


def _plain(value: Any) -> object:
    """Return a value of JSON: times in UTC with a Z, paths as text, dataclasses and models by their fields."""
    if isinstance(value, datetime):
        return utc_stamp(value)
    if isinstance(value, Mapping):
        return dict(value)
    if fields := getattr(value, "__dataclass_fields__", None):
        return {name: getattr(value, name) for name in fields}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (str, bytes)):
        return list(value)
    return str(value)


def _finite(value: object) -> object:
    """Return the value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Console:
    """Reporter of this process. `show_progress` draws the jobs that a command waits for; `database` is the option.

    With `--json`, stdout has only the document: `data` and `table` print nothing.
    """

    def start(self) -> None:
        """Begin a command line."""
        self.json = JsonOutput()
        self.database: str | None = None
        self.waiting_for: Sequence[JobRow] = ()
        self.show_progress: Callable[[Sequence[JobRow]], None] = lambda _: None

    __init__ = start

    @property
    def is_json(self) -> bool:
        """Return whether the command prints a JSON document."""
        return self.json.command is not None

    def message(self, text: str) -> None:
        """Print a line to stderr."""
        message(text)

    def progress(self, jobs: Sequence[JobRow]) -> None:
        """Draw the jobs that a command waits for."""
        self.waiting_for = jobs
        self.show_progress(jobs)


console = Console()
"""The console of this process."""


def put(problems: Sequence[Problem] = (), **lists: Sequence[object]) -> None:
    """Set the lists of the JSON document, and problems that are not raised. They are printed at the end of the command.

    A list of the command that is not given is empty. Without --json, nothing is printed.
    """
    console.json.lists, console.json.problems = lists, problems


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
    wide: bool | None = None,
    important: Sequence[str] = (),
) -> None:
    """Print aligned columns, numbers to the right. On a terminal, a row is one line unless `wide`.

    If there is no room for all columns, those of `important` are kept first, then the others in their order. `wide` is
    None for a command without that option.
    """
    if console.is_json or not columns:
        return
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal and not wide else None
    shown, lines = table_lines(rows, columns, width, important, style=_styled if _has_colours() else None)
    for line in lines:
        _print(line)
    if hidden := [column for column in columns if column not in shown]:
        message(f"not shown: {', '.join(hidden)} ({'a pipe shows all' if wide is None else WIDE_HINT})")


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
    if not console.is_json:
        _print(shown + indent[len(label) :] + f"\n{indent}".join(lines))


def filled_columns(
    rows: Sequence[Mapping[str, object]], columns: Iterable[str] | None = None, different: Collection[str] = ()
) -> list[str]:
    """Return the columns that have a value in some row: those of `columns`, or all in the order of their first row.

    Those of `different` are left out if all rows have the same value.
    """
    columns = dict.fromkeys(column for row in rows for column in row) if columns is None else columns
    values = {column: {str(row.get(column)) for row in rows} - {"None", ""} for column in columns}
    return [column for column, of_rows in values.items() if len(of_rows) > (column in different)]


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
