"""Waiting for jobs: the loop, the rows of the jobs, and the obstacles that keep jobs from starting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.errors import Problem
from orchestrator.ledger.attempts import RefreshResult, job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import OPEN, QUEUED
from orchestrator.reading.job_status import can_never_start, hint_for, wait_reason

LOCAL_WAIT_S = 0.5
SLURM_WAIT_S = 3.0
"""Intervals between two reads of the ledger and the logs while a command waits."""


def wait_for(
    update: Callable[[], RefreshResult],
    rows: Callable[[], list[JobRow]],
    after_update: Callable[[], None],
    notify: Callable[[str], None],
    progress: Callable[[Sequence[JobRow]], None],
) -> None:
    """Return when all these jobs have ended or the open ones can never start; report what stops them.

    `update` asks the scheduler and reads the logs. `progress` gets the rows after each update.
    """
    reported: set[str] = set()
    while True:
        for complaint in update().complaints:
            if complaint not in reported:
                reported.add(complaint)
                notify(f"note: {complaint}")
        after_update()
        current = rows()
        progress(current)
        open_rows = [row for row in current if row.phase in OPEN]
        if not open_rows or _is_stuck(open_rows):
            break
        time.sleep(SLURM_WAIT_S if all(row.scheduler == "slurm" for row in open_rows) else LOCAL_WAIT_S)
    for line in obstacles(open_rows):
        notify(line)


class FollowedJobs:
    """Jobs and their current rows. The row of a job that has ended is read once, however long the others take."""

    def __init__(self, ledger: Ledger, rows: Sequence[JobRow]) -> None:
        self._ledger = ledger
        self._rows = {row.job_id: row for row in rows}

    def rows(self) -> list[JobRow]:
        """Return the current rows in the order of the first ones."""
        open_rows = {row.job_id: row for row in job_rows(self._ledger, only_open=True) if row.job_id in self._rows}
        for job_id, row in self._rows.items():
            if job_id in open_rows:
                self._rows[job_id] = open_rows[job_id]
            elif row.phase in OPEN or row.verdict is None:
                same = job_rows(self._ledger, job_prefix=job_id)
                self._rows[job_id] = next(other for other in same if other.job_id == job_id)
        return list(self._rows.values())


def obstacles(rows: Sequence[JobRow]) -> list[str]:
    """Return a line for each obstacle that keeps open jobs from starting, with the hint."""
    groups: dict[tuple[bool, str | None], list[JobRow]] = {}
    for row in rows:
        groups.setdefault((row.state == QUEUED, row.reason), []).append(row)
    return [_obstacle(group) for group in groups.values()]


def _obstacle(rows: Sequence[JobRow]) -> str:
    row, reason = rows[0], wait_reason(rows[0])
    name = f"{row.job_id} ({row.label})" if len(rows) == 1 else f"{len(rows)} jobs, first {row.job_id} ({row.label})"
    if reason is not None:
        return str(Problem(f"{row.reason}: {reason.meaning}", f"{name}:", hint_for(reason, *rows)))
    because = f" ({row.reason})" if row.reason else ""
    hint = f"repro wait {row.job_id} submits it when there is room"
    return str(Problem(f"queued, not submitted yet{because}", f"{name}:", hint))


def _is_stuck(rows: Sequence[JobRow]) -> bool:
    """Return whether every submitted job can never start. Queued jobs wait for room behind these."""
    queued = [row for row in rows if row.state == QUEUED]
    return len(queued) < len(rows) and all(can_never_start(row) for row in rows if row.state != QUEUED)
