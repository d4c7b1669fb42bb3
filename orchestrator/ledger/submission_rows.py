"""Rows of submissions: attempts with their scripts and counts. Commands that only read jobs load none."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from orchestrator.ledger.rows import AttemptRow, RowReader, gpu_hours
from orchestrator.ledger.tables import MEASURED, Attempt, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAttempt(AttemptRow):
    """An attempt with its submission: the script `file`, further `sbatch` options, and the digest of its script."""

    file: str
    options: tuple[str, ...]
    script_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestAttempt(AttemptRow):
    """The latest attempt of a job that is not forgotten; the latest one of a job without such an attempt.

    `submitted` counts the attempts that a scheduler has had, `measured` those that are verified or partial; both
    without forgotten attempts. `last_number` is the highest number of an attempt, forgotten ones included.
    """

    options: tuple[str, ...]
    submitted: int
    measured: int
    last_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrigin(AttemptRow):
    """One submission of a job, with what ran in it. The script is found by its digest."""

    script_sha256: str
    gpus: int
    workload: str
    code: str
    image: str | None = None
    image_digest: str | None = None

    @property
    def gpu_hours(self) -> float:
        """Return the GPU-hours of the attempt; 0 if it never started or has not ended yet."""
        if self.started_at is None or self.ended_at is None:
            return 0.0
        return max(0.0, gpu_hours(self.gpus, self.started_at, self.ended_at))


PENDING_ATTEMPTS = RowReader(PendingAttempt, [Attempt], attempt_id=Attempt.id)
_OTHER = sa.orm.aliased(Attempt)
_COUNTED = (_OTHER.job_id == Attempt.job_id, _OTHER.forgotten_at.is_(None))
LATEST_ATTEMPTS = RowReader(
    LatestAttempt,
    [Attempt],
    attempt_id=Attempt.id,
    submitted=sa.select(sa.func.count(_OTHER.scheduler_id)).where(*_COUNTED).label("submitted"),
    measured=sa.select(sa.func.count()).where(*_COUNTED, _OTHER.verdict.in_(MEASURED)).label("measured"),
    last_number=sa.select(sa.func.max(_OTHER.number)).where(_OTHER.job_id == Attempt.job_id).label("last_number"),
)
ATTEMPT_ORIGINS = RowReader(AttemptOrigin, [Attempt, Job], attempt_id=Attempt.id)
