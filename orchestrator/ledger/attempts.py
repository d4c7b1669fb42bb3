"""Jobs with their latest attempts and results, updates by what the scheduler reports, and the origin of results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session, load_only

from orchestrator.job_spec import JobSpec
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.measurements import MeasuredMetric, metrics_of
from orchestrator.ledger.rows import (
    ATTEMPT_ORIGINS,
    JOB_ROWS,
    JOB_SPEC,
    JOB_SUMMARIES,
    AttemptOrigin,
    AttemptRow,
    JobRow,
    JobSummary,
    Observation,
    RowReader,
    attempts_by_job,
)
from orchestrator.ledger.sqlite_file import JOB_COUNTS, JobCount
from orchestrator.ledger.tables import (
    CANCELLED_BY,
    ENDED,
    LOST,
    MEASURED,
    OPEN,
    QUEUED,
    RUNNING,
    VERIFIED,
    Attempt,
    Event,
    Job,
    Poll,
    Run,
    RunJob,
    batched,
    field_values,
    rows_with,
)

S = TypeVar("S", bound=JobSummary)

CANCEL_ASKED = "cancel asked"
"""Kind of event. Its detail becomes the reason of the attempt."""
LOST_IS_REVISED_FOR = timedelta(days=30)
"""Time for which the scheduler is asked about a lost job, in case it lists the job again."""


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """Complaints about what could not be read, and the time of the last poll of Slurm (UTC; None without jobs)."""

    complaints: tuple[str, ...] = ()
    asked_at: datetime | None = None


def note(session: Session, attempt: Attempt, kind: str, detail: str | None) -> None:
    """Add an event about an attempt."""
    session.add(Event(at=now(), run_id=attempt.run_id, attempt_id=attempt.id, kind=kind, detail=detail))


def record_observations(ledger: Ledger, seen: Mapping[int, Observation], looked_at: Iterable[int]) -> None:
    """Store observations by attempt id. `looked_at` are the attempts of the poll, listed by the scheduler or not.

    Only changes are written. An attempt that has ended keeps its end, unless its state is LOST.
    """
    polled = sorted({*seen, *looked_at})
    if not polled:
        return
    at = now()
    with ledger.writing() as session:
        for ids in batched(polled):
            refreshed = sa.update(Attempt).where(Attempt.id.in_(ids)).values(refreshed_at=at)
            session.execute(refreshed, execution_options={"synchronize_session": False})
            changed = _changed(session, ids, seen)
            may_change = sa.or_(Attempt.phase != ENDED, Attempt.state == LOST)
            for attempt in session.scalars(sa.select(Attempt).where(Attempt.id.in_(changed), may_change)):
                _apply(session, attempt, seen[attempt.id])


def _changed(session: Session, ids: Sequence[int], seen: Mapping[int, Observation]) -> list[int]:
    """Return the attempts whose observation differs from what is stored. Their long scripts are not read."""
    names = Observation.__slots__
    columns = (Attempt.id, Attempt.unseen_since, *(getattr(Attempt, name) for name in names))
    changed: list[int] = []
    for attempt_id, unseen_since, *stored in session.execute(sa.select(*columns).where(Attempt.id.in_(ids))):
        if attempt_id in seen:
            new = field_values(seen[attempt_id])
            differs = any(
                new[name] != old and _replaces(name, new[name]) for name, old in zip(names, stored, strict=True)
            )
            changed += [attempt_id] if differs or unseen_since is not None else []
    return changed


def _replaces(name: str, value: object) -> bool:
    """Return whether an observed value replaces the stored one. None replaces only values of the present."""
    return value is not None or name in ("reason", "starts_at", "ends_at")


def _apply(session: Session, attempt: Attempt, observation: Observation) -> None:
    if observation.state != attempt.state:
        via = f" (via {observation.seen_via})" if observation.seen_via else ""
        why = f": {observation.reason}" if observation.reason else ""
        note(session, attempt, "state", f"{attempt.state} -> {observation.state}{why}{via}")
    if attempt.state == LOST and observation.state != LOST:
        attempt.ended_at = attempt.verdict = attempt.verdict_reason = None
        attempt.failure = attempt.deciding_line = attempt.deciding_rank = None
    for name, value in field_values(observation).items():
        if _replaces(name, value):
            setattr(attempt, name, value)
    attempt.unseen_since = attempt.unseen_log_bytes = attempt.unsettled_since = None
    if attempt.phase == ENDED:
        attempt.ended_at = attempt.ended_at or now()
        if attempt.state not in ("COMPLETED", LOST):
            attempt.reason = _reason_of_request(session, attempt) or attempt.reason


def _reason_of_request(session: Session, attempt: Attempt) -> str | None:
    """Return why the attempt was asked to end: `cancelled by alice`; a user's request comes first. None if it was not.

    The scheduler only reports a signal, or the failed dependency of a job whose canary was cancelled with it.
    """
    asked = sa.select(Event.detail).where(Event.attempt_id == attempt.id, Event.kind == CANCEL_ASKED)
    details = [detail for detail in session.scalars(asked.order_by(Event.id)) if detail]
    return next((detail for detail in details if detail.startswith(CANCELLED_BY)), details[0] if details else None)


def asked_to_end(ledger: Ledger, attempt_ids: Sequence[int]) -> set[int]:
    """Return which of these attempts were cancelled through this ledger."""
    query = sa.select(Event.attempt_id).where(Event.kind == CANCEL_ASKED)
    return {id_ for (id_,) in ledger.rows_with(query, Event.attempt_id, attempt_ids) if id_ is not None}


def record_asked(ledger: Ledger, attempt_ids: Sequence[int], reason: str) -> None:
    """Record that these attempts were cancelled. Their states change when the scheduler reports it.

    `reason` begins with `CANCELLED_BY` or `STOPPED_AFTER`. Another terminal may have seen an end before.
    """
    with ledger.writing() as session:
        for (attempt,) in rows_with(session, sa.select(Attempt), Attempt.id, attempt_ids):
            note(session, attempt, CANCEL_ASKED, reason)
            if attempt.state == "CANCELLED" and attempt.verdict is None:
                attempt.reason = reason


def may_ask(ledger: Ledger, scheduler: str, every_s: float) -> tuple[bool, datetime | None, list[str]]:
    """Acquire the right to poll the scheduler. Return whether it is granted, and time and complaints of the last poll.

    With `every_s`, one of all terminals that share this ledger may poll in that time, and has to. Without it, each may.
    A last poll in the future comes from a wrong clock, and is ignored.
    """
    at = now()
    with ledger.writing() as session:
        poll = session.get(Poll, scheduler)
        if poll is not None and every_s and timedelta(0) <= at - poll.asked_at < timedelta(seconds=every_s):
            return False, poll.asked_at, list(poll.complaints)
        if poll is None:
            session.add(Poll(scheduler=scheduler, asked_at=at, complaints=[]))
        else:
            poll.asked_at = at
    return True, at, []


def record_complaints(ledger: Ledger, scheduler: str, complaints: Sequence[str]) -> None:
    """Store the complaints of the last poll, for commands that do not poll themselves."""
    with ledger.writing() as session:
        session.get_one(Poll, scheduler).complaints = list(complaints)


def job_rows(
    ledger: Ledger,
    *,
    experiment: str | None = None,
    run_id: str | None = None,
    job_prefix: str | None = None,
    only_open: bool = False,
    unjudged: bool = False,
) -> list[JobRow]:
    """Return jobs with their latest attempts, oldest run first. A job that cases share has a row for each case.

    `only_open` selects attempts that have not ended, `unjudged` those that run or have ended without a verdict.
    """
    wanted = _of_experiment(experiment)
    wanted += [] if run_id is None else [Run.id == run_id]
    wanted += [] if job_prefix is None else [Job.id.startswith(job_prefix, autoescape=True)]
    wanted += [Attempt.phase.in_(OPEN)] if only_open else []
    wanted += [Attempt.phase.in_((RUNNING, ENDED)), Attempt.verdict.is_(None)] if unjudged else []
    return _latest(ledger, JOB_ROWS, wanted)


def job_summaries(ledger: Ledger, *, experiment: str | None = None) -> list[JobSummary]:
    """Return the same rows as `job_rows` without the configurations, which are most of a row's size."""
    return _latest(ledger, JOB_SUMMARIES, _of_experiment(experiment))


