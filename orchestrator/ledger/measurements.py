"""Verdicts, iterations and metrics that were read from logs, and how far each file was read."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.tables import Attempt, Event, Iteration, LogOffset, Metric, batched, field_values, rows_of

if TYPE_CHECKING:
    from orchestrator.megatron.logs.iteration_lines import IterationLine


@dataclass(frozen=True, slots=True)
class MeasuredMetric:
    """A metric. `spread` is half the range of the middle half of `count` samples, in the metric's unit."""

    name: str
    value: float
    unit: str
    spread: float | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of reading an attempt's log.

    `verdict` is None while the attempt is open. `failure` is the class of a failure, `deciding_line` the log line that
    decided it (without secrets), `deciding_rank` the rank that printed the line. `execution` is the execution mode that
    the log contains. `no_energy` is the reason why GPU samples gave no energy.
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


@dataclass(frozen=True, slots=True)
class FileOffset:
    """How far a file was read: a row of `tables.LogOffset`."""

    name: str
    inode: str
    bytes_read: int
    fingerprint: str
    facts: dict[str, object]

    @property
    def position(self) -> tuple[str, int, str]:
        """Identity of the file, and the offset in it."""
        return self.inode, self.bytes_read, self.fingerprint


@dataclass(frozen=True, slots=True)
class OffsetUpdate:
    """Offsets of an attempt's files before and after a measurement, by file.

    If it `continues` from `before`, its iterations are only the new ones. They replace stored ones with their numbers.
    """

    before: Mapping[str, FileOffset]
    after: Mapping[str, FileOffset]
    continues: bool


def record_measurements(
    ledger: Ledger, measurements: Sequence[Measurement], read_on: Mapping[int, OffsetUpdate] | None = None
) -> list[int]:
    """Store the measurements in one transaction: replace those of an attempt, or add to them if they continue.

    A measurement of an open job is dropped if another terminal has stored a verdict meanwhile. It is also dropped if
    another terminal has continued from the same offsets: the ids of these attempts are returned, to be read again.
    """
    if not measurements:
        return []
    updates = read_on or {}
    ids = [measured.attempt_id for measured in measurements]
    with ledger.writing() as session:
        stored, verdicts = _file_offsets(session, ids), _verdicts(session, ids)
        late = [m.attempt_id for m in measurements if m.verdict is None and verdicts[m.attempt_id][1] is not None]
        moved = [
            attempt_id
            for attempt_id in ids
            if attempt_id in updates
            and attempt_id not in late
            and positions(stored.get(attempt_id, {})) != positions(updates[attempt_id].before)
        ]
        written = [m for m in measurements if m.attempt_id not in {*late, *moved}]
        _update_attempts(session, written, verdicts)
        _replace(session, written, updates)
        _replace_offsets(session, [m.attempt_id for m in written], updates)
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


def _replace(session: Session, measurements: Sequence[Measurement], updates: Mapping[int, OffsetUpdate]) -> None:
    """Replace the iterations and metrics."""
    restarted = [m.attempt_id for m in measurements if not (on := updates.get(m.attempt_id)) or not on.continues]
    for ids in batched([m.attempt_id for m in measurements]):
        session.execute(sa.delete(rows_of(Metric)).where(Metric.attempt_id.in_(ids)))
    for ids in batched(restarted):
        session.execute(sa.delete(rows_of(Iteration)).where(Iteration.attempt_id.in_(ids)))
    last_stored = _last_iterations(session, [m.attempt_id for m in measurements])
    replaced = [
        {"of": m.attempt_id, "number": line.iteration}
        for m in measurements
        for line in m.iterations
        if line.iteration <= last_stored.get(m.attempt_id, -1)
    ]
    table = rows_of(Iteration)
    same = (Iteration.attempt_id == sa.bindparam("of"), Iteration.iteration == sa.bindparam("number"))
    _execute(session, sa.delete(table).where(*same), replaced)
    lines = [
        dict(zip(_LINE, (m.attempt_id, *_VALUES(line)), strict=True)) for m in measurements for line in m.iterations
    ]
    _execute(session, sa.insert(table), lines)
    metrics = [{"attempt_id": m.attempt_id, **field_values(metric)} for m in measurements for metric in m.metrics]
    _execute(session, sa.insert(rows_of(Metric)), metrics)


_LINE = tuple(Iteration.__table__.columns.keys())  # the fields of IterationLine, in their order
_VALUES = operator.attrgetter(*_LINE[1:])


