"""Ends jobs, if the scheduler lets this user; only what it was asked is recorded, never that it happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import Problem, ReproError
from orchestrator.launch.executors import LocalScriptJob
from orchestrator.launch.provenance import user_name
from orchestrator.launch.settle import is_here
from orchestrator.ledger.database import DiskFull, Ledger
from orchestrator.ledger.jobs import JobRow, record_asked
from orchestrator.ledger.submissions import record_never_submitted
from orchestrator.ledger.tables import IN_TURN
from orchestrator.reading.failure import Failure
from orchestrator.slurm.cancel import cancel_jobs


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What was asked to end, and why what was not; `unrecorded` is why the ledger does not have what was asked."""

    asked: list[JobRow]
    refused: list[Problem]
    unrecorded: tuple[Problem, ...] = ()


def cancel(ledger: Ledger, rows: Sequence[JobRow]) -> Cancelled:
    """Ask the scheduler to end these jobs, in one call; a later refresh sees whether it did.

    One user's jobs are another's to end only if the scheduler says so: what only the ledger knows, waiting its turn, is
    its owner's.
    """
    asked: list[JobRow] = []
    refused: list[Problem] = []
    by_id = {str(row.scheduler_id): row for row in rows if row.scheduler == "slurm" and row.scheduler_id}
    for row in reversed(rows):  # the last first: what is freed must not start the next
        if row.state == IN_TURN:
            (asked if _withdraw(ledger, row, refused) else []).append(row)
        elif row.scheduler == "local" and row.scheduler_id is not None:
            (asked if _end_here(row, refused) else []).append(row)
    said = cancel_jobs(list(by_id)) if by_id else {}
    asked += [row for job_id, row in by_id.items() if job_id not in said]
    refused += [Problem(f"{row.label} ({job_id}): {said[job_id]}") for job_id, row in by_id.items() if job_id in said]
    unrecorded: tuple[Problem, ...] = ()
    try:
        record_asked(ledger, [row.attempt_id for row in asked], f"by {user_name()}")
    except DiskFull as full:
        unrecorded = full.problems
    wanted = {row.attempt_id for row in asked}
    return Cancelled([row for row in rows if row.attempt_id in wanted], refused, unrecorded)


def _withdraw(ledger: Ledger, row: JobRow, refused: list[Problem]) -> bool:
    if row.user not in (None, user_name()):
        refused.append(Problem(f"{row.label}: {row.user} has written it down, and it is theirs to cancel"))
        return False
    try:
        record_never_submitted(ledger, [row.attempt_id], "cancelled in its turn", str(Failure.CANCELLED))
    except DiskFull as full:  # only the ledger knows it, and goes on saying that it waits its turn
        refused += [Problem(f"{row.label}: {one.what}", one.where, one.mend) for one in full.problems]
        return False
    return True


def _end_here(row: JobRow, refused: list[Problem]) -> bool:
    if not is_here(row.host):
        refused.append(Problem(f"{row.label} runs on {row.host}", mend=f"cancel it from {row.host}"))
        return False
    try:
        LocalScriptJob(row.folder, str(row.scheduler_id)).cancel()
    except PermissionError:
        refused.append(Problem(f"{row.label}: it is {row.user or 'another user'}'s, and theirs to cancel"))
        return False
    except ReproError as error:
        refused += error.problems
        return False
    return True
