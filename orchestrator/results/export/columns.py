"""Columns of an export: names, types, units and meanings, for every format and for docs/export.md.

Names, order and types are the same for every experiment. A column without values is still there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Row = dict[str, Any]
"""A value, or None, for each column by its name."""

Kind = Literal["text", "integer", "number", "boolean", "time"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `unit` is None for a value without a unit. Times are ISO 8601 in UTC."""

    name: str
    kind: Kind
    meaning: str
    unit: str | None = None


AXIS_COLUMNS = {
    "case": "row",
    "model": "model",
    "workload": "workload",
    "gpus": "gpus",
    "pp": "pipeline_parallel",
    "tp": "tensor_parallel",
    "dp": "data_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
    "vp": "virtual_stages",
    "recompute": "recompute",
    "offload": "offload",
    "scatter_gather": "scatter_gather",
    "sequence_parallel": "sequence_parallel",
    "distributed_optimizer": "distributed_optimizer",
    "cp_comm": "context_communication",
    "ddp": "ddp",
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_groups": "key_value_groups",
    "ffn": "ffn_hidden",
    "experts": "experts",
    "experts_per_token": "experts_per_token",
    "seq": "sequence_length",
    "vocab": "vocabulary",
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
}
"""The column of every axis that a case may be set on; a row's own name would be `case`, which names the whole."""

_IDENTITY = (
    Column("experiment", "text", "the experiment in full: `sc21/figure-13`"),
    Column("scale", "text", "its size: `paper` as published, or a smaller one"),
    Column("case", "text", "the case, as `--where` takes it"),
    Column("workload", "text", "the program that ran it, or would"),
    Column("cluster", "text", "where it ran"),
    Column("job", "text", "the job's id, the hash of what it runs; empty where the case was never submitted"),
    Column("run", "text", "the latest `repro submit` that asked for it"),
    Column("attempt", "integer", "which submission of the job this is"),
    Column("repeat", "integer", "which repeat of the case the job is; of several the one in the middle has the row"),
    Column("scheduler_id", "text", "what the scheduler calls it"),
)

_LAYOUT = (
    Column("row", "text", "what the figure calls the case, where its cases are rows of a table"),
    Column("model", "text", "the paper's model, where it has a name"),
    Column("device", "text", "`gpu` or `cpu`"),
    Column("gpus", "integer", "GPUs; with `cpu` processes on CPU cores"),
    Column("tensor_parallel", "integer", "tensor-parallel size"),
    Column("pipeline_parallel", "integer", "pipeline-parallel size"),
    Column("data_parallel", "integer", "data-parallel size"),
    Column("context_parallel", "integer", "context-parallel size"),
    Column("expert_parallel", "integer", "expert-parallel size"),
    Column("expert_tensor_parallel", "integer", "tensor-parallel size of the experts, where it is one of its own"),
    Column("virtual_stages", "integer", "model chunks per pipeline stage"),
    Column("micro_batch_size", "integer", "microbatch size", "sequences"),
    Column("global_batch_size", "integer", "global batch size", "sequences"),
    Column("microbatches", "integer", "microbatches per pipeline and iteration"),
)

_MODEL = (
    Column("family", "text", "`gpt` or `llama`"),
    Column("layers", "integer", "transformer layers"),
    Column("hidden", "integer", "hidden size"),
    Column("heads", "integer", "attention heads"),
    Column("key_value_groups", "integer", "heads of keys and values"),
    Column("ffn_hidden", "integer", "width of the feed-forward layer, or of each expert's"),
    Column("experts", "integer", "experts of a layer, where it has any"),
    Column("experts_per_token", "integer", "experts that see a token"),
    Column("sequence_length", "integer", "sequence length", "tokens"),
    Column("vocabulary", "integer", "vocabulary as the paper counts it, before it is padded", "tokens"),
)

