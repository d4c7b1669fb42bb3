"""Commands that change jobs: submit, wait, retry, cancel."""

from __future__ import annotations

import enum
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli.job_table import bar, print_cases, print_claims, print_jobs, waiting
from orchestrator.cli.json_jobs import case_rows, claim_rows, job_refs, planned_jobs, retried_jobs
from orchestrator.cli.options import (
    Database,
    ExperimentName,
    JobOptions,
    Json,
    MaybeTargets,
    OnCluster,
    OnlyScale,
    OnlyWorkload,
    PlannedCluster,
    PlanOptions,
    Settings,
    Targets,
    Where,
    Yes,
    argument_options,
    budget_option,
    case_options,
    session_of,
    workload_option,
)
from orchestrator.cli.output import data, message, next_command, print_shortened, table
from orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_USER_ERROR, Problem, ReproError
from orchestrator.paths import short_name
from orchestrator.text import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from orchestrator.cli.documents import CancelDocument, RetryDocument, SubmitDocument, WaitDocument
    from orchestrator.cli.json_rows import RetriedJob

ASK_ABOVE = 10
"""Number of jobs above which `cancel` asks."""


class Before(str, enum.Enum):
    """Values of --depends-on."""

    warm_up = "warm-up"


DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show the jobs only. Needs no scheduler.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all jobs have ended, then print the result.")]
Rerun = Annotated[bool, typer.Option("--rerun", help="Measure verified cases again.")]
Repeat = Annotated[int, typer.Option("--repeat", min=1, help="Measure each case this many times, in separate jobs.")]
MaxParallel = Annotated[
    int | None, typer.Option("--max-parallel", min=1, help="Run at most this many of the jobs at once.")
]
After = Annotated[
    list[str] | None, typer.Option("--after", help="Start when this job has ended.", autocompletion=completion.jobs)
]
DependsOn = Annotated[
    Before | None, typer.Option("--depends-on", help="warm-up: first compile the program's kernels in a separate job.")
]
Canary = Annotated[bool, typer.Option("--canary", help="Run the smallest case first; the others once it is verified.")]
StopAfter = Annotated[
    int | None, typer.Option("--stop-after", min=1, help="Start no more jobs after this many failures of one kind.")
]
Classes = Annotated[
    str | None,
    typer.Option("--class", help="node-fail,preempted,timeout,... Default: those that may succeed unchanged."),
]
TimeLimit = Annotated[str | None, typer.Option("--time", help="New time limit: +50%, +0:30:00 or 2:00:00.")]

app = typer.Typer(rich_markup_mode=None)


@app.command()
@api.with_keywords(PlanOptions)
def submit(
    context: typer.Context,
    experiment: ExperimentName,
    *,
    cluster: OnCluster,
    dry_run: DryRun = False,
    wait: Wait = False,
    rerun: Rerun = False,
    repeat: Repeat = 1,
    canary: Canary = False,
    max_parallel: MaxParallel = None,
    stop_after: StopAfter = None,
    after: After = None,
    depends_on: DependsOn = None,
    json: Json = False,
    database: Database = None,
    **given: Unpack[PlanOptions],
) -> None:
    """Submit every case that is neither verified nor open, the smallest first."""
    options = case_options(given)
    session = session_of(context, database)
    if dry_run:
        planned = api.plan_run(experiment, cluster, repeat=repeat, max_parallel=max_parallel, **options)
        api.require_submittable(planned, warm_up=depends_on is not None)
        # Only for Slurm: the ledger's modules take longer to import than a dry run.
        denied = api.exclusion_notes(planned.cluster, session=session) if planned.cluster.is_slurm else []
        for note in [*planned.notes, *denied]:
            message(f"note: {note}")
        program = f"{workload_option(options.get('workload'))}{argument_options(options)}"
        if json:
            dry: SubmitDocument = {"plans": planned_jobs(planned), "jobs": [], "cases": [], "claims": []}
            context.obj.json.put(dry)
        budget = budget_option(planned.time_budget, planned.cost_budget, options.get("where"))
        _print_plans(planned, not json, program, budget)
        return
    try:
        submission = api.submit(
            experiment,
            cluster,
            rerun=rerun,
            repeat=repeat,
            canary=canary,
            max_parallel=max_parallel,
            stop_after=stop_after,
            after=after or (),
            warm_up=depends_on is not None,
            session=session,
            **options,
        )
    except KeyboardInterrupt:
        message("interrupted; the jobs submitted so far are recorded and continue")
        name = shlex.quote(experiment)
        next_command(f"repro status {name}", f"or: repro cancel {name}")
        raise
    _print_submission(submission)
    name = submission.planned.entry.short_name
    if json:
        jobs = job_refs(submission.jobs, submission.reused)
        document: SubmitDocument = {"plans": [], "jobs": jobs, "cases": [], "claims": []}
        context.obj.json.put(document)
    if not wait:
        _print_submitted_jobs(submission, name, not json)
        return
    try:
        with waiting(context.obj):
            outcome = api.supervise(submission, session=session)
    except KeyboardInterrupt:
        _print_no_longer_waiting(name)
        raise
    if json:
        jobs = job_refs([result.row for result in outcome.results if result.row is not None])
        ended: SubmitDocument = {
            "plans": [],
            "jobs": jobs,
            "cases": case_rows(outcome),
            "claims": claim_rows(outcome),
        }
        context.obj.json.put(ended)
    raise typer.Exit(_print_outcome(outcome, not json))


