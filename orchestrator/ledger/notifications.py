"""Messages about figures: which message was sent, so that each end of a figure gets one message per address.

A message is claimed, then sent, then recorded as sent. A process that was killed in between is found by its number and
start time, and the next process sends the message. So a message is not lost, and it is sent twice only if the process
was killed after the service had accepted it and before the record was written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.submissions import Submitter
from orchestrator.ledger.tables import Notification, Run, batched, field_values

SENDING, SENT, NOT_SENT = "sending", "sent", "not sent"
"""States of a message. `not sent`: the service did not accept it, and the next command tries again."""

LONGEST_SENDING = timedelta(minutes=15)
"""Time after which a claim of a process on another machine ends. Slurm's hosts have equal clocks: MUNGE refuses a
difference of 5 minutes."""


@dataclass(frozen=True, slots=True)
class FigureEnd:
    """An end of a figure with these programs. `attempts` is a digest of the attempts that have ended."""

    experiment: str
    scale: str
    cluster: str
    programs: str
    attempts: str


@dataclass(frozen=True, slots=True)
class MessageClaim:
    """Process that sends a message, and when it claimed it (UTC)."""

    host: str
    pid: int
    machine: str | None
    pid_start_ticks: int | None
    created_at: datetime


def claim_message(
    ledger: Ledger,
    end: FigureEnd,
    address: str,
    address_digest: str,
    sender: Submitter,
    is_alive: Callable[[MessageClaim], bool | None],
) -> int | None:
    """Claim the message about this end to this address; return its id. None if it was sent or another process sends it.

    `address` is masked. `is_alive` tells whether the process of a claim still runs; None if that cannot be seen.
    """
    at = now()
    own = {"state": SENDING, "claimed_at": at, "address": address, **field_values(sender)}
    key = {**field_values(end), "address_digest": address_digest}
    with ledger.writing() as session:
        row = session.scalar(sa.select(Notification).filter_by(**key))
        if row is None:
            row = Notification(**key, **own)
            session.add(row)
        elif row.state == SENT or (row.state == SENDING and _is_sending(row, at, is_alive)):
            return None
        else:
            for name, value in own.items():
                setattr(row, name, value)
        session.flush()
        return row.id


def _is_sending(row: Notification, at: datetime, is_alive: Callable[[MessageClaim], bool | None]) -> bool:
    alive = is_alive(MessageClaim(row.host, row.pid, row.machine, row.pid_start_ticks, row.claimed_at))
    return at - row.claimed_at < LONGEST_SENDING if alive is None else alive


def record_message(ledger: Ledger, message_id: int, title: str, error: str | None) -> None:
    """Record that the message was sent, or why it was not."""
    with ledger.writing() as session:
        row = session.get_one(Notification, message_id)
        row.state, row.title, row.error = (SENT if error is None else NOT_SENT), title, error
        row.sent_at = now() if error is None else None


def sent_at(ledger: Ledger, end: FigureEnd, address_digest: str) -> datetime | None:
    """Return when the message about this end was sent to this address (UTC); None if it was not."""
    key = {**field_values(end), "address_digest": address_digest}
    with ledger.reading() as session:
        row = session.scalar(sa.select(Notification).filter_by(**key))
        return row.sent_at if row is not None else None


def record_promised(ledger: Ledger, run_ids: Collection[str], job_id: str | None = None) -> None:
    """Record that a command has promised a message about the end of these runs. It may be killed before it sends it.

    `job_id` is the job that sends the message if no command does.
    """
    with ledger.writing() as session:
        for run in _runs(session, run_ids):
            added = {"notify": True, **({"notify_job": job_id} if job_id is not None else {})}
            if not added.items() <= run.run_options.items():
                run.run_options = {**run.run_options, **added}


def promised_runs(ledger: Ledger, run_ids: Collection[str]) -> set[str]:
    """Return the runs about whose end a command has promised a message."""
    return _runs_with(ledger, run_ids, "notify")


def notify_jobs(ledger: Ledger, run_ids: Collection[str]) -> set[str]:
    """Return the runs that have a job which sends the message."""
    return _runs_with(ledger, run_ids, "notify_job")


def _runs_with(ledger: Ledger, run_ids: Collection[str], option: str) -> set[str]:
    with ledger.reading() as session:
        return {run.id for run in _runs(session, run_ids) if run.run_options.get(option)}


def _runs(session: Session, run_ids: Collection[str]) -> Iterator[Run]:
    for ids in batched(sorted(run_ids)):
        yield from session.scalars(sa.select(Run).where(Run.id.in_(ids)))
