"""Rows as files that other programs read: CSV, JSON, JSON lines, Parquet. pyarrow is loaded here and nowhere else."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.errors import Problem, ReproError
from orchestrator.results.export.columns import CASE_COLUMNS, Column, Row

_AT_ONCE = 10_000
"""Rows; what is written together, so that a long series needs no more memory than this many of its lines."""


def pieces(name: str, columns: Sequence[Column], parts: Mapping[str, Iterable[Row]]) -> Iterator[bytes]:
    """A file as `name` has it, in pieces: of `parts` JSON has all, the others the first, which has these columns."""
    rows = next(iter(parts.values()))
    if name == "parquet":
        yield as_parquet(rows, columns)
        return
    text = {
        "csv": lambda: csv_pieces(rows, columns),
        "json": lambda: json_pieces({"columns": column_rows(columns), **parts}),
        "jsonl": lambda: jsonl_pieces(rows),
    }
    for piece in text[name]():
        yield piece.encode()


def csv_pieces(rows: Iterable[Row], columns: Sequence[Column] = CASE_COLUMNS) -> Iterator[str]:
    """CSV by RFC 4180: lines end with CR LF, an empty field is a value that is not there, numbers are exact.

    A text that a spreadsheet would take for a formula has an apostrophe before it.
    """
    names = [column.name for column in columns]
    yield csv_line(names) + "\r\n"
    for row in rows:
        yield csv_line(row.get(name) for name in names) + "\r\n"


def csv_line(values: Iterable[Any]) -> str:
    """Return the values as one line of CSV, without its end."""
    return ",".join(map(_cell, values))


def as_csv(rows: Iterable[Row], columns: Sequence[Column] = CASE_COLUMNS) -> str:
    return "".join(csv_pieces(rows, columns))


# Also what only other separators than ours would need: a spreadsheet of a country that writes 1,5 splits at ;
_QUOTED = re.compile(r'[",;\t\r\n]|^\s|\s$')


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text_cell(value) if isinstance(value, str) else str(value)


@functools.lru_cache(maxsize=1000)  # all lines of a log have the texts of their job
def _text_cell(value: str) -> str:
    text = f"'{value}" if is_formula(value) else value
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def is_formula(text: str) -> bool:
    """Whether a spreadsheet may run the text: what it begins with counts, behind blanks and in any width of letter."""
    first = next((c for c in text if c.isprintable() and not c.isspace()), "")
    return text[:1] in ("\t", "\r", "\n") or unicodedata.normalize("NFKC", first)[:1] in ("=", "+", "-", "@")


def as_json(rows: Iterable[Row], claims: Iterable[Row], columns: Sequence[Column] = CASE_COLUMNS) -> str:
    """The cases with their claims, and what each column is; a row to a line."""
    return "".join(json_pieces({"columns": column_rows(columns), "cases": rows, "claims": claims}))


def json_pieces(parts: Mapping[str, Iterable[Row]]) -> Iterator[str]:
    """An object of lists, each element on a line of its own. NaN is no JSON: ValueError."""
    yield "{"
    for number, (name, rows) in enumerate(parts.items()):
        yield f"{',' if number else ''}\n{json.dumps(name)}: ["
        for position, row in enumerate(rows):
            yield f"{',' if position else ''}\n  {json.dumps(row, allow_nan=False)}"
        yield "\n]"
    yield "\n}\n"


def column_rows(columns: Sequence[Column]) -> list[Row]:
    return [
        {"name": column.name, "type": column.kind, "unit": column.unit, "meaning": column.meaning} for column in columns
    ]


def jsonl_pieces(rows: Iterable[Row]) -> Iterator[str]:
    """One object to a line, and nothing else."""
    for row in rows:
        yield json.dumps(row, allow_nan=False) + "\n"


def require_parquet() -> None:
    """ReproError where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ReproError(Problem("parquet needs pyarrow", hint="pip install '.[parquet]'"))


def as_parquet(rows: Iterable[Row], columns: Sequence[Column] = CASE_COLUMNS) -> bytes:
    """Each column with its own type whatever is in it, its unit and its meaning as the field's metadata."""
    require_parquet()
    pyarrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    types = {
        "text": pyarrow.string(),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "boolean": pyarrow.bool_(),
        "time": pyarrow.timestamp("ms", tz="UTC"),
    }
    schema = pyarrow.schema(
        [pyarrow.field(column.name, types[column.kind], metadata=_about(column)) for column in columns]
    )
    times = [column.name for column in columns if column.kind == "time"]
    file = io.BytesIO()
    remaining = iter(rows)
    with parquet.ParquetWriter(file, schema) as writer:
        while some := list(itertools.islice(remaining, _AT_ONCE)):
            timed = [row | {name: _moment(row[name]) for name in times} for row in some]
            writer.write_table(pyarrow.Table.from_pylist(timed, schema=schema))
    return file.getvalue()


def _about(column: Column) -> dict[str, str]:
    return {"meaning": column.meaning} | ({"unit": column.unit} if column.unit else {})


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
