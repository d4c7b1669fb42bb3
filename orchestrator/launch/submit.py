"""Submission of plans, in batches of equal jobs: attempts in the ledger first, then the scheduler."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.files import keep_files, private_folder
from orchestrator.identity import NotOwn, require_own_folder
from orchestrator.job_spec import Resources
from orchestrator.launch.executors import SlurmScriptExecutor
from orchestrator.launch.refresh import sender_is_alive, unrecorded_attempts
from orchestrator.launch.render import JobScript, render_array, render_job, render_queue
from orchestrator.launch.run_options import CanaryJob, FileCheck, Gate, RunOptions, RunPlan
from orchestrator.launch.run_record import file_name, new_jobs, new_run_id, new_run_of, profile_secrets, write_own_file
from orchestrator.launch.sbatch import Callbacks, Sent, mark_cancelled, send
from orchestrator.ledger.attempts import attempts_of_jobs
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import AttemptRow, submissions_of
from orchestrator.ledger.runs import (
    Disposition,
    NewAttempt,
    Recorded,
    new_run,
    queued_attempts,
    record_never_submitted,
    record_run_options,
)
from orchestrator.ledger.tables import FAILED, LOST, MEASURED, OPEN, QUEUED
from orchestrator.masking import without_known
from orchestrator.paths import Folders, short_name
from orchestrator.planning.plan import Plan, SideCase, SidePlan
from orchestrator.programs.command import BoundProgram
from orchestrator.programs.record import find_program
from orchestrator.reading.failure import (
    MOST_ATTEMPTS,
    POLICIES,
    Allocation,
    Failure,
    failed_nodes,
    fails_as_published,
    failure_named,
    is_of_classes,
    pause_before,
)
from orchestrator.reading.logs import log_blocks
from orchestrator.reading.reader import reader_of
from orchestrator.slurm.command import most_in_array, on_cluster
from orchestrator.slurm.notation import expand_node_names
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
    cluster, notes = _checked(plans, cluster, ledger)
    options, run_id = options or RunOptions(), new_run_id()
    by_id = {plan.identity: plan for plan in [*plans, *reversed(plans)]}  # the first plan of those that share a job
    ordered = in_order(list(by_id.values()))
    copy_programs((plan.program for plan in ordered), folders)
    # A slow scheduler and large logs are read before the ledger is locked for other processes.
    with on_cluster(cluster.profile.slurm_cluster):
        array_limit = most_in_array() if cluster.is_slurm and len(ordered) > 1 else 1
    failed_nodes = _failed_nodes(by_id, cluster, ledger, options)
    for note in notes:
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


def _checked(plans: Sequence[Plan], cluster: Cluster, ledger: Ledger) -> tuple[Cluster, list[str]]:
    """Return the cluster without the denied nodes, and notes; ReproError if it has too few other nodes."""
    notes: list[str] = []
    if cluster.is_slurm:
        from orchestrator.launch.denied_nodes import denied_note, require_enough_nodes, with_denied_nodes

        cluster = with_denied_nodes(cluster)
        require_enough_nodes(plans, cluster)
        notes += denied_note(cluster)
    if any(plan.program.image_digest is not None for plan in plans):
        from orchestrator.launch.images import image_changes  # not for programs without images

        notes += image_changes(plans, cluster, ledger)
    return cluster, notes


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
    requeues = cluster.profile.slurm is not None and cluster.profile.slurm.requeue
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
        # A sender that cannot be seen from here counts as lost: an attempt is claimed before it is submitted.
        is_orphan = latest.state == QUEUED and not sender_is_alive(latest)
        return Disposition.MISSING if is_orphan and not options.only_failed else Disposition.UNDER_WAY
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
    is_new = latest is None or smallest.identity in missing
    is_under_way = latest is not None and (latest.phase in OPEN or latest.verdict is None)
    if options.canary and (smallest.identity in missing or is_under_way):
        folder = folders.job(run_id, smallest.slug) if is_new or latest is None else Path(latest.folder)
        nodes = smallest.resources.nodes
        checks = () if cluster.profile.container is None else (FileCheck("end", f"^inside_image={nodes}/{nodes}$"),)
        canary = smallest.case.record.canary(smallest.case, CanaryJob(smallest.label, folder, checks))
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


def _stop_replaced_attempts(ledger: Ledger, before: Mapping[str, Sequence[AttemptRow]], recorded: Recorded) -> None:
    """Keep replaced attempts from starting later: queued attempts, and lost ones that Slurm may still have."""
    for latest in (before[job_id][-1] for job_id in recorded.to_submit if before.get(job_id)):
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


def copy_programs(programs: Iterable[BoundProgram], folders: Folders) -> None:
    """Copy what jobs of these programs import or read to the folders where they look for it. ReproError if impossible.

    Programs with one name and code have the same files.
    """
    for program in {(program.name, program.code): program for program in programs}.values():
        if program.origin is None:
            find_program(program.name).write_files(folders)
        elif copies := {file.name: file.content for file in program.files if file.text is None}:
            keep_files(Path(str(program.copies)), copies)


# ---- batches of jobs that go to the scheduler together -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs with equal resources: one file for the scheduler, and further options of sbatch."""

    plans: tuple[Plan, ...]
    options: tuple[str, ...]


