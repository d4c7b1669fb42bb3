"""Attempts that were submitted by hand: recorded afterwards, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.ledger.attempts import note
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.runs import NewJob, NewRun, add_run
from orchestrator.ledger.tables import RUNNING, WAITING, Attempt, batched

BY_HAND = "by hand"
"""Origin of an attempt that a user submitted without `repro`."""


def adopted_ids(ledger: Ledger, job_ids: Sequence[str]) -> set[tuple[str, str]]:
    """Return folder and scheduler id of every attempt of these jobs, forgotten or not."""
    with ledger.reading() as session:
        return _recorded(session, job_ids)


def record_adopted(ledger: Ledger, run: NewRun, jobs: Sequence[NewJob], attempts: Mapping[str, Attempt]) -> list[int]:
    """Store a run of these jobs with an attempt for each. `attempts` are by job id.

    Each attempt has what the user submitted; `started_at` (UTC) is None if the job has not started. Return the ids of
    the new attempts. An attempt that the ledger has already is left out; without a new attempt
    nothing is stored.
    """
    with ledger.writing() as session:
        recorded = _recorded(session, [job.id for job in jobs])
        new = [job for job in jobs if (attempts[job.id].folder, attempts[job.id].scheduler_id) not in recorded]
        if not new:
            return []
        add_run(session, run, new, {"origin": BY_HAND})
        adopted = [_completed(session, run.id, job, attempts[job.id]) for job in new]
        session.flush()
        for attempt in adopted:
            note(session, attempt, "adopted", f"{attempt.origin}, job {attempt.scheduler_id}")
        return [attempt.id for attempt in adopted]


def _completed(session: Session, run_id: str, job: NewJob, attempt: Attempt) -> Attempt:
    last = session.scalar(sa.select(sa.func.max(Attempt.number)).where(Attempt.job_id == job.id))
    has_started = attempt.started_at is not None
    attempt.job_id, attempt.run_id, attempt.number = job.id, run_id, (last or 0) + 1
    attempt.scheduler, attempt.options = job.scheduler, []
    attempt.state, attempt.phase = ("RUNNING", RUNNING) if has_started else ("PENDING", WAITING)
    attempt.created_at = attempt.submitted_at or attempt.started_at or now()
    session.add(attempt)
    return attempt


def _recorded(session: Session, job_ids: Sequence[str]) -> set[tuple[str, str]]:
    recorded: set[tuple[str, str]] = set()
    for ids in batched(sorted(set(job_ids))):
        query = sa.select(Attempt.folder, Attempt.scheduler_id)
        query = query.where(Attempt.job_id.in_(ids), Attempt.scheduler_id.is_not(None))
        recorded |= {(folder, str(scheduler_id)) for folder, scheduler_id in session.execute(query)}
    return recorded
