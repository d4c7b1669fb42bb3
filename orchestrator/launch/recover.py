"""Recovery of interrupted submissions and of attempts that a lost ledger does not have."""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from orchestrator.errors import ReproError, Unreachable
from orchestrator.files import ScriptRecord, read_record, tail_bytes
from orchestrator.identity import ProcessLocation, place_of, seconds_since_boot, start_ticks, this_machine_identity
from orchestrator.launch.executors import began_at, find_process, is_alive
from orchestrator.launch.run_record import COMMENT, SentJob, SentRecord, sent_of_run
from orchestrator.launch.sbatch import comment_of, keep_first_cancel_rest
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.runs import NewJob, run_ids
from orchestrator.ledger.submissions import (
    InterruptedSubmission,
    interrupted_submissions,
    record_queued_again,
    record_submission,
    time_unsettled_s,
)
from orchestrator.reading.collect import is_verified
from orchestrator.slurm.command import at, cluster_identity
from orchestrator.slurm.notation import base_id
from orchestrator.slurm.query import QueryAnswer, find_by_comments
from orchestrator.slurm.records import JobRecord, Phase

GRACE = timedelta(minutes=5)
"""Time for a submission by a process that is not visible, and for a job's first record if only the queue answers."""
WHY_QUEUED = "interrupted before the scheduler had it; `repro submit` or `repro wait` submits it"


@dataclass(frozen=True, slots=True)
class Settled:
    """Result of a recovery. `has_news` if a submission was recovered; `complaints` are about the others."""

    has_news: bool
    complaints: tuple[str, ...]


def settle(ledger: Ledger, schedulers: Collection[str]) -> Settled:
    """Find the results of submissions that were interrupted.

    Only the submitting user can ask reliably: a site may hide the jobs of one user from another.
    """
    interrupted = [
        submission
        for submission in interrupted_submissions(ledger)
        if submission.scheduler in schedulers and not is_being_made(ledger, submission)
    ]
    own = [submission for submission in interrupted if ledger.is_own(submission.user)]
    complaints = [
        f"a submission of {user} was cut off; {user}'s next command finds out what became of it"
        for user in sorted({str(submission.user) for submission in interrupted if submission not in own})
    ]
    complaints += [
        line for submission in own if submission.scheduler == "local" for line in _settle_here(ledger, submission)
    ]
    complaints += _settle_slurm(ledger, [submission for submission in own if submission.scheduler == "slurm"])
    return Settled(bool(own), tuple(complaints))


def is_here(machine: str | None, host: str) -> bool:
    """Return whether the processes of local jobs of this machine are visible here; a reboot has ended them."""
    return place_of(machine, host) is not ProcessLocation.ELSEWHERE


def is_being_made(ledger: Ledger, submission: InterruptedSubmission) -> bool:
    """Return whether the submitting process, or its sbatch, still runs or may run where this process cannot see it."""
    alive = sender_is_alive(submission)
    if alive is not None:
        return alive or (submission.scheduler == "slurm" and find_process(comment_of(submission.token)) is not None)
    return submission.scheduler == "slurm" and _waited_s(ledger, submission) < GRACE.total_seconds()


def _waited_s(ledger: Ledger, submission: InterruptedSubmission) -> float:
    """Return for how many seconds this machine has waited for an answer about a submission."""
    waited = time_unsettled_s(ledger, submission.attempt_ids, this_machine_identity().boot_id, seconds_since_boot())
    return min(waited.values(), default=0.0)


def _settle_here(ledger: Ledger, submission: InterruptedSubmission) -> list[str]:
    if not is_here(submission.machine, submission.host):
        return [f"jobs were being started on {submission.host}, which alone can see them"]
    try:
        starts = [read_record(Path(folder) / "start") for folder in submission.folders]
    except ReproError as error:
        return [str(error)]
    started = [start.scheduler_id.partition("_")[0] for start in starts if start is not None]
    queue = started[0] if started else find_process(Path(submission.file).name)
    if queue is None:
        record_queued_again(ledger, submission.token, WHY_QUEUED)
    else:
        record_submission(ledger, submission.token, queue)
    return []


def _settle_slurm(ledger: Ledger, submissions: Sequence[InterruptedSubmission]) -> list[str]:
    complaints: list[str] = []
    try:
        here = cluster_identity() if submissions else ""
        for cluster in dict.fromkeys(submission.slurm_cluster for submission in submissions):
            same = [submission for submission in submissions if submission.slurm_cluster == cluster]
            with at(cluster, here) as is_reached:
                if is_reached:
                    complaints += _settle_on_cluster(ledger, same)
                    continue
            complaints += [
                f"a submission to Slurm cluster {cluster} was cut off; SLURM_CONF here means {here}" for _ in same
            ]
    except Unreachable as error:
        complaints.append(str(error))
    return complaints


