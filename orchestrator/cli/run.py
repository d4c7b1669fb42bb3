"""Commands that run jobs: submit, wait, retry, cancel, adopt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typing_extensions import Unpack

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.job_table import (
    bar,
    claim_counts,
    print_jobs,
    print_outcome,
    suggest_results,
    suggest_status,
    suggest_why,
    waiting,
)
from orchestrator.cli.notify import message_addresses, send_message
from orchestrator.cli.options import argument, command_session, experiments_of, flag, value_option, with_options
from orchestrator.cli.output import (
    as_row,
    console,
    data,
    filled_columns,
    message,
    only,
    print_shortened,
    put,
    repro_command,
    suggest,
    table,
)
from orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_TIMEOUT, EXIT_USER_ERROR, Problem, ReproError
from orchestrator.fields import row_of, rows_of
from orchestrator.paths import short_name
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.config.user import Address

ASK_ABOVE = 10
"""Number of jobs above which `cancel` asks."""
Classes = Annotated[
    str | None,
    value_option(
        "CLASSES",
        "node-fail,preempted,timeout,... Default: those that may succeed unchanged.",
        completion.failure_classes,
        "--class",
    ),
]

app = typer.Typer(rich_markup_mode=None)


@app.command()
@with_options(option.CASES)
def submit(
    context: typer.Context,
    experiments: option.ExperimentNames,
    cluster: option.OnCluster,
    *,
    dry_run: Annotated[bool, flag("Show the jobs only. Needs no scheduler.", "--dry-run", "-n")] = False,
    wait: option.Wait = False,
    rerun: Annotated[bool, flag("Measure verified and partial cases again.", "--rerun")] = False,
    repeat: Annotated[int, value_option("NUMBER", "Measure each case this many times, in separate jobs.", min=1)] = 1,
    canary: Annotated[
        bool, flag("Run the smallest case first; the others once it is verified or partial.", "--canary")
    ] = False,
    max_parallel: Annotated[
        int | None, value_option("NUMBER", "Run at most this many jobs of an experiment at once.", min=1)
    ] = None,
    stop_after: Annotated[
        int | None, value_option("NUMBER", "Start no more jobs after this many failures of one kind.", min=1)
    ] = None,
    after: Annotated[
        list[str] | None, value_option("JOB", "Start when this job has ended.", completion.job_ids)
    ] = None,
    depends_on: Annotated[
        Literal["warm-up"] | None,
        typer.Option("--depends-on", help="warm-up: first compile the program's kernels in a separate job."),
    ] = None,
    notify: option.Notify = None,
    **options: Unpack[api.CaseOptions],
) -> None:
    """Submit every case that is not verified, partial or open, the smallest first."""
    run: api.SubmitOptions = {"rerun": rerun, "repeat": repeat, "canary": canary, "max_parallel": max_parallel}
    run |= {"stop_after": stop_after, "after": after or (), "warm_up": depends_on is not None}
    addresses = message_addresses(notify, waits=wait)
    if dry_run:
        _plan(experiments, cluster, run, {**options, "example": True})
        return
    selection: api.JobFilter = {"cluster": cluster, "scale": options["scale"], "program": options["program"]}
    selection["where"] = options["where"]
    submitted = _submitted(experiments, cluster, selection, {**options, **run})
    if wait:
        raise typer.Exit(_supervised(context, submitted, addresses, selection))
    _print_submitted_jobs(submitted, selection)


def _plan(names: Sequence[str], cluster: str, run: api.SubmitOptions, options: api.CaseOptions) -> None:
    """Print the jobs that a submission would have."""
    planned = api.plan_runs(names, cluster, repeat=run["repeat"], max_parallel=run["max_parallel"], **options)
    api.require_submittable(planned, warm_up=run["warm_up"])
    denied = api.denied_note(planned[0].cluster)
    for note in [*(note for run in planned for note in run.notes), *denied, *_example_notes(planned)]:
        message(f"note: {note}")
    put(plans=rows_of(api.PlannedJob, _plans(planned)))
    _print_plans(planned, options)


def _submitted(
    names: Sequence[str], cluster: str, selection: api.JobFilter, options: api.SubmitOptions
) -> list[api.Submission]:
    """Submit the jobs, and print those of each experiment as soon as they are submitted."""
    submitted: list[api.Submission] = []

    def on_submission(submission: api.Submission) -> None:
        submitted.append(submission)
        put(jobs=_job_rows(submitted))
        _print_submission(submission)

    try:
        api.submit_all(names, cluster, on_submission=on_submission, session=command_session(), **options)
    except KeyboardInterrupt:
        message("interrupted; the jobs submitted so far are recorded and continue")
        cancel = repro_command("cancel", *names, **selection)
        suggest(f"or: {cancel}", "status", *only(names), **selection)
        raise
    if len(submitted) > 1:
        jobs = {job.job_id for submission in submitted for job in submission.jobs}
        queued = sum(submission.queued for submission in submitted)
        text = f"{counted(len(submitted), 'experiment')}, {counted(len(jobs), 'job')}: "
        text += f"{sum(submission.submitted for submission in submitted)} submitted"
        message(f"{text}, {queued} queued" if queued else text)
    return submitted


def _supervised(
    context: typer.Context, submitted: Sequence[api.Submission], addresses: Sequence[Address], selection: api.JobFilter
) -> int:
    """Wait until the jobs have ended, and print the results; return the exit code."""
    names = [submission.planned.entry.short_name for submission in submitted]
    with waiting(context, addresses, selection, names):
        outcomes = api.supervise(submitted, session=command_session())
    ended = [result.row for outcome in outcomes for result in outcome.results if result.row is not None]
    put(
        jobs=rows_of(api.JobRef, {row.job_id: row for row in ended}.values()),
        cases=[row for outcome in outcomes for row in api.export_rows(outcome.entry, outcome.results)],
        claims=[row for outcome in outcomes for row in outcome.judged_claims],
    )
    code = _print_outcomes(outcomes, selection)
    failures = [row for outcome in outcomes for row in outcome.failures]
    send_message(addresses, list(map(_end, outcomes)), failures, failed=code != EXIT_OK)
    return code


def _end(outcome: api.FigureOutcome) -> str:
    """Return `figure-13 quad selene: 4/6 verified; claims of the paper: 1 holds`."""
    verified = sum(result.is_verified for result in outcome.results)
    name = f"{outcome.entry.short_name} {outcome.scale} {outcome.cluster}"
    return f"{name}: {verified}/{len(outcome.results)} verified; claims of the paper: {claim_counts(outcome)}"


def _example_notes(planned: Sequence[api.PlannedRun]) -> list[str]:
    """Return a note on the open values of these jobs that have examples in a dry run."""
    cluster, programs = planned[0].cluster, [plan.program for run in planned for plan in run.plans]
    used = dict.fromkeys((program.name, program.image, program.image_path) for program in programs)
    needed = dict.fromkeys(field for names in used for field in cluster.examples_for(*names))
    if not needed:
        return []
    count, fields = counted(len(needed), "open value"), ", ".join(needed)
    return [
        f"{cluster.name} has {count}. This dry run has examples for them, and the ids of the jobs depend on them. "
        f"A submission needs your values in {api.shown(cluster.overlay)}: {fields}"
    ]


def _plans(planned: Sequence[api.PlannedRun]) -> list[api.Plan]:
    """Return the plans of all experiments; a job that experiments share is the one of the first."""
    first_of: dict[str, api.Plan] = {}
    for plan in (plan for run in planned for plan in run.plans):
        first_of.setdefault(plan.identity, plan)
    return list(first_of.values())


def _job_rows(submissions: Sequence[api.Submission]) -> list[api.JobRef]:
    """Return the rows of the jobs; one that experiments share is a row of the first."""
    rows: dict[str, api.JobRef] = {}
    for submission in submissions:
        for job in submission.jobs:
            rows.setdefault(job.job_id, row_of(api.JobRef, job, reused=submission.reused.get(job.job_id)))
    return list(rows.values())


def _print_submission(submission: api.Submission) -> None:
    """Print `10 cases: 7 done, 2 running, 1 submitted`, and what needs an explanation."""
    planned, left = submission.planned, submission.left
    counts = {
        "done": submission.done,
        "running": submission.running,
        "waiting": submission.waiting,
        "failed and not submitted again": sum(left.values()),
    }
    parts = [f"{count} {name}" for name, count in counts.items() if count] + [f"{submission.submitted} submitted"]
    parts += [f"{submission.queued} queued"] if submission.queued else []
    name, cases = planned.entry.short_name, counted(len(planned.plans), "case")
    message(f"{name} at scale {planned.scale} on {planned.cluster.name}: {cases}: {', '.join(parts)}")
    labels = {job.job_id: job.label for job in submission.jobs}
    reused = [f"reused: {labels[job]} {text}" for job, text in submission.reused.items()]
    print_shortened(reused, f"repro status {name}")
    for job_id in submission.warm_ups:
        message(f"job {job_id} compiles the program's kernels first, so that no two jobs compile at once")
    if submission.canary is not None:
        message(f"the canary is {submission.canary}; the others start once it is verified or partial")
    if submission.queued:
        message(f"{submission.queued} queued: {submission.queued_because or 'interrupted'}")
    for failure, count in left.items():
        message(f"{counted(count, 'job')} failed ({failure}), not submitted again: {api.policy_of(failure).reason}")
    if left:
        classes = ",".join(sorted(str(failure) for failure in left))
        message(f"to submit them again: repro retry {name} --class {classes}")


def _print_submitted_jobs(submissions: Sequence[api.Submission], selection: api.JobFilter) -> None:
    labels = {job.job_id: job.label for submission in submissions for job in submission.jobs}
    rows = [
        as_row(row) | {"experiment": short_name(row.experiment), "case": labels[row.job]}
        for row in _job_rows(submissions)
    ]
    table(rows, filled_columns(rows, ("job", "experiment", "case", "state", "id", "reused"), ["experiment"]))
    jobs = [job for submission in submissions for job in submission.jobs]
    names = [submission.planned.entry.short_name for submission in submissions]
    if any(job.state == api.QUEUED for job in jobs):
        suggest("submit the queued jobs when there is room", "wait", *names, **selection)
    elif any(job.phase in api.OPEN for job in jobs):
        suggest_status(names, selection, watch=True)
    else:
        suggest_results(names, selection)


def _print_outcomes(outcomes: Sequence[api.FigureOutcome], selection: api.JobFilter) -> int:
    """Print the cases and claims of ended runs; return the exit code."""
    for outcome in outcomes:
        print_outcome(outcome, api.export_rows(outcome.entry, outcome.results))
    failures = [row for outcome in outcomes for row in outcome.failures]
    if failures:
        suggest_why(failures[0])
    else:
        purpose = "the figure as a picture" if len(outcomes) == 1 else "the figures as pictures"
        names = [outcome.entry.short_name for outcome in outcomes]
        suggest(purpose, "plot", *names, **selection)
    return EXIT_FAILED if any(outcome.failed for outcome in outcomes) else EXIT_OK


def _print_plans(planned: Sequence[api.PlannedRun], options: api.CaseOptions) -> None:
    """Print the jobs of a dry run. Jobs that experiments share are one row."""
    plans = _plans(planned)
    rows: list[dict[str, object]] = [
        as_row(row_of(api.PlannedJob, plan))
        | {"experiment": short_name(plan.case.experiment), "case": plan.label, "time": plan.resources.time_limit}
        | {"warnings": "; ".join(plan.warnings)}
        for plan in plans
    ]
    columns = ("job", "experiment", "case", "nodes", "tasks", "gpus", "microbatches", "bubble", "iterations", "time")
    table(rows, [*filled_columns(rows, columns, ["experiment"]), "warnings"])
    program = ("program", "code", "image", "image_digest", "data")
    for text in dict.fromkeys("; ".join(f"{name} {row[name]}" for name in program if row[name]) for row in rows):
        message(text)
    first, cluster = planned[0], planned[0].cluster.name
    scales = " and ".join(dict.fromkeys(run.scale for run in planned))
    message(f"would submit {counted(len(plans), 'job')} at scale {scales} to {cluster}; nothing was submitted")
    budget = {"time_budget": first.time_budget, "cost_budget": first.cost_budget}  # of each repeat
    # All cases share a budget, so no --where may be added; with several experiments it is not that of the first one.
    has_budget = len(planned) == 1 and any(budget.values())
    of_case = (
        {"explain": True, **budget} if has_budget else {"where": first.plans[0].case.name, **dict.fromkeys(budget)}
    )
    chosen = {**options, "scale": first.scale, "example": bool(first.cluster.with_example), **of_case}
    suggest("the script of the first job", "render", first.entry.argument, cluster=cluster, **chosen)


@app.command()
@with_options(option.JOBS)
def wait(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        argument("EXPERIMENT|JOB...", "Experiments or job ids. Default: all open jobs.", completion.jobs),
    ] = None,
    *,
    timeout: Annotated[
        str | None, value_option("TIME", "Wait at most 10m, 2h or 0:30:00. Then exit with 124; the jobs continue.")
    ] = None,
    notify: option.Notify = None,
    **selection: Unpack[api.JobFilter],
) -> None:
    """Wait until jobs have ended: those of experiments, single jobs, or all open jobs."""
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
        waited = api.wait(targets, timeout=timeout, session=command_session(), **selection)
    put(jobs=waited.jobs)
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
@with_options(option.JOBS)
def retry(
    context: typer.Context,
    targets: option.Targets,
    *,
    state: option.OnlyState = None,
    classes: Classes = None,
    time: Annotated[str | None, value_option("TIME", "New time limit: +50%, +0:30:00 or 2:00:00.")] = None,
    settings: option.Settings = None,
    dry_run: Annotated[bool, flag("Show the jobs only.", "--dry-run", "-n")] = False,
    wait: option.Wait = False,
    notify: option.Notify = None,
    **selection: Unpack[api.JobFilter],
) -> None:
    """Submit failed jobs again, planned from the current profile, on other nodes or with more time."""
    addresses = message_addresses(notify, waits=wait)
    again: list[api.RetriedJob] = []

    def on_group(group: api.RetriedGroup) -> None:
        """Print the jobs of a group as soon as they are submitted: the next group may fail."""
        again.extend(group.jobs)
        put(jobs=again)
        if dry_run:
            return
        for job in group.jobs:
            data(f"{job.job}  {job.case}  attempt {job.attempt}")
        left = f"; {group.left} not submitted again: too many attempts, or Slurm repeats them; --class submits them"
        message(f"{counted(group.submitted, 'job')} submitted again{left if group.left else ''}")

    retried = api.retry(
        targets,
        classes=classes,
        time_limit=time,
        settings=settings or (),
        dry_run=dry_run,
        on_group=on_group,
        session=command_session(),
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
    table(rows, filled_columns(rows, ("job", "experiment", "case", "failure", "attempt", "time"), ["experiment"]))
    left = sum(group.left for group in retried.groups)
    alone = f", and not {counted(left, 'other')} (too many attempts, or Slurm repeats them)" if left else ""
    message(f"would submit {counted(len(jobs), 'job')} again{alone}; nothing was submitted")
    suggest("the earlier attempts of the first job", "history", jobs[0].job)


@app.command()
@with_options(option.JOBS)
def cancel(
    targets: option.Targets,
    *,
    state: option.OnlyState = None,
    yes: Annotated[bool, flag("Do not ask.", "--yes", "-y")] = False,
    **selection: Unpack[api.JobFilter],
) -> None:
    """Cancel jobs of experiments, or by job id."""
    session = command_session()
    jobs = api.cancellable_jobs(targets, session=session, state=state, **selection)
    if not jobs:
        message("no open job to cancel")
        suggest_status(experiments_of(targets), selection)
        return
    if len(jobs) > ASK_ABOVE and not yes:
        if console.is_json or not sys.stdin.isatty():
            raise ReproError(Problem(f"{counted(len(jobs), 'job')} would be cancelled", hint="confirm with --yes"))
        typer.confirm(f"Cancel {counted(len(jobs), 'job')}?", abort=True, err=True)
    cancelled = api.cancel_jobs(jobs, session=session)
    refs = rows_of(api.JobRef, cancelled.asked)
    put([*cancelled.refused, *cancelled.unrecorded], jobs=refs)
    for job in cancelled.asked:
        data(f"{job.job_id}  {job.label}  {job.scheduler_id or '-'}")
    for problem in cancelled.refused:
        message(f"repro: {problem}")
    if not cancelled.asked and not cancelled.refused:
        message("no job to cancel: the scheduler no longer has these jobs")
    else:
        rest = f", {len(cancelled.refused)} refused" if cancelled.refused else ""
        rest += f", {len(cancelled.unlisted)} no longer in the scheduler" if cancelled.unlisted else ""
        verb = "is" if len(cancelled.asked) == 1 else "are"
        message(f"{counted(len(cancelled.asked), 'job')} {verb} being cancelled{rest}")
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
def adopt(folder: Annotated[Path, argument("FOLDER", "Folder of `repro render -o`.")]) -> None:
    """Read the jobs of rendered scripts that were submitted by hand into the ledger. A second call adds new ones."""
    adopted = api.adopt(folder, session=command_session())
    refs = rows_of(api.JobRef, adopted.jobs)
    rows = [
        as_row(ref) | {"experiment": short_name(ref.experiment), "case": row.label}
        for ref, row in zip(refs, adopted.jobs, strict=True)
    ]
    put(
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