class FailedNodes:
    """Nodes at fault in earlier attempts. Each log is read once, in blocks.

    `submit` reads the logs before it locks the ledger. Within the lock it reads only logs of attempts that another
    process has judged since then.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_attempt: dict[int, tuple[str, ...]] = {}

    def of(self, plan: Plan, before: AttemptRow) -> tuple[str, ...]:
        """Return the nodes that an attempt after this one has to exclude because of it."""
        failure = failure_named(before.failure)
        if not POLICIES[failure].exclude_node:
            return ()
        if before.attempt_id not in self._by_attempt:
            self._by_attempt[before.attempt_id] = ()
            nodes, slurm, ranks = (
                expand_node_names(before.nodes),
                self._cluster.profile.slurm,
                plan.resources.tasks_per_node,
            )
            is_block = slurm is None or not any(word.startswith(("-m", "--distribution")) for word in slurm.srun)
            allocation = Allocation(nodes)
            if len(nodes) == plan.resources.nodes and is_block:
                allocation = Allocation(nodes, 1 if slurm is not None and slurm.tasks == "per-node" else ranks, ranks)
            with contextlib.suppress(ReproError):  # a log that this user may not read proves nothing
                log, program = log_blocks(Path(before.folder)), plan.case.described
                lines = reader_of(plan.case.program, program.stored() if program is not None else None).lines
                self._by_attempt[before.attempt_id] = failed_nodes(failure, log, allocation, lines)
        return self._by_attempt[before.attempt_id]


def in_order(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans by size, the smallest first: a mistake that they share appears where it costs least."""
    return sorted(plans, key=lambda plan: (plan.resources.nodes, plan.resources.tasks, plan.case.work))


def batches_of(
    plans: Sequence[Plan],
    before: Mapping[str, Sequence[AttemptRow]],
    run_plan: RunPlan,
    cluster: Cluster,
    most: int,
    failed: FailedNodes,
) -> Iterator[Batch]:
    """Yield batches of at most `most` jobs with equal resources, in the given order; local jobs are one batch."""
    if not plans:
        return
    if not cluster.is_slurm:
        yield Batch(tuple(plans), ())
        return
    groups: dict[tuple[Resources, tuple[str, ...], bool], list[Plan]] = {}
    for plan in plans:
        options = _options(plan, before.get(plan.identity, ()), failed)
        groups.setdefault((plan.resources, options, plan.identity == run_plan.canary), []).append(plan)
    for (_, options, _), group in groups.items():
        for start in range(0, len(group), most):
            yield Batch(tuple(group[start : start + most]), options)


