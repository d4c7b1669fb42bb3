"""The scheduler -> the ledger: settles what a crash left open, then asks once about everything that is under way."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.job_record import read_record
from orchestrator.launch.executors import LocalScriptJob, ScriptJob
from orchestrator.launch.local_state import find_process, is_alive
from orchestrator.launch.submit import COMMENT
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.jobs import JobRow, Observation, job_rows, record_observations
from orchestrator.ledger.submissions import Unsettled, record_never_submitted, record_submission, unsettled
from orchestrator.slurm.query import find_by_comment
from orchestrator.slurm.records import JobRecord
from orchestrator.slurm.states import Phase, phase_of

ANOTHER_HOST_GRACE = timedelta(minutes=5)
"""How long a submission from another login node may take before we look for it ourselves."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """`complaints` are the sources that could not be asked; the ledger keeps what it knew about those jobs."""

    complaints: tuple[str, ...] = ()


def refresh(ledger: Ledger) -> Refreshed:
    """Bring the ledger up to date; a scheduler that does not answer is a complaint, and nothing is concluded."""
    complaints = _settle(ledger)
    rows = job_rows(ledger, only_open=True)
    attempts = {row.attempt_id: row for row in rows if row.scheduler_id is not None}
    local = [row for row in attempts.values() if row.scheduler == "local" and _is_here(row.host)]
    elsewhere = sorted({row.host for row in attempts.values() if row.scheduler == "local" and not _is_here(row.host)})
    complaints += [f"jobs run on {host}, which alone can see them; states are as last seen" for host in elsewhere]
    slurm = [row for row in attempts.values() if row.scheduler == "slurm"]
    seen = {row.attempt_id: _observe_local(row) for row in local}
    if slurm:
        try:
            found, said = _observe_slurm(slurm)
            seen |= found
            complaints += said
        except Unreachable as error:
            complaints.append(f"{error}; states are as last seen")
            slurm = []
    record_observations(ledger, seen, [row.attempt_id for row in (*local, *slurm)])
    return Refreshed(tuple(complaints))


def cancel(rows: Sequence[JobRow]) -> None:
    """Ask the scheduler to end these jobs; a later refresh sees whether it did."""
    for row in reversed(rows):  # the last first: what is freed must not start the next
        if row.scheduler_id is None:
            continue
        if row.scheduler == "local":
            if not _is_here(row.host):
                raise ReproError(Problem(f"{row.case_name} runs on {row.host}", mend=f"cancel it from {row.host}"))
            LocalScriptJob(row.folder, row.scheduler_id).cancel()
        else:
            ScriptJob(row.folder, row.scheduler_id).cancel()


def _is_here(host: str) -> bool:
    """A local job is seen through its processes, which other machines of a shared file system do not have."""
    return host == socket.gethostname()


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
    )


def _observe_slurm(rows: Sequence[JobRow]) -> tuple[dict[int, Observation], list[str]]:
    """One batched query through submitit's watcher; where it knows nothing, the job's own end record speaks."""
    jobs = {row.attempt_id: ScriptJob(row.folder, str(row.scheduler_id)) for row in rows}
    ScriptJob.watcher.update()
    seen: dict[int, Observation] = {}
    for row in rows:
        record = ScriptJob.watcher.records.get(jobs[row.attempt_id].job_id)
        if record is not None and _is_ours(record, row):
            seen[row.attempt_id] = _from_record(record)
        else:
            own = _from_end_record(row)
            if own is not None:
                seen[row.attempt_id] = own
    return seen, list(ScriptJob.watcher.complaints)


def _is_ours(record: JobRecord, row: JobRow) -> bool:
    """A job id that Slurm gave out again carries another comment; accounting may have kept none."""
    return record.comment in ("", COMMENT + row.token)


def _from_record(record: JobRecord) -> Observation:
    # An unknown word of a newer Slurm is no end: the job counts as it did, its state is shown as it is.
    phase = record.phase if record.phase is not Phase.UNKNOWN else Phase.RUNNING
    return Observation(
        state=record.state,
        phase=str(phase),
        reason=record.reason if record.reason not in ("", "None") else None,
        nodes=record.nodes or None,
        exit_code=record.exit_code,
        signal=record.signal,
        started_at=_utc(record.started_at),
        ended_at=_utc(record.ended_at) if phase is Phase.ENDED else None,
    )


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
    )


def _settle(ledger: Ledger) -> list[str]:
    """Find out what became of submissions whose process is gone, by the token each carries."""
    complaints: list[str] = []
    for submission in unsettled(ledger):
        if _may_still_be_at_it(submission):
            continue
        try:
            scheduler_id, certain = _look_for(submission)
        except Unreachable as error:
            complaints.append(str(error))
            continue
        if scheduler_id is not None:
            record_submission(ledger, submission.token, scheduler_id)
        elif certain:
            record_never_submitted(ledger, submission.token, "interrupted before the scheduler had it; submit again")
        else:
            complaints.append(f"whether submission {submission.token} reached the scheduler is not known yet")
    return complaints


def _may_still_be_at_it(submission: Unsettled) -> bool:
    if _is_here(submission.host):
        return is_alive(submission.pid, "repro") or is_alive(submission.pid, "orchestrator")
    return now() - submission.created_at < ANOTHER_HOST_GRACE


def _look_for(submission: Unsettled) -> tuple[str | None, bool]:
    """The scheduler's id of a submission, or None and whether that is certain."""
    if submission.scheduler == "local":
        return (_look_here(submission), True) if _is_here(submission.host) else (None, False)
    answer = find_by_comment(COMMENT + submission.token)
    ids = sorted({job_id.partition("_")[0] for job_id in answer.records})
    return (ids[0] if ids else None), not answer.complaints


def _look_here(submission: Unsettled) -> str | None:
    starts = [read_record(Path(folder) / "start") for folder in submission.folders]
    started = [start.scheduler_id.partition("_")[0] for start in starts if start is not None]
    return started[0] if started else find_process(f"{submission.token}.queue.sh")


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(timezone.utc).replace(tzinfo=None)
