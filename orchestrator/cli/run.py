"""Commands that make jobs or end them: submit, render, cancel."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from orchestrator.cli.opening import bring_up_to_date
from orchestrator.cli.options import (
    Database,
    ExperimentName,
    Json,
    OnCluster,
    OnlyScale,
    OnlyWorkload,
    Scale,
    Targets,
    Where,
    WorkloadName,
    as_typed,
)
from orchestrator.cli.output import as_json, counted, data, next_command, say, table
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import short_name

if TYPE_CHECKING:
    from orchestrator.catalog.library import Entry
    from orchestrator.clusters.resolve import Cluster
    from orchestrator.folders import Folders
    from orchestrator.launch.template import Explained
    from orchestrator.planning.plan import Plan

ASK_ABOVE = 10
"""Cancelling more jobs than this asks first."""

DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be submitted; needs no scheduler.")]
Wait = Annotated[bool, typer.Option("--wait", help="Stay until every job has ended, then say whether it came out.")]
OutputFolder = Annotated[Optional[Path], typer.Option("--output", "-o", help="Write every script into this folder.")]  # noqa: UP045
Explain = Annotated[bool, typer.Option("--explain", help="Each line with where it comes from, of the first script.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def submit(
    experiment: ExperimentName,
    cluster: OnCluster,
    scale: Scale = None,
    where: Where = None,
    workload: WorkloadName = None,
    dry_run: DryRun = False,
    wait: Wait = False,
    json: Json = False,
    database: Database = None,
) -> None:
    """Submit an experiment: every case that is neither verified nor under way."""
    from orchestrator.folders import find_folders

    folders = find_folders()
    entry, profile, plans = _planned(folders, experiment, cluster, scale, where, workload)
    _require_verifiable(plans)
    if dry_run:
        _show_plans(plans, profile, json, workload)
        return
    from orchestrator.cli.outcome import outcome
    from orchestrator.cli.waiting import wait_for
    from orchestrator.launch.readiness import require_ready
    from orchestrator.launch.submit import submit as submit_plans
    from orchestrator.ledger.database import ledger_url, open_ledger
    from orchestrator.ledger.jobs import job_rows
    from orchestrator.ledger.tables import OPEN

    for warning in sorted({warning for plan in plans for warning in plan.warnings}):
        say(f"warning: {warning}")
    require_ready(plans, profile, folders)
    ledger = open_ledger(ledger_url(database, folders.home))
    assert ledger is not None
    for complaint in bring_up_to_date(ledger):
        say(f"note: {complaint}")
    try:
        done = submit_plans(plans, profile, ledger, folders, sys.argv)
    except KeyboardInterrupt:
        say("interrupted; what was submitted until then is recorded and goes on")
        next_command(f"repro status {entry.short_name}", f"or: repro cancel {entry.short_name}")
        raise
    found = done.recorded
    counts = [f"{len(found.verified)} already verified"] if found.verified else []
    counts += [f"{len(found.open)} under way"] if found.open else []
    counts += [f"{len(found.to_submit)} submitted"]
    say(f"{entry.short_name} at scale {plans[0].case.scale} on {profile.name}: {len(plans)} cases, {', '.join(counts)}")
    for job_id in done.warm_ups:
        say(f"job {job_id} compiles the program's kernels first, so that no two jobs do it at once")
    if wait:
        wait_for(ledger, done.run_id, entry.short_name)
        case = plans[0].case
        raise typer.Exit(outcome(ledger, folders, entry, case.scale, profile.name, case.workload, json))
    jobs = job_rows(ledger, run_id=done.run_id)
    rows = [_job(row.job_id, row.case_name, row.state, row.scheduler_id) for row in jobs]
    if json:
        as_json(rows)
    else:
        table(rows, ["job", "case", "state", "id"])
    if any(row.phase in OPEN for row in jobs):
        next_command(f"repro status {entry.short_name} --watch", "until they have ended")
    else:
        next_command(f"repro collect {entry.short_name} --export csv", "the numbers and the claims")


def render(
    experiment: ExperimentName,
    cluster: OnCluster,
    scale: Scale = None,
    where: Where = None,
    workload: WorkloadName = None,
    output: OutputFolder = None,
    explain: Explain = False,
) -> None:
    """Print the script of each chosen case, raw, or write them with -o; to read, or to submit by hand."""
    from orchestrator.folders import find_folders
    from orchestrator.launch.render import explain_job, render_job

    folders = find_folders()
    entry, profile, plans = _planned(folders, experiment, cluster, scale, where, workload)
    stem = f"{entry.short_name}-{workload}" if workload else entry.short_name
    base = (output or Path()).resolve()
    if explain:
        name = f"{stem}-{plans[0].case.slug}"
        lines = explain_job(plans[0], profile, base / name, folders.templates, output=base / f"{name}.batch.txt")
        _show_origins(lines, plans, profile)
        return
    texts: dict[str, str] = {}
    for plan in plans:
        name = f"{stem}-{plan.case.slug}"
        texts[name] = render_job(plan, profile, base / name, folders.templates, output=base / f"{name}.batch.txt")
    launcher = "sbatch" if profile.is_slurm else "bash"
    if output is None:
        for text in texts.values():
            data(text.rstrip("\n"))
        example = f"repro render {entry.short_name} --cluster {cluster}{as_typed(workload)} -o jobs"
        next_command(example, f"write {counted(len(texts), 'script')}, to {launcher} by hand")
        return
    base.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = base / f"{name}.sh"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o750)
        data(str(path))
    next_command(f"{launcher} {shlex.quote(f'{base / next(iter(texts))}.sh')}", "or any other of them")


def _show_origins(lines: list[Explained], plans: list[Plan], profile: Cluster) -> None:
    """Each line of the first script behind the file and line, the experiment or the workload that it comes from."""
    origins = [", ".join(line.origins) for line in lines]
    width = max(map(len, origins))
    for origin, line in zip(origins, lines, strict=True):
        data(f"{origin:<{width}}  {line.text}".rstrip())
    if len(plans) > 1:
        say(f"this is {plans[0].case.name}, the first of {len(plans)}; --where chooses another")
    next_command(f"repro clusters show {profile.name} --resolved", "where each value of the profile was written")


def _require_verifiable(plans: list[Plan]) -> None:
    """What could never be called good is not worth its GPU-hours; its script can be had and run by hand."""
    reasons = dict.fromkeys((plan.program.workload, plan.program.unverifiable) for plan in plans)
    found = [
        Problem(f"{workload}: {reason}", mend="`repro render` writes the scripts, to submit by hand")
        for workload, reason in reasons
        if reason is not None
    ]
    if found:
        raise ReproError(*found)


def cancel(
    targets: Targets,
    where: Where = None,
    scale: OnlyScale = None,
    workload: OnlyWorkload = None,
    yes: Yes = False,
    database: Database = None,
) -> None:
    """Cancel jobs: of experiments, or by job id."""
    from orchestrator.cli.scope import chosen_rows, submitted_ledger
    from orchestrator.folders import find_folders
    from orchestrator.launch.refresh import cancel as cancel_jobs
    from orchestrator.launch.refresh import refresh
    from orchestrator.ledger.tables import OPEN

    folders = find_folders()
    ledger = submitted_ledger(folders, database)
    chosen_rows(ledger, folders, targets, where, scale, workload)  # refused before the scheduler is asked
    for complaint in refresh(ledger).complaints:
        say(f"note: {complaint}")
    rows = chosen_rows(ledger, folders, targets, where, scale, workload)
    live = [row for row in rows if row.phase in OPEN and row.scheduler_id is not None]
    if not live:
        say("nothing to cancel: no such job is under way")
        next_command("repro status", "how they stand")
        return
    if len(live) > ASK_ABOVE and not yes:
        if not sys.stdin.isatty():
            raise ReproError(Problem(f"{len(live)} jobs would be cancelled", mend="say --yes"))
        typer.confirm(f"Cancel {len(live)} jobs?", abort=True, err=True)
    cancel_jobs(live)
    for row in live:
        data(f"{row.job_id}  {row.case_name}  {row.scheduler_id or '-'}")
    say(f"{len(live)} jobs asked to end")
    next_command(f"repro status {short_name(live[0].experiment)}", "whether they have")


def _planned(
    folders: Folders, experiment: str, cluster: str, scale: str | None, where: str | None, workload: str | None
) -> tuple[Entry, Cluster, list[Plan]]:
    """Everything that can be wrong with the two files and the choice, before anything is touched."""
    from orchestrator.catalog.expand import expand
    from orchestrator.catalog.library import find_experiment
    from orchestrator.catalog.other_program import replacement_notes
    from orchestrator.catalog.selection import select
    from orchestrator.cli.choosing import read_choice
    from orchestrator.planning.plan import choose_scale, plan_cases, run_with

    choice = read_choice(folders, [experiment], cluster, where, workload, lambda at, name: [find_experiment(at, name)])
    (entry,), profile = choice.entries, choice.cluster
    assert profile is not None
    own = expand(entry, choose_scale(entry, profile, scale, workload))
    cases = select(run_with(own, workload), choice.wanted)
    plans = plan_cases(entry, cases, profile, folders)
    for note in replacement_notes(entry, cases):
        say(f"note: {note}")
    return entry, profile, plans


def _show_plans(plans: list[Plan], profile: Cluster, json: bool, workload: str | None) -> None:
    rows = [
        {
            "job": plan.identity,
            "case": plan.case.name,
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
    first = f"repro render {short} --cluster {profile.name} --scale {case.scale} --where {case.name}"
    next_command(f"{first}{as_typed(workload)}", "the script of the first")


def _what_runs(plan: Plan) -> dict[str, str | None]:
    """Where the program comes from, and what it reads: recorded with each job as well."""
    program = plan.program
    return {"workload": program.workload, "code": program.code, "image": program.image_path, "data": program.data}


def _job(job_id: str, case: str, state: str, scheduler_id: str | None) -> dict[str, str | None]:
    return {"job": job_id, "case": case, "state": state, "id": scheduler_id}