_TRAINING = (
    Column("dtype", "text", "`fp32`, `fp16` or `bf16`"),
    Column("recompute", "text", "what is computed again: `none`, `selective`, `full`, or ATC'24's `ours`"),
    Column("offload", "number", "share of the activations that is moved to the host"),
    Column("scatter_gather", "boolean", "SC21's scatter/gather between pipeline stages"),
    Column("sequence_parallel", "boolean", "sequence parallelism"),
    Column("distributed_optimizer", "boolean", "the optimizer's state spread over data-parallel ranks"),
    Column("context_communication", "text", "how context-parallel ranks exchange keys: `p2p`, `all_gather`, `a2a`"),
    Column("ddp", "text", "which data-parallel implementation of 2021: `local` or `torch`"),
    Column("attention", "text", "`unfused` or `flash`, where the experiment says"),
    Column("dropout", "number", "dropout probability"),
    Column("iterations", "integer", "iterations that were planned"),
    Column("warmup_iterations", "integer", "of these the first ones, which are not measured"),
)

_OUTCOME = (
    Column("state", "text", "the scheduler's word: `COMPLETED`, `RUNNING`, ..."),
    Column("verdict", "text", "ours: `verified` or `failed`; empty while nothing can be said"),
    Column("verdict_reason", "text", "why"),
    Column("failure", "text", "the class of a failure: `gpu-oom`, `timeout`, ..."),
    Column("deciding_line", "text", "the line of the log that decided it"),
    Column("deciding_rank", "integer", "the rank that printed that line"),
    Column("expected_outcome", "text", "`oom` where the source says that the case runs out of memory"),
    Column("flag", "text", "why its numbers cannot be right, and are not given out"),
    Column("noise", "text", "why its times scatter too much to be compared"),
    Column("execution", "text", "execution mode: `graph` or `eager`; empty where the program does not print it"),
    Column("host_bound", "boolean", "whether its GPUs waited too long for the host; empty where it was not measured"),
)

_TIMES = (
    Column("submitted_at", "time", "when the scheduler took it"),
    Column("started_at", "time", "when it started"),
    Column("ended_at", "time", "when it ended"),
    Column("elapsed_s", "number", "from start to end", "s"),
    Column("gpu_hours", "number", "what it held GPUs for; empty on CPU cores", "h"),
    Column("nodes", "text", "the nodes it ran on, as the scheduler writes them"),
    Column("gpu", "text", "the GPU of the cluster it ran on"),
)

METRICS = {
    "iteration_ms": ("ms", "time of an iteration"),
    "host_wait_ms": ("ms", "time per iteration for which a GPU waited for the host, on the rank with most"),
    "host_wait_percent": ("%", "the same, of the time of an iteration"),
    "tflops_per_gpu": ("TFLOP/s", "FLOPs per second and GPU, as SC21's equation 3 counts them"),
    "percent_of_peak": ("%", "the same, of the GPU's dense peak"),
    "percent_of_peak_computed": ("%", "the matrix products that the program computed, of the GPU's dense peak"),
    "aggregate_pflops": ("PFLOP/s", "FLOPs per second of all GPUs together, as SC21's equation 3 counts them"),
    "mfu_percent": (
        "%",
        "model FLOPs utilization: 6 FLOPs per matrix weight and token, and causal attention by half; no recomputation",
    ),
    "sequences_per_s": ("1/s", "sequences per second"),
    "tokens_per_s": ("1/s", "tokens per second"),
    "tokens_per_s_per_gpu": ("1/s", "tokens per second and GPU"),
    "reported_tflops_per_gpu": ("TFLOP/s", "what the program itself prints; it counts other FLOPs in each version"),
    "reported_tokens_per_s_per_gpu": ("1/s", "what the program itself prints"),
    "max_memory_allocated_bytes": ("B", "the most that the framework had allocated, on the rank with most"),
    "max_memory_reserved_bytes": ("B", "the most that the framework had reserved, on the rank with most"),
    "theoretical_memory_bytes": ("B", "what the program itself predicts"),
    "gpu_memory_used_gb": ("GB", "the most of the whole GPU's memory in use, in 10^9 bytes"),
    "gpu_power_w": ("W", "power of a GPU at work"),
    "gpu_clock_mhz": ("MHz", "clock of a GPU at work"),
    "gpu_temperature_c": ("degC", "the hottest that a GPU was"),
    "gpu_power_capped_percent": ("%", "how often a GPU at work was held back by its power limit"),
    "gpu_slowed_percent": ("%", "how often by heat, by the power supply or by the hardware: 0 on a healthy machine"),
    "parameters_billion": ("10^9", "parameters, as the ranks print them"),
    "training_days": ("days", "time to train the whole model"),
}
"""Name -> unit and meaning of every number that is measured, in the order of their columns."""


