"""Attempts that Slurm started again after their end, `requeue: true`: each further run is an attempt of its own."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import PurePath

import sqlalchemy as sa

from orchestrator.ledger.attempts import LOST_IS_REVISED_FOR, note
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.rows import ATTEMPTS, AttemptRow
from orchestrator.ledger.tables import RUNNING, Attempt

BY_SLURM = "started again by Slurm"
"""Origin of an attempt that Slurm made by starting a job again."""
_RUN = re.compile(r"\.run([0-9]+)$")
_OF_SUBMISSION = (
    *("job_id", "run_id", "scheduler", "host", "user", "slurm_cluster", "file", "options", "is_requeued", "token"),
    *("array_index", "scheduler_id", "script_sha256"),
)


def first_folder(folder: str) -> str:
    """Return the folder of the first run of a job."""
    return _RUN.sub("", folder)


def next_folder(folder: str) -> str:
    """Return the folder of the run after the one in this folder (templates/again.sh.j2)."""
    run = _RUN.search(folder)
    return f"{first_folder(folder)}.run{int(run[1]) + 1 if run else 2}"


def may_start_again(ledger: Ledger) -> list[AttemptRow]:
    """Return the attempts that Slurm may have started again: open ones, and those of the last 30 days."""
    recent = sa.or_(Attempt.ended_at.is_(None), Attempt.ended_at > now() - LOST_IS_REVISED_FOR)
    query = sa.select(*ATTEMPTS.columns).where(
        Attempt.scheduler == "slurm", Attempt.is_requeued.is_(sa.true()), Attempt.scheduler_id.is_not(None), recent
    )
    with ledger.reading() as session:
        rows = list(ATTEMPTS.rows(session.execute(query), ledger.run_folders()))
    recorded = {row.folder for row in rows}
    return [row for row in rows if next_folder(row.folder) not in recorded]


def record_restart(ledger: Ledger, before: AttemptRow, started_at: datetime) -> None:
    """Store the next run of an attempt as a new attempt. Two processes that see the run store it once."""
    with ledger.writing() as session:
        earlier = session.get_one(Attempt, before.attempt_id)
        folder = next_folder(earlier.folder)
        same = sa.select(Attempt.id).where(Attempt.job_id == earlier.job_id, Attempt.folder == folder)
        if session.scalar(same) is not None:
            return
        last = session.scalar(sa.select(sa.func.max(Attempt.number)).where(Attempt.job_id == earlier.job_id))
        attempt = Attempt(
            **{name: getattr(earlier, name) for name in _OF_SUBMISSION},
            number=(last or 0) + 1,
            state="RUNNING",
            phase=RUNNING,
            folder=folder,
            script="",  # that of the earlier attempt
            created_at=started_at,
            submitted_at=started_at,
            started_at=started_at,
            origin=BY_SLURM,
        )
        session.add(attempt)
        session.flush()
        note(session, attempt, "started again", f"by Slurm, job {earlier.scheduler_id}, in {PurePath(folder).name}")
