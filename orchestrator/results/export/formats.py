"""Export files: CSV, JSON, JSON lines and Parquet for programs; Markdown and LaTeX tables for people."""

from __future__ import annotations

import html
import importlib
import importlib.util
import io
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.fields import Column
from orchestrator.ledger.tables import PARTIAL
from orchestrator.programs.axes import principal_metric, shares_beside
from orchestrator.results.export.rows import metric_column

Row = Mapping[str, Any]
"""Value, or None, of each column by its name."""

_ROWS_AT_ONCE = 10_000
"""Rows per write of a Parquet file; memory does not grow with the number of rows."""


def pieces(name: str, columns: Sequence[Column], parts: Mapping[str, Iterable[Row]]) -> Iterator[bytes]:
    """Yield a file of the format `name`; JSON has all `parts`, other formats only the first, with these columns."""
    (title, complete), *others = parts.items()
    names = [column.name for column in columns]
    rows = ({name: row[name] for name in names} for row in complete)
    if name == "parquet":
        yield as_parquet(rows, columns)
    elif name == "csv":
        yield from map(str.encode, _csv_pieces(rows, columns))
    elif name == "json":
        meanings = ({"name": one.name, "type": one.kind, "unit": one.unit, "meaning": one.meaning} for one in columns)
        yield from map(str.encode, _json_pieces({"columns": meanings, title: rows, **dict(others)}))
    else:
        yield from (json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)


def _csv_pieces(rows: Iterable[Row], columns: Sequence[Column]) -> Iterator[str]:
    """Yield CSV by RFC 4180: lines end with CR LF, an empty field is a missing value, numbers are exact.

    A text that a spreadsheet would read as a formula starts with an apostrophe. Python's csv module does not quote `;`,
    tabs and blanks at the ends, which spreadsheets of other languages need.
    """
    yield csv_line(column.name for column in columns) + "\r\n"
    for row in rows:
        yield csv_line(row.values()) + "\r\n"


def csv_line(values: Iterable[object]) -> str:
    """Return the values as one line of CSV, without its end."""
    return ",".join(map(_cell, values))


# Semicolons too: a spreadsheet of a country with decimal commas splits at them.
_QUOTED = re.compile(r'[",;\t\r\n]|^\s|\s$')


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text_cell(value) if isinstance(value, str) else str(value)


@lru_cache(maxsize=1000)  # the lines of a log repeat the texts of their job
def _text_cell(value: str) -> str:
    text = f"'{value}" if is_formula(value) else value
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet may run the text, by its first visible character in any width."""
    first = next((c for c in text if c.isprintable() and not c.isspace()), "")
    return text[:1] in ("\t", "\r", "\n") or unicodedata.normalize("NFKC", first)[:1] in ("=", "+", "-", "@")


def _json_pieces(parts: Mapping[str, Iterable[Row]]) -> Iterator[str]:
    """Yield an object of lists, one element per line; ValueError for NaN, which JSON does not have."""
    yield "{"
    for number, (name, rows) in enumerate(parts.items()):
        yield f"{',' if number else ''}\n{json.dumps(name)}: ["
        for position, row in enumerate(rows):
            yield f"{',' if position else ''}\n  {json.dumps(dict(row), allow_nan=False)}"
        yield "\n]"
    yield "\n}\n"


def require_parquet() -> None:
    """Raise ReproError if pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ReproError(Problem("parquet needs pyarrow", hint="pip install '.[parquet]'"))


def as_parquet(rows: Iterable[Row], columns: Sequence[Column]) -> bytes:
    """Return a Parquet file: each column with its own type, its unit and meaning as metadata of the field."""
    require_parquet()
    pyarrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    types = {
        "text": pyarrow.string(),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "boolean": pyarrow.bool_(),
        "time": pyarrow.timestamp("ms", tz="UTC"),
    }
    meanings = [{"meaning": column.meaning} | ({"unit": column.unit} if column.unit else {}) for column in columns]
    fields = ((column.name, types[column.kind]) for column in columns)
    schema = pyarrow.schema(pyarrow.field(*one, metadata=each) for one, each in zip(fields, meanings, strict=True))
    times = [column.name for column in columns if column.kind == "time"]
    file = io.BytesIO()
    remaining = iter(rows)
    with parquet.ParquetWriter(file, schema) as writer:
        while batch := list(itertools.islice(remaining, _ROWS_AT_ONCE)):
            batch = [
                dict(row)
                | {name: row[name] and datetime.fromisoformat(row[name].replace("Z", "+00:00")) for name in times}
                for row in batch
            ]
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
    return file.getvalue()


