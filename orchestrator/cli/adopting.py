"""Command that reads jobs that were submitted by hand into the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import api
from orchestrator.cli import options as option
from orchestrator.cli.json_jobs import job_refs
from orchestrator.cli.options import argument, session_of
from orchestrator.cli.output import filled_columns, message, only, print_shortened, suggest, table
from orchestrator.paths import short_name
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.cli.documents import AdoptDocument

Folder = Annotated[Path, argument("FOLDER", "Folder of `repro render -o`.")]

app = typer.Typer(rich_markup_mode=None)


@app.command()
def adopt(context: typer.Context, folder: Folder, json: option.Json = False, database: option.Database = None) -> None:
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
        document: AdoptDocument = {
            "jobs": job_refs(adopted.jobs),
            "adopted_before": [str(job.file) for job in adopted.known],
            "not_submitted": [str(job.file) for job in adopted.not_submitted],
        }
        context.obj.json.put(document)
    else:
        if rows:
            table(rows, filled_columns(rows))
        print_shortened([f"not submitted: {job.file}" for job in adopted.not_submitted], "add --json")
    counts = [f"{counted(len(rows), 'job')} adopted"]
    counts += [f"{len(adopted.known)} adopted before"] if adopted.known else []
    counts += [f"{len(adopted.not_submitted)} not submitted"] if adopted.not_submitted else []
    message(", ".join(counts))
    suggest(
        "state and verdict of the jobs", "status", *only([str(row["experiment"]) for row in rows]), database=database
    )
