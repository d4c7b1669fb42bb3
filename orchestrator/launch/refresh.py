"""The scheduler -> the ledger: settles what a crash left open, then asks once about everything that is under way."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from orchestrator.errors import ReproError, Unreachable
from orchestrator.job_record import read_record
from orchestrator.launch.executors import LocalScriptJob, ScriptJob
from orchestrator.launch.provenance import user_name
from orchestrator.launch.sending import comment_of
from orchestrator.launch.settle import is_here, settle
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.jobs import (
    JobRow,
    Observation,
    asked_to_end,
    job_rows,
    may_ask,
    record_complaints,
    record_observations,
)
from orchestrator.ledger.tables import WAITING
from orchestrator.reading.failure import MADE_WAY
from orchestrator.slurm.job_ids import base_id
from orchestrator.slurm.records import JobRecord
from orchestrator.slurm.states import Phase, may_run_again, phase_of

LOST_AFTER = timedelta(minutes=5)
"""How long everybody must have been asked about a job, and nobody known it, before it is called lost: accounting lags,
and a controller that has just started may not have read all of its state."""
REQUEUED_WITHIN = timedelta(minutes=5)
"""How long Slurm may take to put a job that lost a node back into the queue, where the profile leaves that to Slurm."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """`complaints` are the sources that could not be asked: the ledger keeps what it knew about those jobs, which is of
    `asked_at` (UTC; None where no scheduler had to be asked).
    """

    complaints: tuple[str, ...] = ()
    asked_at: datetime | None = None


def refresh(ledger: Ledger, at_most_every_s: float = 0.0) -> Refreshed:
    """Bring the ledger up to date; a scheduler that does not answer is a complaint, and nothing is concluded.

    With `at_most_every_s` the scheduler is left alone if any terminal that shares this ledger has asked it since.
    """
    rows, key = _under_way(ledger), _which_slurm()
    may, asked_at, said = False, None, list[str]()
    if any(row.scheduler == "slurm" for row in rows):
        may, asked_at, said = may_ask(ledger, key, at_most_every_s)
    settled = settle(ledger, {"local", "slurm"} if may else {"local"})
    if settled.has_news:
        rows = _under_way(ledger)
    sent = [row for row in rows if row.scheduler_id is not None]
    complaints = _refresh_here(ledger, [row for row in sent if row.scheduler == "local"])
    if may:
        said = _refresh_slurm(ledger, [row for row in sent if row.scheduler == "slurm"])
        record_complaints(ledger, key, said)
    return Refreshed((*settled.complaints, *complaints, *said), asked_at)


def _under_way(ledger: Ledger) -> list[JobRow]:
    return job_rows(ledger, only_open=True, with_configuration=False)


def _which_slurm() -> str:
    """What tells the Slurm that commands here talk to from another that shares this ledger."""
    named = (f"{name}={value}" for name in ("SLURM_CONF", "SLURM_CLUSTERS") if (value := os.environ.get(name)))
    return " ".join(("slurm", *named))


def _refresh_here(ledger: Ledger, rows: Sequence[JobRow]) -> list[str]:
    here = [row for row in rows if is_here(row.host)]
    seen, complaints = _each(here, _observe_local)
    record_observations(ledger, seen, [row.attempt_id for row in here])
    elsewhere = sorted({row.host for row in rows if not is_here(row.host)})
    complaints += [f"jobs run on {host}, which alone can see them; states are as last seen" for host in elsewhere]
    return complaints


def _each(
    rows: Sequence[JobRow], observe: Callable[[JobRow], Observation | None]
) -> tuple[dict[int, Observation], list[str]]:
    """What is seen of each. A file that may not be read, or is none, is a complaint, and hinders no other job."""
    seen: dict[int, Observation] = {}
    complaints: dict[str, None] = {}
    for row in rows:
        try:
            found = observe(row)
        except ReproError as error:
            complaints[str(error)] = None
            continue
        if found is not None:
            seen[row.attempt_id] = found
    return seen, list(complaints)


def _observe_local(row: JobRow) -> Observation:
    assert row.scheduler_id is not None
    state = LocalScriptJob(row.folder, row.scheduler_id).local_state()
    return Observation(
        state=state.state,
        phase=str(phase_of(state.state)),
        reason=state.reason,
        nodes=socket.gethostname(),
        exit_code=state.exit_code,
        started_at=state.started_at,
        ended_at=state.ended_at,
        seen_via="its own record" if state.ended_at else "its process",
    )


def _refresh_slurm(ledger: Ledger, rows: Sequence[JobRow]) -> list[str]:
    if not rows:
        return []
    try:
        seen, unknown, said = _observe_slurm(ledger, rows)
    except Unreachable as error:
        return [str(error)]
    record_observations(ledger, seen, [row.attempt_id for row in rows], unknown)
    return said


def _observe_slurm(ledger: Ledger, rows: Sequence[JobRow]) -> tuple[dict[int, Observation], list[int], list[str]]:
    """One batched query through submitit's watcher; where nobody knows a job, its own end record speaks, and where it
    has none and nobody has known it for long, it is lost.
    """
    watcher = ScriptJob.watcher
    jobs = {row.attempt_id: ScriptJob(row.folder, str(row.scheduler_id)) for row in rows}
    by_id = {str(row.scheduler_id): row for row in rows}
    watcher.is_ours = lambda record: _is_ours(record, by_id)
    watcher.update()
    unknown: list[int] = []
    ours = asked_to_end(ledger, [row.attempt_id for row in rows])

    def observe(row: JobRow) -> Observation | None:
        record = watcher.records.get(jobs[row.attempt_id].job_id)
        found = _from_record(record, row, row.attempt_id in ours) if record is not None else _from_end_record(row)
        if found is None and row.scheduler_id in watcher.unknown and is_here(row.host):
            unknown.append(row.attempt_id)
            return _lost(row, row.attempt_id in ours)
        return found

    seen, complaints = _each(rows, observe)
    return seen, unknown, [*watcher.complaints, *complaints]


def _is_ours(record: JobRecord, rows: dict[str, JobRow]) -> bool:
    """A job id that Slurm gave out again carries another comment. Accounting may have kept none: then it is ours if we
    submitted it, and when we did.
    """
    row = rows.get(record.job_id) or next(
        (one for job_id, one in rows.items() if base_id(job_id) == base_id(record.job_id)), None
    )
    if row is None:
        return False
    if record.comment or record.source != "sacct":
        return record.comment == comment_of(row.token)
    if record.user and row.user and record.user != row.user:
        return False
    began, ended = row.created_at - timedelta(minutes=5), (row.submitted_at or now()) + timedelta(minutes=10)
    submitted = _utc(record.submitted_at)
    return submitted is None or began <= submitted <= ended


def _from_record(record: JobRecord, row: JobRow, is_asked_to_end: bool) -> Observation:
    # An unknown word of a newer Slurm is no end: the job counts as it did, its state is shown as it is.
    phase = record.phase if record.phase is not Phase.UNKNOWN else Phase.RUNNING
    if phase is Phase.ENDED and row.is_requeued and may_run_again(record.state):
        ended = _utc(record.ended_at)
        if ended is None or now() - ended < REQUEUED_WITHIN:
            phase = Phase.WAITING
    return Observation(
        state=record.state,
        phase=str(phase),
        reason=_reason(record, is_asked_to_end),
        nodes=record.nodes or None,
        exit_code=record.exit_code,
        signal=record.signal,
        started_at=_utc(record.started_at),
        ended_at=_utc(record.ended_at) if phase is Phase.ENDED else None,
        starts_at=_utc(record.starts_at),
        ends_at=_utc(record.ends_at),
        seen_via=record.source,
    )


def _reason(record: JobRecord, is_asked_to_end: bool) -> str | None:
    """The scheduler's, but for a cancelled job: of that one the question is who did it."""
    reason = record.reason if record.reason not in ("", "None") else None
    if record.preempted_at is not None and record.state == "FAILED":
        return MADE_WAY
    if record.state != "CANCELLED" or "dependency" in (reason or "").lower():
        return reason
    if is_asked_to_end:
        return "by repro cancel"
    by = record.cancelled_by
    return f"by {by}, not by repro" if by and by != user_name() else "not by repro"


