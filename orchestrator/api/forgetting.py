"""Attempts that are hidden from tables and exit codes, and shown again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.api import DEFAULT, JobFilter, Session
from orchestrator.api.jobs import select_jobs, updated_ledger
from orchestrator.errors import Problem, ReproError
from orchestrator.identity import user_name
from orchestrator.ledger.attempts import rows_of_attempts
from orchestrator.ledger.forgotten import attempt_ids_of, record_forgotten
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import MEASURED, OPEN

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Attempts that are hidden or shown again, and the reason for each attempt that is not changed."""

    attempts: tuple[JobRow, ...]
    refused: tuple[Problem, ...] = ()

    @property
    def verified(self) -> int:
        """Return the number of verified and partial attempts."""
        return sum(row.verdict in MEASURED for row in self.attempts)


def forgettable(
    targets: Sequence[str] | str,
    *,
    attempt: int | None = None,
    failed: bool = False,
    undo: bool = False,
    session: Session = DEFAULT,
    **selection: Unpack[JobFilter],
) -> Forgotten:
    """Return the attempts that `forget` would hide, or show again with `undo`. Nothing is changed.

    These are all attempts of the jobs, the ones of the number `attempt`, or with `failed` those without a result.
    Jobs that have not ended, and jobs of other users, are refused.
    """
    ledger, names = updated_ledger(session), [targets] if isinstance(targets, str) else targets
    jobs = select_jobs(ledger, session.folders, names, forgotten=True, **selection)
    every = rows_of_attempts(ledger, attempt_ids_of(ledger, {row.job_id for row in jobs}))
    rows = [row for row in every if attempt in (None, row.number)]
    if every and not rows:
        last = max(row.number for row in every)
        hint = f"1 to {last}" if last > 1 else "there is only the first"
        raise ReproError(Problem(f"--attempt {attempt}: no such attempt", f"{' '.join(names)}:", hint))
    rows = [row for row in rows if (row.forgotten_at is not None) is undo and not (failed and row.verdict in MEASURED)]
    refused: dict[int, Problem] = {}
    open_jobs = {row.job_id: row for row in every if row.phase in OPEN}
    for row in rows:
        under_way = open_jobs.get(row.job_id)
        if not ledger.is_own(row.user):
            owner = row.user or "another user"
            refused[row.attempt_id] = Problem(
                f"attempt {row.number} belongs to {owner}", f"{row.label} ({row.job_id}):"
            )
        elif under_way is not None and not undo and attempt in (None, under_way.number):
            what, hint = (
                f"attempt {under_way.number} is {under_way.state}",
                f"cancel it first: repro cancel {row.job_id}",
            )
            refused[row.attempt_id] = Problem(what, f"{row.label} ({row.job_id}):", hint)
    kept = tuple(row for row in rows if row.attempt_id not in refused)
    return Forgotten(kept, tuple(dict.fromkeys(refused.values())))


def forget_attempts(chosen: Forgotten, *, undo: bool = False, session: Session = DEFAULT) -> Forgotten:
    """Hide these attempts from every table and exit code, or show them again. They stay in the ledger."""
    record_forgotten(session.ledger(), [row.attempt_id for row in chosen.attempts], user_name(), undo=undo)
    return chosen


def forget(
    targets: Sequence[str] | str,
    *,
    attempt: int | None = None,
    failed: bool = False,
    undo: bool = False,
    session: Session = DEFAULT,
    **selection: Unpack[JobFilter],
) -> Forgotten:
    """Hide the attempts of these targets from every table and exit code; `undo` shows them again.

    The selection is that of `forgettable`.
    """
    chosen = forgettable(targets, attempt=attempt, failed=failed, undo=undo, session=session, **selection)
    return forget_attempts(chosen, undo=undo, session=session)