_NONE = "-"


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Table of a figure; the first two columns are text, the others numbers."""

    caption: str
    heading: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    label: str


def figure_table(entry: Entry, scale: str, cluster: str, rows: Sequence[Row]) -> FigureTable:
    """Return case, verdict, the principal and the figure's own metric, shares, and published numbers as a table.

    Shares stand beside their metric if a case has them.
    """
    y = entry.experiment.plot.y
    principal = principal_metric(entry.metrics, y.metric)
    shown = {principal.name: principal.label or principal.name}
    shown |= {y.metric: y.label} if y.metric not in shown or not principal.is_principal else {}
    columns: list[tuple[str, Callable[[Row], str]]] = [("Case", lambda row: str(row["case"])), ("Verdict", _verdict)]
    columns += [(label, partial(_measured, column=metric_column(entry, name))) for name, label in shown.items()]
    beside = shares_beside(entry.metrics, y.metric)
    shares = [share for share in beside if any(row[share.name] is not None for row in rows)]
    columns += [(share.label or share.name, partial(_value, name=share.name)) for share in shares]
    if any(row["published"] is not None for row in rows):
        columns += [("Published", _published), ("Ratio", partial(_value, name="ratio_to_published"))]
    replaced = sorted({(row["program"], row["published_program"]) for row in rows if row["published_program"]})
    programs = " and ".join(f"{program} instead of {own}" for program, own in replaced)
    return FigureTable(
        caption=f"{entry.experiment.figure} ({entry.name}) on {cluster} at scale {scale}"
        f"{f' with {programs}' if programs else ''}; ± is the spread over the iterations",
        heading=tuple(name for name, _ in columns),
        body=tuple(tuple(cell(row) for _, cell in columns) for row in rows),
        label=re.sub(r"[^A-Za-z0-9-]+", "-", f"{entry.short_name}-{scale}-{cluster}"),
    )


def _verdict(row: Row) -> str:
    if row["verdict"] is None:
        return str(row["state"] or "not submitted").lower()
    if row["verdict"] == PARTIAL:
        return f"{PARTIAL}, {row['iterations_used']} samples"
    marks = {"flag": "flagged", "noise": "noisy", "host_bound": "host-bound"}
    detail = row["failure"] or next((mark for name, mark in marks.items() if row[name]), None)
    return f"{row['verdict']}, {detail}" if detail else str(row["verdict"])


def _measured(row: Row, column: str) -> str:
    value, spread = row[column], row[f"{column}_spread"]
    return f"{_number(value)} ± {_number(spread)}" if value is not None and spread is not None else _number(value)


def _published(row: Row) -> str:
    """Return the published number with its error, and the reason if it is not compared: unconfirmed, or another GPU."""
    if row["published"] is None:
        return _NONE
    notes = [f"±{row['published_error']:g}"] if row["published_error"] else []
    notes += [] if row["published_confirmed"] else ["unconfirmed"]
    if row["gpu"] and row["published_gpu"] and row["published_gpu"] not in row["gpu"]:
        notes.append(row["published_gpu"])
    return _number(row["published"]) + (f" ({', '.join(notes)})" if notes else "")


def _value(row: Row, name: str) -> str:
    return _number(row[name])


def _number(value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def as_markdown(table: FigureTable) -> str:
    """Return a table in GitHub's Markdown, with its caption above."""
    heading, *body = ([markdown_escaped(cell) for cell in line] for line in (table.heading, *table.body))
    rows = [heading, ["---", "---", *["---:"] * (len(heading) - 2)], *body]
    return f"{markdown_escaped(table.caption)}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


_MARKDOWN = re.compile(r"[\\`*_\[\]{}|~$#]")


def markdown_escaped(text: str) -> str:
    """Return the text so that Markdown prints it as it is: no column, emphasis, link or HTML."""
    return html.escape(_MARKDOWN.sub(r"\\\g<0>", " ".join(text.splitlines())), quote=False)


def as_latex(table: FigureTable) -> str:
    """Return a floating LaTeX table that needs the package booktabs only."""
    columns = "ll" + "r" * (len(table.heading) - 2)
    heading, *body = ("    " + " & ".join(map(latex_escaped, line)) + r" \\" for line in (table.heading, *table.body))
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_escaped(table.caption)}}}",
        rf"  \label{{tab:{table.label}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        heading,
        r"    \midrule",
        *body,
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


# After the \\ of the previous row, TeX reads * and [ as arguments. Its default encoding has other signs for < > |.
# Two hyphens are a dash, and two quotes are another quote. babel may redefine the double quote.
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "*[]`"},
    **{sign: f"{sign}{{}}" for sign in "-'"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "{''}",
    "±": r"$\pm$",
}
_SPECIAL = re.compile(r"-(?=-)|'(?=')|[&%$#_{}*\[\]`~^\\<>|\"±]")


def latex_escaped(text: str) -> str:
    """Return the text so that LaTeX prints it as it is in a cell or a caption."""
    return _SPECIAL.sub(lambda match: _LATEX[match[0]], " ".join(text.splitlines()))
