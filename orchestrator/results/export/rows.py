"""Rows of an export, one per case or one per iteration line, and their columns: names, types, units and meanings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from orchestrator.catalog.axes import AXES
from orchestrator.catalog.library import Entry
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import iterations_of
from orchestrator.ledger.reports import attempt_origins, run_records
from orchestrator.ledger.rows import JobRow, RunRecord, gpu_hours
from orchestrator.ledger.tables import field_values
from orchestrator.masking import masked
from orchestrator.results.cases import Result
from orchestrator.results.claims import ClaimVerdict
from orchestrator.text import printable_line, utc_stamp

Row = dict[str, Any]
"""Value, or None, of each column by its name."""

ColumnKind = Literal["text", "integer", "number", "boolean", "time"]


@dataclass(frozen=True, slots=True)
class Column:
    """Column of an export; `unit` is None for a value without a unit. Times are ISO 8601 in UTC."""

    name: str
    kind: ColumnKind
    meaning: str
    unit: str | None = None


_RENAMED_AXES = {
    "case": "row",
    "pp": "pipeline_parallel",
    "tp": "tensor_parallel",
    "dp": "data_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
    "vp": "virtual_stages",
    "cp_comm": "context_communication",
    "kv_groups": "key_value_groups",
    "ffn": "ffn_hidden",
    "seq": "sequence_length",
    "vocab": "vocabulary",
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
}
AXIS_COLUMNS: dict[str, str] = {axis: _RENAMED_AXES.get(axis, axis) for axis in AXES}
"""Axis -> column. The axis `case` has the column `row`, because the column `case` is the name of the whole case."""

_IDENTITY = (
    Column("experiment", "text", "full name of the experiment: `sc21/figure-13`"),
    Column("scale", "text", "`paper` for the published size, or a smaller scale"),
    Column("case", "text", "case, in the syntax of `--where`"),
    Column("workload", "text", "program that runs the case"),
    Column("cluster", "text", "cluster of the run"),
    Column("job", "text", "job id; empty if the case was never submitted"),
    Column("run", "text", "latest `repro submit` that requested the job"),
    Column("attempt", "integer", "number of the submission of the job: the last verified one, else the latest"),
    Column("repeat", "integer", "number of the repeat; with several repeats, the row is of the median one"),
    Column("scheduler_id", "text", "job id of the scheduler"),
)

_LAYOUT = (
    Column("row", "text", "name of the row, if the figure is a table"),
    Column("label", "text", "name of the case in the source, as the Makefile targets of the tutorials"),
    Column("model", "text", "name of the paper's model, if it has one"),
    Column("device", "text", "`gpu` or `cpu`"),
    Column("gpus", "integer", "GPUs; processes if the device is `cpu`"),
    Column("tensor_parallel", "integer", "tensor-parallel size"),
    Column("pipeline_parallel", "integer", "pipeline-parallel size"),
    Column("data_parallel", "integer", "data-parallel size"),
    Column("context_parallel", "integer", "context-parallel size"),
    Column("expert_parallel", "integer", "expert-parallel size"),
    Column("expert_tensor_parallel", "integer", "tensor-parallel size of the experts, if it differs"),
    Column("virtual_stages", "integer", "model chunks per pipeline stage"),
    Column("micro_batch_size", "integer", "microbatch size", "sequences"),
    Column("global_batch_size", "integer", "global batch size", "sequences"),
    Column("microbatches", "integer", "microbatches per pipeline and iteration"),
    Column("tokens_billion", "integer", "tokens of the whole training, for `training_days`", "10^9"),
)

_MODEL = (
    Column("family", "text", "`gpt` or `llama`"),
    Column("layers", "integer", "transformer layers"),
    Column("hidden", "integer", "hidden size"),
    Column("heads", "integer", "attention heads"),
    Column("key_value_groups", "integer", "key and value heads"),
    Column("ffn_hidden", "integer", "width of the feed-forward layer, or of each expert"),
    Column("experts", "integer", "experts per layer, if any"),
    Column("experts_per_token", "integer", "experts per token"),
    Column("sequence_length", "integer", "sequence length", "tokens"),
    Column("vocabulary", "integer", "vocabulary size of the paper, before padding", "tokens"),
)

_TRAINING = (
    Column("dtype", "text", "`fp32`, `fp16` or `bf16`"),
    Column("recompute", "text", "activation recomputation: `none`, `selective`, `full`, or ATC'24's `ours`"),
    Column("offload", "number", "share of the activations that is offloaded to the host"),
    Column("scatter_gather", "boolean", "SC21's scatter/gather between pipeline stages"),
    Column("sequence_parallel", "boolean", "sequence parallelism"),
    Column("distributed_optimizer", "boolean", "optimizer state distributed over the data-parallel ranks"),
    Column(
        "context_communication", "text", "exchange of keys between context-parallel ranks: `p2p`, `all_gather`, `a2a`"
    ),
    Column("ddp", "text", "data-parallel implementation of 2021: `local` or `torch`"),
    Column("attention", "text", "`unfused` or `flash`, if the experiment sets it"),
    Column("dropout", "number", "dropout probability"),
    Column("iterations", "integer", "planned iterations"),
    Column("warmup_iterations", "integer", "first iterations, which are not measured"),
)

_OUTCOME = (
    Column("state", "text", "state from the scheduler: `COMPLETED`, `RUNNING`, ..."),
    Column("verdict", "text", "`verified` or `failed`; empty while the job is open"),
    Column("verdict_reason", "text", "reason of the verdict"),
    Column("failure", "text", "failure class: `gpu-oom`, `timeout`, ..."),
    Column("newer", "text", "state of a later attempt that is not the result: `attempt 2: failed (cancelled)`"),
    Column("deciding_line", "text", "log line that decided the verdict"),
    Column("deciding_rank", "integer", "rank that printed this line"),
    Column("expected_outcome", "text", "`oom` if the source reports that the case runs out of memory"),
    Column("flag", "text", "why the numbers cannot be right; they are left out"),
    Column("noise", "text", "why the times are too noisy to be compared"),
    Column("execution", "text", "execution mode: `graph` or `eager`; empty if the program does not print it"),
    Column("host_bound", "boolean", "whether the GPUs waited too long for the host; empty if not measured"),
)

_TIMES = (
    Column("submitted_at", "time", "time of the submission"),
    Column("started_at", "time", "time of the start"),
    Column("ended_at", "time", "time of the end"),
    Column("elapsed_s", "number", "time from start to end", "s"),
    Column("gpu_hours", "number", "GPUs times elapsed time; empty on CPU cores", "h"),
    Column("nodes", "text", "nodes, in the scheduler's notation"),
    Column("gpu", "text", "GPU of the cluster"),
)

METRICS = {
    "iteration_ms": ("ms", "time of an iteration"),
    "host_wait_ms": ("ms", "time per iteration for which a GPU waited for the host, maximum over ranks"),
    "host_wait_percent": ("%", "host wait as a share of the iteration time"),
    "tflops_per_gpu": ("TFLOP/s", "FLOPs per second and GPU, by SC21's equation 3"),
    "percent_of_peak": ("%", "FLOPs by SC21's equation 3 as a share of the GPU's dense peak"),
    "percent_of_peak_computed": ("%", "computed matrix products as a share of the GPU's dense peak"),
    "aggregate_pflops": ("PFLOP/s", "FLOPs per second of all GPUs, by SC21's equation 3"),
    "mfu_percent": (
        "%",
        "model FLOPs utilization: 6 FLOPs per matrix weight and token, and causal attention by half; no recomputation",
    ),
    "sequences_per_s": ("1/s", "sequences per second"),
    "tokens_per_s": ("1/s", "tokens per second"),
    "tokens_per_s_per_gpu": ("1/s", "tokens per second and GPU"),
    "reported_tflops_per_gpu": ("TFLOP/s", "rate that the program prints; its FLOP count differs by version"),
    "reported_tokens_per_s_per_gpu": ("1/s", "rate that the program prints"),
    "max_memory_allocated_bytes": ("B", "peak memory that the framework allocated, maximum over ranks"),
    "max_memory_reserved_bytes": ("B", "peak memory that the framework reserved, maximum over ranks"),
    "theoretical_memory_bytes": ("B", "memory that the program predicts"),
    "gpu_memory_used_gb": ("GB", "peak memory use of a whole GPU, in 10^9 bytes"),
    "gpu_power_w": ("W", "power of a busy GPU"),
    "gpu_clock_mhz": ("MHz", "clock of a busy GPU"),
    "gpu_temperature_c": ("degC", "highest temperature of a GPU"),
    "gpu_power_capped_percent": ("%", "share of time in which the power limit slowed a busy GPU"),
    "gpu_slowed_percent": (
        "%",
        "share of time in which heat, power supply or hardware slowed a busy GPU: 0 on a healthy machine",
    ),
    "parameters_billion": ("10^9", "parameters, from the log"),
    "training_days": ("days", "time to train the whole model, by SC21's equation 4, if the case has `tokens_billion`"),
}
"""Metric -> unit and meaning, in the order of the columns."""


def _metric_columns(name: str, unit: str, meaning: str) -> Iterator[Column]:
    yield Column(name, "number", meaning, unit)
    yield Column(f"{name}_spread", "number", "half the range of the middle half of the samples", unit)
    if name == "iteration_ms":
        yield Column(f"{name}_low", "number", "lower end of the 95 % interval", unit)
        yield Column(f"{name}_high", "number", "upper end of the 95 % interval", unit)


_NUMBERS = (
    Column("repeats", "integer", "verified repeats behind the numbers"),
    Column("iterations_used", "integer", "interval lines of the logs behind the numbers"),
    *(column for name, (unit, meaning) in METRICS.items() for column in _metric_columns(name, unit, meaning)),
    Column("figure_metric", "text", "metric of the figure; its numbers are repeated in the next columns"),
    Column("figure_value", "number", "value of this metric"),
    Column("figure_spread", "number", "spread of this metric"),
    Column("figure_low", "number", "lower end of the 95 % interval"),
    Column("figure_high", "number", "upper end of the 95 % interval"),
)

_PUBLISHED = (
    Column("published", "number", "published number of the case, in the unit of `published_metric`"),
    Column("published_metric", "text", "metric of the published number: the figure's own metric"),
    Column("published_how", "text", "`printed`, `derived`, `traced from the plot`, or `read off the plot`"),
    Column("published_confirmed", "boolean", "whether the number was confirmed in the source"),
    Column("published_error", "number", "largest error of a number from a plot, in its unit"),
    Column("published_source", "text", "place in the source"),
    Column("published_gpu", "text", "GPU of the published number, if the source names it"),
    Column("published_workload", "text", "program of the published number, if another program ran here"),
    Column("ratio_to_published", "number", "measured over published number; empty for another GPU or another program"),
)

_PROVENANCE = (
    Column("measured_for", "text", "other experiment that submitted the attempt, if its number is reused here"),
    Column("code", "text", "code of the program: a commit or a digest"),
    Column("image", "text", "container image"),
    Column("image_digest", "text", "digest of the image, if `repro images import` recorded it"),
    Column("git_commit", "text", "commit of the checkout that `repro submit` ran from"),
    Column("git_dirty", "boolean", "whether this checkout had changes"),
)

CASE_COLUMNS: tuple[Column, ...] = (
    *(*_IDENTITY, *_LAYOUT, *_MODEL, *_TRAINING, *_OUTCOME, *_TIMES, *_NUMBERS, *_PUBLISHED, *_PROVENANCE),
)
"""One row per case."""

_CASE_COLUMNS_BY_NAME = {column.name: column for column in CASE_COLUMNS}
JOB_COLUMNS = (*(column.name for column in _IDENTITY[:-1]), "state", "verdict")

ITERATION_COLUMNS: tuple[Column, ...] = (
    *(_CASE_COLUMNS_BY_NAME[name] for name in JOB_COLUMNS),
    Column("iteration", "integer", "last iteration of the interval"),
    Column("elapsed_ms", "number", "mean time of an iteration in the interval", "ms"),
    Column("loss", "number", "language-model loss"),
    Column("grad_norm", "number", "norm of the gradient"),
    Column("loss_scale", "number", "loss scale"),
    Column("skipped", "integer", "skipped iterations"),
    Column("nan", "integer", "iterations with NaN, counted by the program"),
    Column("reported_tflops_per_gpu", "number", "rate that the program prints", "TFLOP/s"),
    Column("reported_tokens_per_s_per_gpu", "number", "rate that the program prints", "1/s"),
    Column("power_w", "number", "power per GPU that the program prints", "W"),
    Column("is_finite", "boolean", "false if a number of the line was NaN or infinite; the number is empty"),
    Column("host_wait_ms", "number", "time per iteration for which a GPU waited for the host", "ms"),
    Column("used", "boolean", "whether the metrics of the case use this line"),
)
"""One row per interval line of a log."""


_OF_FIGURE = ("case", "label", "model", "workload", "tokens_billion")
"""Axes whose values belong to the figure; another figure that shares the job may have other values."""

_TRAINING_FIELDS = ("dtype", "attention", "dropout", "iterations", "warmup_iterations")
_COPIED_FROM_JOB = (
    *JOB_COLUMNS[4:],
    *("scheduler_id", "verdict_reason", "failure", "deciding_line", "deciding_rank"),
    *("submitted_at", "started_at", "ended_at", "nodes", "code", "image", "image_digest"),
)
_JOB_FIELDS = {"case": "case_name", "job": "job_id", "run": "run_id", "attempt": "number"}


def export_rows(entry: Entry, results: Sequence[Result], ledger: Ledger | None = None) -> list[Row]:
    """Return one row of plain values per case, None for missing values; unverified jobs have no numbers.

    The ledger gives the commits of the runs. Text from logs and schedulers is without secrets and escape sequences.
    """
    runs = _runs_of_attempts(ledger, [result.row for result in results if result.row]) if ledger else {}
    return [complete_row(_row(entry, result, runs), [column.name for column in CASE_COLUMNS]) for result in results]


def _runs_of_attempts(ledger: Ledger, rows: Sequence[JobRow]) -> dict[int, RunRecord]:
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
        | {"verdict": verdict.verdict, "because": _plain_text(verdict.because)}
        for verdict in claims
    ]


def complete_row(values: Mapping[str, object], names: Sequence[str]) -> Row:
    """Return a row with all columns in order and values that every format supports; KeyError for an unknown column."""
    row: Row = dict.fromkeys(names)
    for name, value in values.items():
        if name not in row:
            raise KeyError(name)
        row[name] = _plain(value)
    return row


def _plain(value: object) -> object:
    """Return a value that every format supports: times as text, text without secrets, None for NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime):
        return utc_stamp(value, "milliseconds")
    return _plain_text(value) if isinstance(value, str) else value


