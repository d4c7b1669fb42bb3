"""Attempts that a run folder contains and the ledger does not: after a lost ledger they may run or be verified."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from orchestrator.errors import ReproError
from orchestrator.job_record import JobRecord, read_record
from orchestrator.launch.local_state import find_process, is_alive
from orchestrator.launch.sent_records import COMMENT, SentJob, SentRecord, sent_of_run
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import JobRow
from orchestrator.ledger.runs import NewJob, run_ids
from orchestrator.ledger.tables import ENDED, VERIFIED
from orchestrator.reading.collect import measure
from orchestrator.slurm.job_ids import base_id
from orchestrator.slurm.query import find_by_comments
from orchestrator.slurm.records import JobRecord as SchedulerRecord
from orchestrator.slurm.states import Phase


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """An attempt of a job; `is_under_way` if it waits or runs as far as is known, else its log is verified."""

    job_id: str
    folder: Path
    scheduler_id: str | None
    is_under_way: bool


def unrecorded_attempts(ledger: Ledger, jobs: Sequence[NewJob]) -> list[Unrecorded]:
    """Return the attempts of these jobs that wait, run or are verified in runs that the ledger does not contain.

    Unreachable where Slurm has to be asked and does not answer.
    """
    by_id = {job.id: job for job in jobs}
    known = run_ids(ledger)
    found = [
        (record, job)
        for runs in ledger.runs
        for run in _folders(runs)
        if run.name not in known
        for record in sent_of_run(run)
        for job in record.jobs
        if job.job_id in by_id
    ]
    ended = {job.folder: read for _, job in found if (read := _read(job.folder / "end")) is not None}
    unended = [(record, job) for record, job in found if job.folder not in ended]
    in_slurm = _ask_slurm({record.token for record, _ in unended if record.scheduler == "slurm"})
    attempts: dict[Path, Unrecorded] = {}  # once, where a folder of runs is reached by two names
    for record, job in found:
        end = ended.get(job.folder)
        if end is not None:
            if _is_verified(by_id[job.job_id], job.folder, end):
                attempts[job.folder.resolve()] = Unrecorded(job.job_id, job.folder, end.scheduler_id, False)
            continue
        start = _read(job.folder / "start")
        scheduler_id = start.scheduler_id if start is not None else None
        if record.scheduler == "slurm":
            seen = in_slurm.get((record.token, job.element))
            scheduler_id = seen.job_id if seen is not None else scheduler_id
            is_under_way = seen.phase is not Phase.ENDED if seen is not None else start is not None
        else:
            is_under_way = _is_under_way_here(record, job, start)
        if is_under_way:
            attempts[job.folder.resolve()] = Unrecorded(job.job_id, job.folder, scheduler_id, True)
    return list(attempts.values())


def _folders(runs: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in runs.iterdir() if path.is_dir())
    except OSError:  # no run yet, or none that this user may see
        return


def _read(path: Path) -> JobRecord | None:
    try:
        return read_record(path)
    except ReproError:
        return None


def _ask_slurm(tokens: set[str]) -> Mapping[tuple[str, int | None], SchedulerRecord]:
    """Return what Slurm has of these submissions, by token and element."""
    if not tokens:
        return {}
    records = find_by_comments([f"{COMMENT}{token}" for token in tokens]).records
    return {(record.comment.removeprefix(COMMENT), _element(job_id)): record for job_id, record in records.items()}


def _element(job_id: str) -> int | None:
    element = job_id.removeprefix(base_id(job_id)).removeprefix("_")
    return int(element) if element.isdecimal() else None


def _is_under_way_here(record: SentRecord, job: SentJob, start: JobRecord | None) -> bool:
    """A job of a local queue; that of another machine is taken to run once it has started."""
    if record.host != socket.gethostname():
        return start is not None
    if start is not None:
        return is_alive(start.pid, str(job.folder))
    return not (job.folder / "cancelled").exists() and find_process(record.file) is not None


def _is_verified(job: NewJob, folder: Path, end: JobRecord) -> bool:
    """The verdict from the log, as it would be in the ledger."""
    known: dict[str, Any] = {name: getattr(job, name) for name in job.__slots__}
    known |= {"job_id": job.id, "attempt_id": 0, "folder": str(folder), "token": "", "host": end.host}
    known |= {"phase": ENDED, "state": "COMPLETED" if end.exit_code == 0 else "FAILED", "exit_code": end.exit_code}
    try:
        values: dict[str, Any] = {field.name: known.get(field.name) for field in fields(JobRow)}
        return measure(JobRow(**values)).verdict == VERIFIED
    except ReproError:
        return False
