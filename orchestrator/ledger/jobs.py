"""Jobs with their latest attempts: read by every command after submission, and kept up to date."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.tables import (
    ENDED,
    FAILED,
    OPEN,
    RUNNING,
    SUBMITTING,
    VERIFIED,
    WAITING,
    Attempt,
    Job,
    Run,
    RunJob,
    fields,
    note,
)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job of an experiment with its latest attempt: what status, logs, refresh and collect work on."""

    experiment: str
    scale: str
    cluster: str
    case_name: str
    job_id: str
    run_id: str
    workload: str
    image: str | None
    gpus: int
    iterations: int
    configuration: dict[str, Any]
    attempt_id: int
    number: int
    scheduler: str
    host: str
    token: str
    array_index: int | None
    scheduler_id: str | None
    state: str
    phase: str
    reason: str | None
    nodes: str | None
    exit_code: int | None
    signal: int | None
    folder: str
    created_at: datetime
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    refreshed_at: datetime | None
    iteration: int | None
    verdict: str | None
    verdict_reason: str | None


@dataclass(frozen=True, slots=True)
class Observation:
    """What the scheduler says about an attempt now."""

    state: str
    phase: str
    reason: str | None = None
    nodes: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


def record_observations(ledger: Ledger, seen: dict[int, Observation], looked_at: Iterable[int]) -> None:
    """Store what was seen; `looked_at` are the attempts that were asked for, seen or not."""
    wanted = sorted({*seen, *looked_at})
    if not wanted:
        return
    with ledger.writing() as session:
        for attempt in session.scalars(sa.select(Attempt).where(Attempt.id.in_(wanted))):
            attempt.refreshed_at = now()
            observation = seen.get(attempt.id)
            if observation is None or attempt.phase == ENDED:
                continue
            if observation.state != attempt.state:
                note(session, attempt, "state", f"{attempt.state} -> {observation.state}")
            for name, value in fields(observation).items():
                if value is not None or name == "reason":
                    setattr(attempt, name, value)
            if attempt.phase == ENDED and attempt.ended_at is None:
                attempt.ended_at = now()


def job_rows(
    ledger: Ledger,
    *,
    experiment: str | None = None,
    run_id: str | None = None,
    job_prefix: str | None = None,
    only_open: bool = False,
    unjudged: bool = False,
) -> list[JobRow]:
    """Jobs with their latest attempts, oldest run first; what experiments, scales or cases share has a row in each."""
    newest = sa.select(sa.func.max(Attempt.number)).where(Attempt.job_id == Job.id).correlate(Job).scalar_subquery()
    query = (
        sa.select(*_ROW_COLUMNS)
        .select_from(RunJob)
        .join(Run, Run.id == RunJob.run_id)
        .join(Job, Job.id == RunJob.job_id)
        .join(Attempt, sa.and_(Attempt.job_id == Job.id, Attempt.number == newest))
        .order_by(Run.created_at, RunJob.position)
    )
    if experiment is not None:
        query = query.where(Run.experiment == experiment)
    if run_id is not None:
        query = query.where(Run.id == run_id)
    if job_prefix is not None:
        query = query.where(Job.id.startswith(job_prefix, autoescape=True))
    if only_open:
        query = query.where(Attempt.phase.in_(OPEN))
    if unjudged:
        query = query.where(sa.or_(Attempt.phase.in_(OPEN), Attempt.verdict.is_(None)))
    with ledger.reading() as session:
        rows = [JobRow(*row) for row in session.execute(query)]
    latest = {(row.experiment, row.scale, row.case_name, row.job_id): row for row in rows}
    return list(latest.values())


def anything_to_refresh(ledger: Ledger) -> bool:
    """Whether some attempt is under way, or has ended and was not judged."""
    query = sa.select(Attempt.id).where(sa.or_(Attempt.phase.in_(OPEN), Attempt.verdict.is_(None))).limit(1)
    with ledger.reading() as session:
        return session.execute(query).first() is not None


@dataclass(frozen=True, slots=True)
class ExperimentCount:
    """How far an experiment is, over the latest attempts of its jobs."""

    experiment: str
    scale: str
    cluster: str
    cases: int
    verified: int
    failed: int
    running: int
    waiting: int


def experiment_counts(ledger: Ledger) -> list[ExperimentCount]:
    """One row per experiment, scale and cluster, counted by the database."""
    newest = sa.select(Attempt.job_id, sa.func.max(Attempt.number).label("number")).group_by(Attempt.job_id).subquery()
    jobs = (
        sa.select(Run.experiment, Run.scale, Run.cluster, RunJob.job_id)
        .join(Run, Run.id == RunJob.run_id)
        .distinct()
        .subquery()
    )

    def count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.sum(sa.case((condition, 1), else_=0))

    query = (
        sa.select(
            jobs.c.experiment,
            jobs.c.scale,
            jobs.c.cluster,
            sa.func.count(),
            count(Attempt.verdict == VERIFIED),
            count(Attempt.verdict == FAILED),
            count(Attempt.phase == RUNNING),
            count(Attempt.phase.in_((SUBMITTING, WAITING))),
        )
        .select_from(jobs)
        .join(newest, newest.c.job_id == jobs.c.job_id)
        .join(Attempt, sa.and_(Attempt.job_id == newest.c.job_id, Attempt.number == newest.c.number))
        .group_by(jobs.c.experiment, jobs.c.scale, jobs.c.cluster)
        .order_by(jobs.c.experiment, jobs.c.scale, jobs.c.cluster)
    )
    with ledger.reading() as session:
        return [ExperimentCount(*row) for row in session.execute(query)]


_ROW_COLUMNS = (
    *(Run.experiment, Run.scale, Run.cluster, RunJob.case_name, Job.id, Run.id, Job.workload, Job.image, Job.gpus),
    *(Job.iterations, Job.configuration, Attempt.id, Attempt.number, Attempt.scheduler, Attempt.host, Attempt.token),
    *(Attempt.array_index, Attempt.scheduler_id, Attempt.state, Attempt.phase, Attempt.reason, Attempt.nodes),
    *(Attempt.exit_code, Attempt.signal, Attempt.folder, Attempt.created_at, Attempt.submitted_at),
    *(Attempt.started_at, Attempt.ended_at, Attempt.refreshed_at, Attempt.iteration, Attempt.verdict),
    Attempt.verdict_reason,
)
