"""Command that reads jobs that were submitted by hand into the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli.options import Database, Json, session_of
from orchestrator.cli.output import as_row, filled_columns, message, print_shortened, table
from orchestrator.cli.suggestion import only, suggest
from orchestrator.paths import short_name
from orchestrator.text import counted

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of `repro render -o`.")]

app = typer.Typer(rich_markup_mode=None)


@app.command()
def adopt(context: typer.Context, folder: Folder, json: Json = False, database: Database = None) -> None:
    """Read the jobs of rendered scripts that were submitted by hand into the ledger. A second call adds new ones."""
    adopted = api.adopt(folder, session=session_of(context, database))
    refs = api.rows_of(api.JobRef, adopted.jobs)
    rows = [
        as_row(ref) | {"experiment": short_name(ref.experiment), "case": row.label}
        for ref, row in zip(refs, adopted.jobs, strict=True)
    ]
    if json:
        context.obj.json.put(
            jobs=refs,
            adopted_before=[str(file) for file in adopted.known],
            not_submitted=[str(file) for file in adopted.not_submitted],
        )
    else:
        if rows:
            columns = ["job", "experiment", "case", "attempt", "id", "state", "verdict", "origin", "why"]
            table(rows, [name for name in columns if name in filled_columns(rows)])
        print_shortened([f"not submitted: {file}" for file in adopted.not_submitted], "add --json")
    counts = [f"{counted(len(rows), 'job')} adopted"]
    counts += [f"{len(adopted.known)} adopted before"] if adopted.known else []
    counts += [f"{len(adopted.not_submitted)} not submitted"] if adopted.not_submitted else []
    message(", ".join(counts))
    suggest(context, "state and verdict of the jobs", "status", *only([str(row["experiment"]) for row in rows]))