def _plain_text(text: str) -> str:
    return printable_line(masked(text))


def _row(entry: Entry, result: Result, runs: Mapping[int, RunRecord]) -> Row:
    case, row = result.case, result.row
    values = {"experiment": entry.name, "scale": case.scale, "case": case.name, **_settings(result)}
    if row is not None:
        values |= _job_values(row, _COPIED_FROM_JOB) | _cost(row, values["device"])
        values |= {"gpu": result.gpu if values["device"] == "gpu" else None}
        if run := runs.get(row.attempt_id):
            values |= {"git_commit": run.git_commit, "git_dirty": run.git_dirty}
    values |= {"expected_outcome": case.expected.outcome if case.expected else None}
    values |= {"execution": " and ".join(result.modes) or None, "host_bound": result.is_host_bound}
    values |= {"flag": result.flag, "noise": result.noise, "published_workload": result.instead_of}
    values |= {"newer": result.newer_text, "measured_for": result.measured_for}
    return values | _numbers(entry, result) | _published(entry, result)


def _settings(result: Result) -> Row:
    """Return the recorded settings of the job (the experiment may have been edited since), else the planned ones."""
    case, spec = result.case, result.row.spec if result.row else None
    ran = spec if spec is not None and spec.settings else case
    settings = {**ran.settings, **{axis: case.settings.get(axis) for axis in _OF_FIGURE}}
    values: Row = {AXIS_COLUMNS[axis]: value for axis, value in settings.items() if axis in AXIS_COLUMNS}
    values |= {name: getattr(ran.training, name, None) for name in _TRAINING_FIELDS}
    values |= {"family": ran.model and ran.model.family, "microbatches": ran.layout and ran.layout.microbatches}
    return values | {"device": ran.device, "workload": case.workload}


