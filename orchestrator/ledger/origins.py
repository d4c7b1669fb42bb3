"""Where numbers come from: every attempt of jobs, the runs that made them, and the scripts that ran."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import Attempt, Event, Job, Run, batched


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
        return self.gpus * max(0.0, (self.ended_at - self.started_at).total_seconds()) / 3600


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
