"""Printer of the JSON document of a command. docs/reference/json.md describes the documents."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.cli.documents import DOCUMENTS
from orchestrator.errors import EXIT_OK, Problem
from orchestrator.text import utc_stamp

VERSION = 1
"""Version of the documents. A document of the same version may get more fields; no field changes its meaning."""


class JsonOutput:
    """The one JSON document of `command`: lists of rows by name. `finish` prints it with errors and exit code."""

    def __init__(self, print_text: Callable[[str], None]) -> None:
        self.command: str | None = None  # until --json is read
        self._print = print_text
        self._lists: Mapping[str, Sequence[object]] | None = None
        self._problems: Sequence[Problem] = ()
        self._open_list = ""
        self._is_series = False
        self._has_rows = False

    def put(self, problems: Sequence[Problem] = (), **lists: Sequence[object]) -> None:
        """Set the lists of the document, and problems that are not raised. `finish` prints them.

        A list of the command that is not given is empty. Without --json, nothing is printed.
        """
        self._lists, self._problems = lists, problems

    def print_line(self, **lists: Sequence[object]) -> None:
        """Print a document on one line now. Further documents may follow; that of `put` is the last one."""
        self._is_series = True
        self._print(_json({**self._head(), **self._complete(lists), "errors": [], "exit_code": EXIT_OK}))

    def print_rows(self, rows: Sequence[object], **lists: Sequence[object]) -> None:
        """Print more rows of the last list of the document now. `lists` are other lists, the same in each call."""
        if not self._open_list:
            complete = self._complete(lists)
            *before, self._open_list = complete
            for name, value in {**self._head(), **{name: complete[name] for name in before}}.items():
                self._print_field(name, value)
            self._print(f' "{self._open_list}": [')
        if rows:
            lines = ",\n".join(f"  {_json(row)}" for row in rows)
            self._print(f"  ,\n{lines}" if self._has_rows else lines)
            self._has_rows = True

    def finish(self, errors: Sequence[Problem], exit_code: int) -> None:
        """Print the document, or the rest of it. Without rows, all lists of the command are empty."""
        rows = [{"location": one.location, "problem": one.what, "hint": one.hint} for one in (*self._problems, *errors)]
        if self._is_series and self._lists is None and not rows:
            return
        lists = self._complete(self._lists or {})
        if self._is_series:
            self._print(_json({**self._head(), **lists, "errors": rows, "exit_code": exit_code}))
            return
        if self._open_list:
            self._print(" ],")
        else:
            for name, value in {**self._head(), **lists}.items():
                self._print_field(name, value)
        self._print_field("errors", rows)
        self._print(f' "exit_code": {exit_code}}}')

    def _head(self) -> dict[str, object]:
        return {"version": VERSION, "command": self.command}

    def _complete(self, lists: Mapping[str, Sequence[object]]) -> dict[str, Sequence[object]]:
        """Return all lists of the command; those that are not given are empty."""
        document = DOCUMENTS.get(self.command or "")
        return {name: lists.get(name, []) for name in document.lists} if document is not None else {}

    def _print_field(self, name: str, value: object) -> None:
        """Print a field; a list has a row on each line."""
        opening = "{" if name == "version" else " "
        if isinstance(value, (list, tuple)) and value:
            self._print(f'{opening}"{name}": [')
            self._print(",\n".join(f"  {_json(row)}" for row in value))
            self._print(" ],")
        else:
            self._print(f'{opening}"{name}": {_json(value)},')


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
