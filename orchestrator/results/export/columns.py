"""Columns of an export: names, types, units and meanings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orchestrator.catalog.axes import AXES
from orchestrator.errors import Problem, ReproError, did_you_mean

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
    Column(
        "attempt",
        "integer",
        "number of the submission of the job: the last verified one, else the last partial one, else the latest",
    ),
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
    Column("verdict", "text", "`verified`, `partial` or `failed`; empty while the job is open"),
    Column("verdict_reason", "text", "reason of the verdict"),
    Column("failure", "text", "failure class: `gpu-oom`, `timeout`, ..."),
    Column(
        "newer",
        "text",
        "state of a later attempt that is not the result: `attempt 2: failed (cancelled)`; attempts that `--without` "
        "left out, with the reason",
    ),
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
    Column("cost", "number", "GPU-hours times the profile's price at the time of the submission, in `currency`"),
    Column("currency", "text", "currency of `cost`, an ISO 4217 code; empty if the profile had no price"),
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
    "joules_per_iteration": ("J", "energy of an iteration: mean power of all GPUs times the iteration time"),
    "joules_per_token": ("J", "energy of a token: mean power of all GPUs divided by the tokens per second"),
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
    Column("repeats", "integer", "verified and partial repeats behind the numbers"),
    Column("iterations_used", "integer", "interval lines of the logs behind the numbers"),
    *(column for name, (unit, meaning) in METRICS.items() for column in _metric_columns(name, unit, meaning)),
    Column("no_energy", "text", "why the GPU samples gave no energy; empty if they did, or there are none"),
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
    Column("image_digest", "text", "digest of the image that an import recorded, else the identity of its file"),
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
    Column("is_finite", "boolean", "false if a number of the line was NaN, infinite or missing; the number is empty"),
    Column("host_wait_ms", "number", "time per iteration for which a GPU waited for the host", "ms"),
    Column("used", "boolean", "whether the metrics of the case use this line"),
)
"""One row per interval line of a log."""

_MAIN_ITERATION_COLUMNS = ("case", "iteration", "elapsed_ms", "loss", "grad_norm", "used")


def main_columns(metric: str) -> list[str]:
    """Return the columns that readers look at first, in their order. `metric` is the metric of the figure."""
    time = ("iteration_ms", "iteration_ms_spread")
    shares = ("percent_of_peak", "percent_of_peak_computed", "mfu_percent") if metric == "tflops_per_gpu" else ()
    published = ("published", "ratio_to_published")
    notes = ("verdict_reason", "flag", "newer", "measured_for")
    return list(
        dict.fromkeys(("job", "case", "state", "verdict", "repeats", *time, metric, *shares, *published, *notes))
    )


def chosen_columns(choice: str, metric: str, *, iterations: bool = False) -> list[Column]:
    """Return the columns of a choice: `main`, `all`, or names with commas between them. ReproError for other names."""
    known = {column.name: column for column in (ITERATION_COLUMNS if iterations else CASE_COLUMNS)}
    if choice == "all":
        return list(known.values())
    main = _MAIN_ITERATION_COLUMNS if iterations else main_columns(metric)
    names = list(main) if choice == "main" else list(dict.fromkeys(name.strip() for name in choice.split(",")))
    problems = [
        Problem(f'--columns: unknown column "{name}"', hint=did_you_mean(name, known) or "--columns all has all")
        for name in names
        if name not in known
    ]
    if problems:
        raise ReproError(*problems)
    return [known[name] for name in names]
