"""`repro sql`: a question to the ledger, which can change nothing."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from orchestrator.cli.options import Database
from orchestrator.cli.output import as_json, data, next_command, say, table
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import find_folders

if TYPE_CHECKING:
    from orchestrator.ledger.database import Ledger
    from orchestrator.ledger.readonly_sql import Answer

AT_ONCE = 1000
"""Rows that are fetched and printed together; a table's columns are aligned, and its head repeated, for so many."""

Question = Annotated[
    Optional[str],  # noqa: UP045  typer reads these at run time, on Python 3.10 too
    typer.Argument(help='One SELECT, for example "select * from v_results"; without it: what can be asked for.'),
]
AsJson = Annotated[bool, typer.Option("--json", help="The rows as a JSON list of objects.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="The rows as CSV.")]


def sql(question: Question = None, json: AsJson = False, csv: AsCsv = False, database: Database = None) -> None:
    """Ask the ledger, read-only."""
    from orchestrator.cli.session import existing_ledger
    from orchestrator.ledger.attempts import anything_to_refresh
    from orchestrator.ledger.readonly_sql import asked

    if json and csv:
        raise ReproError(Problem("--json and --csv: give one of them"))
    ledger = existing_ledger(find_folders(), database)
    if ledger is None:
        raise ReproError(Problem("nothing was submitted yet", hint="repro submit figure-13 --cluster local --wait"))
    if question is None:
        _print_relations(ledger, json)
        return
    if anything_to_refresh(ledger):
        say("note: jobs are under way, shown as last seen; `repro collect` asks and reads what is new")
    with asked(ledger, question) as answer:
        if json:
            _print_json(answer)
        elif csv:
            _print_csv(answer)
        else:
            _print_table(answer)


def _print_relations(ledger: Ledger, json: bool) -> None:
    from orchestrator.ledger.readonly_sql import relations

    found = relations(ledger)
    if json:
        as_json([{"name": one.name, "kind": one.kind, "columns": one.columns} for one in found])
        return
    rows = [{"name": one.name, "kind": one.kind, "columns": ", ".join(one.columns)} for one in found]
    table(rows, ["name", "kind", "columns"])
    next_command('repro sql "select case_name, verdict, tflops_per_gpu from v_results"', "docs/ledger.md says more")


def _print_table(answer: Answer) -> None:
    blocks = _blocks(answer.rows)
    for block in itertools.chain([next(blocks, [])], blocks):
        table([dict(zip(answer.columns, row, strict=True)) for row in block], answer.columns)


def _print_csv(answer: Answer) -> None:
    """As `collect` writes CSV: a text that a spreadsheet would take for a formula has an apostrophe before it."""
    from orchestrator.results.export.formats import csv_line

    head: list[Sequence[Any]] = [answer.columns]
    for block in itertools.chain([head], _blocks(answer.rows)):
        data("\n".join(map(csv_line, block)))


def _print_json(answer: Answer) -> None:
    """As one list, of which never more than a block is in memory."""
    opening = "["
    for block in _blocks(answer.rows):
        rows = (dict(zip(answer.columns, map(_plain, row), strict=True)) for row in block)
        data(opening + ",\n ".join(json.dumps(row, default=str, allow_nan=False) for row in rows))
        opening = ","
    data("]" if opening == "," else "[]")


def _blocks(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    several = iter(rows)
    while block := list(itertools.islice(several, AT_ONCE)):
        yield block


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