def _from_end_record(row: JobRow) -> Observation | None:
    folder = Path(row.folder)
    end, start = read_record(folder / "end"), read_record(folder / "start")
    if end is None or end.scheduler_id != row.scheduler_id:
        return None
    return Observation(
        state="COMPLETED" if end.exit_code == 0 else "FAILED",
        phase=str(Phase.ENDED),
        reason="from the job's own end record",
        nodes=end.host,
        exit_code=end.exit_code,
        started_at=start.at if start else None,
        ended_at=end.at,
        seen_via="its own record",
    )


def _lost(row: JobRow, is_asked_to_end: bool) -> Observation | None:
    """An end, once nobody has known the job for long enough, and everybody could be asked.

    Elements of an array that are cancelled before they start leave no trace anywhere, at once.
    """
    if is_asked_to_end and row.phase == WAITING:
        return Observation(state="CANCELLED", phase=str(Phase.ENDED), reason="by repro cancel", seen_via="nobody")
    if row.unseen_since is None or now() - row.unseen_since < LOST_AFTER:
        return None
    since = f"{row.unseen_since:%Y-%m-%d %H:%M} UTC"
    return Observation(
        state="LOST",
        phase=str(Phase.ENDED),
        reason=f"since {since} neither the scheduler nor a record of its own knows it",
        seen_via="nobody",
    )


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(timezone.utc).replace(tzinfo=None)