def _settle_on_cluster(ledger: Ledger, submissions: Sequence[InterruptedSubmission]) -> list[str]:
    complaints: list[str] = []
    answer = find_by_comments([comment_of(submission.token) for submission in submissions])
    for submission in submissions:
        try:
            ids, recorded = _ids(answer, comment_of(submission.token)), recorded_ids(submission.folders)
        except ReproError as error:
            complaints.append(str(error))
            continue
        if ids:
            record_submission(ledger, submission.token, keep_first_cancel_rest(ids))
        elif recorded:  # no further id is cancelled: what a folder contains is no proof for that
            record_submission(ledger, submission.token, min(recorded, key=int))
        elif not answer.complaints or (answer.lists_queue and _waited_s(ledger, submission) >= GRACE.total_seconds()):
            # A job that left the queue would have left a record. If it is late all the same, its claim keeps a second
            # copy in the same folder from starting.
            record_queued_again(ledger, submission.token, WHY_QUEUED)
        else:
            complaints.append(f"whether submission {submission.token} reached the scheduler is not known yet")
    return [*answer.complaints, *complaints]


def _ids(answer: QueryAnswer, comment: str) -> set[str]:
    return {base_id(job_id) for job_id, record in answer.records.items() if record.comment == comment}


def recorded_ids(folders: Sequence[str]) -> set[str]:
    """Return the scheduler's ids, without array indexes, that jobs wrote into their own folders when they started."""
    ids: set[str] = set()
    for folder in folders:
        claimed = tail_bytes(Path(folder), "claimed", 100).decode(errors="replace").strip()
        if re.fullmatch(r"[0-9]+(_[0-9]+)?", claimed):
            ids.add(base_id(claimed))
    return ids


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """Attempt that the ledger lacks. `is_under_way` if it may wait or run, else its log is verified."""

    job_id: str
    folder: Path
    scheduler_id: str | None
    is_under_way: bool


def unrecorded_attempts(ledger: Ledger, jobs: Sequence[NewJob]) -> list[Unrecorded]:
    """Return the attempts of these jobs that wait, run or are verified in runs that the ledger does not contain.

    Unreachable where Slurm has to be asked and does not answer.
    """
    by_id = {job.id: job for job in jobs}
    recorded_runs = run_ids(ledger)
    sent_jobs = [
        (record, job)
        for runs in ledger.runs
        for run in _folders(runs)
        if run.name not in recorded_runs
        for record in sent_of_run(run)
        for job in record.jobs
        if job.job_id in by_id
    ]
    ended = {job.folder: read for _, job in sent_jobs if (read := _read(job.folder / "end")) is not None}
    unended = [(record, job) for record, job in sent_jobs if job.folder not in ended]
    in_slurm = _ask_slurm({record.token for record, _ in unended if record.scheduler == "slurm"})
    attempts: dict[Path, Unrecorded] = {}  # once, where a folder of runs is reached by two names
    for record, job in sent_jobs:
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


def _read(path: Path) -> ScriptRecord | None:
    try:
        return read_record(path)
    except ReproError:
        return None


def _ask_slurm(tokens: set[str]) -> Mapping[tuple[str, int | None], JobRecord]:
    """Return what Slurm has of these submissions, by token and element."""
    if not tokens:
        return {}
    records = find_by_comments([f"{COMMENT}{token}" for token in tokens]).records
    return {(record.comment.removeprefix(COMMENT), _element(job_id)): record for job_id, record in records.items()}


def _element(job_id: str) -> int | None:
    element = job_id.removeprefix(base_id(job_id)).removeprefix("_")
    return int(element) if element.isdecimal() else None


def _is_under_way_here(record: SentRecord, job: SentJob, start: ScriptRecord | None) -> bool:
    """Return whether a job of a local queue is under way. A job of another machine is, once it has started."""
    if record.host != socket.gethostname():
        return start is not None
    if start is not None:
        return is_alive(start.pid, str(job.folder))
    return not (job.folder / "cancelled").exists() and find_process(record.file) is not None


def _is_verified(job: NewJob, folder: Path, end: ScriptRecord) -> bool:
    """Return whether the log of the job is verified, judged as for the ledger."""
    try:
        return is_verified(job, folder, end)
    except ReproError:
        return False


class HasSubmitter(Protocol):
    """An attempt or submission with the process that recorded it."""

    @property
    def host(self) -> str:
        """Host name of the process."""

    @property
    def pid(self) -> int | None:
        """Process id."""

    @property
    def pid_start_ticks(self) -> int | None:
        """Start of the process in clock ticks since boot."""

    @property
    def machine(self) -> str | None:
        """Machine, boot and PID namespace of the process."""

    @property
    def created_at(self) -> datetime:
        """Time of the record, UTC."""


def sender_is_alive(sent: HasSubmitter) -> bool | None:
    """Return whether the process that recorded this still runs; None if its processes cannot be seen from here.

    A process with the same number and another start time is another process.
    """
    if sent.pid is None:
        return False
    location = place_of(sent.machine, sent.host)
    if location is not ProcessLocation.HERE:
        return None if location is ProcessLocation.ELSEWHERE else False
    if sent.pid_start_ticks is not None:
        return start_ticks(sent.pid) == sent.pid_start_ticks
    began = began_at(sent.pid)
    return began is not None and began <= sent.created_at
