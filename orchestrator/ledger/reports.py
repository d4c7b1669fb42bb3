"""Read-only reports of the ledger: the history of a job, the provenance of results, and counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import load_only

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import MeasuredMetric, metrics_of
from orchestrator.ledger.readonly_file import JOB_COUNTS, JobCount
from orchestrator.ledger.rows import ATTEMPT_ORIGINS, ATTEMPTS, AttemptOrigin, AttemptRow, attempts_by_job
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
    Event,
    Job,
    Run,
    RunJob,
    field_values,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt(AttemptRow):
    """One submission of a job with its metrics by name.

    `events` are those of the attempt, and of the runs that asked for the job while it was the latest attempt.
    """

    metrics: dict[str, MeasuredMetric]
    events: tuple[Event, ...]


def job_history(ledger: Ledger, job_id: str) -> list[PastAttempt]:
    """Return the attempts of a job, the first one first, each with its events in the order in which they happened."""
    with ledger.reading() as session:
        query = sa.select(*ATTEMPTS.columns).where(Attempt.job_id == job_id).order_by(Attempt.number)
        attempts = list(ATTEMPTS.rows(session.execute(query), ledger.run_folders()))
        ids = [attempt.attempt_id for attempt in attempts]
        runs = sa.select(RunJob.run_id).where(RunJob.job_id == job_id)
        concerned = sa.or_(
            Event.attempt_id.in_(ids),
            sa.and_(Event.attempt_id.is_(None), Event.run_id.in_(runs)),
        )
        events = list(session.scalars(sa.select(Event).where(concerned).order_by(Event.at, Event.id)))
    of_attempt: dict[int, list[Event]] = {attempt_id: [] for attempt_id in ids}
    for event in events:
        owner = event.attempt_id if event.attempt_id is not None else _attempt_of_run_event(event, attempts)
        of_attempt[owner].append(event)
    metrics = metrics_of(ledger, ids)
    return [
        PastAttempt(
            **field_values(attempt),
            metrics=metrics.get(attempt.attempt_id, {}),
            events=tuple(of_attempt[attempt.attempt_id]),
        )
        for attempt in attempts
    ]


def _attempt_of_run_event(event: Event, attempts: Sequence[AttemptRow]) -> int:
    """Return the attempt that a run's event belongs to: the run's own, or the latest one at the time of the event."""
    own = [attempt.attempt_id for attempt in attempts if attempt.run_id == event.run_id]
    earlier = [attempt.attempt_id for attempt in attempts if attempt.created_at <= event.at]
    return (own or earlier or [attempts[0].attempt_id])[-1]


def attempts_of_jobs(ledger: Ledger, job_ids: Collection[str]) -> dict[str, list[AttemptRow]]:
    """Return the attempts of each of these jobs that has one, the first one first."""
    with ledger.reading() as session:
        return attempts_by_job(session, job_ids, ledger.run_folders())


def attempt_origins(ledger: Ledger, job_ids: Collection[str]) -> list[AttemptOrigin]:
    """Return the attempts of these jobs, by job and number."""
    query = sa.select(*ATTEMPT_ORIGINS.columns).join(Job, Job.id == Attempt.job_id)
    query = query.order_by(Attempt.job_id, Attempt.number)
    return list(ATTEMPT_ORIGINS.rows(ledger.rows_with(query, Attempt.job_id, job_ids)))


def run_summaries(ledger: Ledger) -> list[Run]:
    """Return all runs without command, profile and options, the oldest first; runs of the same time by id."""
    columns = (Run.experiment, Run.scale, Run.cluster, Run.created_at, Run.git_commit)
    query = sa.select(Run).options(load_only(*columns, raiseload=True)).order_by(Run.created_at, Run.id)
    with ledger.reading() as session:
        return list(session.scalars(query))


def run_records(ledger: Ledger, run_ids: Collection[str]) -> list[Run]:
    """Return these runs, the oldest first."""
    runs = (row[0] for row in ledger.rows_with(sa.select(Run), Run.id, run_ids))
    return sorted(runs, key=lambda run: (run.created_at, run.id))


def cases_asked_for(ledger: Ledger, run_ids: Collection[str]) -> set[tuple[str, str, str, str]]:
    """Return (experiment, scale, case, job id) of every job that these runs asked for, new or existing."""
    query = sa.select(Run.experiment, Run.scale, RunJob.case_name, RunJob.job_id).join(Run, Run.id == RunJob.run_id)
    return {(row[0], row[1], row[2], row[3]) for row in ledger.rows_with(query, Run.id, run_ids)}


def script_texts(ledger: Ledger, digests: Collection[str]) -> dict[str, str]:
    """Return scripts by digest, as recorded: without secrets. One of the attempts that share a script has its text."""
    query = sa.select(Attempt.script_sha256, sa.func.max(Attempt.script)).group_by(Attempt.script_sha256)
    return {row[0]: row[1] for row in ledger.rows_with(query, Attempt.script_sha256, digests) if row[1]}


def latest_moment(ledger: Ledger) -> datetime | None:
    """Return the time (UTC) of the latest event in the ledger; None if there is none."""
    with ledger.reading() as session:
        return session.scalar(sa.select(sa.func.max(Event.at)))


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


def job_counts(ledger: Ledger) -> list[JobCount]:
    """Return the counts of all experiments."""
    with ledger.reading() as session:
        return [JobCount(*row) for row in session.execute(sa.text(JOB_COUNTS))]
