"""A ledger in which experiments have come out, with all that a report tells of; numbers and lines are made up."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.job_spec import JobSpec
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import metrics_of
from orchestrator.ledger.runs import Disposition, NewAttempt, NewJob, NewRun
from orchestrator.ledger.tables import Attempt, Event, Metric, Run, rows_of
from orchestrator.results.cases import case_results
from orchestrator.results.claims import judge_claims
from orchestrator.results.outcome import FigureOutcome
from tests.unit.ledger.making import record_run

START = datetime(2026, 1, 2, 3, 4, 5)
SCRIPT = "#!/bin/bash\n# {name}\nset -euo pipefail\nsrun python pretrain.py \\\n  --train-iters 8\n"


@dataclass(frozen=True)
class Came:
    """How a case came out: its number and spread, or the columns of an attempt that did not get that far.

    `host_wait_percent` is the share of the time for which its GPUs waited for the host.
    """

    value: float | None = None
    spread: float = 0.5
    host_wait_percent: float | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


VERIFIED_COLUMNS = {"state": "COMPLETED", "phase": "ended", "exit_code": 0, "verdict": "verified", "iteration": 8}
OUT_OF_MEMORY = {
    "state": "FAILED",
    "phase": "ended",
    "exit_code": 1,
    "verdict": "failed",
    "failure": "gpu-oom",
    "verdict_reason": "out of memory on the GPU",
    "deciding_line": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
    "deciding_rank": 3,
}
WAITING = {"state": "PENDING", "phase": "waiting", "reason": "Priority", "verdict": None}

Outcome = Callable[[int, Case], Came]


def add_figure(
    ledger: Ledger,
    entry: Entry,
    scale: str,
    outcome: Outcome,
    cluster: str = "selene",
    gpu: str = "A100-SXM4-80GB",
    minute: int = 0,
    script: str = SCRIPT,
    **run: Any,
) -> FigureOutcome:
    """Submit every case, let it come out as it is said, and read it back."""
    cases = expand(entry, scale)
    made = _run(entry, scale, cluster, minute, run)
    jobs = [_job(case, number, cluster, gpu, minute) for number, case in enumerate(cases)]
    texts = {job.id: script.format(name=job.case_name) for job in jobs}

    def attempts(missing: Mapping[str, Any]) -> Mapping[str, NewAttempt]:
        return {
            job_id: NewAttempt(
                *("/runs/array.sh", index, (), False, f"/runs/{job_id}", texts[job_id]),
                hashlib.sha256(texts[job_id].encode()).hexdigest(),
            )
            for index, job_id in enumerate(missing)
        }

    record_run(ledger, made, jobs, lambda _job, _latest: Disposition.MISSING, attempts)
    _let_come_out(ledger, made.id, {job.id: outcome(i, cases[i]) for i, job in enumerate(jobs)}, entry, minute)
    return reported(ledger, entry, cases, cluster)


def reported(ledger: Ledger, entry: Entry, cases: Sequence[Case], cluster: str) -> FigureOutcome:
    """The figure as the ledger has it now."""
    scale = cases[0].scale
    rows = [row for row in job_rows(ledger, experiment=entry.name) if (row.scale, row.cluster) == (scale, cluster)]
    found = case_results(entry, cases, rows, metrics_of(ledger, [row.attempt_id for row in rows]))
    return FigureOutcome(entry, scale, cluster, found, judge_claims(entry, scale, found, 8))


def _run(entry: Entry, scale: str, cluster: str, minute: int, given: Mapping[str, Any]) -> NewRun:
    made = NewRun(
        id=f"20260102-0304{minute:02}-aaaa",
        experiment=entry.name,
        scale=scale,
        cluster=cluster,
        user="me",
        host="login-1",
        pid=1,
        git_commit="c0ffee1234",
        git_dirty=False,
        command=["repro", "submit", entry.short_name, "--cluster", cluster, "--scale", scale],
        versions={"repro": "0.1", "python": "3.11.2", "submitit": "1.5.4"},
        profile={"about": "a test", "slurm": {"partition": "batch"}},
        profile_file=f"clusters/{cluster}.yaml",
    )
    return replace(made, **given)


def _job(case: Case, number: int, cluster: str, gpu: str, minute: int) -> NewJob:
    return NewJob(
        id=f"{minute:02x}{number:010x}",
        case_name=case.name,
        cluster=cluster,
        workload=case.workload,
        code="6985e589",
        image="pytorch-20.12-py3.sqsh",
        gpus=case.layout.gpus,
        iterations=8,
        spec=JobSpec(device=case.device, gpus_per_node=8, gpu=gpu),
        scheduler="slurm",
    )


def _let_come_out(ledger: Ledger, run_id: str, came: Mapping[str, Came], entry: Entry, minute: int) -> None:
    metric = entry.experiment.axes.y.metric
    started = START + timedelta(minutes=minute)
    with ledger.writing() as session:
        ids = dict(session.execute(sa.select(Attempt.job_id, Attempt.id).where(Attempt.run_id == run_id)).all())
        changed, numbers = [], []
        for place, (job_id, one) in enumerate(came.items()):
            columns = dict(one.columns or VERIFIED_COLUMNS)
            if columns["phase"] == "ended":
                columns |= {"started_at": started, "ended_at": started + timedelta(minutes=6), "nodes": f"n[{place}-9]"}
            changed.append({"id": ids[job_id], "scheduler_id": f"17_{place}", **columns})
            if one.value is not None:
                numbers += _numbers(ids[job_id], metric, one)
        for row in changed:
            session.execute(sa.update(Attempt).where(Attempt.id == row.pop("id")).values(**row))
        if numbers:
            session.execute(sa.insert(rows_of(Metric)), numbers)
        session.execute(sa.update(Run).where(Run.id == run_id).values(created_at=started))
        session.execute(sa.update(Event).values(at=started))


def _numbers(attempt_id: int, metric: str, came: Came) -> list[dict[str, Any]]:
    assert came.value is not None
    numbers = {metric: (came.value, came.spread), "iteration_ms": (1e5 / came.value, 12.5)}
    if came.host_wait_percent is not None:
        wait_ms = came.host_wait_percent / 100 * 1e5 / came.value
        numbers |= {"host_wait_ms": (wait_ms, 0.0), "host_wait_percent": (came.host_wait_percent, 0.0)}
    return [
        {"attempt_id": attempt_id, "name": name, "value": value, "unit": "", "spread": spread, "count": 6}
        for name, (value, spread) in numbers.items()
    ]


def write_experiment(home: Path, text: str, name: str = "figure-1") -> None:
    """A figure of a made-up paper, among a person's own experiments."""
    folder = home / "experiments" / "made"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "paper.yaml").write_text("title: A made-up paper\nvenue: MADE'26\n")
    (folder / f"{name}.yaml").write_text(text)
