"""Supervision of a run while `repro wait` or `submit --wait` runs. There is no daemon.

Supervision submits queued attempts when the scheduler has room, submits jobs again that failed for an external reason,
and applies `--stop-after`.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError
from orchestrator.launch.cancel import cancel
from orchestrator.launch.recover import sender_is_alive
from orchestrator.launch.run_options import RunOptions, equal_failures
from orchestrator.launch.sbatch import Reporter, send
from orchestrator.launch.submit import submit
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.submissions import queued_attempts
from orchestrator.ledger.tables import ENDED, FAILED, OPEN, QUEUED, WAITING
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan
from orchestrator.reading.failure import MOST_ATTEMPTS, Failure, failure_named

FULL_QUEUE_RETRY_S = 60.0
"""Interval between submissions to a full queue that none of these jobs has left."""


class Backlog:
    """Queued attempts of some jobs. They are submitted when a job has left the queue, or after a minute."""

    def __init__(self, ledger: Ledger, notify: Callable[[str], None]) -> None:
        self._ledger, self._notify = ledger, notify
        self._jobs_in_queue: int | None = None
        self._tried_at = 0.0
        self._has_named_others = False

    def submit_what_fits(self, rows: Sequence[JobRow]) -> None:
        """Submit queued attempts. Call this after each poll of the scheduler, with the current rows."""
        queued = {row.attempt_id for row in rows if row.state == QUEUED}
        jobs_in_queue = sum(row.phase in OPEN and row.state != QUEUED for row in rows)
        has_room = self._jobs_in_queue is None or jobs_in_queue < self._jobs_in_queue
        self._jobs_in_queue = jobs_in_queue
        if not queued or not (has_room or time.monotonic() - self._tried_at > FULL_QUEUE_RETRY_S):
            return
        self._tried_at = time.monotonic()
        for run_id in self._own_runs(queued):
            try:
                sent = send(self._ledger, run_id, Reporter(self._notify))
            except ReproError as error:
                self._notify(f"note: {error}")
                return
            self._jobs_in_queue += sent.jobs

    def _own_runs(self, queued: set[int]) -> list[str]:
        """Return the runs of these attempts that no other process submits."""
        attempts = [attempt for attempt in queued_attempts(self._ledger) if attempt.attempt_id in queued]
        own = [attempt for attempt in attempts if self._ledger.is_own(attempt.user)]
        self._name_others(len(attempts) - len(own))
        free = (attempt for attempt in own if attempt.pid == os.getpid() or not sender_is_alive(attempt))
        return list(dict.fromkeys(attempt.run_id for attempt in free))

    def _name_others(self, count: int) -> None:
        """Report once that other users must submit their own jobs."""
        if count and not self._has_named_others:
            self._has_named_others = True
            self._notify(f"note: {count} of these jobs belong to another user, whose `repro wait` submits them")


class RunSupervisor:
    """Supervises one run. `command` is the command line that is recorded with further runs."""

    def __init__(
        self,
        plans: Sequence[Plan],
        cluster: Cluster,
        ledger: Ledger,
        folders: Folders,
        run_id: str,
        options: RunOptions,
        command: Sequence[str],
        notify: Callable[[str], None],
    ) -> None:
        self._plans, self._cluster, self._ledger, self._folders = plans, cluster, ledger, folders
        self._run_id, self._command, self._notify = run_id, command, notify
        self._options = dataclasses.replace(
            options, rerun_verified=False, rerun_classes=frozenset(), only_failed=True, canary=False
        )
        self._backlog = Backlog(ledger, notify)

    def rows(self) -> list[JobRow]:
        """Return the current rows of the run's jobs."""
        return job_rows(self._ledger, run_id=self._run_id)

    def supervise(self) -> None:
        """Stop the run if `--stop-after` requires it; else submit failed jobs again, and queued attempts that fit."""
        rows = self.rows()
        if self._stop_if_due(rows):
            return
        repeated = [row for row in rows if may_be_resubmitted(row)]
        if repeated:
            ids = {row.job_id for row in repeated}
            plans = [plan for plan in self._plans if plan.identity in ids]
            try:
                result = submit(
                    plans, self._cluster, self._ledger, self._folders, self._command, self._options, self._notify
                )
            except ReproError as error:
                self._notify(f"note: {error}")
                return
            for row in repeated:
                if row.job_id in result.recorded.to_submit:
                    self._notify(f"{row.label} failed ({row.failure}) and is submitted again")
        self._backlog.submit_what_fits(rows)

    def _stop_if_due(self, rows: Sequence[JobRow]) -> bool:
        if self._options.stop_after is None:
            return False
        message = stop_if_due(self._ledger, rows, self._options.stop_after)
        if message is not None:
            self._notify(message)
        return message is not None


def may_be_resubmitted(row: JobRow) -> bool:
    """Return whether `--wait` submits a failed job again: it ran, and the cause was external.

    A job that was never submitted, was stopped, or found its GPU in use would fail again at once.
    """
    if row.verdict != FAILED or row.number >= MOST_ATTEMPTS:
        return False
    failure = failure_named(row.failure)
    if failure in (Failure.NODE_FAIL, Failure.PREEMPTED):
        return not row.is_requeued
    return failure in (Failure.LOST, Failure.IMAGE, Failure.GPU_FAULT)


def stop_if_due(ledger: Ledger, rows: Sequence[JobRow], stop_after: int) -> str | None:
    """Cancel the jobs of a run that have not started, once `stop_after` jobs have failed in the same way.

    Return a message; None if nothing is cancelled. The kinds of failures are those that a job counts before it starts.
    """
    waiting = [row for row in rows if row.phase == WAITING]
    # Only jobs that have ended in `rows`: a job that failed after the last poll is still WAITING there.
    ended = [Path(row.folder) for row in rows if row.phase == ENDED]
    count, kind = equal_failures(ended) if waiting else (0, "")
    if count < stop_after:
        return None
    cancel(ledger, waiting)
    return f"{count} jobs failed ({kind}): {len(waiting)} that had not started are cancelled"
