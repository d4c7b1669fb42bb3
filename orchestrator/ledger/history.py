"""One job's whole past: every attempt, what became of it, and every event with its time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import MeasuredMetric, metrics_of
from orchestrator.ledger.tables import Attempt, Event, RunJob


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
