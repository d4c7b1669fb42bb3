"""Commands that change jobs: wait, retry, cancel, adopt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.job_table import bar, print_jobs, suggest_results, suggest_status, suggest_why, waiting
from orchestrator.cli.notify import message_addresses, send_message
from orchestrator.cli.options import argument, experiments_of, session_of, value_option
from orchestrator.cli.output import as_row, data, filled_columns, message, only, print_shortened, suggest, table
from orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_TIMEOUT, EXIT_USER_ERROR, Problem, ReproError
from orchestrator.fields import rows_of
from orchestrator.paths import short_name
from orchestrator.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.config.user import Address

ASK_ABOVE = 10
"""Number of jobs above which `cancel` asks."""

Classes = Annotated[
    str | None,
    value_option(
        "--class",
        "CLASSES",
        "node-fail,preempted,timeout,... Default: those that may succeed unchanged.",
        completion.failure_classes,
    ),
]
TimeLimit = Annotated[str | None, value_option("--time", "TIME", "New time limit: +50%, +0:30:00 or 2:00:00.")]
Timeout = Annotated[
    str | None,
    value_option("--timeout", "TIME", "Wait at most 10m, 2h or 0:30:00. Then exit with 124; the jobs continue."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show the jobs only.")]

Folder = Annotated[Path, argument("FOLDER", "Folder of `repro render -o`.")]

app = typer.Typer(rich_markup_mode=None)


@app.command()
def wait(
    context: typer.Context,
    targets: option.MaybeTargets = None,
    *,
    scale: option.OnlyScale = None,
    cluster: option.OnlyCluster = None,
    program: option.OnlyProgram = None,
    where: option.Where = None,
    timeout: Timeout = None,
    notify: option.Notify = None,
) -> None:
    """Wait until jobs have ended: those of experiments, single jobs, or all open jobs."""
    selection: api.JobFilter = {"cluster": cluster, "scale": scale, "program": program, "where": where}
    raise typer.Exit(_wait(context, targets or [], timeout, message_addresses(notify), selection))


def _wait(
    context: typer.Context,
    targets: list[str],
    timeout: str | None,
    addresses: Sequence[Address],
    selection: api.JobFilter,
) -> int:
    """Wait for the jobs and print them; return the exit code."""
    with waiting(context, addresses, selection):
        waited = api.wait(targets, timeout=timeout, session=session_of(context), **selection)
    context.obj.json.put(jobs=waited.jobs)
    if not waited.jobs:
        message("no open jobs")
        suggest_status(experiments_of(targets), selection)
        return EXIT_OK
    for tally in waited.tallies:
        message(bar(tally))
    if not waited.timed_out:
        ends = [f"{tally.name}: {tally.text()}" for tally in waited.tallies]
        send_message(addresses, ends, waited.failed, failed=bool(waited.failed))
    print_jobs(waited.jobs)
    names = sorted({short_name(job.experiment) for job in waited.jobs})
    if waited.timed_out:
        message(f"--timeout {timeout}: {counted(waited.open_jobs, 'job')} not ended; no job was cancelled")
        suggest("wait again", "wait", *(targets or only(names)), **selection)
        return EXIT_TIMEOUT
    if not waited.failed:
        suggest_results(names, selection)
        return EXIT_OK
    failed = next((job for job in waited.failed if job.phase not in api.OPEN), None)
    if failed is None:
        job = waited.failed[0]
        suggest(f"the events of {job.label}", "history", job.job_id)
    else:
        suggest_why(failed)
    return EXIT_FAILED


@app.command()
def retry(
    context: typer.Context,
    targets: option.Targets,
    *,
    scale: option.OnlyScale = None,
    cluster: option.OnlyCluster = None,
    program: option.OnlyProgram = None,
    where: option.Where = None,
    state: option.OnlyState = None,
    classes: Classes = None,
    time: TimeLimit = None,
    settings: option.Settings = None,
    dry_run: DryRun = False,
    wait: option.Wait = False,
    notify: option.Notify = None,
) -> None:
    """Submit failed jobs again, planned from the current profile, on other nodes or with more time."""
    selection: api.JobFilter = {"cluster": cluster, "scale": scale, "program": program, "where": where}
    addresses = message_addresses(notify, waits=wait)
    again: list[api.RetriedJob] = []

    def on_group(group: api.RetriedGroup) -> None:
        """Print the jobs of a group as soon as they are submitted: the next group may fail."""
        again.extend(group.jobs)
        context.obj.json.put(jobs=again)
        if not dry_run:
            _print_retried(group)

    retried = api.retry(
        targets,
        classes=classes,
        time_limit=time,
        settings=settings or (),
        dry_run=dry_run,
        on_group=on_group,
        session=session_of(context),
        state=state,
        **selection,
    )
    jobs = [job for group in retried.groups for job in group.jobs]
    names = sorted({short_name(group.experiment) for group in retried.groups})
    if dry_run and jobs:
        _print_dry_run(retried)
    elif jobs and wait:
        raise typer.Exit(_wait(context, [job.job for job in jobs], None, addresses, selection))
    elif retried.groups and not dry_run:
        suggest_status(names, selection, watch=True)
    else:
        _suggest_retry(targets, retried, time, settings, {**selection, "state": state})


def _suggest_retry(
    targets: Sequence[str],
    retried: api.Retried,
    time: str | None,
    settings: Sequence[str] | None,
    selection: api.StateFilter,
) -> None:
    """Print why no job is submitted again, and the command that submits the failed jobs, or shows the states."""
    message("no jobs to run again")
    for failure in retried.failures:
        message(f"failed ({failure}): {api.policy_of(failure).reason}")
    if retried.failures:
        changes: dict[str, object] = {"class": ",".join(map(str, retried.failures)), "time": time, "settings": settings}
        suggest("to submit them", "retry", *targets, **selection, **changes)
    else:
        suggest_status(experiments_of(targets), {**selection, "state": None})


def _print_dry_run(retried: api.Retried) -> None:
    """Print the jobs that a retry would submit."""
    jobs = [job for group in retried.groups for job in group.jobs]
    rows: list[dict[str, object]] = [
        as_row(job) | {"experiment": short_name(job.experiment), "time": job.time_limit} for job in jobs
    ]
    several = ["experiment"] if len({group.experiment for group in retried.groups}) > 1 else []
    table(rows, ["job", *several, "case", "failure", "attempt", "time"])
    left = sum(group.left for group in retried.groups)
    alone = f", and not {counted(left, 'other')} (too many attempts, or Slurm repeats them)" if left else ""
    message(f"would submit {counted(len(jobs), 'job')} again{alone}; nothing was submitted")
    suggest("the earlier attempts of the first job", "history", jobs[0].job)


def _print_retried(group: api.RetriedGroup) -> None:
    for job in group.jobs:
        data(f"{job.job}  {job.case}  attempt {job.attempt}")
    left = f"; {group.left} not submitted again: too many attempts, or Slurm repeats them; --class submits them"
    message(f"{counted(group.submitted, 'job')} submitted again{left if group.left else ''}")


@app.command()
def cancel(
    context: typer.Context,
    targets: option.Targets,
    *,
    scale: option.OnlyScale = None,
    cluster: option.OnlyCluster = None,
    program: option.OnlyProgram = None,
    where: option.Where = None,
    state: option.OnlyState = None,
    yes: option.Yes = False,
) -> None:
    """Cancel jobs of experiments, or by job id."""
    selection: api.JobFilter = {"cluster": cluster, "scale": scale, "program": program, "where": where}
    session = session_of(context)
    jobs = api.cancellable_jobs(targets, session=session, state=state, **selection)
    if not jobs:
        message("no open job to cancel")
        suggest_status(experiments_of(targets), selection)
        return
    if len(jobs) > ASK_ABOVE and not yes:
        if context.obj.is_json or not sys.stdin.isatty():
            raise ReproError(Problem(f"{counted(len(jobs), 'job')} would be cancelled", hint="confirm with --yes"))
        typer.confirm(f"Cancel {counted(len(jobs), 'job')}?", abort=True, err=True)
    cancelled = api.cancel_jobs(jobs, session=session)
    refs = rows_of(api.JobRef, cancelled.asked)
    context.obj.json.put([*cancelled.refused, *cancelled.unrecorded], jobs=refs)
    for job in cancelled.asked:
        data(f"{job.job_id}  {job.label}  {job.scheduler_id or '-'}")
    for problem in cancelled.refused:
        message(f"repro: {problem}")
    if not cancelled.asked and not cancelled.refused:
        message("no job to cancel: the scheduler no longer has these jobs")
    else:
        refused = f", {len(cancelled.refused)} refused" if cancelled.refused else ""
        verb = "is" if len(cancelled.asked) == 1 else "are"
        message(f"{counted(len(cancelled.asked), 'job')} {verb} being cancelled{refused}")
    names = list(dict.fromkeys(short_name(job.experiment) for job in jobs))
    suggest("whether they have ended", "status", *only(names), **selection)
    for problem in cancelled.unrecorded:
        what = f"{problem.what}; the ledger does not record their cancellation"
        message(f"repro: {Problem(what, problem.location, problem.hint)}")
    if cancelled.unrecorded:
        raise typer.Exit(EXIT_USER_ERROR)
    if cancelled.refused:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def adopt(context: typer.Context, folder: Folder) -> None:
    """Read the jobs of rendered scripts that were submitted by hand into the ledger. A second call adds new ones."""
    adopted = api.adopt(folder, session=session_of(context))
    refs = rows_of(api.JobRef, adopted.jobs)
    rows = [
        as_row(ref) | {"experiment": short_name(ref.experiment), "case": row.label}
        for ref, row in zip(refs, adopted.jobs, strict=True)
    ]
    context.obj.json.put(
        jobs=refs,
        adopted_before=[str(file) for file in adopted.known],
        not_submitted=[str(file) for file in adopted.not_submitted],
    )
    if rows:
        columns = ["job", "experiment", "case", "attempt", "id", "state", "verdict", "origin", "why"]
        table(rows, filled_columns(rows, columns))
    print_shortened([f"not submitted: {file}" for file in adopted.not_submitted], "add --json")
    counts = [f"{counted(len(rows), 'job')} adopted"]
    counts += [f"{len(adopted.known)} adopted before"] if adopted.known else []
    counts += [f"{len(adopted.not_submitted)} not submitted"] if adopted.not_submitted else []
    message(", ".join(counts))
    suggest("state and verdict of the jobs", "status", *only([str(row["experiment"]) for row in rows]))
