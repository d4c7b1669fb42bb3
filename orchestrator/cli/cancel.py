"""`repro cancel`: by experiment, filter or job."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.cli.options import Database, OnlyScale, OnlyWorkload, Targets, Where
from orchestrator.cli.output import data, next_command, say
from orchestrator.errors import EXIT_FAILED, EXIT_USER_ERROR, Problem, ReproError
from orchestrator.paths import short_name
from orchestrator.text import counted

ASK_ABOVE = 10
"""Cancelling more jobs than this asks first."""

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def cancel(
    targets: Targets,
    where: Where = None,
    scale: OnlyScale = None,
    workload: OnlyWorkload = None,
    yes: Yes = False,
    database: Database = None,
) -> None:
    """Cancel jobs: of experiments, or by job id."""
    from orchestrator.cli.selection import chosen_rows, submitted_ledger
    from orchestrator.launch.cancel import cancel as cancel_jobs
    from orchestrator.launch.cancel import may_have_jobs
    from orchestrator.launch.refresh import refresh
    from orchestrator.ledger.database import DiskFull
    from orchestrator.paths import find_folders

    folders = find_folders()
    ledger = submitted_ledger(folders, database)
    chosen_rows(ledger, folders, targets, where, scale, workload)  # refused before the scheduler is asked
    try:
        for complaint in refresh(ledger).complaints:
            say(f"note: {complaint}")
    except DiskFull as full:  # the jobs are asked to end all the same
        say(f"note: states are as last recorded: {full}")
    live = may_have_jobs(ledger, chosen_rows(ledger, folders, targets, where, scale, workload))
    if not live:
        say("nothing to cancel: no such job is under way")
        next_command("repro status", "how they stand")
        return
    if len(live) > ASK_ABOVE and not yes:
        if not sys.stdin.isatty():
            raise ReproError(Problem(f"{len(live)} jobs would be cancelled", hint="say --yes"))
        typer.confirm(f"Cancel {len(live)} jobs?", abort=True, err=True)
    done = cancel_jobs(ledger, live)
    for row in done.asked:
        data(f"{row.job_id}  {row.label}  {row.scheduler_id or '-'}")
    for problem in done.refused:
        say(f"repro: {problem}")
    if not done.asked and not done.refused:
        say("nothing to cancel: the scheduler has no such job any more")
    else:
        refused = f", {len(done.refused)} refused" if done.refused else ""
        say(f"{counted(len(done.asked), 'job')} asked to end{refused}")
    next_command(f"repro status {short_name(live[0].experiment)}", "whether they have")
    for problem in done.unrecorded:
        say(f"repro: {problem}; the ledger does not record that these jobs were asked to end")
    if done.unrecorded:
        raise typer.Exit(EXIT_USER_ERROR)
    if done.refused:
        raise typer.Exit(EXIT_FAILED)
