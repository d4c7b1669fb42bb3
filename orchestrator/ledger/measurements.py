"""Verdicts, iterations and metrics: what was read back from the logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import Attempt, Iteration, Metric, fields, note


@dataclass(frozen=True, slots=True)
class MeasuredIteration:
    """One interval line; `elapsed_ms` is the average of an iteration in it."""

    iteration: int
    elapsed_ms: float
    loss: float | None
    grad_norm: float | None
    used: bool


@dataclass(frozen=True, slots=True)
class MeasuredMetric:
    """`spread` is half the range of the middle half of `count` samples, in the metric's unit."""

    name: str
    value: float
    unit: str
    spread: float | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What reading an attempt's log gave. `verdict` stays None while the attempt is under way; `failure` is the class
    of a failed one.
    """

    attempt_id: int
    iteration: int | None
    verdict: str | None
    verdict_reason: str | None
    iterations: tuple[MeasuredIteration, ...]
    metrics: tuple[MeasuredMetric, ...]
    failure: str | None = None


def record_measurements(ledger: Ledger, measurements: Sequence[Measurement]) -> None:
    """Replace what was known about these attempts; reading a log again changes nothing else.

    A look at a job under way that comes after its verdict, from a slower terminal, is dropped.
    """
    if not measurements:
        return
    with ledger.writing() as session:
        for measured in measurements:
            attempt = session.get_one(Attempt, measured.attempt_id)
            if measured.verdict is None and attempt.verdict is not None:
                continue
            if attempt.verdict != measured.verdict:
                kind = f" ({measured.failure})" if measured.failure else ""
                detail = f"{measured.verdict}{kind}: {measured.verdict_reason or 'every check passed'}"
                note(session, attempt, "verdict", detail)
            attempt.iteration = measured.iteration
            attempt.verdict, attempt.verdict_reason = measured.verdict, measured.verdict_reason
            attempt.failure = measured.failure
            for table in (Iteration, Metric):
                session.execute(sa.delete(table).where(table.attempt_id == attempt.id))
            session.add_all(Iteration(attempt_id=attempt.id, **_finite(fields(line))) for line in measured.iterations)
            session.add_all(Metric(attempt_id=attempt.id, **fields(metric)) for metric in measured.metrics)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """NaN and inf are no values: one database would keep them, another makes them nothing."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


def metrics_of(ledger: Ledger, attempt_ids: Sequence[int]) -> dict[int, dict[str, MeasuredMetric]]:
    """Attempt id -> metric name -> metric."""
    query = sa.select(Metric.attempt_id, Metric.name, Metric.value, Metric.unit, Metric.spread, Metric.count)
    found: dict[int, dict[str, MeasuredMetric]] = {}
    with ledger.reading() as session:
        for row in session.execute(query.where(Metric.attempt_id.in_(attempt_ids))):
            metric = MeasuredMetric(*row[1:])
            found.setdefault(row[0], {})[metric.name] = metric
    return found


def losses_of(ledger: Ledger, attempt_ids: Sequence[int]) -> dict[int, list[tuple[int, float]]]:
    """Attempt id -> (iteration, loss), in order."""
    query = (
        sa.select(Iteration.attempt_id, Iteration.iteration, Iteration.loss)
        .where(Iteration.attempt_id.in_(attempt_ids))
        .order_by(Iteration.attempt_id, Iteration.iteration)
    )
    found: dict[int, list[tuple[int, float]]] = {}
    with ledger.reading() as session:
        for attempt_id, iteration, loss in session.execute(query):
            if loss is not None:
                found.setdefault(attempt_id, []).append((iteration, loss))
    return found
