"""`repro submit`: every case that is neither done nor under way."""

from __future__ import annotations

import enum
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from orchestrator.cli import completion
from orchestrator.cli.options import (
    Database,
    ExperimentName,
    Json,
    OnCluster,
    Scale,
    Where,
    WorkloadName,
    as_typed,
)
from orchestrator.cli.output import as_json, next_command, say, table
from orchestrator.cli.session import bring_up_to_date, named_ledger
from orchestrator.cli.time_budget import TimeBudget, as_typed_budget
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import short_name
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.catalog.library import Entry
    from orchestrator.clusters.resolve import Cluster
    from orchestrator.launch.run_options import RunOptions
    from orchestrator.launch.submit import Submitted
    from orchestrator.ledger.database import Ledger
    from orchestrator.ledger.rows import JobRow
    from orchestrator.paths import Folders
    from orchestrator.planning.plan import Plan


class Before(str, enum.Enum):
    warm_up = "warm-up"


DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be submitted; needs no scheduler.")]
Wait = Annotated[bool, typer.Option("--wait", help="Stay until every job has ended, then say whether it came out.")]
Rerun = Annotated[bool, typer.Option("--rerun", help="Measure again what is verified already.")]
Repeat = Annotated[int, typer.Option("--repeat", min=1, help="Measure each case so many times, as jobs of their own.")]
MaxParallel = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--max-parallel", min=1, help="No more of these jobs at once."),
]
After = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--after", help="Begin when this job has ended.", autocompletion=completion.jobs),
]
DependsOn = Annotated[
    Optional[Before],  # noqa: UP045
    typer.Option("--depends-on", help="warm-up: compile the program's kernels in a job of their own first."),
]
Canary = Annotated[bool, typer.Option("--canary", help="The smallest case first; the others once it is verified.")]
StopAfter = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--stop-after", min=1, help="Start no more after so many failures of one kind."),
]


def submit(
    experiment: ExperimentName,
    cluster: OnCluster,
    scale: Scale = None,
    where: Where = None,
    workload: WorkloadName = None,
    time_budget: TimeBudget = None,
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
) -> None:
    """Submit an experiment: every case that is neither verified nor under way, the smallest first."""
    from orchestrator.cli.selection import planned, require_verifiable
    from orchestrator.paths import find_folders
    from orchestrator.planning.batch_plan import read_budget
    from orchestrator.planning.plan import repeated

    budget_s = read_budget(time_budget) // repeat if time_budget is not None else None  # each repeat has its share
    folders = find_folders()
    entry, profile, plans = planned(folders, experiment, cluster, scale, where, workload, budget_s)
    plans = repeated(plans, repeat)
    require_verifiable(plans)
    _require_sense(plans, profile, max_parallel, depends_on)
    share = None if budget_s is None else f"{budget_s}s"
    if share is not None and repeat > 1:
        say(f"note: of --time-budget {time_budget} each of the {repeat} repeats has {share}")
    if dry_run:
        _show_plans(plans, profile, json, workload, as_typed_budget(share, where))
        return
    from orchestrator.launch.preflight import gpu_warnings, image_warnings, require_ready
    from orchestrator.launch.submit import submit as submit_plans
    from orchestrator.ledger.attempts import job_rows

    of_plans = sorted({warning for plan in plans for warning in plan.warnings})
    for warning in [*of_plans, *image_warnings(plans, profile), *gpu_warnings(plans, profile)]:
        say(f"warning: {warning}")
    require_ready(plans, profile, folders)
    ledger = named_ledger(folders, database, create=True)
    assert ledger is not None
    options = _run_options(ledger, folders, profile, rerun, max_parallel, after or [], canary, stop_after, depends_on)
    for complaint in bring_up_to_date(ledger):
        say(f"note: {complaint}")
    before = job_rows(ledger, experiment=entry.name)
    try:
        done = submit_plans(plans, profile, ledger, folders, sys.argv, options, say)
    except KeyboardInterrupt:
        say("interrupted; what was submitted until then is recorded and goes on")
        next_command(f"repro status {entry.short_name}", f"or: repro cancel {entry.short_name}")
        raise
    _say_what_was_done(done, before, entry, plans, profile)
    if wait:
        from orchestrator.cli.waiting import wait_for
        from orchestrator.launch.supervise import RunSupervisor

        supervisor = RunSupervisor(plans, profile, ledger, folders, done.run_id, options, sys.argv, say)
        wait_for(ledger, supervisor.rows, entry.short_name, supervisor.supervise)
        from orchestrator.cli.outcome import outcome  # takes a while to load: Ctrl-C must find the waiting begun

        case = plans[0].case
        raise typer.Exit(outcome(ledger, folders, entry, case.scale, profile.name, case.workload, json))
    _show_rows(job_rows(ledger, run_id=done.run_id), entry, json)


def _require_sense(plans: list[Plan], profile: Cluster, max_parallel: int | None, depends_on: Before | None) -> None:
    if depends_on is not None and not (profile.is_slurm and any(plan.program.warm_up for plan in plans)):
        programs = " and ".join(sorted({plan.program.workload for plan in plans}))
        why = f"{programs} compiles nothing beforehand" if profile.is_slurm else "jobs run one after another here"
        raise ReproError(Problem(f"--depends-on warm-up: {why}", hint="leave it out"))
    if max_parallel is not None and max_parallel > 1 and not profile.is_slurm:
        say(f"note: {profile.name} runs one job at a time, whatever --max-parallel allows")


