"""Jobs with their latest attempts: read by every command after submission, and kept up to date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.job_spec import JobSpec
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.rows import JOB_ROWS, JOB_SPEC, JOB_SUMMARIES, JobRow, JobSummary, RowReader
from orchestrator.ledger.tables import (
    ENDED,
    FAILED,
    LOST,
    OPEN,
    RUNNING,
    SUBMITTING,
    VERIFIED,
    WAITING,
    Attempt,
    Event,
    Job,
    Poll,
    Run,
    RunJob,
    batched,
    field_values,
    note,
)

S = TypeVar("S", bound=JobSummary)

CANCEL_ASKED = "cancel asked"
"""Kind of event."""
LOST_IS_REVISED_FOR = timedelta(days=30)
"""How long the scheduler is asked about a lost job, in case it lists the job again."""


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
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    seen_via: str | None = None


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """What could not be read, and when Slurm was last asked (UTC; None if no job had to be asked for)."""

    complaints: tuple[str, ...] = ()
    asked_at: datetime | None = None


def record_observations(ledger: Ledger, seen: Mapping[int, Observation], looked_at: Iterable[int]) -> None:
    """Store what was seen; `looked_at` are the attempts that were asked for, seen or not.

    Only changes are written. An attempt that has ended keeps its end, unless it was called lost.
    """
    wanted = sorted({*seen, *looked_at})
    if not wanted:
        return
    at = now()
    with ledger.writing() as session:
        for ids in batched(wanted):
            looked = sa.update(Attempt).where(Attempt.id.in_(ids)).values(refreshed_at=at)
            session.execute(looked, execution_options={"synchronize_session": False})
            news = _changed(session, ids, seen)
            may_change = sa.or_(Attempt.phase != ENDED, Attempt.state == LOST)
            for attempt in session.scalars(sa.select(Attempt).where(Attempt.id.in_(news), may_change)):
                _apply(session, attempt, seen[attempt.id])


def _changed(session: Session, ids: Sequence[int], seen: Mapping[int, Observation]) -> list[int]:
    """Those of which something else was seen than is written; their scripts, of which there is much, are not read."""
    names = Observation.__slots__
    columns = (Attempt.id, Attempt.unseen_since, *(getattr(Attempt, name) for name in names))
    changed: list[int] = []
    for attempt_id, unseen_since, *known in session.execute(sa.select(*columns).where(Attempt.id.in_(ids))):
        if attempt_id in seen:
            said = field_values(seen[attempt_id])
            differs = any(
                said[name] != old and _counts(name, said[name]) for name, old in zip(names, known, strict=True)
            )
            changed += [attempt_id] if differs or unseen_since is not None else []
    return changed


def _counts(name: str, value: object) -> bool:
    """Return whether an observed value replaces the stored one. None does so only for values of the present."""
    return value is not None or name in ("reason", "starts_at", "ends_at")


def _apply(session: Session, attempt: Attempt, observation: Observation) -> None:
    if observation.state != attempt.state:
        via = f" (via {observation.seen_via})" if observation.seen_via else ""
        why = f": {observation.reason}" if observation.reason else ""
        note(session, attempt, "state", f"{attempt.state} -> {observation.state}{why}{via}")
    if attempt.state == LOST and observation.state != LOST:
        attempt.ended_at = attempt.verdict = attempt.verdict_reason = None
        attempt.failure = attempt.deciding_line = attempt.deciding_rank = None
    for name, value in field_values(observation).items():
        if _counts(name, value):
            setattr(attempt, name, value)
    attempt.unseen_since = attempt.unseen_log_bytes = attempt.unsettled_since = None
    if attempt.phase == ENDED and attempt.ended_at is None:
        attempt.ended_at = now()


def asked_to_end(ledger: Ledger, attempt_ids: Sequence[int]) -> set[int]:
    """Of these attempts those that somebody has cancelled through this ledger."""
    found: set[int] = set()
    with ledger.reading() as session:
        for ids in batched(attempt_ids):
            query = sa.select(Event.attempt_id).where(Event.attempt_id.in_(ids), Event.kind == CANCEL_ASKED)
            found |= {one for one in session.scalars(query) if one is not None}
    return found


def record_asked(ledger: Ledger, attempt_ids: Sequence[int], by: str) -> None:
    """Record that a user cancelled these attempts. Their states change when the scheduler reports it."""
    with ledger.writing() as session:
        for ids in batched(attempt_ids):
            for attempt in session.scalars(sa.select(Attempt).where(Attempt.id.in_(ids))):
                note(session, attempt, CANCEL_ASKED, by)


def may_ask(ledger: Ledger, scheduler: str, every_s: float) -> tuple[bool, datetime | None, list[str]]:
    """Return whether the scheduler may be asked now, when it was asked last, and what could not be learned then.

    With `every_s`, one of all terminals that share this ledger may ask in that time, and has to. Without it, each may.
    A last time that lies in the future is that of a wrong clock, and hinders nobody.
    """
    at = now()
    with ledger.writing() as session:
        look = session.get(Poll, scheduler)
        if look is not None and every_s and timedelta(0) <= at - look.asked_at < timedelta(seconds=every_s):
            return False, look.asked_at, list(look.complaints)
        if look is None:
            session.add(Poll(scheduler=scheduler, asked_at=at, complaints=[]))
        else:
            look.asked_at = at
    return True, at, []


def record_complaints(ledger: Ledger, scheduler: str, complaints: Sequence[str]) -> None:
    """Store what the last poll could not learn, for commands that do not poll themselves."""
    with ledger.writing() as session:
        session.get_one(Poll, scheduler).complaints = list(complaints)


def job_rows(
    ledger: Ledger,
    *,
    experiment: str | None = None,
    run_id: str | None = None,
    job_prefix: str | None = None,
    only_open: bool = False,
    unjudged: bool = False,
) -> list[JobRow]:
    """Return jobs with their latest attempts, oldest run first. A job that cases share has a row for each case.

    `only_open` selects attempts that have not ended, `unjudged` those that run or have ended without a verdict.
    """
    wanted = _selection(experiment=experiment, run_id=run_id, job_prefix=job_prefix)
    wanted += [Attempt.phase.in_(OPEN)] if only_open else []
    wanted += [Attempt.phase.in_((RUNNING, ENDED)), Attempt.verdict.is_(None)] if unjudged else []
    return _latest(ledger, JOB_ROWS, wanted)


def job_summaries(ledger: Ledger, *, experiment: str | None = None) -> list[JobSummary]:
    """Return the same rows as `job_rows` without the configurations, which are most of a row's size."""
    return _latest(ledger, JOB_SUMMARIES, _selection(experiment=experiment))


