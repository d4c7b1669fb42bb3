"""Submission of plans: attempts in the ledger first, then the scheduler."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.job_dir import private_folder
from orchestrator.job_spec import ComputedProducts, JobSpec
from orchestrator.launch.auxiliary_jobs import task_per_gpu, warm_ups
from orchestrator.launch.batches import (
    Batch,
    FailedNodes,
    batches_of,
    copy_programs,
    in_order,
    profile_secrets,
    write_scripts,
)
from orchestrator.launch.executors import SlurmScriptExecutor
from orchestrator.launch.policy import RerunPolicy, fails_as_published, failure_named, standing_of
from orchestrator.launch.provenance import provenance
from orchestrator.launch.recover import Unrecorded, unrecorded_attempts
from orchestrator.launch.render import render_job
from orchestrator.launch.run_options import RunOptions
from orchestrator.launch.sbatch import Reporter, Sent, mark_cancelled, send
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.runs import (
    Disposition,
    Latest,
    Missing,
    NewAttempt,
    NewJob,
    NewRun,
    Recorded,
    latest_attempts,
    record_run,
    record_wishes,
)
from orchestrator.ledger.submissions import in_turn, record_never_submitted
from orchestrator.ledger.tables import FAILED, IN_TURN, LOST, OPEN
from orchestrator.machine_identity import own_start_ticks, this_machine_identity
from orchestrator.masking import masked_tree, masked_words
from orchestrator.ownership import NotOwn, require_own_folder
from orchestrator.paths import Folders, short_name
from orchestrator.planning.plan import Plan
from orchestrator.reading.failure import Failure
from orchestrator.slurm.command import most_in_array
from orchestrator.workloads.traits import traits_of


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks for beside the plans. `after` are ids of the scheduler; `follows` are jobs of this machine, by
    their folder and the process id of their queue.
    """

    again: RerunPolicy = field(default_factory=RerunPolicy)
    max_parallel: int | None = None
    after: tuple[str, ...] = ()
    follows: tuple[tuple[str, int], ...] = ()
    canary: bool = False
    stop_after: int | None = None
    warm_up: bool = False


@dataclass(frozen=True, slots=True)
class Submitted:
    run_id: str
    recorded: Recorded
    sent: Sent
    warm_ups: tuple[str, ...] = ()
    """Ids of jobs that compile kernels before those above begin."""
    canary: str | None = None
    """The job that the others wait for."""


