"""Plans -> attempts in the ledger -> the scheduler. The ledger comes first: no crash submits twice or loses a job."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.clusters.resolve import Cluster
from orchestrator.documents.hardware import HardwareFields
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import Folders
from orchestrator.launch.executors import LocalScriptExecutor, SlurmScriptExecutor
from orchestrator.launch.provenance import provenance
from orchestrator.launch.render import render_array, render_job, render_queue
from orchestrator.launch.side_jobs import task_per_gpu, warm_ups
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.submissions import (
    NewAttempt,
    NewJob,
    NewRun,
    Recorded,
    record_never_submitted,
    record_run,
    record_submission,
)
from orchestrator.planning.plan import Plan

COMMENT = "repro:"
MOST_IN_ONE_ARRAY = 1000
"""Slurm's default MaxArraySize is 1001."""


@dataclass(frozen=True, slots=True)
class Submitted:
    run_id: str
    recorded: Recorded
    scheduler_ids: tuple[str, ...]
    warm_ups: tuple[str, ...] = ()
    """Ids of jobs that compile kernels before those above begin."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Jobs that go to the scheduler in one submission, found again by `token`."""

    token: str
    plans: tuple[Plan, ...]


def submit(
    plans: Sequence[Plan], cluster: Cluster, ledger: Ledger, folders: Folders, command: Sequence[str]
) -> Submitted:
    """Record the run, then submit every job that is neither verified nor under way.

    ReproError or Unreachable when the scheduler refuses; what it had taken before stays submitted and recorded, and
    repeating the command submits the rest.
    """
    run_id = _run_id()
    batches: list[_Batch] = []

    def make_attempts(missing: dict[str, int]) -> dict[str, NewAttempt]:
        once = {plan.identity: plan for plan in reversed(plans) if plan.identity in missing}  # cases may share a job
        batches.extend(_batches([plan for plan in plans if once.get(plan.identity) is plan]))
        return _write_scripts(run_id, batches, cluster, folders)

    with _uninterrupted():
        run = _run(run_id, plans, cluster, folders, command)
        try:
            recorded = record_run(ledger, run, _jobs(plans, cluster), make_attempts)
        except Exception:  # nothing is recorded: its scripts would be nobody's
            shutil.rmtree(folders.run(run_id), ignore_errors=True)
            raise
        ids, first = _send_all(batches, run_id, cluster, ledger, folders)
    return Submitted(run_id, recorded, tuple(ids), tuple(first))


def script_path(run_id: str, plan: Plan, folders: Folders) -> Path:
    return folders.job(run_id, plan.case.slug) / "job.sh"


def _send_all(
    batches: Sequence[_Batch], run_id: str, cluster: Cluster, ledger: Ledger, folders: Folders
) -> tuple[list[str], list[str]]:
    """Send until one is refused; of those behind it is known that the scheduler never had them."""
    ids: list[str] = []
    sent = 0
    try:
        before = _send_warm_ups(batches, run_id, cluster, folders)
        for batch in batches:
            sent += 1
            ids.append(_send(batch, run_id, cluster, ledger, folders, _ids_for(batch, before)))
    except ReproError:
        for untried in batches[sent:]:
            record_never_submitted(ledger, untried.token, "not tried, as the submission before it failed")
        raise
    return ids, list(before)


def _send(batch: _Batch, run_id: str, cluster: Cluster, ledger: Ledger, folders: Folders, after: Sequence[str]) -> str:
    try:
        if not cluster.is_slurm:
            folder = folders.submissions(run_id)
            scheduler_id = LocalScriptExecutor(folder).submit_queue(folder / f"{batch.token}.queue.sh")
        else:
            scheduler_id = _sbatch(batch, run_id, cluster, folders, after)
    except ReproError as error:
        if error.exit_code == ReproError.exit_code:  # refused; when it is out of reach, it may have been taken
            record_never_submitted(ledger, batch.token, error.problems[0].what)
        raise
    record_submission(ledger, batch.token, scheduler_id)
    return scheduler_id