def _job_values(row: JobRow, names: Sequence[str]) -> Row:
    """Return the values of a job by the names of the columns."""
    return {name: getattr(row, _JOB_FIELDS.get(name, name)) for name in names}


def _cost(row: JobRow, device: str) -> Row:
    if row.started_at is None or row.ended_at is None:
        return {}
    hours = gpu_hours(row.gpus, row.started_at, row.ended_at) if device == "gpu" else None
    return {"elapsed_s": (row.ended_at - row.started_at).total_seconds(), "gpu_hours": hours}


def _numbers(entry: Entry, result: Result) -> Row:
    metric_name = entry.experiment.axes.y.metric
    values: Row = {"figure_metric": metric_name}
    for name in METRICS:
        if metric := result.metric(name):
            values |= {name: metric.value, f"{name}_spread": metric.spread}
    if timing := result.metric("iteration_ms"):
        values |= {"iterations_used": timing.count, "repeats": timing.repeats}
        values |= {"iteration_ms_low": timing.interval_low, "iteration_ms_high": timing.interval_high}
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
        "published": point.value,
        "published_metric": point.metric,
        "published_how": point.how,
        "published_confirmed": point.confirmed,
        "published_error": point.error,
        "published_source": point.source,
        "published_gpu": gpu,
        "ratio_to_published": value / point.value if value is not None and is_same_setup else None,
    }


def iteration_rows(ledger: Ledger, rows: Sequence[JobRow]) -> Iterator[Row]:
    """Yield every iteration of these jobs, job by job, so that memory does not grow with their number.

    Jobs that run or failed are included: state and verdict are in each row.
    """
    names = [column.name for column in ITERATION_COLUMNS]
    for row in rows:
        shared = complete_row(_job_values(row, JOB_COLUMNS), JOB_COLUMNS)
        for line in iterations_of(ledger, row.attempt_id):
            yield complete_row(field_values(line), names) | shared
