"""Rows of submissions: attempts with their scripts and counts, and runs. Commands that only read jobs load none."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from orchestrator.ledger.rows import AttemptRow, RowReader, gpu_hours
from orchestrator.ledger.tables import MEASURED, Attempt, Job, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAttempt(AttemptRow):
    """An attempt with its submission: the script `file`, further `sbatch` options, and the digest of its script."""

    file: str
    options: tuple[str, ...]
    script_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestAttempt(AttemptRow):
    """The latest attempt of a job.

    `submitted` counts the attempts that a scheduler has had, `measured` those that are verified or partial.
    """

    options: tuple[str, ...]
    submitted: int
    measured: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One `repro submit`, without its command, profile and options."""

    id: str
    experiment: str
    scale: str
    cluster: str
    created_at: datetime
    git_commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(RunSummary):
    """One `repro submit`: who, when (UTC), the command, the code, the profile and the run's options."""

    user: str
    host: str
    command: list[str]
    git_dirty: bool | None = None
    versions: dict[str, object]
    profile: dict[str, object]
    profile_file: str | None = None
    run_options: dict[str, object]


PENDING_ATTEMPTS = RowReader(PendingAttempt, [Attempt], attempt_id=Attempt.id)
_OTHER = sa.orm.aliased(Attempt)
LATEST_ATTEMPTS = RowReader(
    LatestAttempt,
    [Attempt],
    attempt_id=Attempt.id,
    submitted=sa.select(sa.func.count(_OTHER.scheduler_id)).where(_OTHER.job_id == Attempt.job_id).label("submitted"),
    measured=sa.select(sa.func.count())
    .where(_OTHER.job_id == Attempt.job_id, _OTHER.verdict.in_(MEASURED))
    .label("measured"),
)
ATTEMPT_ORIGINS = RowReader(AttemptOrigin, [Attempt, Job], attempt_id=Attempt.id)
RUN_SUMMARIES = RowReader(RunSummary, [Run])
RUN_RECORDS = RowReader(RunRecord, [Run])
