"""Command that hides attempts, and shows them again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import api
from orchestrator.cli.options import Database, JobOptions, Json, Targets, Yes, experiments_of, session_of
from orchestrator.cli.output import message, print_shortened
from orchestrator.cli.suggestion import only, suggest, suggested
from orchestrator.errors import EXIT_FAILED, Problem, ReproError
from orchestrator.paths import short_name
from orchestrator.text import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

OneAttempt = Annotated[int | None, typer.Option("--attempt", min=1, help="Only the attempts of this number.")]
OnlyFailed = Annotated[bool, typer.Option("--failed", help="Only attempts that are neither verified nor partial.")]
Undo = Annotated[bool, typer.Option("--undo", help="Show forgotten attempts again.")]

app = typer.Typer(rich_markup_mode=None)


@app.command()
@api.with_keywords(JobOptions)
def forget(
    context: typer.Context,
    targets: Targets,
    *,
    attempt: OneAttempt = None,
    failed: OnlyFailed = False,
    undo: Undo = False,
    yes: Yes = False,
    json: Json = False,
    database: Database = None,
    **options: Unpack[JobOptions],
) -> None:
    """Hide attempts from every table and exit code. They stay in the ledger, and --undo shows them again."""
    session = session_of(context, database)
    chosen = api.forgettable(targets, attempt=attempt, failed=failed, undo=undo, session=session, **options)
    if chosen.verified and not undo and not yes:
        what = f"{counted(chosen.verified, 'attempt')} with a result would be forgotten"
        if json or not sys.stdin.isatty():
            raise ReproError(Problem(what, hint="--failed keeps them; or confirm with --yes"))
        typer.confirm(f"{what}. Continue?", abort=True, err=True)
    api.forget_attempts(chosen, undo=undo, session=session)
    if json:
        context.obj.json.put(chosen.refused, attempts=api.rows_of(api.JobRef, chosen.attempts))
    _print(chosen, undo, json)
    if chosen.attempts:
        first, name = chosen.attempts[0], short_name(chosen.attempts[0].experiment)
        if undo:
            suggest(context, "the attempts are shown again", "status", name)
        else:
            undone = suggested(context, "forget", *targets, "--undo")
            suggest(context, f"undo: {undone}", "history", first.job_id, "--all")
    else:
        suggest(context, "their states", "status", *only(experiments_of(targets)))
    if chosen.refused:
        raise typer.Exit(EXIT_FAILED)


def _print(chosen: api.Forgotten, undo: bool, json: bool) -> None:
    """Print the attempts that are hidden or shown again, and those that are not changed."""
    if chosen.attempts and not json:
        lines = [
            f"{row.job_id}  {row.label}  attempt {row.number}  {row.verdict or row.state}" for row in chosen.attempts
        ]
        print_shortened(lines, "add --json")
    print_shortened([f"repro: {problem}" for problem in chosen.refused], "add --json")
    done = "shown again" if undo else "forgotten"
    message(f"{counted(len(chosen.attempts), 'attempt')} {done}" if chosen.attempts else f"no attempt {done}")
