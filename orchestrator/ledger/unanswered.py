"""Attempts about which no scheduler has an answer, and for how long, by the clock since boot of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.tables import ENDED, Attempt, batched, note


def record_unseen(
    ledger: Ledger, unseen: Mapping[int, int | None], boot_id: str, seconds_since_boot: float
) -> dict[int, float]:
    """Store that the scheduler does not list these attempts, whose logs have so many bytes now (None: no log).

    Return for how many seconds, by the clock of this boot, that has been so and no log has grown.
    """
    waited: dict[int, float] = {}
    if not unseen:
        return waited
    with ledger.writing() as session:
        for ids in batched(sorted(unseen)):
            for attempt in session.scalars(sa.select(Attempt).where(Attempt.id.in_(ids), Attempt.phase != ENDED)):
                is_new = attempt.unseen_since is None
                if is_new:
                    attempt.unseen_since = now()
                    note(session, attempt, "unseen", "the scheduler answers and does not list the job")
                if is_new or attempt.unseen_log_bytes != unseen[attempt.id]:
                    attempt.unseen_log_bytes, attempt.unsettled_since = unseen[attempt.id], None
                waited[attempt.id] = _waited_s(attempt, boot_id, seconds_since_boot)
    return waited


def time_unsettled_s(
    ledger: Ledger, attempt_ids: Sequence[int], boot_id: str, seconds_since_boot: float
) -> dict[int, float]:
    """Return for how many seconds, by the clock of this boot, these attempts have waited for an answer here."""
    waited: dict[int, float] = {}
    with ledger.writing() as session:
        for ids in batched(attempt_ids):
            for attempt in session.scalars(sa.select(Attempt).where(Attempt.id.in_(ids))):
                waited[attempt.id] = _waited_s(attempt, boot_id, seconds_since_boot)
    return waited


def _waited_s(attempt: Attempt, boot_id: str, seconds_since_boot: float) -> float:
    since = attempt.unsettled_since or {}
    if boot_id not in since:
        attempt.unsettled_since = {**since, boot_id: seconds_since_boot}
    return seconds_since_boot - since.get(boot_id, seconds_since_boot)
