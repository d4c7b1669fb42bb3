"""Runs: the jobs that a `repro submit` requests, and new attempts of those that need one.

A run is stored in one transaction, which has the write lock from its start: of two terminals only one makes an attempt.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.job_spec import JobSpec
from orchestrator.ledger.attempts import note
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.rows import AttemptRow, attempts_by_job
from orchestrator.ledger.submissions import Submitter
from orchestrator.ledger.tables import (
    QUEUED,
    RUNNING,
    WAITING,
    Attempt,
    Event,
    Job,
    Run,
    RunJob,
    SchedulerKind,
    field_values,
    rows_of,
    rows_with,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(Submitter):
    """Process, code and package versions of a submission. The commit is None if the code is not a git checkout."""

    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun(Provenance):
    """A run to be recorded. Its attempts store the process that submits them."""

    id: str
    experiment: str
    scale: str
    cluster: str
    command: list[str]
    profile: dict[str, object]
    profile_file: str | None = None


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that a run requests, with the fields of an attempt of it."""

    id: str
    case_name: str
    cluster: str
    program: str
    code: str
    image: str | None
    spec: JobSpec
    gpus: int
    iterations: int
    scheduler: SchedulerKind
    repeat: int = 1
    image_digest: str | None = None


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """An attempt to be stored.

    `file` is submitted with the further `options`; `array_index` is the index of the attempt in that array. Repeats
    share a script: of the attempts of a run with the same digest, one has the text of the script.
    """

    file: str
    array_index: int | None
    options: tuple[str, ...]
    is_requeued: bool
    folder: str
    script: str
    script_sha256: str


class Disposition(str, enum.Enum):
    """State of a job at the start of a run that requests it."""

    DONE = "done"
    UNDER_WAY = "under way"
    LEFT = "left"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Dispositions of a run's jobs by job id.

    `left` has the failure class of each job that is not run again, `to_submit` the number of each new attempt.
    """

    done: list[str]
    under_way: list[str]
    left: dict[str, str | None]
    to_submit: dict[str, int]


class RunTransaction:
    """Open transaction of a new run. It holds the ledger's write lock until the `with` block of `new_run` ends.

    `before` maps the id of each requested job to its attempts, if it has any.
    """

    def __init__(
        self, session: Session, run: NewRun, jobs: Sequence[NewJob], before: Mapping[str, Sequence[AttemptRow]]
    ) -> None:
        self._session, self._run, self._jobs = session, run, jobs
        self._by_id = {job.id: job for job in jobs}  # cases may share a job
        self.before = before

    def add(
        self,
        dispositions: Mapping[str, Disposition],
        attempts: Mapping[str, NewAttempt],
        run_plan: Mapping[str, object],
    ) -> Recorded:
        """Store the run, its jobs with these dispositions, and one attempt for each missing job."""
        add_run(self._session, self._run, self._jobs, run_plan)
        _add_attempts(self._session, self._run, self._by_id, self.before, attempts)
        ids = {
            disposition: [job_id for job_id in self._by_id if dispositions[job_id] is disposition]
            for disposition in Disposition
        }
        detail = ", ".join(f"{len(job_ids)} {disposition.value}" for disposition, job_ids in ids.items())
        self._session.add(Event(at=now(), run_id=self._run.id, attempt_id=None, kind="run", detail=detail))
        numbers = {job_id: _next_number(self.before.get(job_id, ())) for job_id in ids[Disposition.MISSING]}
        left = {
            job_id: self.before[job_id][-1].failure if job_id in self.before else None
            for job_id in ids[Disposition.LEFT]
        }
        return Recorded(ids[Disposition.DONE], ids[Disposition.UNDER_WAY], left, numbers)


@contextmanager
def new_run(ledger: Ledger, run: NewRun, jobs: Sequence[NewJob]) -> Iterator[RunTransaction]:
    """Open the transaction of a new run. Of two processes only one makes an attempt of a job.

    The write lock is held while the caller decides what is missing and writes the scripts. Nothing is stored if the
    block raises.
    """
    with ledger.writing() as session:
        yield RunTransaction(session, run, jobs, attempts_by_job(session, ledger, {job.id for job in jobs}))


def run_ids(ledger: Ledger) -> set[str]:
    """Return the ids of all runs."""
    return set(ledger.scalars(sa.select(Run.id)))


def run_record(ledger: Ledger, run_id: str) -> Run:
    """Return one run."""
    with ledger.reading() as session:
        return session.get_one(Run, run_id)


def record_run_options(ledger: Ledger, run_id: str, run_options: Mapping[str, object]) -> None:
    """Replace the options of a run: later commands that submit its queued attempts follow them."""
    with ledger.writing() as session:
        session.get_one(Run, run_id).run_options = dict(run_options)


def add_run(session: Session, run: NewRun, jobs: Sequence[NewJob], run_options: Mapping[str, object]) -> None:
    """Store a run and the jobs that it requests, in the caller's transaction."""
    columns = {name: value for name, value in field_values(run).items() if name not in ("machine", "pid_start_ticks")}
    session.execute(sa.insert(rows_of(Run)), [{**columns, "created_at": now(), "run_options": dict(run_options)}])
    _add_jobs(session, run.id, jobs)


