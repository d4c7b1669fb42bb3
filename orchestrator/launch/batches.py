"""Batches of jobs that go to the scheduler together: their order and their files, and jobs that are no case."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.files import private_folder
from orchestrator.job_spec import Resources
from orchestrator.launch.render import JobScript, render_array, render_job, render_queue
from orchestrator.launch.run_options import RunPlan
from orchestrator.launch.run_record import file_name, profile_secrets
from orchestrator.ledger.rows import AttemptRow, submissions_of
from orchestrator.ledger.runs import NewAttempt
from orchestrator.ledger.tables import QUEUED
from orchestrator.masking import without_known
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, SideCase, SidePlan
from orchestrator.programs.bound import BoundProgram
from orchestrator.reading.failure import POLICIES, Allocation, failed_nodes, failure_named, pause_before
from orchestrator.reading.logs import log_blocks
from orchestrator.reading.reader import reader_of
from orchestrator.slurm.notation import expand_node_names


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
            with contextlib.suppress(ReproError):  # a log that this user may not read proves nothing
                log, program = log_blocks(Path(before.folder)), plan.case.described
                lines = reader_of(plan.case.program, program.stored() if program is not None else None).lines
                self._by_attempt[before.attempt_id] = failed_nodes(failure, log, self._allocation(plan, before), lines)
        return self._by_attempt[before.attempt_id]

    def _allocation(self, plan: Plan, before: AttemptRow) -> Allocation:
        nodes, slurm = expand_node_names(before.nodes), self._cluster.profile.slurm
        is_block = slurm is None or not any(word.startswith(("-m", "--distribution")) for word in slurm.srun)
        if len(nodes) != plan.resources.nodes or not is_block:
            return Allocation(nodes)
        ranks = plan.resources.tasks_per_node
        return Allocation(nodes, 1 if slurm is not None and slurm.tasks == "per-node" else ranks, ranks)


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
    run_id: str,
    batches: Sequence[Batch],
    run_plan: RunPlan,
    cluster: Cluster,
    folders: Folders,
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
    _write(texts)
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


def _write(texts: Mapping[Path, str]) -> None:
    """Write the files, readable and executable by the user and the group."""
    made: set[Path] = set()
    for path, text in texts.items():
        try:
            if path.parent not in made:
                private_folder(path.parent)
                made.add(path.parent)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o750)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise ReproError(Problem(f"cannot be written ({error.strerror})", f"{path}:")) from None


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
    return [
        (_warm_up(group[0], cluster), frozenset(plan.identity for plan in group))
        for (checkout, _), group in groups.items()
        if always or (len(group) > 1 and not any(Path(checkout, "megatron/fused_kernels/build").glob("*.so")))
    ]


def _warm_up(plan: Plan, cluster: Cluster) -> SidePlan:
    python, *words = plan.program.warm_up
    alone = replace(plan.program, python=python, command=(python, "-u", *words), arguments=())
    return side_plan(cluster, alone, "warm-up", 1, WARM_UP_TIME)
