"""Verdicts, iterations and metrics that were read from logs, and how far each file was read."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.job_spec import Value
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.rows import JOB_SPEC
from orchestrator.ledger.tables import (
    Attempt,
    Event,
    FileOffset,
    Iteration,
    IterationLine,
    Job,
    LogOffset,
    Metric,
    OutputRow,
    Table,
    batched,
    field_values,
    rows_of,
    rows_with,
)


@dataclass(frozen=True, slots=True)
class MeasuredMetric:
    """A metric. `spread` is half the range of the middle half of `count` samples, in the metric's unit."""

    name: str
    value: float
    unit: str
    spread: float | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row of a program's output: the values that name it, and its metrics, which have no spread."""

    key: Mapping[str, Value]
    metrics: tuple[MeasuredMetric, ...]


@dataclass(frozen=True, slots=True)
class OffsetUpdate:
    """Offsets of an attempt's files before and after a measurement, by file.

    If it `continues` from `before`, its iterations are only the new ones. They replace stored ones with their numbers.
    """

    before: Mapping[str, FileOffset]
    after: Mapping[str, FileOffset]
    continues: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of reading an attempt's log.

    `verdict` is None while the attempt is open. `failure` is the class of a failure, `deciding_line` the log line that
    decided it (without secrets), `deciding_rank` the rank that printed the line. `execution` is the execution mode that
    the log contains. `no_energy` is the reason why GPU samples gave no energy. `read` is what was read of the files.
    `rows` are those of the program's output, in their order.
    """

    attempt_id: int
    iteration: int | None
    verdict: str | None
    verdict_reason: str | None
    iterations: tuple[IterationLine, ...]
    metrics: tuple[MeasuredMetric, ...]
    failure: str | None = None
    deciding_line: str | None = None
    deciding_rank: int | None = None
    execution: str | None = None
    no_energy: str | None = None
    read: OffsetUpdate | None = None
    rows: tuple[MeasuredRow, ...] = ()


def record_measurements(ledger: Ledger, measurements: Sequence[Measurement]) -> list[int]:
    """Store the measurements in one transaction: replace those of an attempt, or add to them if they continue.

    A measurement of an open job is dropped if another terminal has stored a verdict meanwhile. It is also dropped if
    another terminal has continued from the same offsets: the ids of these attempts are returned, to be read again.
    """
    if not measurements:
        return []
    ids = [measured.attempt_id for measured in measurements]
    with ledger.writing() as session:
        stored, verdicts = _file_offsets(session, ids), _verdicts(session, ids)
        current = [m for m in measurements if m.verdict is not None or verdicts[m.attempt_id][1] is None]
        moved = [
            m.attempt_id
            for m in current
            if m.read and positions(stored.get(m.attempt_id, {})) != positions(m.read.before)
        ]
        written = [m for m in current if m.attempt_id not in moved]
        _update_attempts(session, written, verdicts)
        _replace(session, written)
        _add_offsets(session, written)
    return moved


def positions(files: Mapping[str, FileOffset]) -> dict[str, tuple[str, int, str]]:
    """Return identity and offset of each file. They are equal if nothing is new."""
    return {name: file.position for name, file in files.items()}


def _update_attempts(
    session: Session, measurements: Sequence[Measurement], verdicts: Mapping[int, tuple[str, str | None]]
) -> None:
    """Update the attempts, and add an event for each new verdict."""
    at = now()
    judged = ("verdict", "verdict_reason", "failure", "deciding_line", "deciding_rank")
    columns = ("iteration", *judged, "execution", "no_energy")
    update = sa.update(rows_of(Attempt)).where(Attempt.id == sa.bindparam("of"))
    rows = [{"of": m.attempt_id, **{name: getattr(m, name) for name in columns}} for m in measurements]
    events = []
    for measured in measurements:
        run_id, verdict = verdicts[measured.attempt_id]
        if verdict != measured.verdict:
            kind = f" ({measured.failure})" if measured.failure else ""
            detail = f"{measured.verdict}{kind}: {measured.verdict_reason or 'every check passed'}"
            about = {"run_id": run_id, "attempt_id": measured.attempt_id}
            events.append({"at": at, **about, "kind": "verdict", "detail": detail})
    _execute(session, update, rows)
    _execute(session, sa.insert(rows_of(Event)), events)


def _replace(session: Session, measurements: Sequence[Measurement]) -> None:
    """Replace the iterations, metrics and rows, and remove the offsets."""
    measured = [m.attempt_id for m in measurements]
    restarted = [m.attempt_id for m in measurements if m.read is None or not m.read.continues]
    tables: dict[type[Table], list[int]] = {Metric: measured, OutputRow: measured, LogOffset: measured}
    for table, attempt_ids in (tables | {Iteration: restarted}).items():
        rows = rows_of(table)
        for ids in batched(attempt_ids):
            session.execute(sa.delete(rows).where(rows.c.attempt_id.in_(ids)))
    continued = (m for m in measurements if m.attempt_id not in restarted)
    replaced = [{"of": m.attempt_id, "number": line.iteration} for m in continued for line in m.iterations]
    same = (_ITERATIONS.c.attempt_id == sa.bindparam("of"), _ITERATIONS.c.iteration == sa.bindparam("number"))
    _execute(session, sa.delete(_ITERATIONS).where(*same), replaced)
    lines = [
        dict(zip(_LINE, (m.attempt_id, *_VALUES(line)), strict=True)) for m in measurements for line in m.iterations
    ]
    _execute(session, sa.insert(_ITERATIONS), lines)
    metrics = [{"attempt_id": m.attempt_id, **field_values(metric)} for m in measurements for metric in m.metrics]
    _execute(session, sa.insert(rows_of(Metric)), metrics)
    output = [
        {
            "attempt_id": m.attempt_id,
            "position": position,
            "row_key": row.key,
            "metrics": {metric.name: metric.value for metric in row.metrics},
        }
        for m in measurements
        for position, row in enumerate(m.rows, 1)
    ]
    _execute(session, sa.insert(rows_of(OutputRow)), output)


def _add_offsets(session: Session, measurements: Sequence[Measurement]) -> None:
    offsets = [
        {"attempt_id": m.attempt_id, **field_values(file)}
        for m in measurements
        if m.read is not None
        for file in m.read.after.values()
    ]
    _execute(session, sa.insert(rows_of(LogOffset)), offsets)


_ITERATIONS, _OFFSETS = rows_of(Iteration), rows_of(LogOffset)
_LINE = ("attempt_id", *IterationLine.__slots__)
_VALUES = operator.attrgetter(*IterationLine.__slots__)


def _execute(session: Session, statement: sa.Executable, rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        session.connection().execute(statement, list(rows))


def _verdicts(session: Session, ids: Sequence[int]) -> dict[int, tuple[str, str | None]]:
    """Return the run and the verdict of each attempt."""
    query = sa.select(Attempt.id, Attempt.run_id, Attempt.verdict)
    return {row.id: (row.run_id, row.verdict) for row in rows_with(session, query, Attempt.id, ids)}


def file_offsets(ledger: Ledger, attempt_ids: Sequence[int]) -> dict[int, dict[str, FileOffset]]:
    """Return how far each file was read, by attempt id and file name."""
    with ledger.reading() as session:
        return _file_offsets(session, attempt_ids)


def _file_offsets(session: Session, attempt_ids: Sequence[int]) -> dict[int, dict[str, FileOffset]]:
    query = sa.select(*_OFFSETS.c).order_by(_OFFSETS.c.attempt_id, _OFFSETS.c.name)
    offsets: dict[int, dict[str, FileOffset]] = {}
    for attempt_id, *values in rows_with(session, query, _OFFSETS.c.attempt_id, attempt_ids):
        file = FileOffset(*values)
        offsets.setdefault(attempt_id, {})[file.name] = file
    return offsets


def iterations_of(ledger: Ledger, attempt_id: int, most: int | None = None) -> list[IterationLine]:
    """Return an attempt's interval lines in order, or the first `most`. A missing time is NaN."""
    query = sa.select(*_ITERATIONS.c).where(_ITERATIONS.c.attempt_id == attempt_id)
    with ledger.reading() as session:
        return [
            IterationLine(number, math.nan if elapsed_ms is None else elapsed_ms, *others)
            for _, number, elapsed_ms, *others in session.execute(query.order_by(_ITERATIONS.c.iteration).limit(most))
        ]