def _run_options(
    ledger: Ledger,
    folders: Folders,
    profile: Cluster,
    rerun: bool,
    max_parallel: int | None,
    after: list[str],
    canary: bool,
    stop_after: int | None,
    depends_on: Before | None,
) -> RunOptions:
    """The options as one value; the jobs of --after found."""
    from orchestrator.launch.run_options import FollowedJob, RunOptions

    awaited = _awaited(ledger, folders, profile, after)
    return RunOptions(
        rerun_verified=rerun,
        max_parallel=max_parallel,
        after=tuple(str(row.scheduler_id) for row in awaited) if profile.is_slurm else (),
        follows=() if profile.is_slurm else tuple(FollowedJob(row.folder, _queue(row)) for row in awaited),
        canary=canary,
        stop_after=stop_after,
        warm_up=depends_on is Before.warm_up,
    )


def _awaited(ledger: Ledger, folders: Folders, profile: Cluster, after: list[str]) -> list[JobRow]:
    """The jobs of --after that are still under way, each with an id of the scheduler that these ones go to."""
    from orchestrator.cli.selection import chosen_rows
    from orchestrator.ledger.tables import OPEN

    if not after:
        return []
    scheduler = "slurm" if profile.is_slurm else "local"
    rows = [row for row in chosen_rows(ledger, folders, after) if row.phase in OPEN]
    foreign = [row for row in rows if row.scheduler != scheduler]
    unsent = [row for row in rows if row.scheduler_id is None]
    if foreign or unsent:
        row = (foreign or unsent)[0]
        why = "another scheduler has it" if foreign else "no scheduler has it yet"
        raise ReproError(Problem(f"--after {row.job_id} ({row.label}): {why}", hint="wait for it: repro wait"))
    return rows


def _queue(row: JobRow) -> int:
    return int(str(row.scheduler_id).partition("_")[0])


def _say_what_was_done(
    done: Submitted, before: list[JobRow], entry: Entry, plans: list[Plan], profile: Cluster
) -> None:
    """`10 cases: 7 done, 2 running, 1 submitted`, and what a person should know of the others."""
    from orchestrator.ledger.tables import RUNNING
    from orchestrator.reading.failure import POLICIES, failure_named

    found, sent = done.recorded, done.sent
    rows = {row.job_id: row for row in before}
    left = Counter(failure_named(failure) for failure in found.left.values())
    running = [job for job in found.under_way if job in rows and rows[job].phase == RUNNING]
    counts = {
        "done": len(found.done),
        "running": len(running),
        "waiting": len(found.under_way) - len(running),
        "failed and left alone": len(found.left),
    }
    text = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    text += f"{', ' if text else ''}{sent.jobs} submitted" + (f", {sent.queued} queued" if sent.queued else "")
    say(f"{entry.short_name} at scale {plans[0].case.scale} on {profile.name}: {counted(len(plans), 'case')}: {text}")
    for job_id in done.warm_ups:
        say(f"job {job_id} compiles the program's kernels first, so that no two jobs do it at once")
    if done.canary is not None:
        name = next(plan.label for plan in plans if plan.identity == done.canary)
        say(f"the canary is {name}; the others start once it is verified")
    if sent.queued:
        say(f"{sent.queued} queued: {sent.why or 'interrupted'}")
    for failure, count in left.items():
        say(f"{counted(count, 'job')} failed ({failure}), left alone: {POLICIES[failure].why}")
    if left:
        classes = ",".join(sorted(str(failure) for failure in left))
        say(f"to run what is left alone all the same: repro retry {entry.short_name} --class {classes}")


def _show_rows(rows: list[JobRow], entry: Entry, json: bool) -> None:
    from orchestrator.ledger.tables import OPEN, QUEUED

    shown = [{"job": row.job_id, "case": row.label, "state": row.state, "id": row.scheduler_id} for row in rows]
    if json:
        as_json(shown)
    else:
        table(shown, ["job", "case", "state", "id"])
    if any(row.state == QUEUED for row in rows):
        next_command(f"repro wait {entry.short_name}", "sends what waits its turn, as there is room")
    elif any(row.phase in OPEN for row in rows):
        next_command(f"repro status {entry.short_name} --watch", "until they have ended")
    else:
        next_command(f"repro collect {entry.short_name} --export csv", "the numbers and the claims")


def _show_plans(plans: list[Plan], profile: Cluster, json: bool, workload: str | None, budget: str) -> None:
    """`budget` is the option as it is to be typed: it is shared by all cases, so that no --where may leave some out."""
    rows = [
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
    if json:
        as_json([row | _what_runs(plan) for row, plan in zip(rows, plans, strict=True)])
    else:
        table(rows, list(rows[0]))
    for what in dict.fromkeys(tuple(_what_runs(plan).items()) for plan in plans):
        say("; ".join(f"{name} {value}" for name, value in what if value is not None))
    case = plans[0].case
    say(f"would submit {len(plans)} jobs at scale {case.scale} to {profile.name}; nothing was submitted or run")
    short = short_name(case.experiment)
    render = f"repro render {short} --cluster {profile.name} --scale {case.scale}"
    which = f"{budget} --explain" if budget else f" --where {case.name}"
    next_command(f"{render}{which}{as_typed(workload)}", "the script of the first")


def _what_runs(plan: Plan) -> dict[str, str | None]:
    """Where the program comes from, and what it reads: recorded with each job as well."""
    program = plan.program
    image = {"image": program.image_path, "image_digest": program.image_digest}
    return {"workload": program.workload, "code": program.code, **image, "data": program.data}
