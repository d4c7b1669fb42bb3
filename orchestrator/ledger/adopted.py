"""Attempts that were submitted by hand: recorded afterwards, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.ledger.attempts import note
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.runs import NewJob, NewRun, add_run
from orchestrator.ledger.tables import RUNNING, WAITING, Attempt, batched, field_values

BY_HAND = "by hand"
"""Origin of an attempt that a user submitted without `repro`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedAttempt:
    """A job that a user submitted by hand. `started_at` (UTC) is None for a job that has not started.

    `origin` is `by hand`, with a remark about the script if it is not the rendered one.
    """

    scheduler_id: str
    host: str
    user: str
    machine: str | None
    slurm_cluster: str | None
    is_requeued: bool
    token: str
    folder: str
    file: str
    script: str
    script_sha256: str
    started_at: datetime | None
    submitted_at: datetime | None
    origin: str


def adopted_ids(ledger: Ledger, job_ids: Sequence[str]) -> set[tuple[str, str]]:
    """Return folder and scheduler id of every attempt of these jobs, forgotten or not."""
    with ledger.reading() as session:
        return _recorded(session, job_ids)


def record_adopted(
    ledger: Ledger, run: NewRun, jobs: Sequence[NewJob], attempts: Mapping[str, AdoptedAttempt]
) -> list[int]:
    """Store a run of these jobs with an attempt for each. `attempts` are by job id.

    Return the ids of the new attempts. An attempt that the ledger has already is left out; without a new attempt
    nothing is stored.
    """
    with ledger.writing() as session:
        recorded = _recorded(session, [job.id for job in jobs])
        new = [job for job in jobs if (attempts[job.id].folder, attempts[job.id].scheduler_id) not in recorded]
        if not new:
            return []
        add_run(session, run, new, {"origin": BY_HAND})
        rows = {job.id: _row(session, run.id, job, attempts[job.id]) for job in new}
        session.flush()
        for job_id, row in rows.items():
            note(session, row, "adopted", f"{attempts[job_id].origin}, job {attempts[job_id].scheduler_id}")
        return [row.id for row in rows.values()]


def _row(session: Session, run_id: str, job: NewJob, attempt: AdoptedAttempt) -> Attempt:
    last = session.scalar(sa.select(sa.func.max(Attempt.number)).where(Attempt.job_id == job.id))
    has_started = attempt.started_at is not None
    row = Attempt(
        **field_values(attempt),
        job_id=job.id,
        run_id=run_id,
        number=(last or 0) + 1,
        scheduler=job.scheduler,
        state="RUNNING" if has_started else "PENDING",
        phase=RUNNING if has_started else WAITING,
        created_at=attempt.submitted_at or attempt.started_at or now(),
        options=[],
    )
    session.add(row)
    return row


def _recorded(session: Session, job_ids: Sequence[str]) -> set[tuple[str, str]]:
    recorded: set[tuple[str, str]] = set()
    for ids in batched(sorted(set(job_ids))):
        query = sa.select(Attempt.folder, Attempt.scheduler_id)
        query = query.where(Attempt.job_id.in_(ids), Attempt.scheduler_id.is_not(None))
        recorded |= {(folder, str(scheduler_id)) for folder, scheduler_id in session.execute(query)}
    return recorded
