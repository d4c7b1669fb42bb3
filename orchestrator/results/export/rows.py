"""Rows of an export, one per case or one per iteration line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.catalog.axes import AXES
from orchestrator.catalog.library import Entry
from orchestrator.fields import values_of
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import iterations_of
from orchestrator.ledger.reports import attempt_origins, run_records
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import Run, field_values
from orchestrator.metrics import METRICS
from orchestrator.money import recorded_price
from orchestrator.results.cases import Result
from orchestrator.results.claims import ClaimVerdict
from orchestrator.results.export.columns import ITERATION_COLUMNS, JOB_COLUMNS, CaseRow
from orchestrator.text import printable_line, utc_stamp

Row = dict[str, Any]
"""Value, or None, of each column by its name."""

_OF_FIGURE = ("case", "label", "model", "workload", "tokens_billion")
"""Axes whose values belong to the figure; another figure that shares the job may have other values."""

_JOB_FIELDS = {"case": "case_name", "job": "job_id", "run": "run_id", "attempt": "number"}
_TRAINING_FIELDS = ("dtype", "attention", "dropout", "iterations", "warmup_iterations")


def export_rows(entry: Entry, results: Sequence[Result], ledger: Ledger | None = None) -> list[CaseRow]:
    """Return one row of plain values per case; unverified jobs have no numbers.

    The ledger gives the commits of the runs. Text from logs and schedulers is without escape sequences.
    """
    runs = _runs_of_attempts(ledger, [result.row for result in results if result.row]) if ledger else {}
    rows = (_row(entry, result, runs) for result in results)
    return [CaseRow(**{name: _plain(value) for name, value in row.items()}) for row in rows]


def _runs_of_attempts(ledger: Ledger, rows: Sequence[JobRow]) -> dict[int, Run]:
    """Return the run that made each attempt, by attempt id.

    A later run that reuses a finished job makes no attempt. An attempt is missing if the ledger cannot give its run.
    """
    origins = attempt_origins(ledger, {row.job_id for row in rows})
    run_ids = {(origin.job_id, origin.number): origin.run_id for origin in origins}
    runs = {run.id: run for run in run_records(ledger, set(run_ids.values()))}
    by_attempt = {row.attempt_id: run_ids.get((row.job_id, row.number)) for row in rows}
    return {attempt_id: runs[run_id] for attempt_id, run_id in by_attempt.items() if run_id in runs}


def claim_rows(claims: Sequence[ClaimVerdict]) -> list[dict[str, str]]:
    """Return one row per claim with its verdict."""
    return [
        {"claim": verdict.claim.id, "says": verdict.claim.says, "source": verdict.claim.source}
        | {"verdict": verdict.verdict, "because": printable_line(verdict.because)}
        | {"margin": "" if verdict.margin is None else str(verdict.margin)}
        for verdict in claims
    ]


def _plain(value: Any) -> Any:
    """Return a value that every format supports: times and text on one line, None for NaN."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime):
        return utc_stamp(value, "milliseconds")
    return printable_line(value) if isinstance(value, str) else value


def _row(entry: Entry, result: Result, runs: Mapping[int, Run]) -> Row:
    """Return the fields of the row of a case."""
    row, settings = result.row, _settings(result)
    run = runs.get(row.attempt_id) if row is not None else None
    on_gpus = settings["device"] == "gpu"
    values = _numbers(entry, result) | _published(entry, result)
    values |= {"experiment": entry.name, "settings": settings, "gpu": result.gpu if row and on_gpus else None}
    values |= {"gpu_hours": row.gpu_hours if row and on_gpus else None}
    if run is not None:
        values |= {"git_commit": run.git_commit, "git_dirty": run.git_dirty} | _money(values.get("gpu_hours"), run)
    return values_of(CaseRow, result, **values)


def _settings(result: Result) -> Row:
    """Return the recorded settings of the job (the experiment may have been edited since), else the planned ones."""
    case, spec = result.case, result.row.spec if result.row else None
    ran = spec if spec is not None and spec.settings else case
    settings = {**ran.settings, **{axis: case.settings.get(axis) for axis in _OF_FIGURE}}
    values: Row = {AXES[axis].name: value for axis, value in settings.items() if axis in AXES}
    values |= {name: getattr(ran.training, name, None) for name in _TRAINING_FIELDS}
    values |= {"family": ran.model and ran.model.family, "microbatches": ran.layout and ran.layout.microbatches}
    return values | {"device": ran.device}


def _money(hours: float | None, run: Run) -> Row:
    price = recorded_price(run.profile)
    if price is None or hours is None:
        return {}
    money = price.of(hours)
    return {"cost": money.amount, "currency": money.currency}


def _numbers(entry: Entry, result: Result) -> Row:
    metric_name = entry.experiment.axes.y.metric
    numbers: dict[str, float | None] = {}
    values: Row = {"figure_metric": metric_name, "numbers": numbers}
    for name in METRICS:
        if metric := result.metric(name):
            numbers |= {name: metric.value, f"{name}_spread": metric.spread}
    if timing := result.metric("iteration_ms"):
        values |= {"iterations_used": timing.count, "repeats": timing.repeats}
        numbers |= {"iteration_ms_low": timing.interval_low, "iteration_ms_high": timing.interval_high}
    if metric := result.metric(metric_name):
        values |= {"figure_value": metric.value, "figure_spread": metric.spread}
        values |= {"figure_low": metric.interval_low, "figure_high": metric.interval_high}
    return values


def _published(entry: Entry, result: Result) -> Row:
    point = result.published
    if point is None:
        return {}
    gpu = point.gpu or (entry.paper.machine.gpu if entry.paper.machine else None)
    value = result.value(point.metric)
    is_same_program = result.instead_of is None and not result.case.argument_changes
    is_same_setup = is_same_program and bool(gpu and result.gpu and gpu in result.gpu)
    return {
        "published_gpu": gpu,
        "ratio_to_published": value / point.value if value is not None and is_same_setup else None,
    }


def iteration_rows(ledger: Ledger, rows: Sequence[JobRow]) -> Iterator[Row]:
    """Yield every iteration of these jobs, job by job, so that memory does not grow with their number.

    Jobs that run or failed are included: state and verdict are in each row.
    """
    names = [column.name for column in ITERATION_COLUMNS]
    for row in rows:
        shared = {name: _plain(getattr(row, _JOB_FIELDS.get(name, name))) for name in JOB_COLUMNS}
        for line in iterations_of(ledger, row.attempt_id):
            values = shared | {name: _plain(value) for name, value in field_values(line).items()}
            yield {name: values[name] for name in names}
