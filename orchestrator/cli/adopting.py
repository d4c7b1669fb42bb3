"""Command that reads jobs that were submitted by hand into the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli.options import Database, Json, session_of
from orchestrator.cli.output import as_json, filled_columns, message, next_command, print_shortened, table
from orchestrator.paths import short_name
from orchestrator.text import counted

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of `repro render -o`.")]

app = typer.Typer(rich_markup_mode=None)


@app.command()
def adopt(context: typer.Context, folder: Folder, json: Json = False, database: Database = None) -> None:
    """Read the jobs of rendered scripts that were submitted by hand into the ledger. A second call adds new ones."""
    adopted = api.adopt(folder, session=session_of(context, database))
    rows = [
        {
            "job": row.job_id,
            "experiment": short_name(row.experiment),
            "case": row.label,
            "attempt": row.number,
            "id": row.scheduler_id,
            "state": row.state,
            "verdict": row.verdict,
            "origin": row.origin,
            "why": row.verdict_reason,
        }
        for row in adopted.jobs
    ]
    if json:
        names = {"adopted_before": adopted.known, "not_submitted": adopted.not_submitted}
        as_json({"adopted": rows, **{name: [str(job.file) for job in jobs] for name, jobs in names.items()}})
    else:
        if rows:
            table(rows, filled_columns(rows))
        print_shortened([f"not submitted: {job.file}" for job in adopted.not_submitted], "add --json")
    counts = [f"{counted(len(rows), 'job')} adopted"]
    counts += [f"{len(adopted.known)} adopted before"] if adopted.known else []
    counts += [f"{len(adopted.not_submitted)} not submitted"] if adopted.not_submitted else []
    message(", ".join(counts))
    name = f" {rows[0]['experiment']}" if rows else ""
    next_command(f"repro status{name}", "state and verdict of the jobs")