def _metric_columns(name: str, unit: str, meaning: str) -> tuple[Column, ...]:
    spread = Column(f"{name}_spread", "number", "half the range of the middle half of its samples", unit)
    found = (Column(name, "number", meaning, unit), spread)
    if name != "iteration_ms":
        return found
    interval = (("low", "lower"), ("high", "upper"))
    return (
        *found,
        *(Column(f"{name}_{end}", "number", f"{word} end of its 95 % interval", unit) for end, word in interval),
    )


_NUMBERS = (
    Column("repeats", "integer", "verified repeats that the numbers stand on"),
    Column("iterations_used", "integer", "interval lines of the logs that they stand on"),
    *(column for name, (unit, meaning) in METRICS.items() for column in _metric_columns(name, unit, meaning)),
    Column("figure_metric", "text", "the metric that the figure itself shows; its numbers stand here again"),
    Column("figure_value", "number", "that metric, in the unit that its name says"),
    Column("figure_spread", "number", "its spread"),
    Column("figure_low", "number", "lower end of its 95 % interval"),
    Column("figure_high", "number", "upper end of its 95 % interval"),
)

_PUBLISHED = (
    Column("published", "number", "the source's number for the case, in the unit of `published_metric`"),
    Column("published_metric", "text", "what it is a number of: always the figure's own metric"),
    Column("published_how", "text", "`printed`, `derived`, or `read off the plot`"),
    Column("published_confirmed", "boolean", "whether the source itself is known to say so"),
    Column("published_source", "text", "where it stands"),
    Column("published_gpu", "text", "the GPU it was measured on, as far as the source says"),
    Column("published_workload", "text", "the program it was measured with, where another one ran here"),
    Column("ratio_to_published", "number", "measured over published; empty for another GPU or another program"),
)

_PROVENANCE = (
    Column("code", "text", "the code of the program that ran: a commit, or a digest"),
    Column("image", "text", "its container image"),
    Column("image_digest", "text", "the digest of that image, where `repro images import` recorded it"),
    Column("git_commit", "text", "the commit of the checkout that `repro submit` ran from"),
    Column("git_dirty", "boolean", "whether that checkout had changes"),
)

CASE_COLUMNS: tuple[Column, ...] = (
    *(*_IDENTITY, *_LAYOUT, *_MODEL, *_TRAINING, *_OUTCOME, *_TIMES, *_NUMBERS, *_PUBLISHED, *_PROVENANCE),
)
"""One row per case."""

_SAME = {column.name: column for column in CASE_COLUMNS}
OF_JOB = ("experiment", "scale", "case", "workload", "cluster", "job", "run", "attempt", "repeat", "state", "verdict")

ITERATION_COLUMNS: tuple[Column, ...] = (
    *(_SAME[name] for name in OF_JOB),
    Column("iteration", "integer", "the last iteration of the interval that the line is about"),
    Column("elapsed_ms", "number", "average time of an iteration in it", "ms"),
    Column("loss", "number", "language-model loss"),
    Column("grad_norm", "number", "norm of the gradient"),
    Column("loss_scale", "number", "loss scale"),
    Column("skipped", "integer", "iterations that were skipped"),
    Column("nan", "integer", "iterations with NaN, as the program counts them"),
    Column("reported_tflops_per_gpu", "number", "what the program itself prints", "TFLOP/s"),
    Column("reported_tokens_per_s_per_gpu", "number", "what the program itself prints", "1/s"),
    Column("power_w", "number", "power per GPU, as the program prints it", "W"),
    Column("is_finite", "boolean", "false where a number of the line was NaN or infinite, and is empty here"),
    Column("host_wait_ms", "number", "time per iteration for which a GPU waited for the host", "ms"),
    Column("used", "boolean", "whether the metrics of the case stand on it"),
)
"""One row per interval line of a log."""
