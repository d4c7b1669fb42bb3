"""Counts of jobs by the database: the number, the results and the failures of each experiment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import (
    FAILED,
    MEASURED,
    OPEN,
    PARTIAL,
    QUEUED,
    RUNNING,
    SUBMITTING,
    VERIFIED,
    WAITING,
    Attempt,
    Run,
    RunJob,
)


def job_count(ledger: Ledger) -> int:
    """Return the number of jobs of all experiments. A job that two experiments share counts for each."""
    with ledger.reading() as session:
        return session.scalar(sa.select(sa.func.count(sa.distinct(RunJob.job_id)))) or 0


@dataclass(frozen=True, slots=True)
class ExperimentCount:
    """Progress of an experiment: jobs by their results. A measured job whose latest attempt is open counts twice."""

    experiment: str
    scale: str
    cluster: str
    cases: int
    verified: int
    partial: int
    failed: int
    running: int
    waiting: int


def experiment_counts(ledger: Ledger) -> list[ExperimentCount]:
    """Return a row for each experiment, scale and cluster, counted by the database."""
    has = {
        verdict: sa.func.max(sa.case((Attempt.verdict == verdict, 1), else_=0)).label(verdict) for verdict in MEASURED
    }
    newest = (
        sa.select(Attempt.job_id, sa.func.max(Attempt.number).label("number"), *has.values())
        .group_by(Attempt.job_id)
        .subquery()
    )
    jobs = (
        sa.select(Run.experiment, Run.scale, Run.cluster, RunJob.job_id)
        .join(Run, Run.id == RunJob.run_id)
        .distinct()
        .subquery()
    )

    def count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.sum(sa.case((condition, 1), else_=0))

    is_verified = newest.c[VERIFIED] == 1
    is_partial = sa.and_(newest.c[PARTIAL] == 1, ~is_verified)
    query = (
        sa.select(
            jobs.c.experiment,
            jobs.c.scale,
            jobs.c.cluster,
            sa.func.count().label("cases"),
            count(is_verified).label("verified"),
            count(is_partial).label("partial"),
            count(sa.and_(Attempt.verdict == FAILED, ~is_verified, ~is_partial)).label("failed"),
            count(Attempt.phase == RUNNING).label("running"),
            count(Attempt.phase.in_((SUBMITTING, WAITING))).label("waiting"),
        )
        .select_from(jobs)
        .join(newest, newest.c.job_id == jobs.c.job_id)
        .join(Attempt, sa.and_(Attempt.job_id == newest.c.job_id, Attempt.number == newest.c.number))
        .group_by(jobs.c.experiment, jobs.c.scale, jobs.c.cluster)
        .order_by(jobs.c.experiment, jobs.c.scale, jobs.c.cluster)
    )
    with ledger.reading() as session:
        return [ExperimentCount(**row) for row in session.execute(query).mappings()]


def failure_counts(ledger: Ledger) -> dict[tuple[str, str, str], dict[str, int]]:
    """Count jobs without a measured attempt by the failure class of the latest: (experiment, scale, cluster)."""
    other = sa.orm.aliased(Attempt)
    replaces = sa.or_(other.number > Attempt.number, other.verdict.in_(MEASURED))
    is_result = ~sa.exists().where(other.job_id == Attempt.job_id, replaces)
    jobs = (
        sa.select(Run.experiment, Run.scale, Run.cluster, Attempt.job_id, Attempt.failure)
        .select_from(Attempt)
        .join(RunJob, RunJob.job_id == Attempt.job_id)
        .join(Run, Run.id == RunJob.run_id)
        .where(Attempt.verdict == FAILED, Attempt.failure.is_not(None), is_result)
        .distinct()
        .subquery()
    )
    group = (jobs.c.experiment, jobs.c.scale, jobs.c.cluster)
    number = sa.func.count()
    query = sa.select(*group, jobs.c.failure, number).group_by(*group, jobs.c.failure).order_by(number.desc())
    counts: dict[tuple[str, str, str], dict[str, int]] = {}
    with ledger.reading() as session:
        for experiment, scale, cluster, failure, count in session.execute(query):
            counts.setdefault((experiment, scale, cluster), {})[failure] = count
    return counts


def last_seen(ledger: Ledger) -> datetime | None:
    """Return the oldest time (UTC) at which the scheduler last listed an open job; None without open jobs."""
    seen = sa.func.min(sa.func.coalesce(Attempt.refreshed_at, Attempt.created_at))
    query = sa.select(seen).where(Attempt.phase.in_(OPEN), Attempt.state != QUEUED)
    with ledger.reading() as session:
        return session.scalar(query)