def _replace_offsets(session: Session, attempt_ids: Sequence[int], updates: Mapping[int, OffsetUpdate]) -> None:
    for ids in batched(attempt_ids):
        session.execute(sa.delete(rows_of(LogOffset)).where(LogOffset.attempt_id.in_(ids)))
    files = [(i, file) for i in attempt_ids if i in updates for file in updates[i].after.values()]
    rows = [{"attempt_id": attempt_id, **field_values(file)} for attempt_id, file in files]
    _execute(session, sa.insert(rows_of(LogOffset)), rows)


def _execute(session: Session, statement: sa.Executable, rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        session.connection().execute(statement, list(rows))


def _verdicts(session: Session, ids: Sequence[int]) -> dict[int, tuple[str, str | None]]:
    """Return the run and the verdict of each attempt."""
    verdicts: dict[int, tuple[str, str | None]] = {}
    for some in batched(ids):
        query = sa.select(Attempt.id, Attempt.run_id, Attempt.verdict).where(Attempt.id.in_(some))
        verdicts |= {attempt_id: (run_id, verdict) for attempt_id, run_id, verdict in session.execute(query)}
    return verdicts


def _last_iterations(session: Session, ids: Sequence[int]) -> dict[int, int]:
    last: dict[int, int] = {}
    query = sa.select(Iteration.attempt_id, sa.func.max(Iteration.iteration)).group_by(Iteration.attempt_id)
    for some in batched(ids):
        last |= {row[0]: row[1] for row in session.execute(query.where(Iteration.attempt_id.in_(some)))}
    return last


def file_offsets(ledger: Ledger, attempt_ids: Sequence[int]) -> dict[int, dict[str, FileOffset]]:
    """Return how far each file was read, by attempt id and file name."""
    with ledger.reading() as session:
        return _file_offsets(session, attempt_ids)


def _file_offsets(session: Session, attempt_ids: Sequence[int]) -> dict[int, dict[str, FileOffset]]:
    columns = (LogOffset.attempt_id, *(getattr(LogOffset, name) for name in FileOffset.__slots__))
    offsets: dict[int, dict[str, FileOffset]] = {}
    for ids in batched(attempt_ids):
        query = sa.select(*columns).where(LogOffset.attempt_id.in_(ids)).order_by(LogOffset.attempt_id, LogOffset.name)
        for attempt_id, *values in session.execute(query):
            file = FileOffset(*values)
            offsets.setdefault(attempt_id, {})[file.name] = file
    return offsets


def iterations_of(ledger: Ledger, attempt_id: int, most: int | None = None) -> list[IterationLine]:
    """Return an attempt's interval lines in order, or the first `most`. A missing time is NaN."""
    from orchestrator.megatron.logs.iteration_lines import IterationLine  # the parser: not for `status`

    columns = (getattr(Iteration, name) for name in _LINE[1:])
    query = sa.select(*columns).where(Iteration.attempt_id == attempt_id).order_by(Iteration.iteration).limit(most)
    with ledger.reading() as session:
        return [
            IterationLine(number, math.nan if elapsed_ms is None else elapsed_ms, *others)
            for number, elapsed_ms, *others in session.execute(query)
        ]


def metrics_of(ledger: Ledger, attempt_ids: Sequence[int]) -> dict[int, dict[str, MeasuredMetric]]:
    """Return the metrics of these attempts by attempt id and metric name."""
    # The columns are those of the dataclass, so that their order is the order of its fields.
    query = sa.select(Metric.attempt_id, *(getattr(Metric, field.name) for field in dataclasses.fields(MeasuredMetric)))
    by_attempt: dict[int, dict[str, MeasuredMetric]] = {}
    with ledger.reading() as session:
        for ids in batched(attempt_ids):
            for attempt_id, *values in session.execute(query.where(Metric.attempt_id.in_(ids))):
                metric = MeasuredMetric(*values)
                by_attempt.setdefault(attempt_id, {})[metric.name] = metric
    return by_attempt


def losses_of(ledger: Ledger, attempt_ids: Sequence[int]) -> dict[int, list[tuple[int, float]]]:
    """Return (iteration, loss) in order, by attempt id."""
    of_attempt = Iteration.attempt_id
    query = sa.select(of_attempt, Iteration.iteration, Iteration.loss).order_by(of_attempt, Iteration.iteration)
    losses: dict[int, list[tuple[int, float]]] = {}
    with ledger.reading() as session:
        for ids in batched(attempt_ids):
            for attempt_id, iteration, loss in session.execute(query.where(of_attempt.in_(ids))):
                losses.setdefault(attempt_id, []).extend([(iteration, loss)] if loss is not None else [])
    return losses