def _print_submission(submission: api.Submission) -> None:
    """Print `10 cases: 7 done, 2 running, 1 submitted`, and what needs an explanation."""
    planned, left = submission.planned, submission.left
    counts = {
        "done": submission.done,
        "running": submission.running,
        "waiting": submission.waiting,
        "failed and left alone": sum(left.values()),
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
        message(f"the canary is {submission.canary}; the others start once it is verified")
    if submission.queued:
        message(f"{submission.queued} queued: {submission.queued_because or 'interrupted'}")
    for failure, count in left.items():
        message(f"{counted(count, 'job')} failed ({failure}), left alone: {api.POLICIES[failure].reason}")
    if left:
        classes = ",".join(sorted(str(failure) for failure in left))
        message(f"to run these jobs all the same: repro retry {name} --class {classes}")


def _print_submitted_jobs(submission: api.Submission, experiment: str, with_table: bool) -> None:
    jobs = submission.jobs
    rows = [{"job": job.job_id, "case": job.label, "state": job.state, "id": job.scheduler_id} for job in jobs]
    rows = [row | {"reused": submission.reused.get(job.job_id)} for row, job in zip(rows, jobs, strict=True)]
    if with_table:
        table(rows, ["job", "case", "state", "id", *(["reused"] if submission.reused else [])])
    if any(job.state == api.QUEUED for job in jobs):
        next_command(f"repro wait {experiment}", "submit the queued jobs when there is room")
    elif any(job.phase in api.OPEN for job in jobs):
        next_command(f"repro status {experiment} --watch", "until all jobs have ended")
    else:
        next_command(f"repro collect {experiment} --export csv", "the numbers and the claims")


def _print_outcome(outcome: api.FigureOutcome, with_tables: bool) -> int:
    """Print the cases and claims of an ended run; return the exit code."""
    if with_tables:
        print_cases(outcome)
        print_claims(outcome, to_stdout=True)
    failures = outcome.failures
    if failures:
        next_command(f"repro logs {failures[0].job_id}", f"why {failures[0].case_name} failed")
    else:
        option = workload_option(outcome.results[0].case.workload if outcome.replaced_workload else None)
        next_command(f"repro plot {outcome.entry.short_name}{option}", "the figure as a picture")
    return EXIT_FAILED if outcome.failed else EXIT_OK


def _print_plans(planned: api.PlannedRun, with_table: bool, program_options: str, budget: str) -> None:
    """Print the jobs of a dry run. `budget` is the option: all cases share it, so no --where may be added.

    `program_options` select the program and change its arguments.
    """
    plans = planned.plans
    rows: list[dict[str, object]] = [
        {
            "job": plan.identity,
            "case": plan.label,
            "nodes": plan.resources.nodes,
            "tasks": plan.resources.tasks,
            "gpus": plan.resources.nodes * plan.resources.gpus_per_node,
            "microbatches": plan.case.layout.microbatches,
            "bubble": round(plan.case.layout.bubble(), 4),
            "iterations": plan.case.training.iterations,
            "time": plan.resources.time_limit,
            "warnings": "; ".join(plan.warnings),
        }
        for plan in plans
    ]
    programs = [_program(plan) for plan in plans]
    if with_table:
        table(rows, list(rows[0]))
    for program in dict.fromkeys(tuple(program.items()) for program in programs):
        message("; ".join(f"{name} {value}" for name, value in program if value is not None))
    message(f"would submit {len(plans)} jobs at scale {planned.scale} to {planned.cluster.name}; nothing was submitted")
    render = f"repro render {planned.entry.argument} --cluster {planned.cluster.name} --scale {planned.scale}"
    choice = f"{budget} --explain" if budget else f" --where {plans[0].case.name}"
    next_command(f"{render}{choice}{program_options}", "the script of the first job")


def _program(plan: api.Plan) -> dict[str, str | None]:
    """Return where the program comes from and what it reads. The same is recorded with each job."""
    program = plan.program
    image = {"image": program.image_path, "image_digest": program.image_digest}
    return {"workload": program.workload, "code": program.code, **image, "data": program.data}


def _print_no_longer_waiting(experiment: str) -> None:
    message("no longer waiting; the jobs continue")
    name = f" {experiment}" if experiment else ""
    next_command(f"repro status{name} --watch", f"or: repro cancel{name or ' JOB'}")


@app.command()
def wait(context: typer.Context, targets: MaybeTargets = None, json: Json = False, database: Database = None) -> None:
    """Wait until jobs have ended: those of experiments, single jobs, or all open jobs."""
    try:
        with waiting(context.obj):
            waited = api.wait(targets or (), session=session_of(context, database))
    except KeyboardInterrupt:
        names = {short_name(job.experiment) for job in context.obj.waiting_for}
        _print_no_longer_waiting(names.pop() if len(names) == 1 else "")
        raise
    if json:
        document: WaitDocument = {"jobs": waited.jobs}
        context.obj.json.put(document)
    if not waited.jobs:
        message("no open jobs")
        next_command("repro status", "the state of all jobs")
        return
    for tally in waited.tallies:
        message(bar(tally))
    if not json:
        print_jobs(waited.jobs)
    if not waited.failed:
        first = min(short_name(job.experiment) for job in waited.jobs)
        next_command(f"repro collect {first} --export csv", "the numbers and the claims")
        return
    failed = next((job for job in waited.failed if job.phase not in api.OPEN), None)
    if failed is not None:
        next_command(f"repro logs {failed.job_id}", f"why {failed.label} failed")
    else:
        next_command(f"repro history {waited.failed[0].job_id}", f"the events of {waited.failed[0].label}")
    raise typer.Exit(EXIT_FAILED)


@app.command()
def retry(
    context: typer.Context,
    targets: Targets,
    classes: Classes = None,
    limit: TimeLimit = None,
    where: Where = None,
    scale: OnlyScale = None,
    workload: OnlyWorkload = None,
    cluster: PlannedCluster = None,
    settings: Settings = None,
    json: Json = False,
    database: Database = None,
) -> None:
    """Submit failed jobs again, planned from the current profile, on other nodes or with more time."""
    jobs: list[RetriedJob] = []

    def on_group(group: api.RetriedGroup) -> None:
        """Print the jobs of a group as soon as they are submitted: the next group may fail."""
        if json:
            jobs.extend(retried_jobs(group))
            document: RetryDocument = {"jobs": jobs}
            context.obj.json.put(document)
        else:
            for job in group.jobs:
                data(f"{job.job_id}  {job.label}  attempt {job.attempt}")
        left = f"; {group.left} left alone: too many attempts, or left to Slurm; --class runs them all the same"
        message(f"{counted(group.submitted, 'job')} submitted again{left if group.left else ''}")

    retried = api.retry(
        targets,
        classes=classes,
        time_limit=limit,
        where=where,
        scale=scale,
        workload=workload,
        cluster=cluster,
        settings=settings or (),
        on_group=on_group,
        session=session_of(context, database),
    )
    if retried.groups:
        next_command(f"repro status {short_name(retried.groups[0].experiment)} --watch", "until all jobs have ended")
        return
    message("no jobs to run again")
    for failure in retried.failures:
        message(f"failed ({failure}): {api.POLICIES[failure].reason}")
    if retried.failures:
        names = ",".join(str(failure) for failure in retried.failures)
        next_command(f"repro retry {' '.join(targets)} --class {names}", "to run them all the same")
    else:
        next_command("repro status", "the state of all jobs")


@app.command()
@api.with_keywords(JobOptions)
def cancel(
    context: typer.Context,
    targets: Targets,
    *,
    yes: Yes = False,
    json: Json = False,
    database: Database = None,
    **options: Unpack[JobOptions],
) -> None:
    """Cancel jobs of experiments, or by job id."""
    session = session_of(context, database)
    jobs = api.cancellable_jobs(targets, session=session, **options)
    if not jobs:
        message("no open job to cancel")
        next_command("repro status", "the state of all jobs")
        return
    if len(jobs) > ASK_ABOVE and not yes:
        if json or not sys.stdin.isatty():
            raise ReproError(Problem(f"{len(jobs)} jobs would be cancelled", hint="confirm with --yes"))
        typer.confirm(f"Cancel {len(jobs)} jobs?", abort=True, err=True)
    cancelled = api.cancel_jobs(jobs, session=session)
    if json:
        document: CancelDocument = {"jobs": job_refs(cancelled.asked)}
        context.obj.json.put(document, [*cancelled.refused, *cancelled.unrecorded])
    for job in () if json else cancelled.asked:
        data(f"{job.job_id}  {job.label}  {job.scheduler_id or '-'}")
    for problem in cancelled.refused:
        message(f"repro: {problem}")
    if not cancelled.asked and not cancelled.refused:
        message("no job to cancel: the scheduler no longer has these jobs")
    else:
        refused = f", {len(cancelled.refused)} refused" if cancelled.refused else ""
        message(f"{counted(len(cancelled.asked), 'job')} asked to end{refused}")
    next_command(f"repro status {short_name(jobs[0].experiment)}", "whether they have ended")
    for problem in cancelled.unrecorded:
        what = f"{problem.what}; the ledger does not record that these jobs were asked to end"
        message(f"repro: {Problem(what, problem.location, problem.hint)}")
    if cancelled.unrecorded:
        raise typer.Exit(EXIT_USER_ERROR)
    if cancelled.refused:
        raise typer.Exit(EXIT_FAILED)