def submit(
    plans: Sequence[Plan],
    cluster: Cluster,
    ledger: Ledger,
    folders: Folders,
    command: Sequence[str],
    request: Request | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Submitted:
    """Record the run, then submit every job that is neither done nor under way, nor failed in a way that would repeat.

    ReproError or Unreachable when the scheduler refuses; what it had taken before stays submitted and recorded, and
    repeating the command submits the rest.
    """
    request, run_id, slurm = request or Request(), _run_id(), cluster.profile.slurm
    again = dataclasses.replace(request.again, is_slurms=slurm is not None and slurm.requeue)
    found: dict[str, Latest] = {}
    batches: list[Batch] = []
    wishes = RunOptions()

    def decide(job_id: str, latest: Latest | None) -> Disposition:
        if latest is not None:
            found[job_id] = latest
        return standing_of(once[job_id], latest, again)

    def make_attempts(missing: Mapping[str, Missing]) -> dict[str, NewAttempt]:
        nonlocal wishes
        _require_none_under_way([one for one in unrecorded if one.job_id in missing], once, again.verified, tell)
        _require_canary(request, ordered[0], found, missing)
        wishes = _wishes(request, cluster, ordered, found, missing)
        wanted = [plan for plan in ordered if plan.identity in missing]
        batches.extend(batches_of(wanted, missing, wishes, cluster, most, failed))
        canary = _canary(wishes, once, found, missing)
        return write_scripts(run_id, batches, wishes, canary, cluster, folders)

    def as_recorded() -> dict[str, Any]:
        return wishes.as_json()

    once: dict[str, Plan] = {}  # cases may share a job
    for plan in plans:
        once.setdefault(plan.identity, plan)
    ordered = in_order(list(once.values()))
    copy_programs(ordered, folders)
    # Asked before the ledger is locked: others would have to wait for a slow scheduler, too.
    most = most_in_array() if cluster.is_slurm and len(ordered) > 1 else 1
    failed = FailedNodes(cluster)
    if cluster.is_slurm:
        for job_id, latest in latest_attempts(ledger, list(once)).items():
            if standing_of(once[job_id], latest, again) is Disposition.MISSING:
                failed.of(once[job_id], latest)
    jobs = _jobs(plans, cluster)
    unrecorded = unrecorded_attempts(ledger, jobs)
    with uninterrupted() as is_interrupted:
        run = _run(run_id, plans, cluster, folders, command)
        try:
            recorded = record_run(ledger, run, jobs, decide, make_attempts, as_recorded)
        except Exception:  # nothing is recorded: its scripts would be nobody's
            shutil.rmtree(folders.run(run_id), ignore_errors=True)
            raise
        _give_up(ledger, found, recorded)
        wishes = _send_warm_ups(batches, run_id, wishes, cluster, folders, ledger, always=request.warm_up)
        sent = send(ledger, run_id, Reporter(tell, is_interrupted))
    return Submitted(run_id, recorded, sent, tuple(wishes.warm_ups), wishes.canary)


def _require_none_under_way(
    unrecorded: Sequence[Unrecorded], plans: Mapping[str, Plan], is_rerun: bool, tell: Callable[[str], None]
) -> None:
    """Tell which jobs are verified or under way in runs that the ledger lacks; ReproError for the latter."""
    lacks = "and the ledger does not contain that run"
    verified = [one for one in unrecorded if not one.is_under_way]
    under_way = [one for one in unrecorded if one.is_under_way]
    if verified:
        first, count = verified[0], len({one.job_id for one in verified})
        what = f"{plans[first.job_id].label} is verified there, {lacks} ({count} such jobs)"
        tell(f"note: {Problem(what, f'{first.folder}:', 'a backup of the ledger saves running them again')}")
    if not under_way:
        return
    first, count = under_way[0], len({one.job_id for one in under_way})
    job = f" as job {first.scheduler_id}" if first.scheduler_id else ""
    what = f"{plans[first.job_id].label} has not ended{job}, {lacks} ({count} such jobs)"
    if is_rerun:
        tell(f"note: {first.folder}: {what}")
        return
    hint = "wait for the end, or cancel the job; --rerun submits it all the same"
    raise ReproError(Problem(what, f"{first.folder}:", hint))


def _require_canary(
    request: Request, canary: Plan, found: Mapping[str, Latest], missing: Mapping[str, Missing]
) -> None:
    """A canary that failed, and would again, keeps the others from starting until something has been done about it."""
    latest = found.get(canary.identity)
    if not request.canary or latest is None or canary.identity in missing or latest.verdict != FAILED:
        return
    failure = failure_named(latest.failure)
    if not fails_as_published(canary, latest.failure):
        name, retry = short_name(canary.case.experiment), f"--class {failure} --where {canary.case.name}"
        what = f"the canary, {canary.label}, failed ({failure}), and the others wait for it"
        raise ReproError(Problem(what, hint=f"repro retry {name} {retry}, or leave --canary out"))


def _wishes(
    request: Request,
    cluster: Cluster,
    ordered: Sequence[Plan],
    found: Mapping[str, Latest],
    missing: Mapping[str, Missing],
) -> RunOptions:
    """The request, with the canary chosen: the smallest, unless it has nothing to prove any more."""
    smallest = ordered[0].identity
    under_way = smallest in found and (found[smallest].phase in OPEN or found[smallest].verdict is None)
    canary = smallest if request.canary and (smallest in missing or under_way) else None
    slurm = cluster.profile.slurm
    running = slurm.max_running if slurm else 1
    at_once = min(running, request.max_parallel or running)
    return RunOptions(
        max_parallel=request.max_parallel,
        after=request.after,
        follows=request.follows,
        canary=canary,
        stop_after=request.stop_after,
        at_once=at_once,
    )


def _canary(
    wishes: RunOptions, plans: Mapping[str, Plan], found: Mapping[str, Latest], missing: Mapping[str, Missing]
) -> tuple[Plan, str | None] | None:
    """The canary, and where its log is if there is one already."""
    if wishes.canary is None:
        return None
    return plans[wishes.canary], None if wishes.canary in missing else found[wishes.canary].folder


def _give_up(ledger: Ledger, found: Mapping[str, Latest], recorded: Recorded) -> None:
    """Keep replaced attempts from starting: one that was never sent, should a scheduler still be given its script, and
    one that was lost, should the scheduler still have it in its queue.
    """
    for job_id in recorded.to_submit:
        latest = found.get(job_id)
        if latest is not None and latest.state in (IN_TURN, LOST):
            with contextlib.suppress(NotOwn):  # another user's, or gone
                require_own_folder(Path(latest.folder), ledger.runs)
                mark_cancelled(latest.folder)


def _send_warm_ups(
    batches: Sequence[Batch],
    run_id: str,
    wishes: RunOptions,
    cluster: Cluster,
    folders: Folders,
    ledger: Ledger,
    *,
    always: bool,
) -> RunOptions:
    """Submit what has to run alone before jobs that share a checkout; the wishes with its id, and whose jobs wait.

    Not in the ledger: submitted twice after a crash it does no harm, as only one of a checkout runs at a time. Where it
    cannot be submitted, neither are those.
    """
    if not cluster.is_slurm:  # one after another as it is
        return wishes
    found: dict[str, tuple[str, ...]] = {}
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
            untried = [turn.attempt_id for turn in in_turn(ledger, run_id=run_id)]
            record_never_submitted(ledger, untried, "not tried, as its warm-up failed", str(Failure.NOT_SUBMITTED))
            raise
        found[job_id] = tuple(sorted(identities))
    if found:
        wishes = dataclasses.replace(wishes, warm_ups=found)
        record_wishes(ledger, run_id, wishes.as_json())
    return wishes


def _run(run_id: str, plans: Sequence[Plan], cluster: Cluster, folders: Folders, command: Sequence[str]) -> NewRun:
    case, made, secret = plans[0].case, provenance(folders.shipped), profile_secrets(cluster)
    profile = cluster.layered.value | {"hardware": cluster.hardware.model_dump(exclude_none=True)}
    return NewRun(
        id=run_id,
        experiment=case.experiment,
        scale=case.scale,
        cluster=cluster.name,
        user=made.user,
        host=made.host,
        pid=os.getpid(),
        command=masked_words(command, known=secret),
        git_commit=made.git_commit,
        git_dirty=made.git_dirty,
        versions=dict(made.versions),
        profile=masked_tree(profile, known=secret),
        profile_file=str(cluster.file.absolute()),
        machine=str(this_machine_identity()),
        pid_start_ticks=own_start_ticks(),
    )


def _jobs(plans: Sequence[Plan], cluster: Cluster) -> list[NewJob]:
    known = {plan.case.name: plan for plan in plans}  # repeats of a case are configured alike
    secret = profile_secrets(cluster)
    specs = {name: masked_tree(job_spec(plan, cluster).to_json(), known=secret) for name, plan in known.items()}
    return [
        NewJob(
            id=plan.identity,
            case_name=plan.case.name,
            cluster=cluster.name,
            workload=plan.case.workload,
            code=plan.program.code,
            image=plan.program.image,
            image_digest=plan.program.image_digest,
            spec=JobSpec.from_json(specs[plan.case.name]),
            gpus=plan.case.layout.gpus,
            iterations=plan.case.training.iterations,
            scheduler="slurm" if cluster.is_slurm else "local",
            repeat=plan.repeat,
        )
        for plan in plans
    ]


def job_spec(plan: Plan, cluster: Cluster) -> JobSpec:
    """Return the configuration that the ledger stores with the job."""
    case, hardware = plan.case, cluster.hardware
    traits, arguments = traits_of(case.workload), plan.program.arguments
    return JobSpec(
        point=dict(case.point),
        settings=case.settings,
        device=case.device,
        model=case.model,
        layout=case.layout,
        training=case.training,
        resources=plan.resources,
        arguments=tuple(arguments),
        computes=ComputedProducts(
            causal_attention=traits.causal_attention(case.training, arguments),
            skips_last_product=traits.skips_last_product,
        ),
        data=plan.program.data,
        image_path=plan.program.image_path,
        gpus_per_node=hardware.gpus_per_node,
        gpu=hardware.gpu if case.device == "gpu" else None,
        peak_tflops=hardware.peak(case.training.dtype) if case.device == "gpu" else None,
    )


def _run_id() -> str:
    """Sorts by time, and two at once differ."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


@contextmanager
def uninterrupted() -> Iterator[Callable[[], bool]]:
    """Inside the block a signal only makes the given function say True; behind it the signal is raised."""
    pending: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def later(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    before = {number: signal.signal(number, later) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(pending)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])
