"""Results of jobs: the last verified attempt of each job, else the last partial one, else the latest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import sqlalchemy as sa

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.reports import attempts_of_jobs
from orchestrator.ledger.rows import ATTEMPTS, AttemptRow, JobSummary
from orchestrator.ledger.tables import MEASURED, VERIFIED, Attempt, Run, batched, field_values

S = TypeVar("S", bound=JobSummary)


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
    latest = _without(ledger, latest, left_out)
    wanted = [row for row in latest if row.number > 1 and (attempt is not None or row.verdict != VERIFIED)]
    chosen = _chosen(ledger, [row.job_id for row in wanted], attempt, left_out) if wanted else {}
    rows, newer = [], {}
    for row in latest:
        result = chosen.get(row.job_id)
        if result is None or result.attempt_id == row.attempt_id:
            rows.append(row)
            continue
        rows.append(with_attempt(row, result))
        newer[result.attempt_id] = row
    return ResultRows(rows, newer)


def _without(ledger: Ledger, latest: Sequence[S], left_out: Collection[int]) -> Sequence[S]:
    """Return the jobs with their latest attempts that are not left out."""
    changed = {row.job_id for row in latest if row.attempt_id in left_out}
    if not changed:
        return latest
    counting = {
        job_id: [attempt for attempt in of_job if attempt.attempt_id not in left_out]
        for job_id, of_job in attempts_of_jobs(ledger, changed).items()
    }
    shown = [row for row in latest if counting.get(row.job_id, True)]
    return [with_attempt(row, counting[row.job_id][-1]) if row.job_id in changed else row for row in shown]


def with_attempt(row: S, attempt: AttemptRow) -> S:
    """Return the job with another of its attempts. Its run is still the one that asked for the job."""
    return replace(row, **{**field_values(attempt), "run_id": row.run_id})


def last_result(attempts: Sequence[AttemptRow]) -> AttemptRow:
    """Return the last verified attempt, else the last partial one, else the last; the attempts are in their order."""
    results = (attempt for verdict in MEASURED for attempt in reversed(attempts) if attempt.verdict == verdict)
    return next(results, attempts[-1])


def measured_for(ledger: Ledger, rows: Sequence[JobSummary]) -> dict[int, str]:
    """Return the experiment whose run made the attempt, by attempt id. Experiments that share a job share attempts."""
    made: dict[int, str] = {}
    with ledger.reading() as session:
        for ids in batched(sorted({row.attempt_id for row in rows})):
            query = sa.select(Attempt.id, Run.experiment).join(Run, Run.id == Attempt.run_id)
            made |= {row[0]: row[1] for row in session.execute(query.where(Attempt.id.in_(ids)))}
    return made


def runs_of(ledger: Ledger, attempt_ids: Collection[int]) -> dict[int, str]:
    """Return the run that made each attempt, by attempt id."""
    made: dict[int, str] = {}
    with ledger.reading() as session:
        for ids in batched(sorted(attempt_ids)):
            query = sa.select(Attempt.id, Attempt.run_id).where(Attempt.id.in_(ids))
            made |= {row.id: row.run_id for row in session.execute(query)}
    return made


def _chosen(
    ledger: Ledger, job_ids: Sequence[str], number: int | None, left_out: Collection[int]
) -> dict[str, AttemptRow]:
    """Return the attempt of this number, else the last verified or partial one, of each of these jobs that has one."""
    is_wanted: sa.ColumnElement[bool] = Attempt.verdict.in_(MEASURED)
    order: list[sa.ColumnElement[bool] | sa.orm.InstrumentedAttribute[int]] = [
        Attempt.verdict == VERIFIED,
        Attempt.number,
    ]
    if number is not None:
        is_wanted = sa.or_(is_wanted, Attempt.number == number)
        order.insert(0, Attempt.number == number)
    chosen: dict[str, AttemptRow] = {}
    with ledger.reading() as session:
        for ids in batched(sorted(set(job_ids))):
            wanted = (Attempt.job_id.in_(ids), Attempt.id.not_in(left_out), is_wanted)
            query = sa.select(*ATTEMPTS.columns).where(*wanted)
            rows = ATTEMPTS.rows(session.execute(query.order_by(*order)), ledger.run_folders())
            chosen |= {row.job_id: row for row in rows}
    return chosen
