"""Read-only reports of the ledger: the history of a job, the provenance of results, and counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import MeasuredMetric, metrics_of
from orchestrator.ledger.tables import FAILED, IN_TURN, OPEN, Attempt, Event, Job, Run, RunJob, batched


def gpu_hours(gpus: int, started_at: datetime, ended_at: datetime) -> float:
    """Return the hours of an attempt times its GPUs."""
    return gpus * (ended_at - started_at).total_seconds() / 3600


@dataclass(frozen=True, slots=True)
class PastEvent:
    """`kind` is what happened (state, verdict, submitted, run, ...), `detail` from what to what, or why. UTC."""

    at: datetime
    kind: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """One submission of the job, with what was measured in it by name; times are UTC without a zone.

    `events` are its own, and those of the runs that asked for the job while it was the latest attempt.
    """

    number: int
    run_id: str
    scheduler: str
    scheduler_id: str | None
    host: str
    user: str | None
    nodes: str | None
    state: str
    reason: str | None
    verdict: str | None
    verdict_reason: str | None
    failure: str | None
    execution: str | None
    exit_code: int | None
    signal: int | None
    folder: str
    created_at: datetime
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    metrics: dict[str, MeasuredMetric]
    events: tuple[PastEvent, ...]


def job_history(ledger: Ledger, job_id: str) -> list[PastAttempt]:
    """The attempts of a job, the first one first, each with its events in the order in which they happened."""
    with ledger.reading() as session:
        attempts = list(session.scalars(sa.select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number)))
        if not attempts:  # each has a wrong value, and is left out
            return []
        ids = [attempt.id for attempt in attempts]
        runs = sa.select(RunJob.run_id).where(RunJob.job_id == job_id)
        concerned = sa.or_(
            Event.attempt_id.in_(ids),
            sa.and_(Event.attempt_id.is_(None), Event.run_id.in_(runs)),
        )
        events = list(session.scalars(sa.select(Event).where(concerned).order_by(Event.at, Event.id)))
    of_attempt: dict[int, list[PastEvent]] = {one: [] for one in ids}
    for event in events:
        owner = event.attempt_id if event.attempt_id is not None else _asked_for(event, attempts)
        of_attempt[owner].append(PastEvent(event.at, event.kind, event.detail))
    measured = metrics_of(ledger, ids)
    folders = ledger.run_folders()
    past = (_past(one, measured.get(one.id, {}), of_attempt[one.id]) for one in attempts)
    return [dataclasses.replace(one, folder=folders.current(one.folder)) for one in past]


def _asked_for(event: Event, attempts: Sequence[Attempt]) -> int:
    """The attempt that a run's event is told with: the run's own, or the latest there was when the run found it."""
    own = [one.id for one in attempts if one.run_id == event.run_id]
    earlier = [one.id for one in attempts if one.created_at <= event.at]
    return (own or earlier or [attempts[0].id])[-1]


def _past(attempt: Attempt, metrics: dict[str, MeasuredMetric], events: Sequence[PastEvent]) -> PastAttempt:
    kept = {name: getattr(attempt, name) for name in _KEPT}
    return PastAttempt(**kept, metrics=metrics, events=tuple(events))


_KEPT = tuple(field.name for field in dataclasses.fields(PastAttempt) if field.name not in ("metrics", "events"))


@dataclass(frozen=True, slots=True)
class AttemptOrigin:
    """One submission of a job: what ran, where, from when to when (UTC), and what became of it."""

    job_id: str
    number: int
    run_id: str
    scheduler: str
    scheduler_id: str | None
    host: str
    nodes: str | None
    state: str
    phase: str
    reason: str | None
    exit_code: int | None
    signal: int | None
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    verdict: str | None
    verdict_reason: str | None
    failure: str | None
    deciding_line: str | None
    deciding_rank: int | None
    script_sha256: str
    gpus: int
    workload: str
    code: str
    image: str | None
    image_digest: str | None

    @property
    def gpu_hours(self) -> float:
        """What it held GPUs for; 0 for one that never started, or has not ended yet."""
        if self.started_at is None or self.ended_at is None:
            return 0.0
        return max(0.0, gpu_hours(self.gpus, self.started_at, self.ended_at))


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """One `repro submit`: who, when (UTC), how it was typed, from which code and with which profile."""

    id: str
    created_at: datetime
    user: str
    host: str
    command: list[str]
    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, Any]
    profile: dict[str, Any]
    profile_file: str | None


_OF_JOB = ("gpus", "workload", "code", "image", "image_digest")


def attempt_origins(ledger: Ledger, job_ids: Collection[str]) -> list[AttemptOrigin]:
    """Every attempt of these jobs, by job and number; scripts, of which there is much, are not read."""
    columns = [getattr(Job if name in _OF_JOB else Attempt, name) for name in AttemptOrigin.__slots__]
    query = sa.select(*columns).join(Job, Job.id == Attempt.job_id).order_by(Attempt.job_id, Attempt.number)
    found: list[AttemptOrigin] = []
    with ledger.reading() as session:
        for ids in batched(sorted(job_ids)):
            found += [AttemptOrigin(*row) for row in session.execute(query.where(Attempt.job_id.in_(ids)))]
    return found


def run_origins(ledger: Ledger, run_ids: Collection[str]) -> list[RunOrigin]:
    """These runs, the oldest first."""
    columns = [getattr(Run, name) for name in RunOrigin.__slots__]
    found: list[RunOrigin] = []
    with ledger.reading() as session:
        for ids in batched(sorted(run_ids)):
            found += [RunOrigin(*row) for row in session.execute(sa.select(*columns).where(Run.id.in_(ids)))]
    return sorted(found, key=lambda run: (run.created_at, run.id))


def script_texts(ledger: Ledger, digests: Collection[str]) -> dict[str, str]:
    """Digest -> the script with it, as recorded: without secrets. Of attempts that share one, one has its text."""
    query = sa.select(Attempt.script_sha256, sa.func.max(Attempt.script)).group_by(Attempt.script_sha256)
    found: dict[str, str] = {}
    with ledger.reading() as session:
        for some in batched(sorted(digests)):
            rows: Sequence[Any] = session.execute(query.where(Attempt.script_sha256.in_(some))).all()
            found |= {digest: text for digest, text in rows if text}
    return found


def latest_moment(ledger: Ledger) -> datetime | None:
    """When the last thing happened that the ledger knows of; None where nothing has. UTC."""
    with ledger.reading() as session:
        return session.scalar(sa.select(sa.func.max(Event.at)))


def failure_counts(ledger: Ledger) -> dict[tuple[str, str, str], dict[str, int]]:
    """(experiment, scale, cluster) -> class of failure -> jobs whose latest attempt failed so, most of them first."""
    later = sa.orm.aliased(Attempt)
    is_latest = ~sa.exists().where(later.job_id == Attempt.job_id, later.number > Attempt.number)
    jobs = (
        sa.select(Run.experiment, Run.scale, Run.cluster, Attempt.job_id, Attempt.failure)
        .select_from(Attempt)
        .join(RunJob, RunJob.job_id == Attempt.job_id)
        .join(Run, Run.id == RunJob.run_id)
        .where(Attempt.verdict == FAILED, Attempt.failure.is_not(None), is_latest)
        .distinct()
        .subquery()
    )
    where = (jobs.c.experiment, jobs.c.scale, jobs.c.cluster)
    number = sa.func.count()
    query = sa.select(*where, jobs.c.failure, number).group_by(*where, jobs.c.failure).order_by(number.desc())
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    with ledger.reading() as session:
        for experiment, scale, cluster, failure, count in session.execute(query):
            found.setdefault((experiment, scale, cluster), {})[failure] = count
    return found


def last_seen(ledger: Ledger) -> datetime | None:
    """When the scheduler last told of that job under way of which it has been silent longest; None without one. UTC."""
    seen = sa.func.min(sa.func.coalesce(Attempt.refreshed_at, Attempt.created_at))
    query = sa.select(seen).where(Attempt.phase.in_(OPEN), Attempt.state != IN_TURN)
    with ledger.reading() as session:
        return session.scalar(query)