def metrics_of(ledger: Ledger, attempt_ids: Sequence[int]) -> dict[int, dict[str, MeasuredMetric]]:
    """Return the metrics of these attempts by attempt id and metric name."""
    # The columns are those of the dataclass, so that their order is the order of its fields.
    query = sa.select(Metric.attempt_id, *(getattr(Metric, field.name) for field in dataclasses.fields(MeasuredMetric)))
    by_attempt: dict[int, dict[str, MeasuredMetric]] = {}
    with ledger.reading() as session:
        for attempt_id, *values in rows_with(session, query, Metric.attempt_id, attempt_ids):
            metric = MeasuredMetric(*values)
            by_attempt.setdefault(attempt_id, {})[metric.name] = metric
    return by_attempt


def rows_of_output(ledger: Ledger, attempt_ids: Sequence[int]) -> dict[int, list[MeasuredRow]]:
    """Return the rows of these attempts' outputs by attempt id, in the order of the output."""
    columns = rows_of(OutputRow).c
    query = sa.select(columns.attempt_id, columns.row_key, columns.metrics).order_by(
        columns.attempt_id, columns.position
    )
    by_attempt: dict[int, list[MeasuredRow]] = {}
    with ledger.reading() as session:
        stored = list(rows_with(session, query, columns.attempt_id, attempt_ids))
        of_job = sa.select(Attempt.id, JOB_SPEC).join(Job, Job.id == Attempt.job_id)
        of_attempts = rows_with(session, of_job, Attempt.id, {row[0] for row in stored})
        units = {row[0]: row[1].units for row in of_attempts}
    for attempt_id, key, values in stored:
        metrics = (MeasuredMetric(name, value, units[attempt_id].get(name, "")) for name, value in values.items())
        by_attempt.setdefault(attempt_id, []).append(MeasuredRow(key, tuple(metrics)))
    return by_attempt


def losses_of(ledger: Ledger, attempt_ids: Sequence[int]) -> dict[int, list[tuple[int, float]]]:
    """Return (iteration, loss) in order, by attempt id."""
    lines = _ITERATIONS.c
    query = sa.select(lines.attempt_id, lines.iteration, lines.loss).order_by(lines.attempt_id, lines.iteration)
    losses: dict[int, list[tuple[int, float]]] = {}
    with ledger.reading() as session:
        for attempt_id, iteration, loss in rows_with(session, query, lines.attempt_id, attempt_ids):
            losses.setdefault(attempt_id, []).extend([(iteration, loss)] if loss is not None else [])
    return losses