def _sbatch(batch: _Batch, run_id: str, cluster: Cluster, folders: Folders, after: Sequence[str]) -> str:
    scripts = [script_path(run_id, plan, folders) for plan in batch.plans]
    folder = folders.submissions(run_id)
    if len(scripts) == 1:
        text = scripts[0].read_text(encoding="utf-8")
    else:
        text = render_array(batch.plans, cluster, scripts, folder, folders.templates)
    # A job whose kernels could not be compiled would wait for ever.
    options = [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"] if after else []
    return SlurmScriptExecutor(folder).submit_script(text, COMMENT + batch.token, options)


def _send_warm_ups(
    batches: Sequence[_Batch], run_id: str, cluster: Cluster, folders: Folders
) -> dict[str, frozenset[str]]:
    """Submit what has to run alone before jobs that share a checkout; its id, and whose jobs wait for it.

    Not in the ledger: submitted twice after a crash it does no harm, as only one of a checkout runs at a time.
    """
    if not cluster.is_slurm:  # one after another as it is
        return {}
    found: dict[str, frozenset[str]] = {}
    plans = [plan for batch in batches for plan in batch.plans]
    for number, (plan, identities) in enumerate(warm_ups(plans, cluster)):
        folder = folders.job(run_id, f"warm-up-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        text = render_job(plan, task_per_gpu(cluster), folder, folders.templates)
        checkout = hashlib.sha256(str(plan.program.compiles_in).encode()).hexdigest()[:8]
        options = [f"--job-name=repro-warm-up-{checkout}", "--dependency=singleton"]
        found[SlurmScriptExecutor(folder).submit_script(text, f"repro-warm-up:{run_id}", options)] = identities
    return found


def _ids_for(batch: _Batch, before: dict[str, frozenset[str]]) -> list[str]:
    return [job_id for job_id, identities in before.items() if any(plan.identity in identities for plan in batch.plans)]


def _batches(plans: Sequence[Plan]) -> Iterator[_Batch]:
    """Jobs that ask for the same resources go together, in the order of the experiment."""
    groups: dict[Any, list[Plan]] = {}
    for plan in plans:
        groups.setdefault(plan.resources, []).append(plan)
    for group in groups.values():
        for start in range(0, len(group), MOST_IN_ONE_ARRAY):
            yield _Batch(secrets.token_hex(8), tuple(group[start : start + MOST_IN_ONE_ARRAY]))


def _write_scripts(run_id: str, batches: Sequence[_Batch], cluster: Cluster, folders: Folders) -> dict[str, NewAttempt]:
    """Render everything, then write everything."""
    local = not cluster.is_slurm
    texts: dict[Path, str] = {}
    attempts: dict[str, NewAttempt] = {}
    for batch in batches:
        scripts = [script_path(run_id, plan, folders) for plan in batch.plans]
        for index, (plan, path) in enumerate(zip(batch.plans, scripts, strict=True)):
            text = render_job(plan, cluster, path.parent, folders.templates)
            texts[path] = text
            digest = hashlib.sha256(text.encode()).hexdigest()
            in_array = index if local or len(batch.plans) > 1 else None
            attempts[plan.identity] = NewAttempt(batch.token, in_array, str(path.parent), text, digest)
        if local:
            queue = folders.submissions(run_id) / f"{batch.token}.queue.sh"
            texts[queue] = render_queue(scripts, folders.runs / "local.lock", folders.templates)
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o750)
    except OSError as error:
        raise ReproError(Problem(f"{error.filename}: cannot be written ({error.strerror})")) from None
    return attempts


def _run(run_id: str, plans: Sequence[Plan], cluster: Cluster, folders: Folders, command: Sequence[str]) -> NewRun:
    case, made = plans[0].case, provenance(folders.shipped)
    return NewRun(
        id=run_id,
        experiment=case.experiment,
        scale=case.scale,
        cluster=cluster.name,
        user=made.user,
        host=made.host,
        pid=os.getpid(),
        command=list(command),
        git_commit=made.git_commit,
        git_dirty=made.git_dirty,
        versions=dict(made.versions),
        profile=cluster.layered.value | {"hardware": cluster.hardware.model_dump(exclude_none=True)},
    )


def _jobs(plans: Sequence[Plan], cluster: Cluster) -> list[NewJob]:
    return [
        NewJob(
            id=plan.identity,
            case_name=plan.case.name,
            cluster=cluster.name,
            workload=plan.case.workload,
            code=plan.program.code,
            image=plan.program.image,
            configuration=configuration(plan, cluster.hardware),
            gpus=plan.case.layout.gpus,
            iterations=plan.case.training.iterations,
            scheduler="slurm" if cluster.is_slurm else "local",
        )
        for plan in plans
    ]


def configuration(plan: Plan, hardware: HardwareFields) -> dict[str, Any]:
    """Everything a reader of the results needs to compute with, as plain values."""
    case = plan.case
    return {
        "point": dict(case.point),
        "settings": case.settings,
        "device": case.device,
        "model": dataclasses.asdict(case.model),
        "layout": dataclasses.asdict(case.layout),
        "training": dataclasses.asdict(case.training),
        "resources": dataclasses.asdict(plan.resources),
        "arguments": list(plan.program.arguments),
        "data": plan.program.data,
        "image_path": plan.program.image_path,
        "gpus_per_node": hardware.gpus_per_node,
        "gpu": hardware.gpu if case.device == "gpu" else None,
        "peak_tflops": hardware.peak(case.training.dtype) if case.device == "gpu" else None,
    }


def _run_id() -> str:
    """Sorts by time, and two at once differ."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and TERM wait until what was begun is recorded, then take effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def later(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    before = {number: signal.signal(number, later) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])
