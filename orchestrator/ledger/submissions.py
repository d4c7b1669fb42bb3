"""Submissions of attempts. A crash neither submits a job twice nor loses one.

A job that Slurm starts again after its end (`requeue: true`) is submitted once: each further run is an attempt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath

import sqlalchemy as sa

from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.attempts import LOST_IS_REVISED_FOR, note
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.rows import ATTEMPTS, AttemptRow
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
    batched,
    field_values,
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
