"""Rows of an export: one per case, or one per iteration line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.catalog.library import Entry
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import iterations_of
from orchestrator.ledger.reports import attempt_origins, run_records
from orchestrator.ledger.rows import JobRow, RunRecord, gpu_hours
from orchestrator.ledger.tables import field_values
from orchestrator.masking import masked
from orchestrator.results.cases import Result
from orchestrator.results.claims import ClaimVerdict
from orchestrator.results.export.columns import AXIS_COLUMNS, CASE_COLUMNS, ITERATION_COLUMNS, METRICS, OF_JOB, Row
from orchestrator.text import printable_line, utc_stamp

_OF_THE_FIGURE = ("case", "model", "workload")
"""Axes whose values are names that the figure gives; another figure that shares the job may give others."""

_TRAINING = ("dtype", "attention", "dropout", "iterations", "warmup_iterations")
_JOB = (
    *("cluster", "job", "run", "attempt", "repeat", "scheduler_id", "state", "verdict", "verdict_reason", "failure"),
    *("deciding_line", "deciding_rank", "submitted_at", "started_at", "ended_at", "nodes", "code", "image"),
    "image_digest",
)
_FIELDS = {"case": "case_name", "job": "job_id", "run": "run_id", "attempt": "number"}


def export_rows(entry: Entry, found: Sequence[Result], runs: Mapping[int, RunRecord] | None = None) -> list[Row]:
    """Return one row of plain values per case, None for missing values; unverified jobs have no numbers.

    `runs` are the runs that made the attempts, by attempt id. Text from logs and schedulers is without secrets and
    escape sequences.
    """
    return [ordered(_row(entry, result, runs or {}), [column.name for column in CASE_COLUMNS]) for result in found]


def runs_of(ledger: Ledger, rows: Sequence[JobRow]) -> dict[int, RunRecord]:
    """Return the run that made each attempt, by attempt id.

    A later run that reuses a finished job makes no attempt. An attempt is missing if the ledger cannot give its run.
    """
    made_in = {(one.job_id, one.number): one.run_id for one in attempt_origins(ledger, {row.job_id for row in rows})}
    runs = {run.id: run for run in run_records(ledger, set(made_in.values()))}
    known = {row.attempt_id: made_in.get((row.job_id, row.number)) for row in rows}
    return {attempt_id: runs[run_id] for attempt_id, run_id in known.items() if run_id in runs}


def claim_rows(claims: Sequence[ClaimVerdict]) -> list[dict[str, str]]:
    """Return one row per claim with its verdict."""
    return [
        {"claim": verdict.claim.id, "says": verdict.claim.says, "source": verdict.claim.source}
        | {"verdict": verdict.verdict, "because": _plain(verdict.because)}
        for verdict in claims
    ]


def ordered(known: Mapping[str, Any], names: Sequence[str]) -> Row:
    """Return a row with all columns in order and values that every format supports; KeyError for an unknown column."""
    row: Row = dict.fromkeys(names)
    for name, value in known.items():
        if name not in row:
            raise KeyError(name)
        row[name] = _plain(value)
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime):
        return utc_stamp(value, "milliseconds")
    return printable_line(masked(value)) if isinstance(value, str) else value


def _row(entry: Entry, result: Result, runs: Mapping[int, RunRecord]) -> Row:
    case, row = result.case, result.row
    known = {"experiment": entry.name, "scale": case.scale, "case": case.name, **_what_ran(result)}
    if row is not None:
        known |= of_job(row, _JOB) | _spent(row, str(known["device"]))
        run = runs.get(row.attempt_id)
        known |= {"git_commit": run.git_commit, "git_dirty": run.git_dirty} if run else {}
        known |= {"gpu": result.gpu if known["device"] == "gpu" else None}
    known |= {"expected_outcome": case.expected.outcome if case.expected else None}
    known |= {"execution": " and ".join(result.modes) or None, "host_bound": result.is_host_bound}
    known |= {"flag": result.flag, "noise": result.noise, "published_workload": result.instead_of}
    return {**known, **_numbers(entry, result), **_published(entry, result)}


def _what_ran(result: Result) -> Row:
    """Return the recorded settings of the job (the experiment may have been edited since), else the planned ones."""
    case, spec = result.case, result.row.spec if result.row else None
    ran = spec if spec is not None and spec.settings else case
    settings = {**ran.settings, **{axis: case.settings.get(axis) for axis in _OF_THE_FIGURE}}
    known: Row = {AXIS_COLUMNS[axis]: value for axis, value in settings.items() if axis in AXIS_COLUMNS}
    known |= {name: getattr(ran.training, name, None) for name in _TRAINING}
    known |= {"family": ran.model and ran.model.family, "microbatches": ran.layout and ran.layout.microbatches}
    return known | {"device": ran.device, "workload": case.workload}


def of_job(row: JobRow, names: Sequence[str]) -> Row:
    """Return the values of a job by the names of our columns."""
    return {name: getattr(row, _FIELDS.get(name, name)) for name in names}


def _spent(row: JobRow, device: str) -> Row:
    if row.started_at is None or row.ended_at is None:
        return {}
    elapsed_s = (row.ended_at - row.started_at).total_seconds()
    return {
        "elapsed_s": elapsed_s,
        "gpu_hours": gpu_hours(row.gpus, row.started_at, row.ended_at) if device == "gpu" else None,
    }


def _numbers(entry: Entry, result: Result) -> Row:
    known: Row = {}
    for name in METRICS:
        found = result.metric(name)
        known |= {name: found.value, f"{name}_spread": found.spread} if found else {}
    timing, metric = result.metric("iteration_ms"), entry.experiment.axes.y.metric
    if timing is not None:
        known |= {"iterations_used": timing.count, "repeats": timing.repeats}
        known |= {"iteration_ms_low": timing.interval_low, "iteration_ms_high": timing.interval_high}
    known |= {"figure_metric": metric}
    shown = result.metric(metric)
    if shown is not None:
        known |= {"figure_value": shown.value, "figure_spread": shown.spread}
        known |= {"figure_low": shown.interval_low, "figure_high": shown.interval_high}
    return known


def _published(entry: Entry, result: Result) -> Row:
    point = result.published
    if point is None:
        return {}
    known = {name: getattr(point, name) for name in ("metric", "how", "confirmed", "source")}
    gpu = point.gpu or (entry.paper.machine.gpu if entry.paper.machine else None)
    value = result.value(point.metric)
    alike = result.instead_of is None and bool(gpu and result.gpu and gpu in result.gpu)
    return {f"published_{name}": value for name, value in known.items()} | {
        "published": point.value,
        "published_gpu": gpu,
        "ratio_to_published": value / point.value if value is not None and alike else None,
    }


_NAMES = [column.name for column in ITERATION_COLUMNS]


def iteration_rows(ledger: Ledger, rows: Sequence[JobRow]) -> Iterator[Row]:
    """Yield every iteration of these jobs, job by job, so that memory does not grow with their number.

    Jobs that run or failed are included: state and verdict are in each row.
    """
    for row in rows:
        shared = ordered(of_job(row, OF_JOB), OF_JOB)
        for line in iterations_of(ledger, row.attempt_id):
            yield ordered(field_values(line), _NAMES) | shared