def refreshable_jobs(ledger: Ledger) -> list[JobSummary]:
    """Return the jobs whose state the scheduler may change: attempts that have not ended, and recently lost ones."""
    return _latest(ledger, JOB_SUMMARIES, [sa.or_(Attempt.phase.in_(OPEN), _is_recently_lost())])


def job_specs(ledger: Ledger, job_ids: Iterable[str]) -> dict[str, JobSpec]:
    """Return the configurations of these jobs by job id."""
    specs: dict[str, JobSpec] = {}
    with ledger.reading() as session:
        for ids in batched(sorted(set(job_ids))):
            rows = session.execute(sa.select(Job.id, JOB_SPEC).where(Job.id.in_(ids))).tuples()
            specs.update(rows.all())  # a list: a result has keys(), so it would be read as a mapping
    return specs


def _selection(
    *, experiment: str | None = None, run_id: str | None = None, job_prefix: str | None = None
) -> list[sa.ColumnElement[bool]]:
    wanted = []
    if experiment is not None:
        wanted.append(Run.experiment == experiment)
    if run_id is not None:
        wanted.append(Run.id == run_id)
    if job_prefix is not None:
        wanted.append(Job.id.startswith(job_prefix, autoescape=True))
    return wanted


def _latest(ledger: Ledger, reader: RowReader[S], wanted: Sequence[sa.ColumnElement[bool]]) -> list[S]:
    newest = sa.select(sa.func.max(Attempt.number)).where(Attempt.job_id == Job.id).correlate(Job).scalar_subquery()
    query = (
        sa.select(*reader.columns)
        .select_from(RunJob)
        .join(Run, Run.id == RunJob.run_id)
        .join(Job, Job.id == RunJob.job_id)
        .join(Attempt, sa.and_(Attempt.job_id == Job.id, Attempt.number == newest))
        .where(*wanted)
        .order_by(Run.created_at, RunJob.position)
    )
    with ledger.reading() as session:
        rows = reader.rows(session.execute(query), ledger.run_folders())
        return list({(row.experiment, row.scale, row.case_name, row.job_id): row for row in rows}.values())


def unjudged_attempts(ledger: Ledger, phases: Sequence[str] = (RUNNING, ENDED)) -> list[int]:
    """Return the ids of the attempts in these phases that have no verdict yet, the oldest first."""
    query = sa.select(Attempt.id).where(Attempt.phase.in_(phases), Attempt.verdict.is_(None)).order_by(Attempt.id)
    with ledger.reading() as session:
        return list(session.scalars(query))


def rows_of_attempts(ledger: Ledger, attempt_ids: Sequence[int]) -> list[JobRow]:
    """One row for each of these attempts, as the run that made it has it, in the order of their ids."""
    # SQLite is kept from looking through all jobs of the run: a job's own runs are few.
    of_run = sa.func.coalesce(RunJob.run_id, "") == Attempt.run_id
    query = (
        sa.select(*JOB_ROWS.columns)
        .select_from(Attempt)
        .join(Job, Job.id == Attempt.job_id)
        .join(Run, Run.id == Attempt.run_id)
        .join(RunJob, sa.and_(RunJob.job_id == Attempt.job_id, of_run))
        .order_by(Attempt.id, RunJob.position.desc())
    )
    found: dict[int, JobRow] = {}
    with ledger.reading() as session:
        for ids in batched(attempt_ids):
            rows = JOB_ROWS.rows(session.execute(query.where(Attempt.id.in_(ids))), ledger.run_folders())
            found |= {row.attempt_id: row for row in rows}
    return list(found.values())


def lost_attempts(ledger: Ledger, job_ids: Sequence[str]) -> list[JobRow]:
    """Return every attempt of these jobs that was called lost, also those that a later attempt has replaced."""
    query = sa.select(Attempt.id).where(Attempt.state == LOST, Attempt.scheduler_id.is_not(None))
    found: list[int] = []
    with ledger.reading() as session:
        for ids in batched(job_ids):
            found += session.scalars(query.where(Attempt.job_id.in_(ids)))
    return rows_of_attempts(ledger, found)


def _is_recently_lost() -> sa.ColumnElement[bool]:
    return sa.and_(Attempt.state == LOST, Attempt.ended_at > now() - LOST_IS_REVISED_FOR)


def anything_to_refresh(ledger: Ledger) -> bool:
    """Whether some attempt is under way, has ended and was not judged, or was lost recently."""
    wanted = sa.or_(Attempt.phase.in_(OPEN), Attempt.verdict.is_(None), _is_recently_lost())
    query = sa.select(Attempt.id).where(wanted).limit(1)
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
            sa.func.count().label("cases"),
            count(Attempt.verdict == VERIFIED).label("verified"),
            count(Attempt.verdict == FAILED).label("failed"),
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
