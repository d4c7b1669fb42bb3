"""Submission of plans, and of failed jobs again: attempts in the ledger first, then the scheduler."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from orchestrator.catalog.argument_changes import with_changes
from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.resolve import Cluster, find_cluster, recorded_cluster
from orchestrator.errors import Problem, ReproError, did_you_mean, require_none
from orchestrator.files import keep_files, private_folder
from orchestrator.identity import NotOwn, require_own_folder
from orchestrator.launch.batches import (
    Batch,
    FailedNodes,
    batches_of,
    in_order,
    task_per_gpu,
    warm_ups,
    write_scripts,
)
from orchestrator.launch.denied_nodes import denied_note, require_enough_nodes, with_denied_nodes
from orchestrator.launch.executors import SlurmScriptExecutor
from orchestrator.launch.images import image_changes
from orchestrator.launch.recover import sender_is_alive, unrecorded_attempts
from orchestrator.launch.render import render_job
from orchestrator.launch.run_options import CanaryJob, FileCheck, Gate, RunOptions, RunPlan
from orchestrator.launch.run_record import new_jobs, new_run_id, new_run_of
from orchestrator.launch.sbatch import Callbacks, Sent, mark_cancelled, send
from orchestrator.ledger.attempts import attempts_of_jobs
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import AttemptRow, JobRow, submissions_of
from orchestrator.ledger.runs import (
    Disposition,
    Recorded,
    new_run,
    record_run_options,
    run_record,
)
from orchestrator.ledger.submissions import queued_attempts, record_never_submitted
from orchestrator.ledger.tables import FAILED, LOST, MEASURED, OPEN, QUEUED
from orchestrator.paths import Folders, short_name
from orchestrator.planning.plan import Plan, plan_cases, repeated
from orchestrator.planning.run_settings import read_settings
from orchestrator.planning.target import replace_program
from orchestrator.programs.bound import BoundProgram
from orchestrator.programs.registry import find_program
from orchestrator.reading.failure import (
    MOST_ATTEMPTS,
    POLICIES,
    Failure,
    fails_as_published,
    failure_named,
    is_of_classes,
)
from orchestrator.slurm.command import most_in_array, on_cluster
from orchestrator.slurm.notation import format_time_limit, time_limit_s
from orchestrator.text import counted


@dataclass(frozen=True, slots=True)
class Submitted:
    """Result of a submission.

    `warm_ups` are the ids of jobs that compile kernels before the jobs of the run start. `canary` is the job that the
    other jobs wait for.
    """

    run_id: str
    recorded: Recorded
    sent: Sent
    warm_ups: tuple[str, ...] = ()
    canary: str | None = None


def submit(
    plans: Sequence[Plan],
    cluster: Cluster,
    ledger: Ledger,
    folders: Folders,
    command: Sequence[str],
    options: RunOptions | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Submitted:
    """Record a run and submit its missing jobs: not done, not under way, and not failed in a way that would repeat.

    Raise ReproError or Unreachable if the scheduler refuses. Jobs that it accepted before stay submitted and recorded,
    and the next `submit` submits the others.
    """
    cluster = with_denied_nodes(cluster)
    require_enough_nodes(plans, cluster)
    options, run_id = options or RunOptions(), new_run_id()
    by_id = {plan.identity: plan for plan in [*plans, *reversed(plans)]}  # the first plan of those that share a job
    ordered = in_order(list(by_id.values()))
    copy_programs((plan.program for plan in ordered), folders)
    # A slow scheduler and large logs are read before the ledger is locked for other processes.
    with on_cluster(cluster.profile.slurm_cluster):
        array_limit = most_in_array() if cluster.is_slurm and len(ordered) > 1 else 1
    failed_nodes = _failed_nodes(by_id, cluster, ledger, options)
    for note in (*denied_note(cluster), *image_changes(list(by_id.values()), cluster, ledger)):
        notify(f"note: {note}")
    jobs = new_jobs(plans, cluster)
    with on_cluster(cluster.profile.slurm_cluster):
        unrecorded = unrecorded_attempts(ledger, jobs)
    with uninterrupted() as is_interrupted:
        run = new_run_of(run_id, plans, cluster, folders, command)
        try:
            with new_run(ledger, run, jobs) as transaction:
                before = transaction.before
                dispositions = dispositions_of(ordered, before, options, cluster)
                missing = {job_id for job_id, of in dispositions.items() if of is Disposition.MISSING}
                _require_none_under_way(unrecorded, missing, by_id, options, notify)
                _require_canary(options, ordered[0], before, missing)
                run_plan = _run_plan(run_id, options, cluster, folders, ordered[0], before, missing)
                to_submit = [plan for plan in ordered if plan.identity in missing]
                batches = list(batches_of(to_submit, before, run_plan, cluster, array_limit, failed_nodes))
                attempts = write_scripts(run_id, batches, run_plan, cluster, folders)
                recorded = transaction.add(dispositions, attempts, run_plan.as_json())
        except Exception:  # nothing is recorded, so no process would use the scripts
            shutil.rmtree(folders.run(run_id), ignore_errors=True)
            raise
        _stop_replaced_attempts(ledger, before, recorded)
        run_plan = _submit_warm_ups(batches, run_id, run_plan, cluster, folders, ledger, always=options.warm_up)
        sent = send(ledger, run_id, Callbacks(notify, is_interrupted))
    return Submitted(run_id, recorded, sent, tuple(run_plan.warm_ups), run_plan.canary)


def _failed_nodes(by_id: Mapping[str, Plan], cluster: Cluster, ledger: Ledger, options: RunOptions) -> FailedNodes:
    """Return the nodes at fault in the latest attempts of the jobs that need another one."""
    failed_nodes = FailedNodes(cluster)
    earlier = attempts_of_jobs(ledger, by_id) if cluster.is_slurm else {}
    dispositions = dispositions_of([by_id[job_id] for job_id in earlier], earlier, options, cluster)
    for job_id in (job_id for job_id, of in dispositions.items() if of is Disposition.MISSING):
        failed_nodes.of(by_id[job_id], earlier[job_id][-1])
    return failed_nodes


def dispositions_of(
    plans: Sequence[Plan], attempts: Mapping[str, Sequence[AttemptRow]], options: RunOptions, cluster: Cluster
) -> dict[str, Disposition]:
    """Return the disposition of each of these jobs by job id."""
    slurm = cluster.profile.slurm
    requeues = slurm is not None and slurm.requeue
    return {
        plan.identity: disposition_of(plan, attempts.get(plan.identity, ()), options, slurm_requeues=requeues)
        for plan in plans
    }


def disposition_of(
    plan: Plan, attempts: Sequence[AttemptRow], options: RunOptions, *, slurm_requeues: bool = False
) -> Disposition:
    """Return whether a job with these attempts is done, under way, left alone or missing.

    A job is done if any of its attempts is verified or partial, unless the caller repeats a failed repetition of it.
    With `slurm_requeues` Slurm itself runs a job again that lost its node or was preempted.
    """
    if not attempts:
        return Disposition.LEFT if options.only_failed else Disposition.MISSING
    latest = attempts[-1]
    if latest.phase in OPEN:
        is_missing = is_orphan(latest) and not options.only_failed
        return Disposition.MISSING if is_missing else Disposition.UNDER_WAY
    if latest.verdict is None:  # it has ended, and its log is not read yet
        return Disposition.UNDER_WAY
    failure = failure_named(latest.failure)
    if options.rerun_verified and plan.identity in options.own_jobs:
        return Disposition.DONE if latest.verdict in MEASURED else Disposition.LEFT
    is_asked_for = is_of_classes(latest.failure, options.rerun_classes)
    if options.rerun_verified or (latest.verdict not in MEASURED and is_asked_for):
        return Disposition.MISSING
    if latest.verdict in MEASURED or (_is_measured(attempts) and not options.only_failed):
        return Disposition.DONE
    if fails_as_published(plan.case, latest.failure):
        return Disposition.DONE
    if options.rerun_classes or submissions_of(attempts) >= MOST_ATTEMPTS:
        return Disposition.LEFT
    if slurm_requeues and failure in (Failure.NODE_FAIL, Failure.PREEMPTED):
        return Disposition.LEFT
    return Disposition.MISSING if POLICIES[failure].retry else Disposition.LEFT


def _is_measured(attempts: Sequence[AttemptRow]) -> bool:
    return any(attempt.verdict in MEASURED for attempt in attempts)


def is_orphan(latest: AttemptRow) -> bool:
    """Return whether a queued attempt has lost the process that submits it.

    A process that cannot be seen from here counts as lost: an attempt is claimed before it is submitted.
    """
    return latest.state == QUEUED and not sender_is_alive(latest)


def _require_none_under_way(
    unrecorded: Sequence[AttemptRow],
    missing: Collection[str],
    plans: Mapping[str, Plan],
    options: RunOptions,
    notify: Callable[[str], None],
) -> None:
    """Report missing jobs that are verified or under way in runs that the ledger lacks; ReproError for the latter."""
    for is_verified in (True, False):
        attempts = [
            attempt for attempt in unrecorded if attempt.job_id in missing and is_verified is bool(attempt.verdict)
        ]
        if not attempts:
            continue
        first, count = attempts[0], len({attempt.job_id for attempt in attempts})
        job = f" as job {first.scheduler_id}" if first.scheduler_id else ""
        state = "is verified there" if is_verified else f"has not ended{job}"
        what = f"{plans[first.job_id].label} {state}, and the ledger does not contain that run"
        what += f" ({counted(count, 'such job')})"
        if is_verified:
            hint = "restore a backup of the ledger to keep these results"
            notify(f"note: {Problem(what, f'{first.folder}:', hint)}")
        elif options.rerun_verified:
            notify(f"note: {first.folder}: {what}")
        else:
            hint = "wait for the end, or cancel the job; --rerun submits it anyway"
            raise ReproError(Problem(what, f"{first.folder}:", hint))


def _require_canary(
    options: RunOptions, canary: Plan, before: Mapping[str, Sequence[AttemptRow]], missing: Collection[str]
) -> None:
    """Raise ReproError if the canary failed and would fail again."""
    attempts = before.get(canary.identity)
    if not options.canary or not attempts or canary.identity in missing:
        return
    latest = attempts[-1]
    if latest.verdict != FAILED or _is_measured(attempts):
        return
    failure = failure_named(latest.failure)
    if not fails_as_published(canary.case, latest.failure):
        name, retry = short_name(canary.case.experiment), f"--class {failure} --where {canary.case.name}"
        what = f"the canary, {canary.label}, failed ({failure}), and the others wait for it"
        raise ReproError(Problem(what, hint=f"repro retry {name} {retry}, or leave --canary out"))


def _run_plan(
    run_id: str,
    options: RunOptions,
    cluster: Cluster,
    folders: Folders,
    smallest: Plan,
    before: Mapping[str, Sequence[AttemptRow]],
    missing: Collection[str],
) -> RunPlan:
    """Return the resolved options. The smallest job is the canary, unless it has been judged already."""
    slurm, canary, latest = cluster.profile.slurm, None, next(reversed(before.get(smallest.identity, ())), None)
    is_under_way = latest is not None and (latest.phase in OPEN or latest.verdict is None)
    if options.canary and (smallest.identity in missing or is_under_way):
        is_new = latest is None or smallest.identity in missing
        folder = folders.job(run_id, smallest.slug) if is_new or latest is None else Path(latest.folder)
        canary = _canary_job(smallest, cluster, folder)
    warm_up = smallest.case.warmup_iterations
    has_gate = canary is not None or options.stop_after is not None
    limit = slurm.max_running if slurm else 1
    return RunPlan(
        at_once=min(limit, options.max_parallel or limit),
        max_parallel=options.max_parallel,
        after=options.after,
        follows=options.follows,
        canary=smallest.identity if canary else None,
        stop_after=options.stop_after,
        settings=options.settings,
        gate=Gate(folders.run(run_id), options.stop_after, canary, warm_up) if has_gate else None,
    )


def _canary_job(plan: Plan, cluster: Cluster, folder: Path) -> CanaryJob:
    nodes = plan.resources.nodes
    checks = () if cluster.profile.container is None else (FileCheck("end", f"^inside_image={nodes}/{nodes}$"),)
    return plan.case.record.canary(plan.case, CanaryJob(plan.label, folder, checks))


def _stop_replaced_attempts(ledger: Ledger, before: Mapping[str, Sequence[AttemptRow]], recorded: Recorded) -> None:
    """Keep replaced attempts from starting later: queued attempts, and lost ones that Slurm may still have."""
    for job_id in recorded.to_submit:
        for latest in before.get(job_id, ())[-1:]:
            if latest.state in (QUEUED, LOST):
                with contextlib.suppress(NotOwn):  # the folder belongs to another user, or is gone
                    require_own_folder(Path(latest.folder), ledger.runs)
                    mark_cancelled(latest.folder)


def _submit_warm_ups(
    batches: Sequence[Batch],
    run_id: str,
    run_plan: RunPlan,
    cluster: Cluster,
    folders: Folders,
    ledger: Ledger,
    *,
    always: bool,
) -> RunPlan:
    """Submit the jobs that compile kernels for jobs that share a checkout. Return the plan with their ids.

    The ledger does not contain these jobs. A second submission after a crash does no harm, because only one of a
    checkout runs at a time. If one cannot be submitted, the jobs of the run are not submitted either.
    """
    if not cluster.is_slurm:  # jobs run one after another
        return run_plan
    jobs: dict[str, tuple[str, ...]] = {}
    plans = [plan for batch in batches for plan in batch.plans]
    for number, (plan, identities) in enumerate(warm_ups(plans, cluster, always=always)):
        folder = folders.job(run_id, f"warm-up-{number}")
        private_folder(folder)
        text = render_job(plan, task_per_gpu(cluster), folder, folders.templates)
        checkout = hashlib.sha256(str(plan.program.compiles_in).encode()).hexdigest()[:8]
        options = [f"--job-name=repro-warm-up-{checkout}", "--dependency=singleton"]
        try:
            job_id = SlurmScriptExecutor(folder).submit_script(text, f"repro-warm-up:{run_id}", options)
        except ReproError:
            queued = [attempt.attempt_id for attempt in queued_attempts(ledger, run_id=run_id)]
            reason = "not submitted, because its warm-up job could not be submitted"
            record_never_submitted(ledger, queued, reason, str(Failure.NOT_SUBMITTED))
            raise
        jobs[job_id] = tuple(sorted(identities))
    if jobs:
        run_plan = dataclasses.replace(run_plan, warm_ups=jobs)
        record_run_options(ledger, run_id, run_plan.as_json())
    return run_plan


@contextmanager
def uninterrupted() -> Iterator[Callable[[], bool]]:
    """Defer SIGINT and SIGTERM until the block ends. The value tells whether a signal is pending."""
    pending: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def defer(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    before = {number: signal.signal(number, defer) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(pending)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])


# ---- failed jobs planned again --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retry:
    """Failed jobs of one experiment, planned again from the current profile."""

    cluster: Cluster
    plans: tuple[Plan, ...]
    settings: tuple[str, ...]


def recorded_settings(ledger: Ledger, run_id: str) -> tuple[str, ...]:
    """Return the settings of the command line that a run was submitted with."""
    return RunPlan.from_json(run_record(ledger, run_id).run_options).settings


def plan_again(
    folders: Folders,
    rows: Sequence[JobRow],
    cluster: str | None,
    new_limit: Callable[[str], str],
    settings: tuple[str, ...],
) -> Retry:
    """Return the same jobs, planned again with these settings; ReproError if one would become another job."""
    first, run_settings = rows[0], read_settings(settings)
    entry = find_experiment(folders, first.experiment)
    if cluster is None:
        profile = recorded_cluster(folders, first.cluster, first.profile_file, run_settings.of_profile)
    else:
        profile = find_cluster(folders, cluster, run_settings.of_profile)
    profile = dataclasses.replace(profile, settings=run_settings.all)
    names = {row.case_name for row in rows}
    cases = cases_to_run(entry, first.scale)
    if first.program not in {case.program for case in cases}:
        cases = replace_program(cases, first.program)
    # A time budget may have changed the number of iterations, and --arg the arguments.
    chosen = [case.with_iterations(first.iterations) for case in cases if case.name in names]
    chosen = run_settings.applied(with_changes(chosen, first.spec.argument_changes))
    plans = repeated(plan_cases(entry, chosen, profile, folders), max(row.repeat for row in rows)) if chosen else []
    by_id = {plan.identity: plan for plan in plans}
    for row in rows:
        if row.job_id not in by_id:
            why = "its experiment, profile, code or image has changed"
            hint = f"repro submit {short_name(first.experiment)} --cluster {first.cluster}"
            raise ReproError(Problem(f"{row.label} ({row.job_id}) would be another job now: {why}", hint=hint))
    return Retry(profile, tuple(_with_limit(by_id[row.job_id], new_limit) for row in rows), settings)


def _with_limit(plan: Plan, new_limit: Callable[[str], str]) -> Plan:
    resources = dataclasses.replace(plan.resources, time_limit=new_limit(plan.resources.time_limit))
    return dataclasses.replace(plan, resources=resources)


def failure_classes(text: str | None, of_programs: Iterable[str] = ()) -> frozenset[str]:
    """Return the failure classes of a list such as `node-fail,timeout`; ReproError if one is unknown.

    `of_programs` are those that described programs name.
    """
    classes: dict[str, str] = {str(name): name for name in (*Failure, *of_programs)}
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    require_none(
        Problem(f"--class {name}: no such class", hint=did_you_mean(name, classes) or f"classes: {', '.join(classes)}")
        for name in names
        if name not in classes
    )
    return frozenset(classes[name] for name in names)


def changed_limit(text: str | None) -> Callable[[str], str]:
    """Return the function from an old time limit to a new one; ReproError if the text is not a limit."""
    if text is None:
        return lambda old: old
    if share := re.fullmatch(r"\+([0-9]{1,4})%", text):
        return lambda old: format_time_limit(time_limit_s(old) * (100 + int(share[1])) // 100)
    if clock := re.fullmatch(r"(\+?)((?:[0-9]{1,3}-)?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9])", text):
        return lambda old: format_time_limit(time_limit_s(clock[2]) + (time_limit_s(old) if clock[1] else 0))
    raise ReproError(Problem(f"--time {text}: not a time limit", hint="for example +50%, +0:30:00 or 2:00:00"))


def copy_programs(programs: Iterable[BoundProgram], folders: Folders) -> None:
    """Copy what jobs of these programs import or read to the folders where they look for it. ReproError if impossible.

    Programs with one name and code have the same files.
    """
    for program in {(program.name, program.code): program for program in programs}.values():
        if program.origin is None:
            find_program(program.name).write_files(folders)
        elif copies := {file.name: file.content for file in program.files if file.text is None}:
            keep_files(Path(str(program.copies)), copies)
