"""Runs, new attempts of their jobs, and the submission of these. A crash neither submits a job twice nor loses one.

A run is stored in one transaction, which has the write lock from its start: of two terminals only one makes an attempt.
A job that Slurm starts again after its end (`requeue: true`) is submitted once: each further run is an attempt.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path, PurePath

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import JobSpec
from orchestrator.ledger.attempts import LOST_IS_REVISED_FOR, note
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.rows import ATTEMPTS, AttemptRow, attempts_by_job
from orchestrator.ledger.tables import (
    ENDED,
    FAILED,
    NEVER_SUBMITTED,
    OPEN,
    QUEUED,
    RUNNING,
    SUBMITTING,
    WAITING,
    Attempt,
    Event,
    ExperimentFile,
    Job,
    Run,
    RunJob,
    SchedulerKind,
    batched,
    field_values,
    rows_of,
    rows_with,
)


@dataclass(frozen=True, slots=True)
class Submitter:
    """Process that submits, as `orchestrator.identity` identifies it."""

    host: str
    user: str
    pid: int
    machine: str | None = None
    pid_start_ticks: int | None = None


def queued_attempts(ledger: Ledger, *, run_id: str | None = None) -> list[AttemptRow]:
    """Return the attempts that are not submitted yet, of one run or of all, in the order of submission."""
    wanted = [Attempt.state == QUEUED, Attempt.phase == WAITING, *([Attempt.run_id == run_id] if run_id else [])]
    query = sa.select(*ATTEMPTS.columns).where(*wanted).order_by(Attempt.run_id, Attempt.id)
    with ledger.reading() as session:
        return list(ATTEMPTS.rows(session.execute(query)))


def under_way_of(ledger: Ledger, run_id: str, file: str | None = None) -> list[str]:
    """Return the scheduler's ids of a run's open attempts, of all files or one. An array has one id."""
    query = sa.select(Attempt.scheduler_id).where(Attempt.run_id == run_id, Attempt.phase.in_(OPEN))
    if file is not None:
        query = query.where(Attempt.file == file)
    return sorted({own_id.partition("_")[0] for own_id in ledger.scalars(query) if own_id is not None})


def claim(
    ledger: Ledger,
    attempt_ids: Sequence[int],
    token: str,
    sender: Submitter,
    *,
    file: str | None = None,
    slurm_cluster: str | None = None,
) -> bool:
    """Claim queued attempts, which `sender` submits with this token to this Slurm cluster.

    Return False, and claim none, if another process has claimed, cancelled or (if `file` is given) rewritten one.
    """
    with ledger.writing() as session:
        free = sa.select(sa.func.count()).where(Attempt.state == QUEUED)
        if file is not None:
            free = free.where(Attempt.file == file)
        count = sum(session.scalars(free.where(Attempt.id.in_(ids))).one() for ids in batched(attempt_ids))
        if count != len(attempt_ids):
            return False
        claimed = {"token": token, "state": "SUBMITTING", "phase": SUBMITTING, "reason": None, "created_at": now()}
        claimed |= {"unsettled_since": None, "slurm_cluster": slurm_cluster, **field_values(sender)}
        for ids in batched(attempt_ids):
            session.execute(
                sa.update(Attempt).where(Attempt.id.in_(ids)).values(**claimed),
                execution_options={"synchronize_session": False},
            )
    return True


def record_submission(ledger: Ledger, token: str, scheduler_id: str, slurm_cluster: str | None = None) -> bool:
    """Record that the scheduler accepted the submission with this token. Elements of an array get `ID_INDEX`.

    `slurm_cluster` is the cluster that accepted it, if that is known.

    Return whether any attempt has the token: none has if another process has queued the attempts again meanwhile.
    Attempts with an id keep it, because two terminals may find the same submission. An attempt that another host
    recorded as never submitted becomes PENDING.
    """
    at = now()
    without_id = sa.and_(Attempt.token == token, sa.or_(Attempt.phase == SUBMITTING, Attempt.state == NEVER_SUBMITTED))
    own_id = sa.case(
        (Attempt.array_index.is_(None), scheduler_id),
        else_=sa.literal(f"{scheduler_id}_") + sa.cast(Attempt.array_index, sa.String),
    )
    fresh = {"phase": WAITING, "state": "PENDING", "submitted_at": at, "ended_at": None, "reason": None}
    fresh |= {"unsettled_since": None} | ({"slurm_cluster": slurm_cluster} if slurm_cluster else {})
    fresh |= {"verdict": None, "verdict_reason": None, "failure": None, "deciding_line": None, "deciding_rank": None}
    event = (sa.literal(at, sa.DateTime()), Attempt.run_id, Attempt.id, sa.literal("submitted"), own_id)
    with ledger.writing() as session:
        noted = sa.select(*event).where(without_id)
        session.execute(sa.insert(Event).from_select(["at", "run_id", "attempt_id", "kind", "detail"], noted))
        session.execute(
            sa.update(Attempt).where(without_id).values(scheduler_id=own_id, **fresh),
            execution_options={"synchronize_session": False},
        )
        return session.scalar(sa.select(Attempt.id).where(Attempt.token == token).limit(1)) is not None


def record_queued_again(ledger: Ledger, token: str, why: str) -> None:
    """Queue the attempts of a submission again. Only for a token that the scheduler certainly does not have."""
    with ledger.writing() as session:
        for attempt in session.scalars(sa.select(Attempt).where(Attempt.token == token, Attempt.phase == SUBMITTING)):
            attempt.phase, attempt.state, attempt.token, attempt.reason = WAITING, QUEUED, "", why
            note(session, attempt, "queued", why)


def record_never_submitted(ledger: Ledger, attempt_ids: Sequence[int], why: str, failure: str) -> None:
    """Record attempts that no scheduler has or will have: refused, cancelled while queued, or not tried."""
    with ledger.writing() as session:
        waiting = sa.or_(Attempt.phase == SUBMITTING, Attempt.state == QUEUED)
        for attempt in session.scalars(sa.select(Attempt).where(Attempt.id.in_(attempt_ids), waiting)):
            attempt.phase, attempt.state = ENDED, NEVER_SUBMITTED
            attempt.ended_at, attempt.reason = now(), why
            attempt.verdict, attempt.verdict_reason, attempt.failure = FAILED, why, failure
            note(session, attempt, "not submitted", why)


def interrupted_submissions(ledger: Ledger) -> list[list[AttemptRow]]:
    """Return the attempts of every submission that was started and has neither an id nor a refusal."""
    query = sa.select(*ATTEMPTS.columns).where(Attempt.phase == SUBMITTING).order_by(Attempt.id)
    by_token: dict[str, list[AttemptRow]] = {}
    for attempt in ATTEMPTS.read(ledger, query):
        by_token.setdefault(attempt.token, []).append(attempt)
    return list(by_token.values())


def record_unseen(
    ledger: Ledger, unseen: Mapping[int, int | None], boot_id: str, seconds_since_boot: float
) -> dict[int, float]:
    """Store that the scheduler does not list these attempts. `unseen` has the size of each log in bytes (None: no log).

    Return the seconds since then, by the clock of this boot, in which the log has not grown.
    """
    waited: dict[int, float] = {}
    if not unseen:
        return waited
    with ledger.writing() as session:
        for (attempt,) in rows_with(session, sa.select(Attempt).where(Attempt.phase != ENDED), Attempt.id, unseen):
            is_new = attempt.unseen_since is None
            if is_new:
                attempt.unseen_since = now()
                note(session, attempt, "unseen", "the scheduler answers and does not list the job")
            if is_new or attempt.unseen_log_bytes != unseen[attempt.id]:
                attempt.unseen_log_bytes, attempt.unsettled_since = unseen[attempt.id], None
            waited[attempt.id] = _waited_s(attempt, boot_id, seconds_since_boot)
    return waited


def time_unsettled_s(
    ledger: Ledger, attempt_ids: Sequence[int], boot_id: str, seconds_since_boot: float
) -> dict[int, float]:
    """Return the seconds, by the clock of this boot, for which these attempts have waited for an answer here."""
    with ledger.writing() as session:
        attempts = (row[0] for row in rows_with(session, sa.select(Attempt), Attempt.id, attempt_ids))
        return {attempt.id: _waited_s(attempt, boot_id, seconds_since_boot) for attempt in attempts}


def _waited_s(attempt: Attempt, boot_id: str, seconds_since_boot: float) -> float:
    since = attempt.unsettled_since or {}
    if boot_id not in since:
        attempt.unsettled_since = {**since, boot_id: seconds_since_boot}
    return seconds_since_boot - since.get(boot_id, seconds_since_boot)


BY_SLURM = "started again by Slurm"
"""Origin of an attempt that Slurm made by starting a job again."""
_RUN = re.compile(r"\.run([0-9]+)$")
_OF_SUBMISSION = (
    *("job_id", "run_id", "scheduler", "host", "user", "slurm_cluster", "file", "options", "is_requeued", "token"),
    *("array_index", "scheduler_id", "script_sha256"),
)


def first_folder(folder: str) -> str:
    """Return the folder of the first run of a job."""
    return _RUN.sub("", folder)


def next_folder(folder: str) -> str:
    """Return the folder of the run after the one in this folder (templates/again.sh.j2)."""
    run = _RUN.search(folder)
    return f"{first_folder(folder)}.run{int(run[1]) + 1 if run else 2}"


def may_start_again(ledger: Ledger) -> list[AttemptRow]:
    """Return the attempts that Slurm may have started again: open ones, and those of the last 30 days."""
    recent = sa.or_(Attempt.ended_at.is_(None), Attempt.ended_at > now() - LOST_IS_REVISED_FOR)
    query = sa.select(*ATTEMPTS.columns).where(
        Attempt.scheduler == "slurm", Attempt.is_requeued.is_(sa.true()), Attempt.scheduler_id.is_not(None), recent
    )
    rows = ATTEMPTS.read(ledger, query)
    recorded = {row.folder for row in rows}
    return [row for row in rows if next_folder(row.folder) not in recorded]


def record_restart(ledger: Ledger, before: AttemptRow, started_at: datetime) -> None:
    """Store the next run of an attempt as a new attempt. Two processes that see the run store it once."""
    with ledger.writing() as session:
        earlier = session.get_one(Attempt, before.attempt_id)
        folder = next_folder(earlier.folder)
        same = sa.select(Attempt.id).where(Attempt.job_id == earlier.job_id, Attempt.folder == folder)
        if session.scalar(same) is not None:
            return
        last = session.scalars(sa.select(sa.func.max(Attempt.number)).where(Attempt.job_id == earlier.job_id)).one()
        attempt = Attempt(
            **{name: getattr(earlier, name) for name in _OF_SUBMISSION},
            number=last + 1,
            state="RUNNING",
            phase=RUNNING,
            folder=folder,
            script="",  # that of the earlier attempt
            created_at=started_at,
            submitted_at=started_at,
            started_at=started_at,
            origin=BY_SLURM,
        )
        session.add(attempt)
        session.flush()
        note(session, attempt, "started again", f"by Slurm, job {earlier.scheduler_id}, in {PurePath(folder).name}")


def experiment_files(ledger: Ledger) -> dict[str, Path]:
    """Return the recorded file of each experiment that was submitted by a path."""
    with ledger.reading() as session:
        rows = session.execute(sa.select(ExperimentFile.experiment, ExperimentFile.file))
        return {experiment: Path(file) for experiment, file in rows}


def record_experiment_file(ledger: Ledger, experiment: str, file: Path) -> None:
    """Store the file of an experiment. ReproError if another file that still exists has this name."""
    other = experiment_files(ledger).get(experiment)
    if other is not None and other.is_file() and not other.samefile(file):
        hint = "rename the file or its folder: both are part of the experiment's name"
        raise ReproError(Problem(f"{experiment} was submitted from another file, {other}", f"{file}:", hint))
    with ledger.writing() as session:
        session.merge(ExperimentFile(experiment=experiment, file=str(file)))


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