def write_scripts(
    run_id: str, batches: Sequence[Batch], run_plan: RunPlan, cluster: Cluster, folders: Folders
) -> dict[str, NewAttempt]:
    """Render all scripts, then write them. Return the attempts by job id, in the order of their submission."""
    secret, folder = profile_secrets(cluster), folders.submissions(run_id)
    texts: dict[Path, str] = {}
    kept: dict[Path, tuple[str, str]] = {}
    attempts: dict[str, NewAttempt] = {}
    slurm = cluster.profile.slurm
    requeued = slurm is not None and slurm.requeue
    for batch in batches:
        scripts = scripts_of(run_id, batch.plans, folders)
        file, kind = scripts[0].file, "array"
        text: str | None = None  # the scheduler can be given a lone script itself
        if not cluster.is_slurm:
            lock, kind = folders.runs / "local.lock", "queue"
            text = render_queue(scripts, lock, folders.templates, gate=run_plan.gate, follows=run_plan.follows)
        elif len(scripts) > 1 or run_plan.gate is not None or scripts[0].file.parent != scripts[0].folder:
            limit, gate = run_plan.at_once, run_plan.gate
            text = render_array(batch.plans, cluster, scripts, folder, folders.templates, at_once=limit, gate=gate)
        if text is not None:
            file = folder / file_name(text, kind)
            texts[file] = text
        for index, (plan, script) in enumerate(zip(batch.plans, scripts, strict=True)):
            if script.file not in texts:
                job = texts[script.file] = render_job(plan, cluster, script.file.parent, folders.templates)
                kept[script.file] = without_known(job, secret), hashlib.sha256(job.encode()).hexdigest()
            shown, digest = kept[script.file]
            kept[script.file] = "", digest  # one of the attempts that share a script keeps its text
            attempts[plan.identity] = NewAttempt(
                file=str(file),
                array_index=None if file == script.file else index,
                options=batch.options,
                is_requeued=requeued,
                folder=str(script.folder),
                script=shown,
                script_sha256=digest,
            )
    for path, content in texts.items():
        write_own_file(path, content, os.O_TRUNC, 0o750)
    return attempts


def scripts_of(run_id: str, plans: Sequence[Plan], folders: Folders) -> list[JobScript]:
    """Return the script and the folder of each job. Repeats of a case share a script and have a folder each."""
    shared: dict[int, Path] = {}
    scripts: list[JobScript] = []
    for plan in plans:
        own = shared.get(id(plan.case))
        if own is None:
            own = shared[id(plan.case)] = folders.job(run_id, plan.case.slug)
        scripts.append(JobScript(own / "job.sh", own if plan.repeat == 1 else folders.job(run_id, plan.slug)))
    return scripts


def _options(plan: Plan, before: Sequence[AttemptRow], failed: FailedNodes) -> tuple[str, ...]:
    """Return the options of an attempt after others: without the nodes that failed, and after a pause."""
    if not before:
        return ()
    latest = before[-1]
    excluded = [word.removeprefix("--exclude=") for word in latest.options if word.startswith("--exclude=")]
    nodes = {node for names in excluded for node in expand_node_names(names)}
    pause_s = 0
    if latest.state != QUEUED:
        nodes |= set(failed.of(plan, latest))
        pause_s = pause_before(submissions_of(before), failure_named(latest.failure))
    options = [f"--exclude={','.join(sorted(nodes))}"] if nodes else []
    return (*options, f"--begin=now+{pause_s}") if pause_s else tuple(options)


WARM_UP_TIME = "0:30:00"


def side_plan(
    cluster: Cluster, program: BoundProgram, name: str, tasks: int, time_limit: str, gpus: int = 1
) -> SidePlan:
    """Return the plan of a job that is not a case: this program on one node, with so many tasks and GPUs."""
    case = SideCase(f"{name}/{cluster.name}", name, time_limit)
    return SidePlan(case, cluster.name, Resources(1, tasks, gpus, time_limit), program, name, f"case={name}")


def task_per_gpu(cluster: Cluster) -> Cluster:
    """Return the cluster with one task of srun per GPU, for programs that torchrun cannot start."""
    slurm = cluster.profile.slurm
    assert slurm is not None
    update = {"slurm": slurm.model_copy(update={"tasks": "per-gpu"})}
    return replace(cluster, profile=cluster.profile.model_copy(update=update))


def warm_ups(plans: Sequence[Plan], cluster: Cluster, *, always: bool = False) -> list[tuple[SidePlan, frozenset[str]]]:
    """Return a job that compiles kernels, and the jobs that need them, for each checkout that several jobs share.

    Checkouts whose kernels this machine sees are left out, unless `always`.
    """
    groups: dict[tuple[str, str | None], list[Plan]] = {}
    for plan in plans:
        if plan.program.compiles_in and plan.program.warm_up:
            groups.setdefault((plan.program.compiles_in, plan.program.image), []).append(plan)
    jobs = []
    for (checkout, _), group in groups.items():
        if always or (len(group) > 1 and not any(Path(checkout, "megatron/fused_kernels/build").glob("*.so"))):
            python, *words = group[0].program.warm_up
            alone = replace(group[0].program, python=python, command=(python, "-u", *words), arguments=())
            side = side_plan(cluster, alone, "warm-up", 1, WARM_UP_TIME)
            jobs.append((side, frozenset(plan.identity for plan in group)))
    return jobs
