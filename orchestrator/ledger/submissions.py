"""Submissions: written before the scheduler is called, so that no crash submits twice or loses a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.tables import (
    ENDED,
    FAILED,
    NEVER_SUBMITTED,
    SUBMITTING,
    VERIFIED,
    WAITING,
    Attempt,
    Event,
    Job,
    Run,
    RunJob,
    fields,
    note,
)


@dataclass(frozen=True, slots=True)
class NewRun:
    id: str
    experiment: str
    scale: str
    cluster: str
    user: str
    host: str
    pid: int
    command: list[str]
    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, Any]
    profile: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job a run asks for, with what an attempt of it would be."""

    id: str
    case_name: str
    cluster: str
    workload: str
    code: str
    image: str | None
    configuration: dict[str, Any]
    gpus: int
    iterations: int
    scheduler: str


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """What an attempt runs as: made while the ledger's transaction is open, with the attempt's number known."""

    token: str
    array_index: int | None
    folder: str
    script: str
    script_sha256: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run found and what it has to submit, both by job id."""

    verified: list[str]
    open: list[str]
    to_submit: dict[str, int]


def record_run(
    ledger: Ledger,
    run: NewRun,
    jobs: Sequence[NewJob],
    make_attempts: Callable[[dict[str, int]], dict[str, NewAttempt]],
) -> Recorded:
    """Store a run, its jobs, and an attempt for each job that is neither verified nor under way.

    One transaction with the write lock held throughout, so of two terminals only one submits a job. An attempt that
    has ended but was not judged yet counts as under way: it may have been good. `make_attempts` is given
    job id -> attempt number and renders the scripts; when it raises, nothing is stored.
    """
    with ledger.writing() as session:
        latest = _latest_attempts(session, [job.id for job in jobs])
        verdicts = {job_id: attempt.verdict for job_id, attempt in latest.items()}
        by_id = {job.id: job for job in jobs}  # cases may share a job
        verified = [job_id for job_id in by_id if verdicts.get(job_id) == VERIFIED]
        under_way = [job_id for job_id in by_id if verdicts.get(job_id, FAILED) is None]
        missing = {
            job_id: (latest[job_id].number if job_id in latest else 0) + 1
            for job_id in by_id
            if verdicts.get(job_id, FAILED) == FAILED
        }
        made = make_attempts(missing)
        session.add(Run(created_at=now(), **fields(run)))
        session.flush()
        _add_jobs(session, run.id, jobs)
        for job_id, number in missing.items():
            session.add(_submitting(run, by_id[job_id], number, made[job_id]))
        detail = f"{len(verified)} verified, {len(under_way)} under way, {len(missing)} to submit"
        session.add(Event(at=now(), run_id=run.id, attempt_id=None, kind="run", detail=detail))
    return Recorded(verified, under_way, missing)


def record_submission(ledger: Ledger, token: str, scheduler_id: str) -> None:
    """The scheduler took the submission with this token; elements of an array get `ID_INDEX`.

    What is known already stays: two terminals may find the same submission. But that it never arrived, which another
    host may have concluded too early, is taken back.
    """
    open_or_denied = sa.or_(Attempt.phase == SUBMITTING, Attempt.state == NEVER_SUBMITTED)
    with ledger.writing() as session:
        for attempt in session.scalars(sa.select(Attempt).where(Attempt.token == token, open_or_denied)):
            index = "" if attempt.array_index is None else f"_{attempt.array_index}"
            attempt.scheduler_id = f"{scheduler_id}{index}"
            attempt.phase, attempt.state = WAITING, "PENDING"
            attempt.submitted_at, attempt.ended_at, attempt.reason = now(), None, None
            attempt.verdict, attempt.verdict_reason = None, None
            note(session, attempt, "submitted", attempt.scheduler_id)


def record_never_submitted(ledger: Ledger, token: str, why: str) -> None:
    """The scheduler refused the submission, or never heard of it."""
    with ledger.writing() as session:
        waiting = sa.select(Attempt).where(Attempt.token == token, Attempt.phase == SUBMITTING)
        for attempt in session.scalars(waiting):
            attempt.phase, attempt.state = ENDED, NEVER_SUBMITTED
            attempt.ended_at, attempt.reason = now(), why
            attempt.verdict, attempt.verdict_reason = FAILED, why
            note(session, attempt, "not submitted", why)


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A submission of which it is not known whether the scheduler took it; `host` and `pid` are who made it."""

    token: str
    scheduler: str
    host: str
    pid: int
    created_at: datetime
    folders: tuple[str, ...]


def unsettled(ledger: Ledger) -> list[Unsettled]:
    """Every submission that was begun and has neither an id nor a refusal."""
    query = (
        sa.select(Attempt.token, Attempt.scheduler, Run.host, Run.pid, Attempt.created_at, Attempt.folder)
        .join(Run, Run.id == Attempt.run_id)
        .where(Attempt.phase == SUBMITTING)
        .order_by(Attempt.id)
    )
    found: dict[str, Unsettled] = {}
    with ledger.reading() as session:
        for token, scheduler, host, pid, created_at, folder in session.execute(query):
            before = found[token].folders if token in found else ()
            found[token] = Unsettled(token, scheduler, host, pid, created_at, (*before, folder))
    return list(found.values())


def _latest_attempts(session: Session, job_ids: list[str]) -> dict[str, Attempt]:
    query = sa.select(Attempt).where(Attempt.job_id.in_(job_ids)).order_by(Attempt.number)
    return {attempt.job_id: attempt for attempt in session.scalars(query)}


def _add_jobs(session: Session, run_id: str, jobs: Sequence[NewJob]) -> None:
    known = set(session.scalars(sa.select(Job.id).where(Job.id.in_([job.id for job in jobs]))))
    for job in {job.id: job for job in jobs}.values():
        if job.id not in known:
            given = {k: v for k, v in fields(job).items() if k not in ("case_name", "scheduler")}
            session.add(Job(created_at=now(), **given))
    session.flush()
    for position, job in enumerate(jobs):
        session.add(RunJob(run_id=run_id, job_id=job.id, position=position, case_name=job.case_name))


def _submitting(run: NewRun, job: NewJob, number: int, made: NewAttempt) -> Attempt:
    return Attempt(
        job_id=job.id,
        run_id=run.id,
        number=number,
        scheduler=job.scheduler,
        host=run.host,
        state="SUBMITTING",
        phase=SUBMITTING,
        created_at=now(),
        **fields(made),
    )
