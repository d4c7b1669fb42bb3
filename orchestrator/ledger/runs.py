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
from orchestrator.ledger.database import Ledger, RunFolders, now
from orchestrator.ledger.rows import AttemptRow, RowReader
from orchestrator.ledger.submissions import Submitter
from orchestrator.ledger.tables import (
    MEASURED,
    QUEUED,
    RUNNING,
    WAITING,
    Attempt,
    Event,
    Job,
    Run,
    RunJob,
    SchedulerKind,
    batched,
    field_values,
    rows_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestAttempt(AttemptRow):
    """The latest attempt of a job.

    `submitted` counts the attempts that a scheduler has had, `measured` those that are verified or partial.
    """

    options: tuple[str, ...]
    submitted: int
    measured: int


_OTHER = sa.orm.aliased(Attempt)
LATEST_ATTEMPTS = RowReader(
    LatestAttempt,
    [Attempt],
    attempt_id=Attempt.id,
    submitted=sa.select(sa.func.count(_OTHER.scheduler_id)).where(_OTHER.job_id == Attempt.job_id).label("submitted"),
    measured=sa.select(sa.func.count())
    .where(_OTHER.job_id == Attempt.job_id, _OTHER.verdict.in_(MEASURED))
    .label("measured"),
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
    workload: str
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


@dataclass(frozen=True, slots=True)
class Missing:
    """Number of an attempt to make, and the attempt before it."""

    number: int
    before: LatestAttempt | None


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

    `latest` maps the id of each requested job to its latest attempt, if it has one.
    """

    def __init__(
        self, session: Session, run: NewRun, jobs: Sequence[NewJob], latest: Mapping[str, LatestAttempt]
    ) -> None:
        self._session, self._run, self._jobs = session, run, jobs
        self._by_id = {job.id: job for job in jobs}  # cases may share a job
        self._dispositions: Mapping[str, Disposition] = {}
        self._missing: dict[str, Missing] = {}
        self.latest = latest

    def missing(self, dispositions: Mapping[str, Disposition]) -> Mapping[str, Missing]:
        """Set the disposition of each job, and return the attempts to make.

        A queued attempt whose submitter is gone is made again under its number: no scheduler has had it.
        """
        self._dispositions = dispositions
        self._missing = {
            job_id: _missing(self.latest.get(job_id))
            for job_id in self._by_id
            if dispositions[job_id] is Disposition.MISSING
        }
        return self._missing

    def add(self, attempts: Mapping[str, NewAttempt], run_plan: Mapping[str, object]) -> Recorded:
        """Store the run, its jobs, and one attempt for each missing job."""
        add_run(self._session, self._run, self._jobs, run_plan)
        _add_attempts(self._session, self._run, self._by_id, self._missing, attempts)
        ids = {
            disposition: [job_id for job_id in self._by_id if self._dispositions[job_id] is disposition]
            for disposition in Disposition
        }
        detail = ", ".join(f"{len(job_ids)} {disposition.value}" for disposition, job_ids in ids.items())
        self._session.add(Event(at=now(), run_id=self._run.id, attempt_id=None, kind="run", detail=detail))
        numbers = {job_id: missing.number for job_id, missing in self._missing.items()}
        left = {
            job_id: self.latest[job_id].failure if job_id in self.latest else None for job_id in ids[Disposition.LEFT]
        }
        return Recorded(ids[Disposition.DONE], ids[Disposition.UNDER_WAY], left, numbers)


@contextmanager
def new_run(ledger: Ledger, run: NewRun, jobs: Sequence[NewJob]) -> Iterator[RunTransaction]:
    """Open the transaction of a new run. Of two processes only one makes an attempt of a job.

    The write lock is held while the caller decides what is missing and writes the scripts. Nothing is stored if the
    block raises.
    """
    with ledger.writing() as session:
        latest = _latest(session, list({job.id: job for job in jobs}), ledger.run_folders())
        yield RunTransaction(session, run, jobs, latest)


def run_ids(ledger: Ledger) -> set[str]:
    """Return the ids of all runs."""
    with ledger.reading() as session:
        return set(session.scalars(sa.select(Run.id)))


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
    row = {"created_at": now(), **_run_fields(run), "run_options": dict(run_options)}
    session.execute(sa.insert(rows_of(Run)), [row])
    _add_jobs(session, run.id, jobs)


def _run_fields(run: NewRun) -> dict[str, object]:
    return {name: value for name, value in field_values(run).items() if name not in ("machine", "pid_start_ticks")}


def _missing(before: LatestAttempt | None) -> Missing:
    if before is None:
        return Missing(1, None)
    return Missing(before.number if before.state == QUEUED else before.number + 1, before)


def latest_attempts(ledger: Ledger, job_ids: Sequence[str]) -> dict[str, LatestAttempt]:
    """Return the latest attempt of each of these jobs that has one."""
    with ledger.reading() as session:
        return _latest(session, list(job_ids), ledger.run_folders())


def image_digests(ledger: Ledger, cluster: str, image: str) -> set[str]:
    """Return the recorded digests and file identities of this image in all jobs of a cluster."""
    query = sa.select(Job.image_digest).distinct().where(Job.cluster == cluster, Job.image == image)
    with ledger.reading() as session:
        return {digest for digest in session.scalars(query) if digest is not None}


def _latest(session: Session, job_ids: list[str], folders: RunFolders) -> dict[str, LatestAttempt]:
    latest: dict[str, LatestAttempt] = {}
    for ids in batched(job_ids):
        query = sa.select(*LATEST_ATTEMPTS.columns).where(Attempt.job_id.in_(ids)).order_by(Attempt.number)
        latest |= {attempt.job_id: attempt for attempt in LATEST_ATTEMPTS.rows(session.execute(query), folders)}
    return latest


def _add_jobs(session: Session, run_id: str, jobs: Sequence[NewJob]) -> None:
    existing: set[str] = set()
    for ids in batched([job.id for job in jobs]):
        existing |= set(session.scalars(sa.select(Job.id).where(Job.id.in_(ids))))
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
    missing: Mapping[str, Missing],
    made: Mapping[str, NewAttempt],
) -> None:
    new, rewritten = [], []
    for job_id, attempt in made.items():  # in the order of submission
        before = missing[job_id].before
        row = field_values(attempt) | {
            "job_id": job_id,
            "run_id": run.id,
            "number": missing[job_id].number,
            "scheduler": jobs[job_id].scheduler,
            **{field.name: getattr(run, field.name) for field in fields(Submitter)},
            "token": "",
            "state": QUEUED,
            "phase": WAITING,
            "reason": None,
            "created_at": now(),
            "options": list(attempt.options),
        }
        if before is not None and before.state == QUEUED:
            rewritten.append({**row, "id": before.attempt_id})
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


def record_adopted(ledger: Ledger, run: NewRun, jobs: Sequence[NewJob], attempts: Mapping[str, Attempt]) -> list[int]:
    """Store a run of these jobs with an attempt for each. `attempts` are by job id.

    Each attempt has what the user submitted; `started_at` (UTC) is None if the job has not started. Return the ids of
    the new attempts. An attempt that the ledger has already is left out; without a new attempt
    nothing is stored.
    """
    with ledger.writing() as session:
        recorded = _recorded(session, [job.id for job in jobs])
        new = [job for job in jobs if (attempts[job.id].folder, attempts[job.id].scheduler_id) not in recorded]
        if not new:
            return []
        add_run(session, run, new, {"origin": BY_HAND})
        adopted = [_completed(session, run.id, job, attempts[job.id]) for job in new]
        session.flush()
        for attempt in adopted:
            note(session, attempt, "adopted", f"{attempt.origin}, job {attempt.scheduler_id}")
        return [attempt.id for attempt in adopted]


def _completed(session: Session, run_id: str, job: NewJob, attempt: Attempt) -> Attempt:
    last = session.scalar(sa.select(sa.func.max(Attempt.number)).where(Attempt.job_id == job.id))
    has_started = attempt.started_at is not None
    attempt.job_id, attempt.run_id, attempt.number = job.id, run_id, (last or 0) + 1
    attempt.scheduler, attempt.options = job.scheduler, []
    attempt.state, attempt.phase = ("RUNNING", RUNNING) if has_started else ("PENDING", WAITING)
    attempt.created_at = attempt.submitted_at or attempt.started_at or now()
    session.add(attempt)
    return attempt


def _recorded(session: Session, job_ids: Sequence[str]) -> set[tuple[str, str]]:
    recorded: set[tuple[str, str]] = set()
    for ids in batched(sorted(set(job_ids))):
        query = sa.select(Attempt.folder, Attempt.scheduler_id)
        query = query.where(Attempt.job_id.in_(ids), Attempt.scheduler_id.is_not(None))
        recorded |= {(folder, str(scheduler_id)) for folder, scheduler_id in session.execute(query)}
    return recorded
