"""Forgotten attempts: kept in the ledger, and left out of every table and exit code."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from orchestrator.ledger.attempts import note
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.tables import Attempt, batched

FORGOTTEN, REMEMBERED = "forgotten", "remembered"
"""Kinds of events."""


def record_forgotten(ledger: Ledger, attempt_ids: Sequence[int], by: str, *, undo: bool = False) -> None:
    """Record that a user hides these attempts, or shows them again with `undo`, in one transaction."""
    with ledger.writing() as session:
        for ids in batched(attempt_ids):
            for attempt in session.scalars(sa.select(Attempt).where(Attempt.id.in_(ids))):
                attempt.forgotten_at, attempt.forgotten_by = (None, None) if undo else (now(), by)
                note(session, attempt, REMEMBERED if undo else FORGOTTEN, f"by {by}")


def attempt_ids_of(ledger: Ledger, job_ids: Collection[str]) -> list[int]:
    """Return the ids of all attempts of these jobs, forgotten or not, by job and number."""
    attempt_ids: list[int] = []
    with ledger.reading() as session:
        for ids in batched(sorted(job_ids)):
            query = sa.select(Attempt.id).where(Attempt.job_id.in_(ids)).order_by(Attempt.job_id, Attempt.number)
            attempt_ids += session.scalars(query)
    return attempt_ids
