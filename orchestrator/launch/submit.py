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
from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.folders import Folders
from orchestrator.launch.executors import LocalScriptExecutor, SlurmScriptExecutor
from orchestrator.launch.provenance import provenance
from orchestrator.launch.render import render_array, render_job, render_queue
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
from orchestrator.slurm.query import require_controller

COMMENT = "repro:"
MOST_IN_ONE_ARRAY = 1000
"""Slurm's default MaxArraySize is 1001."""


@dataclass(frozen=True, slots=True)
class Submitted:
    run_id: str
    recorded: Recorded
    scheduler_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Jobs that go to the scheduler in one submission, found again by `token`."""

    token: str
    plans: tuple[Plan, ...]


def require_scheduler(cluster: Cluster, folders: Folders) -> None:
    """Refuse what cannot be submitted from here at all, before anything is recorded."""
    if cluster.profile.scheduler != "slurm":
        return
    if shutil.which("sbatch") is None:
        mend = "run this on a login node of the cluster; --dry-run and `repro render` work here"
        raise Unreachable(Problem("sbatch is not on this machine", mend=mend))
    if any(tag in str(folders.runs) for tag in ("%j", "%t", "%A", "%a")):  # submitit puts ids in their place
        raise ReproError(Problem(f"{folders.runs}: no folder for Slurm jobs", mend="set REPRO_HOME to one without %"))
    require_controller()


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
        ids = _send_all(batches, run_id, cluster, ledger, folders)
    return Submitted(run_id, recorded, tuple(ids))


def script_path(run_id: str, plan: Plan, folders: Folders) -> Path:
    return folders.job(run_id, plan.case.slug) / "job.sh"


def _send_all(batches: Sequence[_Batch], run_id: str, cluster: Cluster, ledger: Ledger, folders: Folders) -> list[str]:
    """Send until one is refused; of those behind it is known that the scheduler never had them."""
    ids: list[str] = []
    for position, batch in enumerate(batches):
        try:
            ids.append(_send(batch, run_id, cluster, ledger, folders))
        except ReproError:
            for untried in batches[position + 1 :]:
                record_never_submitted(ledger, untried.token, "not tried, as the submission before it failed")
            raise
    return ids


def _send(batch: _Batch, run_id: str, cluster: Cluster, ledger: Ledger, folders: Folders) -> str:
    try:
        if cluster.profile.scheduler == "local":
            folder = folders.submissions(run_id)
            scheduler_id = LocalScriptExecutor(folder).submit_queue(folder / f"{batch.token}.queue.sh")
        else:
            scheduler_id = _sbatch(batch, run_id, cluster, folders)
    except ReproError as error:
        if error.exit_code == ReproError.exit_code:  # refused; when it is out of reach, it may have been taken
            record_never_submitted(ledger, batch.token, error.problems[0].what)
        raise
    record_submission(ledger, batch.token, scheduler_id)
    return scheduler_id


def _sbatch(batch: _Batch, run_id: str, cluster: Cluster, folders: Folders) -> str:
    scripts = [script_path(run_id, plan, folders) for plan in batch.plans]
    folder = folders.submissions(run_id)
    if len(scripts) == 1:
        text = scripts[0].read_text(encoding="utf-8")
    else:
        text = render_array(batch.plans, cluster, scripts, folder, folders.templates)
    return SlurmScriptExecutor(folder).submit_script(text, comment=COMMENT + batch.token)


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
    local = cluster.profile.scheduler == "local"
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
            scheduler=cluster.profile.scheduler,
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
