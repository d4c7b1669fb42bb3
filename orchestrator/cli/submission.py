"""Command that submits experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.job_table import (
    claim_counts,
    print_outcome,
    suggest_results,
    suggest_status,
    suggest_why,
    waiting,
)
from orchestrator.cli.notify import message_addresses, send_message
from orchestrator.cli.options import all_settings, session_of, value_option
from orchestrator.cli.output import as_row, message, only, print_shortened, repro_command, suggest, table
from orchestrator.errors import EXIT_FAILED, EXIT_OK
from orchestrator.fields import row_of, rows_of
from orchestrator.paths import short_name
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.config.user import Address
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show the jobs only. Needs no scheduler.")]
Rerun = Annotated[bool, typer.Option("--rerun", help="Measure verified and partial cases again.")]
Repeat = Annotated[
    int, value_option("--repeat", "NUMBER", "Measure each case this many times, in separate jobs.", min=1)
]
MaxParallel = Annotated[
    int | None,
    value_option("--max-parallel", "NUMBER", "Run at most this many jobs of an experiment at once.", min=1),
]
After = Annotated[
    list[str] | None,
    value_option("--after", "JOB", "Start when this job has ended.", completion.job_ids),
]
DependsOn = Annotated[
    Literal["warm-up"] | None,
    typer.Option("--depends-on", help="warm-up: first compile the program's kernels in a separate job."),
]
Canary = Annotated[
    bool, typer.Option("--canary", help="Run the smallest case first; the others once it is verified or partial.")
]
StopAfter = Annotated[
    int | None,
    value_option("--stop-after", "NUMBER", "Start no more jobs after this many failures of one kind.", min=1),
]

app = typer.Typer(rich_markup_mode=None)


@app.command()
def submit(
    context: typer.Context,
    experiments: option.ExperimentNames,
    *,
    cluster: option.OnCluster,
    scale: option.Scale = None,
    where: option.Where = None,
    program: option.ProgramName = None,
    time_budget: option.TimeBudget = None,
    cost_budget: option.CostBudget = None,
    arg: option.AddedArguments = None,
    no_arg: option.DroppedArguments = None,
    settings: option.Settings = None,
    example: option.Example = None,
    partition: option.Partition = None,
    qos: option.QosName = None,
    reservation: option.Reservation = None,
    nodelist: option.NodeList = None,
    exclude: option.Exclude = None,
    time: option.JobTime = None,
    dry_run: DryRun = False,
    wait: option.Wait = False,
    rerun: Rerun = False,
    repeat: Repeat = 1,
    canary: Canary = False,
    max_parallel: MaxParallel = None,
    stop_after: StopAfter = None,
    after: After = None,
    depends_on: DependsOn = None,
    notify: option.Notify = None,
) -> None:
    """Submit every case that is not verified, partial or open, the smallest first."""
    options = api.CaseOptions(scale=scale, where=where, program=program, arg=arg, no_arg=no_arg)
    options |= {"time_budget": time_budget, "cost_budget": cost_budget, "example": example or dry_run}
    options["settings"] = all_settings(settings, partition, qos, reservation, nodelist, exclude, time)
    run: api.SubmitOptions = {"rerun": rerun, "repeat": repeat, "canary": canary, "max_parallel": max_parallel}
    run |= {"stop_after": stop_after, "after": after or (), "warm_up": depends_on is not None}
    addresses = message_addresses(notify, waits=wait)
    if dry_run:
        _plan(context, experiments, cluster, run, options)
        return
    selection: api.JobFilter = {"cluster": cluster, "scale": scale, "program": program, "where": where}
    submitted = _submitted(context, experiments, cluster, selection, {**options, **run})
    if wait:
        raise typer.Exit(_supervised(context, submitted, addresses, selection))
    _print_submitted_jobs(submitted, selection)


def _plan(
    context: typer.Context, names: Sequence[str], cluster: str, run: api.SubmitOptions, options: api.CaseOptions
) -> None:
    """Print the jobs that a submission would have."""
    planned = api.plan_runs(names, cluster, repeat=run["repeat"], max_parallel=run["max_parallel"], **options)
    api.require_submittable(planned, warm_up=run["warm_up"])
    denied = api.denied_note(planned[0].cluster)
    for note in [*(note for run in planned for note in run.notes), *denied, *_example_notes(planned)]:
        message(f"note: {note}")
    context.obj.json.put(plans=rows_of(api.PlannedJob, _plans(planned)))
    _print_plans(planned, options)


def _submitted(
    context: typer.Context, names: Sequence[str], cluster: str, selection: api.JobFilter, options: api.SubmitOptions
) -> list[api.Submission]:
    """Submit the jobs, and print those of each experiment as soon as they are submitted."""
    submitted: list[api.Submission] = []

    def on_submission(submission: api.Submission) -> None:
        submitted.append(submission)
        context.obj.json.put(jobs=_job_rows(submitted))
        _print_submission(submission)

    try:
        api.submit_all(names, cluster, on_submission=on_submission, session=session_of(context), **options)
    except KeyboardInterrupt:
        message("interrupted; the jobs submitted so far are recorded and continue")
        cancel = repro_command("cancel", *names, **selection)
        suggest(f"or: {cancel}", "status", *only(names), **selection)
        raise
    if len(submitted) > 1:
        _print_total(submitted)
    return submitted


def _supervised(
    context: typer.Context,
    submitted: Sequence[api.Submission],
    addresses: Sequence[Address],
    selection: api.JobFilter,
) -> int:
    """Wait until the jobs have ended, and print the results; return the exit code."""
    names = [submission.planned.entry.short_name for submission in submitted]
    with waiting(context, addresses, selection, names):
        outcomes = api.supervise(submitted, session=session_of(context))
    ended = [result.row for outcome in outcomes for result in outcome.results if result.row is not None]
    context.obj.json.put(
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
    needed = dict.fromkeys(field for one in programs for field in cluster.examples_for(one.name, one.image))
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


def _print_total(submissions: Sequence[api.Submission]) -> None:
    """Print one line about all experiments of a submission."""
    jobs = {job.job_id for submission in submissions for job in submission.jobs}
    sent = sum(submission.submitted for submission in submissions)
    queued = sum(submission.queued for submission in submissions)
    text = f"{counted(len(submissions), 'experiment')}, {counted(len(jobs), 'job')}: {sent} submitted"
    message(f"{text}, {queued} queued" if queued else text)


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
    several = ["experiment"] if len(submissions) > 1 else []
    reused = ["reused"] if any(row["reused"] for row in rows) else []
    table(rows, ["job", *several, "case", "state", "id", *reused])
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
    columns = ["job", "experiment", "case", "nodes", "tasks", "gpus", "microbatches", "bubble", "iterations", "time"]
    empty = {name for name in columns if all(row[name] is None for row in rows)}
    hidden = empty | (set() if len(planned) > 1 else {"experiment"})
    table(rows, [name for name in [*columns, "warnings"] if name not in hidden])
    for text in dict.fromkeys(map(_program_text, plans)):
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


def _program_text(plan: api.Plan) -> str:
    """Return where the program comes from and what it reads. The same is recorded with each job."""
    program = plan.program
    parts = {"program": program.name, "code": program.code, "image": program.image_path}
    parts |= {"image_digest": program.image_digest, "data": program.data}
    return "; ".join(f"{name} {value}" for name, value in parts.items() if value is not None)