def refreshable_jobs(ledger: Ledger) -> list[JobSummary]:
    """Return the jobs whose state the scheduler may change: attempts that have not ended, and recently lost ones."""
    return _latest(ledger, JOB_SUMMARIES, [sa.or_(Attempt.phase.in_(OPEN), _is_recently_lost())])


def job_specs(ledger: Ledger, job_ids: Iterable[str]) -> dict[str, JobSpec]:
    """Return the configurations of these jobs by job id."""
    return {row[0]: row[1] for row in ledger.rows_with(sa.select(Job.id, JOB_SPEC), Job.id, job_ids)}


def changed_arguments(ledger: Ledger) -> dict[str, tuple[str, ...]]:
    """Return the changed arguments of all jobs that have any, by job id."""
    jobs = ledger.scalars(sa.select(Job).where(_has_key("argument_changes")))  # without JobSpec, which `status` omits
    changes = ((job.id, job.configuration.get("argument_changes")) for job in jobs)
    return {job_id: tuple(map(str, words)) for job_id, words in changes if isinstance(words, list)}


def described_metrics(ledger: Ledger, job_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of the metrics of each of these jobs whose program an experiment describes, by job id."""
    query = sa.select(Job.id, Job.configuration).where(_has_key("program"))
    programs: dict[str, Any] = {row[0]: row[1].get("program") for row in ledger.rows_with(query, Job.id, job_ids)}
    return {job_id: list(program["metrics"]) for job_id, program in programs.items() if program}


def _has_key(key: str) -> sa.ColumnElement[bool]:
    return sa.cast(Job.configuration, sa.Text).contains(f'"{key}"')


def program_names(ledger: Ledger) -> list[str]:
    """Return the names of the programs that jobs ran."""
    return sorted(ledger.scalars(sa.select(Job.program).distinct()))


def described_axes(ledger: Ledger) -> list[str]:
    """Return the axes of all jobs whose program an experiment describes."""
    described = ledger.scalars(sa.select(Job.configuration).where(_has_key("program")))
    stored = [configuration.get("settings") for configuration in described]
    return sorted({axis for settings in stored if isinstance(settings, dict) for axis in settings})


def _of_experiment(experiment: str | None) -> list[sa.ColumnElement[bool]]:
    return [] if experiment is None else [Run.experiment == experiment]


def _latest(ledger: Ledger, reader: RowReader[S], wanted: Sequence[sa.ColumnElement[bool]]) -> list[S]:
    rows = reader.read(ledger, _select_latest(reader).where(*wanted))
    return list({(row.experiment, row.scale, row.case_name, row.job_id): row for row in rows}.values())


@cache  # SQLAlchemy needs 1 ms to put such a statement together, and a command executes it several times
def _select_latest(reader: RowReader[Any]) -> sa.Select[Any]:
    """Return a query for the latest attempt of each job of each run."""
    of_job = sa.select(sa.func.max(Attempt.number)).where(Attempt.job_id == Job.id)
    newest = of_job.correlate(Job).scalar_subquery()
    return (
        sa.select(*reader.columns)
        .select_from(RunJob)
        .join(Run, Run.id == RunJob.run_id)
        .join(Job, Job.id == RunJob.job_id)
        .join(Attempt, sa.and_(Attempt.job_id == Job.id, Attempt.number == newest))
        .order_by(Run.created_at, RunJob.position)
    )


def unjudged_attempts(ledger: Ledger, phases: Sequence[str] = (RUNNING, ENDED)) -> list[int]:
    """Return the ids of the attempts in these phases that have no verdict yet, the oldest first."""
    unjudged = sa.select(Attempt.id).where(Attempt.phase.in_(phases), Attempt.verdict.is_(None))
    return ledger.scalars(unjudged.order_by(Attempt.id))


def rows_of_attempts(ledger: Ledger, attempt_ids: Sequence[int]) -> list[JobRow]:
    """Return a row for each of these attempts, with the case name of the run that made it, in the order of ids."""
    # With coalesce, SQLite searches the few runs of the job, and not all jobs of the run.
    of_run = sa.func.coalesce(RunJob.run_id, "") == Attempt.run_id
    query = (
        sa.select(*JOB_ROWS.columns)
        .select_from(Attempt)
        .join(Job, Job.id == Attempt.job_id)
        .join(Run, Run.id == Attempt.run_id)
        .join(RunJob, sa.and_(RunJob.job_id == Attempt.job_id, of_run))
        .order_by(Attempt.id, RunJob.position.desc())
    )
    rows = JOB_ROWS.rows(ledger.rows_with(query, Attempt.id, attempt_ids), ledger.run_folders())
    return list({row.attempt_id: row for row in rows}.values())


def lost_attempts(ledger: Ledger, job_ids: Sequence[str]) -> list[JobRow]:
    """Return every lost attempt of these jobs, also those that a later attempt has replaced."""
    query = sa.select(Attempt.id).where(Attempt.state == LOST, Attempt.scheduler_id.is_not(None))
    return rows_of_attempts(ledger, [row[0] for row in ledger.rows_with(query, Attempt.job_id, job_ids)])


def _is_recently_lost() -> sa.ColumnElement[bool]:
    return sa.and_(Attempt.state == LOST, Attempt.ended_at > now() - LOST_IS_REVISED_FOR)


def anything_to_refresh(ledger: Ledger) -> bool:
    """Return whether an attempt is open, has ended without a verdict, or was lost or may start again recently."""
    may_start_again = sa.and_(Attempt.is_requeued.is_(sa.true()), Attempt.ended_at > now() - LOST_IS_REVISED_FOR)
    wanted = sa.or_(Attempt.phase.in_(OPEN), Attempt.verdict.is_(None), _is_recently_lost(), may_start_again)
    return bool(ledger.scalars(sa.select(Attempt.id).where(wanted).limit(1)))


def attempts_of_jobs(ledger: Ledger, job_ids: Collection[str]) -> dict[str, list[AttemptRow]]:
    """Return the attempts of each of these jobs that has one, the first one first."""
    with ledger.reading() as session:
        return attempts_by_job(session, ledger, job_ids)


def job_count(ledger: Ledger) -> int:
    """Return the number of jobs of all experiments. A job that two experiments share counts for each."""
    return ledger.scalars(sa.select(sa.func.count(sa.distinct(RunJob.job_id))))[0]


def last_seen(ledger: Ledger) -> datetime | None:
    """Return the oldest time (UTC) at which the scheduler last listed an open job; None without open jobs."""
    seen = sa.func.min(sa.func.coalesce(Attempt.refreshed_at, Attempt.created_at))
    return ledger.scalars(sa.select(seen).where(Attempt.phase.in_(OPEN), Attempt.state != QUEUED))[0]


def job_counts(ledger: Ledger) -> list[JobCount]:
    """Return the counts of all experiments, in the order of experiments, scales and clusters."""
    with ledger.reading() as session:
        return [JobCount._make(row) for row in session.execute(sa.text(JOB_COUNTS))]


@dataclass(frozen=True, slots=True)
class ResultRows(Generic[S]):
    """Jobs with the attempts that are their results.

    `newer` has the latest attempt of each job whose result is an earlier one, by the attempt id of the result.
    """

    rows: list[S]
    newer: Mapping[int, S]


def result_rows(
    ledger: Ledger, latest: Sequence[S], attempt: int | None = None, left_out: Collection[int] = ()
) -> ResultRows[S]:
    """Return these jobs with their results. `latest` has the latest attempt of each job, as `job_rows` returns it.

    With `attempt`, the result is the attempt of that number; jobs without such an attempt keep their result.
    `left_out` are ids of attempts that do not count; a job without another attempt is left out.
    """
    wanted = {
        row.job_id
        for row in latest
        if row.attempt_id in left_out or (row.number > 1 and (attempt is not None or row.verdict != VERIFIED))
    }
    attempts = attempts_of_jobs(ledger, wanted)
    rows, newer = [], {}
    for row in latest:
        counting = [of_job for of_job in attempts.get(row.job_id, ()) if of_job.attempt_id not in left_out]
        if not counting:
            rows += [] if row.job_id in attempts else [row]
            continue
        numbered = (of_job for of_job in counting if of_job.number == attempt)
        result = next(numbered, None) or last_result(counting)
        rows.append(with_attempt(row, result))
        if result is not counting[-1]:
            newer[result.attempt_id] = with_attempt(row, counting[-1])
    return ResultRows(rows, newer)


def with_attempt(row: S, attempt: AttemptRow) -> S:
    """Return the job with another of its attempts. Its run is still the one that asked for the job."""
    return replace(row, **{**field_values(attempt), "run_id": row.run_id})


def last_result(attempts: Sequence[AttemptRow]) -> AttemptRow:
    """Return the last verified attempt, else the last partial one, else the last; the attempts are in their order."""
    results = (attempt for verdict in MEASURED for attempt in reversed(attempts) if attempt.verdict == verdict)
    return next(results, attempts[-1])


def measured_for(ledger: Ledger, rows: Sequence[JobSummary]) -> dict[int, str]:
    """Return the experiment whose run made the attempt, by attempt id. Experiments that share a job share attempts."""
    query = sa.select(Attempt.id, Run.experiment).join(Run, Run.id == Attempt.run_id)
    return {row[0]: row[1] for row in ledger.rows_with(query, Attempt.id, (row.attempt_id for row in rows))}


def runs_of(ledger: Ledger, attempt_ids: Collection[int]) -> dict[int, str]:
    """Return the run that made each attempt, by attempt id."""
    query = sa.select(Attempt.id, Attempt.run_id)
    return {row[0]: row[1] for row in ledger.rows_with(query, Attempt.id, attempt_ids)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt(AttemptRow):
    """One submission of a job with its metrics by name.

    `events` are those of the attempt, and of the runs that asked for the job while it was the latest attempt.
    """

    metrics: dict[str, MeasuredMetric]
    events: tuple[Event, ...]


def job_history(ledger: Ledger, job_id: str) -> list[PastAttempt]:
    """Return the attempts of a job, the first one first, each with its events in the order in which they happened."""
    attempts = attempts_of_jobs(ledger, [job_id]).get(job_id, [])
    ids = [attempt.attempt_id for attempt in attempts]
    runs = sa.select(RunJob.run_id).where(RunJob.job_id == job_id)
    concerned = sa.or_(Event.attempt_id.in_(ids), sa.and_(Event.attempt_id.is_(None), Event.run_id.in_(runs)))
    events = ledger.scalars(sa.select(Event).where(concerned).order_by(Event.at, Event.id))
    of_attempt: dict[int, list[Event]] = {attempt_id: [] for attempt_id in ids}
    for event in events:
        owner = event.attempt_id if event.attempt_id is not None else _attempt_of_run_event(event, attempts)
        of_attempt[owner].append(event)
    metrics = metrics_of(ledger, ids)
    return [
        PastAttempt(
            **field_values(attempt),
            metrics=metrics.get(attempt.attempt_id, {}),
            events=tuple(of_attempt[attempt.attempt_id]),
        )
        for attempt in attempts
    ]


def _attempt_of_run_event(event: Event, attempts: Sequence[AttemptRow]) -> int:
    """Return the attempt that a run's event belongs to: the run's own, or the latest one at the time of the event."""
    own = [attempt.attempt_id for attempt in attempts if attempt.run_id == event.run_id]
    earlier = [attempt.attempt_id for attempt in attempts if attempt.created_at <= event.at]
    return (own or earlier or [attempts[0].attempt_id])[-1]


def attempt_origins(ledger: Ledger, job_ids: Collection[str]) -> list[AttemptOrigin]:
    """Return the attempts of these jobs, by job and number."""
    query = sa.select(*ATTEMPT_ORIGINS.columns).join(Job, Job.id == Attempt.job_id)
    query = query.order_by(Attempt.job_id, Attempt.number)
    return list(ATTEMPT_ORIGINS.rows(ledger.rows_with(query, Attempt.job_id, job_ids)))


def run_summaries(ledger: Ledger) -> list[Run]:
    """Return all runs without command, profile and options, the oldest first; runs of the same time by id."""
    columns = (Run.experiment, Run.scale, Run.cluster, Run.created_at, Run.git_commit)
    query = sa.select(Run).options(load_only(*columns, raiseload=True)).order_by(Run.created_at, Run.id)
    return ledger.scalars(query)


def run_records(ledger: Ledger, run_ids: Collection[str]) -> list[Run]:
    """Return these runs, the oldest first."""
    runs = (row[0] for row in ledger.rows_with(sa.select(Run), Run.id, run_ids))
    return sorted(runs, key=lambda run: (run.created_at, run.id))


def cases_asked_for(ledger: Ledger, run_ids: Collection[str]) -> set[tuple[str, str, str, str]]:
    """Return (experiment, scale, case, job id) of every job that these runs asked for, new or existing."""
    query = sa.select(Run.experiment, Run.scale, RunJob.case_name, RunJob.job_id).join(Run, Run.id == RunJob.run_id)
    return {(row[0], row[1], row[2], row[3]) for row in ledger.rows_with(query, Run.id, run_ids)}


def script_texts(ledger: Ledger, digests: Collection[str]) -> dict[str, str]:
    """Return scripts by digest, as recorded: without secrets. One of the attempts that share a script has its text."""
    query = sa.select(Attempt.script_sha256, sa.func.max(Attempt.script)).group_by(Attempt.script_sha256)
    return {row[0]: row[1] for row in ledger.rows_with(query, Attempt.script_sha256, digests) if row[1]}


def latest_moment(ledger: Ledger) -> datetime | None:
    """Return the time (UTC) of the latest event in the ledger; None if there is none."""
    return ledger.scalars(sa.select(sa.func.max(Event.at)))[0]
