"""Tables of columns inside pages that are written by hand: the lines below a table's head are replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from orchestrator.fields import Column
from orchestrator.results.export.rows import ITERATION_COLUMNS, JOB_COLUMNS, case_columns
from tests.pages import CHECKOUT
from tests.reference.markdown import code, table
from tests.unit.catalog.entries import figure_13

_SECTIONS = {
    "Identity": "experiment",
    "Configuration": "row",
    "State and verdict": "state",
    "Measurements": "repeats",
    "Published numbers": "published",
    "Provenance": "measured_for",
}
"""Heading of a table of columns of a case -> its first column."""


def export_page() -> str:
    """Return the page of exported files with its tables of columns."""
    columns = case_columns(figure_13())
    names, starts = [column.name for column in columns], list(_SECTIONS.values())
    ends = [names.index(start) for start in starts[1:]] + [len(names)]
    tables = {
        f"### {heading}": _columns(columns[names.index(start) : end])
        for (heading, start), end in zip(_SECTIONS.items(), ends, strict=True)
    }
    own = [column for column in ITERATION_COLUMNS if column.name not in JOB_COLUMNS]
    return _with_tables("docs/reference/export.md", {**tables, "## One row per line of the logs": _columns(own)})


def _columns(columns: Iterable[Column]) -> Iterator[str]:
    rows = [(code(column.name), column.kind, column.unit or "", column.meaning) for column in columns]
    return table(("column", "type", "unit", "meaning"), rows)


def _with_tables(page: str, tables: Mapping[str, Iterable[str]]) -> str:
    """Return a page with the first table below each of these headings replaced."""
    lines: Sequence[str] = (CHECKOUT / page).read_text(encoding="utf-8").splitlines()
    for heading, new in tables.items():
        start = lines.index(heading)
        first = next(number for number, line in enumerate(lines) if number > start and line.startswith("| "))
        length = len(list(takewhile(lambda line: line.startswith("|"), lines[first:])))
        lines = [*lines[:first], *new, *lines[first + length :]]
    return "\n".join([*lines, ""])
