"""Cancellation of jobs that are under way, queued, or being submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import Problem, ReproError
from orchestrator.identity import NotOwn, require_own_folder, user_name
from orchestrator.launch.executors import cancel_local
from orchestrator.launch.refresh import is_being_made, is_here, is_proven, owner_check, sees_jobs_of
from orchestrator.launch.run_record import sent_of_run
from orchestrator.launch.sbatch import comment_of, mark_cancelled
from orchestrator.ledger.attempts import lost_attempts, record_asked
from orchestrator.ledger.database import DiskFull, Ledger
from orchestrator.ledger.rows import AttemptRow, JobRow
from orchestrator.ledger.runs import first_folder, interrupted_submissions, record_never_submitted
from orchestrator.ledger.tables import CANCELLED_BY, LOST, OPEN, QUEUED, STOPPED_AFTER, SUBMITTING
from orchestrator.reading.failure import Failure
from orchestrator.slurm.command import at, cancel_jobs, cluster_identity, find_by_comments, query_jobs
from orchestrator.slurm.notation import JobRecord, Phase, base_id


@dataclass(slots=True)
class Cancelled:
    """Jobs that were cancelled, and the reason for each refusal.

    `unlisted` are jobs that Slurm does not have: they have ended, or were elements of an array, which leave no trace.
    `unrecorded` tells why the ledger does not contain the request.
    """

    asked: list[JobRow] = field(default_factory=list)
    unlisted: list[JobRow] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)
    unrecorded: tuple[Problem, ...] = ()

    def refuse(self, row: JobRow, problem: Problem, job_id: str = "") -> None:
        """Add the reason why the attempt of this row is not cancelled."""
        name = f"{row.label} ({job_id})" if job_id else row.label
        self.refused.append(Problem(f"{name}: {problem.what}", problem.location, problem.hint))


def may_have_jobs(ledger: Ledger, rows: Sequence[JobRow]) -> list[JobRow]:
    """Return the attempts of these jobs that a scheduler may have: those under way, and each that was called lost."""
    latest = [row for row in rows if row.phase in OPEN]
    lost = lost_attempts(ledger, list({row.job_id for row in rows}))
    return [*latest, *(row for row in lost if row.attempt_id not in {other.attempt_id for other in latest})]


def cancel(ledger: Ledger, rows: Sequence[JobRow], after: str | None = None) -> Cancelled:
    """Cancel these jobs in one call of the scheduler.

    `after` is the event after which `repro` stops jobs that have not started; None if the user cancels them.
    Slurm decides who may end a job. The job must be that of the attempt: an id in a ledger may be wrong. Only its owner
    can cancel an attempt that no scheduler has.
    """
    done = Cancelled()
    for row in reversed(rows):  # the last first, so that a freed slot does not start the next job
        if row.state == QUEUED:
            _withdraw(ledger, row, done, after)
        elif row.scheduler == "local" and row.scheduler_id is not None:
            _end_here(ledger, row, done)
    _end_interrupted(ledger, [row for row in rows if row.phase == SUBMITTING], done)
    _end_on_clusters(ledger, [row for row in rows if row.scheduler == "slurm" and row.scheduler_id is not None], done)
    try:
        record_asked(ledger, [row.attempt_id for row in (*done.asked, *done.unlisted)], _reason(after))
    except DiskFull as full:
        done.unrecorded = full.problems
    order = {row.attempt_id: index for index, row in enumerate(rows)}
    done.asked.sort(key=lambda row: order[row.attempt_id])
    return done


def _reason(after: str | None) -> str:
    return f"{CANCELLED_BY}{user_name()}" if after is None else f"{STOPPED_AFTER}{after}"


def _withdraw(ledger: Ledger, row: JobRow, done: Cancelled, after: str | None) -> None:
    if not ledger.is_own(row.user):
        owner = row.user or "another user"
        done.refuse(row, Problem(f"{owner} queued this attempt, and only that user can cancel it"))
        return
    try:
        failure = Failure.CANCELLED if after is None else Failure.STOPPED
        record_never_submitted(ledger, [row.attempt_id], f"{_reason(after)}, before it was submitted", str(failure))
    except DiskFull as full:  # only the ledger has this queued attempt
        for problem in full.problems:
            done.refuse(row, problem)
        return
    done.asked.append(row)


def _end_here(ledger: Ledger, row: JobRow, done: Cancelled) -> None:
    if not is_here(row.machine, row.host):
        done.refused.append(Problem(f"{row.label} runs on {row.host}", hint=f"cancel it from {row.host}"))
        return
    try:
        require_own_folder(Path(row.folder), ledger.runs)
        cancel_local(Path(row.folder))
    except PermissionError:
        done.refuse(row, Problem(f"it belongs to {row.user or 'another user'}, and only that user can cancel it"))
    except ReproError as error:
        done.refused += error.problems
    else:
        done.asked.append(row)


def _end_interrupted(ledger: Ledger, rows: Sequence[JobRow], done: Cancelled) -> None:
    """End interrupted submissions. Jobs that the scheduler has are cancelled.

    The folders are marked, so that a copy that the scheduler accepts later does not start.
    """
    submissions = {attempts[0].token: attempts for attempts in interrupted_submissions(ledger)} if rows else {}
    for token, same in {row.token: [other for other in rows if other.token == row.token] for row in rows}.items():
        problem = _why_kept(ledger, submissions[token]) if token in submissions else None
        if problem is not None:
            for row in same:
                done.refuse(row, problem)
            continue
        try:
            for row in same:
                require_own_folder(Path(row.folder), ledger.runs)
        except ReproError as error:
            done.refused += error.problems
            continue
        for row in same:
            mark_cancelled(row.folder)
        if same[0].scheduler == "slurm":
            # squeue has the comment of each job that can be cancelled; an id in a job's folder proves nothing.
            records = find_by_comments([comment_of(token)]).records
            cancel_jobs(sorted({base_id(job_id) for job_id in records}))
        why = f"{_reason(None)}, before the scheduler had confirmed it"
        record_never_submitted(ledger, [row.attempt_id for row in same], why, str(Failure.CANCELLED))
        done.asked += same


def _why_kept(ledger: Ledger, attempts: Sequence[AttemptRow]) -> Problem | None:
    submission = attempts[0]
    if not ledger.is_own(submission.user):
        return Problem(f"{submission.user or 'another user'} submits it, and only that user can cancel it")
    if is_being_made(ledger, attempts):
        return Problem(
            f"it is being submitted on {submission.host}", hint="press Ctrl-C there, or try again in 5 minutes"
        )
    if submission.scheduler == "slurm" and submission.slurm_cluster not in (None, here := cluster_identity()):
        return _elsewhere(str(submission.slurm_cluster), here)
    return None


def _end_on_clusters(ledger: Ledger, rows: Sequence[JobRow], done: Cancelled) -> None:
    """Cancel those of these attempts that the scheduler has, on the cluster of each."""
    here = cluster_identity() if rows else ""
    for cluster in dict.fromkeys(row.slurm_cluster for row in rows):
        same = [row for row in rows if row.slurm_cluster == cluster]
        with at(cluster, here) as is_reached:
            if is_reached:
                _end_on_slurm(ledger, same, done)
                continue
        for row in (row for row in same if row.state != LOST):
            done.refuse(row, _elsewhere(str(cluster), here))


def _end_on_slurm(
    ledger: Ledger, rows: Sequence[JobRow], done: Cancelled, reused: frozenset[str] = frozenset()
) -> None:
    """Cancel those of these attempts of one cluster that it has. `reused` are ids of several attempts."""
    by_id = {str(row.scheduler_id): row for row in rows}
    shared = [row for row in rows if by_id[str(row.scheduler_id)] is not row]
    listed = _live(by_id)
    reused |= {str(row.scheduler_id) for row in shared}
    submitted = SubmittedJobs(ledger)
    for job_id, record in list(listed.items()):
        if why := why_not_the_attempts_job(submitted, by_id[job_id], record):
            del listed[job_id]
            if job_id not in reused and by_id[job_id].state != LOST:
                done.refuse(by_id.pop(job_id), Problem(why), job_id)
    refusals = cancel_jobs(list(listed)) if listed else {}
    for job_id, why in refusals.items():
        done.refuse(by_id[job_id], Problem(why), job_id)
    done.asked += [by_id[job_id] for job_id in listed if job_id not in refusals]
    for row in (row for job_id, row in by_id.items() if job_id not in listed and row.state != LOST):
        if sees_jobs_of(row.user):
            done.unlisted.append(row)
        else:
            done.refuse(row, Problem(f"Slurm does not list this job of {row.user} to {user_name()}"))
    if shared:
        _end_on_slurm(ledger, shared, done, reused)


def _live(by_id: Mapping[str, JobRow]) -> dict[str, JobRecord]:
    """Return what the scheduler lists under these ids and has not ended, in their order: our jobs, else others."""
    is_ours = owner_check(by_id)
    answer = query_jobs(list(by_id), lambda record: is_ours(record) or None)
    records = {**answer.unclear, **answer.records}
    listed = {job_id: records[job_id] for job_id in by_id if job_id in records}
    return {job_id: record for job_id, record in listed.items() if record.phase is not Phase.ENDED}


def _elsewhere(cluster: str, here: str) -> Problem:
    return Problem(
        f"it is a job of Slurm cluster {cluster}, not of {here}", hint="set SLURM_CONF to that cluster's file"
    )


class SubmittedJobs:
    """The submissions that the run folders of a ledger record. The records of each run are read once."""

    def __init__(self, ledger: Ledger) -> None:
        self._runs = ledger.runs
        self._by_run: dict[Path, set[tuple[str, str, int | None, str]]] = {}

    def why_not(self, row: JobRow) -> str | None:
        """Return what contradicts the row in the run folder of an attempt of the current user; None if nothing does."""
        folder = Path(row.folder)
        try:
            require_own_folder(folder, self._runs)
        except NotOwn as error:
            return str(error.problems[0])
        run = folder.parent
        if run not in self._by_run:
            self._by_run[run] = {
                (sent.token, sent.job_id, sent.array_index, Path(sent.folder).name) for sent in sent_of_run(run)
            }
        submitted = self._by_run[run]
        if (row.token, row.job_id, row.array_index, first_folder(folder.name)) in submitted:
            return None
        return f"{run}: contains no submission of this job under that id"


def why_not_the_attempts_job(submitted: SubmittedJobs, row: JobRow, record: JobRecord) -> str | None:
    """Return why the job with `row.scheduler_id` is not the job of this attempt; None if it is.

    `record` is what Slurm has under that id. Its comment, its output file or the record `start` must prove that it is
    the attempt's, and the users must agree. For an attempt of the current user its run folder must agree, too, as only
    this user can write there.
    """
    user = row.user or user_name()
    if record.user and record.user != user:
        return f"the job belongs to {record.user}, and the attempt to {user}"
    element = None if row.array_index is None else f"{base_id(record.job_id)}_{row.array_index}"
    if not row.token or not is_proven(record, row) or element not in (None, record.job_id):
        return "the job has another comment and another output file, so it is not the job of this attempt"
    return submitted.why_not(row) if user == user_name() else None
