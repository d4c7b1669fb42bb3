"""Runs, jobs and attempts: written before the scheduler is called, read by every later command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.tables import Attempt, Event, Job, Run, RunJob

SUBMITTING, WAITING, RUNNING, ENDED = "submitting", "waiting", "running", "ended"
OPEN = (SUBMITTING, WAITING, RUNNING)
VERIFIED, FAILED = "verified", "failed"
NEVER_SUBMITTED = "NEVER_SUBMITTED"


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
class JobRow:
    """A job of an experiment with its latest attempt: what status, logs, refresh and collect work on."""

    experiment: str
    scale: str
    cluster: str
    case_name: str
    job_id: str
    run_id: str
    workload: str
    gpus: int
    iterations: int
    configuration: dict[str, Any]
    attempt_id: int
    number: int
    scheduler: str
    token: str
    array_index: int | None
    scheduler_id: str | None
    state: str
    phase: str
    reason: str | None
    nodes: str | None
    exit_code: int | None
    signal: int | None
    folder: str
    created_at: datetime
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    refreshed_at: datetime | None
    iteration: int | None
    verdict: str | None
    verdict_reason: str | None


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
        verified = [j.id for j in jobs if j.id in latest and latest[j.id].verdict == VERIFIED]
        under_way = [j.id for j in jobs if j.id in latest and latest[j.id].verdict is None]
        missing = {
            job.id: (latest[job.id].number if job.id in latest else 0) + 1
            for job in jobs
            if job.id not in verified and job.id not in under_way
        }
        made = make_attempts(missing)
        session.add(Run(created_at=now(), **_fields(run)))
        session.flush()
        _add_jobs(session, run.id, jobs)
        by_id = {job.id: job for job in jobs}
        for job_id, number in missing.items():
            session.add(_submitting(run.id, by_id[job_id], number, made[job_id]))
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
            _note(session, attempt, "submitted", attempt.scheduler_id)


def record_never_submitted(ledger: Ledger, token: str, why: str) -> None:
    """The scheduler refused the submission, or never heard of it."""
    with ledger.writing() as session:
        waiting = sa.select(Attempt).where(Attempt.token == token, Attempt.phase == SUBMITTING)
        for attempt in session.scalars(waiting):
            attempt.phase, attempt.state = ENDED, NEVER_SUBMITTED
            attempt.ended_at, attempt.reason = now(), why
            attempt.verdict, attempt.verdict_reason = FAILED, why
            _note(session, attempt, "not submitted", why)


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
        for token, scheduler, host, pid, created_at, folder in session.execute(query).tuples():
            before = found[token].folders if token in found else ()
            found[token] = Unsettled(token, scheduler, host, pid, created_at, (*before, folder))
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Observation:
    """What the scheduler says about an attempt now."""

    state: str
    phase: str
    reason: str | None = None
    nodes: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


def record_observations(ledger: Ledger, seen: dict[int, Observation], looked_at: Iterable[int]) -> None:
    """Store what was seen; `looked_at` are the attempts that were asked for, seen or not."""
    wanted = sorted({*seen, *looked_at})
    if not wanted:
        return
    with ledger.writing() as session:
        for attempt in session.scalars(sa.select(Attempt).where(Attempt.id.in_(wanted))):
            attempt.refreshed_at = now()
            observation = seen.get(attempt.id)
            if observation is None or attempt.phase == ENDED:
                continue
            if observation.state != attempt.state:
                _note(session, attempt, "state", f"{attempt.state} -> {observation.state}")
            for name, value in _fields(observation).items():
                if value is not None or name == "reason":
                    setattr(attempt, name, value)
            if attempt.phase == ENDED and attempt.ended_at is None:
                attempt.ended_at = now()


def job_rows(
    ledger: Ledger,
    *,
    experiment: str | None = None,
    run_id: str | None = None,
    job_prefix: str | None = None,
    only_open: bool = False,
    unjudged: bool = False,
) -> list[JobRow]:
    """Jobs with their latest attempts, oldest run first; one that two experiments or scales share has a row in each."""
    newest = sa.select(sa.func.max(Attempt.number)).where(Attempt.job_id == Job.id).correlate(Job).scalar_subquery()
    query = (
        sa.select(*_ROW_COLUMNS)
        .select_from(RunJob)
        .join(Run, Run.id == RunJob.run_id)
        .join(Job, Job.id == RunJob.job_id)
        .join(Attempt, sa.and_(Attempt.job_id == Job.id, Attempt.number == newest))
        .order_by(Run.created_at, RunJob.position)
    )
    if experiment is not None:
        query = query.where(Run.experiment == experiment)
    if run_id is not None:
        query = query.where(Run.id == run_id)
    if job_prefix is not None:
        query = query.where(Job.id.startswith(job_prefix, autoescape=True))
    if only_open:
        query = query.where(Attempt.phase.in_(OPEN))
    if unjudged:
        query = query.where(sa.or_(Attempt.phase.in_(OPEN), Attempt.verdict.is_(None)))
    with ledger.reading() as session:
        rows = [JobRow(*row) for row in session.execute(query)]
    latest = {(row.experiment, row.scale, row.job_id): row for row in rows}
    return list(latest.values())


def anything_to_refresh(ledger: Ledger) -> bool:
    """Whether some attempt is under way, or has ended and was not judged."""
    query = sa.select(Attempt.id).where(sa.or_(Attempt.phase.in_(OPEN), Attempt.verdict.is_(None))).limit(1)
    with ledger.reading() as session:
        return session.execute(query).first() is not None


@dataclass(frozen=True, slots=True)
class ExperimentCount:
    """How far an experiment is, over the latest attempts of its jobs."""

    experiment: str
    scale: str
    cluster: str
    cases: int
    verified: int
    failed: int
    running: int
    waiting: int


def experiment_counts(ledger: Ledger) -> list[ExperimentCount]:
    """One row per experiment, scale and cluster, counted by the database."""
    newest = sa.select(Attempt.job_id, sa.func.max(Attempt.number).label("number")).group_by(Attempt.job_id).subquery()
    jobs = (
        sa.select(Run.experiment, Run.scale, Run.cluster, RunJob.job_id)
        .join(Run, Run.id == RunJob.run_id)
        .distinct()
        .subquery()
    )

    def count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.sum(sa.case((condition, 1), else_=0))

    query = (
        sa.select(
            jobs.c.experiment,
            jobs.c.scale,
            jobs.c.cluster,
            sa.func.count(),
            count(Attempt.verdict == VERIFIED),
            count(Attempt.verdict == FAILED),
            count(Attempt.phase == RUNNING),
            count(Attempt.phase.in_((SUBMITTING, WAITING))),
        )
        .select_from(jobs)
        .join(newest, newest.c.job_id == jobs.c.job_id)
        .join(Attempt, sa.and_(Attempt.job_id == newest.c.job_id, Attempt.number == newest.c.number))
        .group_by(jobs.c.experiment, jobs.c.scale, jobs.c.cluster)
        .order_by(jobs.c.experiment, jobs.c.scale, jobs.c.cluster)
    )
    with ledger.reading() as session:
        return [ExperimentCount(*row) for row in session.execute(query)]


_ROW_COLUMNS = (
    *(Run.experiment, Run.scale, Run.cluster, RunJob.case_name, Job.id, Run.id, Job.workload, Job.gpus),
    *(Job.iterations, Job.configuration, Attempt.id, Attempt.number, Attempt.scheduler, Attempt.token),
    *(Attempt.array_index, Attempt.scheduler_id, Attempt.state, Attempt.phase, Attempt.reason, Attempt.nodes),
    *(Attempt.exit_code, Attempt.signal, Attempt.folder, Attempt.created_at, Attempt.submitted_at),
    *(Attempt.started_at, Attempt.ended_at, Attempt.refreshed_at, Attempt.iteration, Attempt.verdict),
    Attempt.verdict_reason,
)


def _latest_attempts(session: Session, job_ids: list[str]) -> dict[str, Attempt]:
    query = sa.select(Attempt).where(Attempt.job_id.in_(job_ids)).order_by(Attempt.number)
    return {attempt.job_id: attempt for attempt in session.scalars(query)}


def _add_jobs(session: Session, run_id: str, jobs: Sequence[NewJob]) -> None:
    known = set(session.scalars(sa.select(Job.id).where(Job.id.in_([job.id for job in jobs]))))
    for job in jobs:
        if job.id not in known:
            fields = {k: v for k, v in _fields(job).items() if k not in ("case_name", "scheduler")}
            session.add(Job(created_at=now(), **fields))
    session.flush()
    for position, job in enumerate(jobs):
        session.add(RunJob(run_id=run_id, job_id=job.id, position=position, case_name=job.case_name))


def _submitting(run_id: str, job: NewJob, number: int, made: NewAttempt) -> Attempt:
    return Attempt(
        job_id=job.id,
        run_id=run_id,
        number=number,
        scheduler=job.scheduler,
        state="SUBMITTING",
        phase=SUBMITTING,
        created_at=now(),
        **_fields(made),
    )


def _note(session: Session, attempt: Attempt, kind: str, detail: str | None) -> None:
    session.add(Event(at=now(), run_id=attempt.run_id, attempt_id=attempt.id, kind=kind, detail=detail))


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