def _next_number(before: Sequence[AttemptRow]) -> int:
    """Return the number of the attempt to make.

    A queued attempt whose submitter is gone is made again under its number: no scheduler has had it.
    """
    return before[-1].number + (before[-1].state != QUEUED) if before else 1


def image_digests(ledger: Ledger, cluster: str, image: str) -> set[str]:
    """Return the recorded digests and file identities of this image in all jobs of a cluster."""
    query = sa.select(Job.image_digest).distinct().where(Job.cluster == cluster, Job.image == image)
    return {digest for digest in ledger.scalars(query) if digest is not None}


def _add_jobs(session: Session, run_id: str, jobs: Sequence[NewJob]) -> None:
    existing = {row[0] for row in rows_with(session, sa.select(Job.id), Job.id, (job.id for job in jobs))}
    new = [
        {
            "created_at": now(),
            "configuration": job.spec.to_json(),
            **{k: v for k, v in field_values(job).items() if k not in ("case_name", "scheduler", "spec")},
        }
        for job in {job.id: job for job in jobs}.values()
        if job.id not in existing
    ]
    if new:
        session.execute(sa.insert(rows_of(Job)), new)
    requested = [
        {"run_id": run_id, "job_id": job.id, "position": position, "case_name": job.case_name}
        for position, job in enumerate(jobs)
    ]
    session.execute(sa.insert(rows_of(RunJob)), requested)


def _add_attempts(
    session: Session,
    run: NewRun,
    jobs: Mapping[str, NewJob],
    before: Mapping[str, Sequence[AttemptRow]],
    made: Mapping[str, NewAttempt],
) -> None:
    new, rewritten = [], []
    for job_id, attempt in made.items():  # in the order of submission
        earlier = before.get(job_id, ())
        row = field_values(attempt) | {
            "job_id": job_id,
            "run_id": run.id,
            "number": _next_number(earlier),
            "scheduler": jobs[job_id].scheduler,
            **{field.name: getattr(run, field.name) for field in fields(Submitter)},
            "token": "",
            "state": QUEUED,
            "phase": WAITING,
            "reason": None,
            "created_at": now(),
            "options": list(attempt.options),
        }
        if earlier and earlier[-1].state == QUEUED:
            rewritten.append({**row, "id": earlier[-1].attempt_id})
        else:
            new.append(row)
    if new:
        session.execute(sa.insert(rows_of(Attempt)), new)
    if rewritten:
        session.execute(sa.update(Attempt), rewritten)


BY_HAND = "by hand"
"""Origin of an attempt that a user submitted without `repro`."""


def adopted_ids(ledger: Ledger, job_ids: Sequence[str]) -> set[tuple[str, str]]:
    """Return folder and scheduler id of every attempt of these jobs."""
    with ledger.reading() as session:
        return _recorded(session, job_ids)


def record_adopted(ledger: Ledger, run: NewRun, submitted: Sequence[tuple[NewJob, Attempt]]) -> list[int]:
    """Store a run of these jobs with the attempt of each that a user submitted. Return the ids of the new attempts.

    An attempt that the ledger has already is left out; without a new attempt nothing is stored.
    """
    with ledger.writing() as session:
        recorded = _recorded(session, [job.id for job, _ in submitted])
        new = [(job, row) for job, row in submitted if (row.folder, row.scheduler_id) not in recorded]
        if new:
            add_run(session, run, [job for job, _ in new], {})
        for job, attempt in new:
            last = session.scalar(sa.select(sa.func.max(Attempt.number)).where(Attempt.job_id == job.id))
            attempt.job_id, attempt.run_id, attempt.number, attempt.options = job.id, run.id, (last or 0) + 1, []
            attempt.state, attempt.phase = ("RUNNING", RUNNING) if attempt.started_at else ("PENDING", WAITING)
            attempt.created_at = attempt.submitted_at or attempt.started_at or now()
            session.add(attempt)
            session.flush()
            note(session, attempt, "adopted", f"{attempt.origin}, job {attempt.scheduler_id}")
        return [attempt.id for _, attempt in new]


def _recorded(session: Session, job_ids: Sequence[str]) -> set[tuple[str, str]]:
    query = sa.select(Attempt.folder, Attempt.scheduler_id).where(Attempt.scheduler_id.is_not(None))
    return {(folder, str(scheduler_id)) for folder, scheduler_id in rows_with(session, query, Attempt.job_id, job_ids)}
