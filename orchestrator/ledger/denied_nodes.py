"""Deny list of nodes: entries per cluster, with reason, end and user. Entries are never deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, time, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.tables import Attempt, Denial, Run


@dataclass(frozen=True, slots=True)
class DeniedNode:
    """A node that no job of a cluster may use. Times are UTC; `until` is None for an entry without end.

    `allowed_at` and `allowed_by` are the time and the user of `repro nodes allow`, or of a newer entry of the node.
    """

    cluster: str
    node: str
    reason: str
    until: datetime | None
    denied_at: datetime
    denied_by: str
    allowed_at: datetime | None = None
    allowed_by: str | None = None

    def is_denied(self, at: datetime) -> bool:
        """Return whether the entry is in use at this time (UTC)."""
        return self.allowed_at is None and (self.until is None or at < self.until)

    @property
    def explanation(self) -> str:
        """Reason and end: `denied: ECC, until 2026-12-31`."""
        return f"denied: {self.reason}" + (f", until {self.shown_until}" if self.until else "")

    @property
    def shown_until(self) -> str | None:
        """End of the entry: its last day, or the time (UTC) on it."""
        if self.until is None:
            return None
        if self.until.time() == time():
            return f"{self.until - timedelta(days=1):%Y-%m-%d}"
        return f"{self.until:%Y-%m-%d %H:%M} UTC"


def record_denied(ledger: Ledger, entries: Iterable[DeniedNode]) -> None:
    """Store entries. An entry in use of the same node is replaced."""
    with ledger.writing() as session:
        for entry in entries:
            _end(session, entry.cluster, [entry.node], entry.denied_at, entry.denied_by)
            session.add(
                Denial(
                    cluster=entry.cluster,
                    node=entry.node,
                    reason=entry.reason,
                    until=entry.until,
                    denied_at=entry.denied_at,
                    denied_by=entry.denied_by,
                )
            )


def record_allowed(ledger: Ledger, cluster: str, nodes: Collection[str], by: str) -> None:
    """End the entries of these nodes."""
    with ledger.writing() as session:
        _end(session, cluster, nodes, now(), by)


def _end(session: Session, cluster: str, nodes: Collection[str], at: datetime, by: str) -> None:
    in_use = sa.select(Denial).where(Denial.cluster == cluster, Denial.allowed_at.is_(None))
    for row in session.scalars(in_use):
        if row.node in nodes:
            row.allowed_at, row.allowed_by = at, by


def denied_nodes(ledger: Ledger, cluster: str | None = None, *, ended: bool = False) -> tuple[DeniedNode, ...]:
    """Return the entries in use of a cluster, or of all, by cluster and time; with `ended`, also those that ended."""
    query = sa.select(Denial).order_by(Denial.cluster, Denial.id)
    if cluster is not None:
        query = query.where(Denial.cluster == cluster)
    with ledger.reading() as session:
        entries = tuple(_entry(row) for row in session.scalars(query))
    at = now()
    return entries if ended else tuple(entry for entry in entries if entry.is_denied(at))


def _entry(row: Denial) -> DeniedNode:
    return DeniedNode(
        row.cluster,
        row.node,
        row.reason,
        row.until,
        row.denied_at,
        row.denied_by,
        row.allowed_at,
        row.allowed_by,
    )


def slurm_clusters(ledger: Ledger) -> dict[str, str | None]:
    """Return the clusters on which Slurm ran jobs, each with the profile file of its latest run."""
    query = (
        sa.select(Run.cluster, Run.profile_file)
        .where(sa.exists().where(Attempt.run_id == Run.id, Attempt.scheduler == "slurm"))
        .order_by(Run.created_at)
    )
    with ledger.reading() as session:
        return {row.cluster: row.profile_file for row in session.execute(query)}
