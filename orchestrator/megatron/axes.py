"""Names of the Megatron family: axes, which matrices, rows, rules and `--where` set, and the metrics of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, model_validator

from orchestrator.config.model import Count, NonNegative, Strict, Text, optional
from orchestrator.fields import Column, kind_of
from orchestrator.megatron.model import Attention, ContextCommunication, DdpKind, Dtype, Family, Positions, Recompute
from orchestrator.programs.axes import (
    DEVICE,
    GPUS,
    SAMPLED,
    MetricDefinition,
    ProgramAxes,
    ProgramNames,
    with_units_in_names,
)

Flag = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
LossScale = Annotated[int, Field(strict=True, ge=1, le=2**64)]


@dataclass(frozen=True, slots=True)
class _Exported:
    column: str | None
    unit: str | None


def _axis(description: str, *examples: object, column: str | None = None, unit: str | None = None) -> Any:
    """Return the declaration of an axis. Its column in exports has the name of the axis and no unit by default."""
    field: Any = optional(description, *examples)
    field.metadata.append(_Exported(column, unit))
    return field


class ParallelAxes(Strict):
    """Names, program, parallel sizes and switches of a case."""

    case: Text | None = _axis("Name of a row.", "1.7B", column="row")
    model: Text | None = _axis("Name of a model that `paper.yaml` defines in `models`.", "gpt-6.7b")
    program: Text | None = _axis("Program of the case: `repro programs list` prints the names.", "pretrain")
    gpus: Count | None = _axis("Number of GPUs of the job.", 64)
    pp: Count | None = _axis(
        "Number of pipeline stages: the pipeline-parallel size. Without it: 1.", 8, column="pipeline_parallel"
    )
    tp: Count | None = _axis("Tensor-parallel size, a number of GPUs. Without it: 1.", 8, column="tensor_parallel")
    dp: Count | None = _axis(
        "Data-parallel size, a number of replicas of the model. It follows from the other sizes; a given value is "
        "checked.",
        2,
        column="data_parallel",
    )
    cp: Count | None = _axis("Context-parallel size, a number of GPUs. Without it: 1.", 2, column="context_parallel")
    ep: Count | None = _axis("Expert-parallel size, a number of GPUs. Without it: 1.", 4, column="expert_parallel")
    etp: Count | None = _axis(
        "Tensor-parallel size inside experts, a number of GPUs. Without it: `tp`.", 1, column="expert_tensor_parallel"
    )
    vp: Count | None = _axis(
        "Number of virtual stages of a pipeline stage: above 1 the schedule is interleaved. Without it: 1.",
        2,
        column="virtual_stages",
    )
    recompute: Recompute | None = _axis(
        "Activations that the backward pass computes again: none, selective (attention scores), full (all of a "
        "layer), or ours (norms and activation functions, as in ATC'24). Without it: none."
    )
    offload: Share | None = _axis(
        "Share of the activations that is moved to the host, from 0 to 1. Without it: 0.", 0.5
    )
    scatter_gather: Flag | None = _axis("true: the scatter/gather optimisation of SC21, section 4.1. Without it: true.")
    sequence_parallel: Flag | None = _axis("true: norms and dropouts are split along the sequence. Without it: false.")
    distributed_optimizer: Flag | None = _axis(
        "true: the optimizer state is split over data-parallel ranks. Without it: the program's default."
    )
    cp_comm: ContextCommunication | None = _axis(
        "Communication of context parallelism. Without it: p2p.", column="context_communication"
    )
    ddp: DdpKind | None = _axis("Implementation of data parallelism in Megatron-LM of 2021. Without it: local.")
    label: Text | None = _axis("Name of the case in the source. It has no influence on the job.", "302-cp2")


class ModelAxes(Strict):
    """Sizes of a model that an experiment gives: the fields of `ModelShape`, any of which may follow from a rule."""

    layers: Count | None = _axis("Number of transformer layers.", 24)
    hidden: Count | None = _axis("Hidden size, a number of elements.", 2304)
    heads: Count | None = _axis("Number of attention heads.", 24)
    kv_groups: Count | None = _axis("Number of key and value heads. Without it: `heads`.", 8, column="key_value_groups")
    ffn: Count | None = _axis(
        "Width of the feed-forward layer or of an expert, a number of elements. Without it: 4 x `hidden`.",
        9216,
        column="ffn_hidden",
    )
    experts: Count | None = _axis("Number of experts of a layer. Without it the layers are dense.", 8)
    experts_per_token: Count | None = _axis("Number of experts that process each token.", 2)
    seq: Count | None = _axis("Length of a sequence in tokens.", 2048, column="sequence_length", unit="tokens")
    vocab: Count | None = _axis("Size of the vocabulary in tokens.", 51200, column="vocabulary", unit="tokens")


class BatchAxes(Strict):
    """Batch sizes of a case, and the tokens of its whole training."""

    mbs: Count | None = _axis("Microbatch size in sequences.", 2, column="micro_batch_size", unit="sequences")
    gbs: Count | None = _axis("Global batch size in sequences.", 512, column="global_batch_size", unit="sequences")
    tokens_billion: Count | None = _axis(
        "Tokens of the whole training in 10^9, for the metric `training_days`. It does not change the job.",
        300,
        unit="10^9",
    )


class MegatronSettings(BatchAxes, ModelAxes, ParallelAxes):
    """Values on the axes of a program of the Megatron family."""

    # Pydantic orders the fields by base class, the last base first.


class ModelFields(ModelAxes):
    """Shape of a model, or the part of it that all cases share. Matrix, rows or rules contain the rest."""

    family: Family | None = optional(
        "gpt: GELU, learned positions, LayerNorm, biases, one table for embedding and output (SC21). llama: SwiGLU, "
        "rotary positions, RMSNorm, no biases, two tables. Without it: gpt."
    )
    positions: Positions | None = optional(
        "Positions of a gpt. rotary: each layer rotates its queries and keys. Without it: learned."
    )

    @model_validator(mode="after")
    def _llama_sets_positions(self) -> ModelFields:
        if self.family == "llama" and self.positions is not None:
            raise ValueError("positions: those of a llama are rotary; remove the key")
        return self


class TrainingFields(Strict):
    """Training options of all cases."""

    dtype: Dtype | None = optional("Number format of weights and activations. Without it: fp32.")
    loss_scale: LossScale | None = optional(
        "Constant loss scale of fp16, a factor. Without it: dynamic, which `pretrain` lacks.", 4096
    )
    recompute: Recompute | None = optional(
        "Activations that the backward pass computes again, as in the axis `recompute`. Without it: none."
    )
    sequence_parallel: bool | None = optional(
        "true: norms and dropouts are split along the sequence. Without it: false."
    )
    distributed_optimizer: bool | None = optional(
        "true: the optimizer state is split over data-parallel ranks. Without it: the program's default."
    )
    attention: Attention | None = optional("Implementation of attention. Without it: the program's default.")
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = optional(
        "Dropout rate, a share below 1. Without it: 0.1.", 0.0
    )
    iterations: Count | None = optional("Number of iterations of a job. Without it: 20.", 25)
    warmup_iterations: NonNegative | None = optional(
        "Number of first iterations that are not measured. Without it: 2.", 5
    )
    log_interval: Count | None = optional("Number of iterations between two log lines. Without it: 1.", 5)
    evaluation_iterations: NonNegative | None = optional("Number of iterations of an evaluation. Without it: 0.", 1)


def _columns(model: type[Strict]) -> Mapping[str, Column]:
    """Return the column of each axis. Its meaning is the description of the axis without the default."""
    columns: dict[str, Column] = {}
    for name, info in model.model_fields.items():
        exported = next(each for each in info.metadata if isinstance(each, _Exported))
        meaning = (info.description or "").partition(" Without it")[0].rstrip(".")
        meaning = meaning[:1].lower() + meaning[1:]
        columns[name] = Column(exported.column or name, kind_of(info.annotation), meaning, exported.unit)
    return columns


AXES: Mapping[str, Column] = _columns(MegatronSettings)
"""Column in exports of each axis. The names of axes are in the order in which they name a case."""


WITHOUT_INFLUENCE = frozenset({"case", "label", "tokens_billion"})
"""Axes that have no influence on a job."""


_OTHER_SETTINGS = {
    column.name: column
    for column in (
        DEVICE,
        GPUS,
        Column("microbatches", "integer", "microbatches per pipeline and iteration"),
        Column("family", "text", "`gpt` or `llama`"),
        Column("dtype", "text", "`fp32`, `fp16` or `bf16`"),
        Column("attention", "text", "`unfused` or `flash`, if the experiment sets it"),
        Column("dropout", "number", "dropout probability"),
        Column("iterations", "integer", "planned iterations"),
        Column("warmup_iterations", "integer", "first iterations, which are not measured"),
    )
}
SETTING_COLUMNS: tuple[Column, ...] = tuple(
    _OTHER_SETTINGS[name] if name in _OTHER_SETTINGS else AXES[name]
    for name in (
        *("case", "label", "model", "device", "gpus", "tp", "pp", "dp", "cp", "ep", "etp", "vp", "mbs", "gbs"),
        *("microbatches", "tokens_billion", "family", "layers", "hidden", "heads", "kv_groups", "ffn", "experts"),
        *("experts_per_token", "seq", "vocab", "dtype", "recompute", "offload", "scatter_gather"),
        *("sequence_parallel", "distributed_optimizer", "cp_comm", "ddp", "attention", "dropout", "iterations"),
        "warmup_iterations",
    )
)
"""Columns of axes and of other settings. The axis `case` has the column `row`: the column `case` is the whole name."""
_Of = MetricDefinition  # one line for each short definition
METRICS: Mapping[str, MetricDefinition] = with_units_in_names(
    _Of(
        "iteration_ms",
        "ms",
        "time of an iteration",
        "lower",
        published=True,
        is_principal=True,
        label="Iteration time (ms)",
    ),
    _Of("host_wait_ms", "ms", "time per iteration for which a GPU waited for the host, maximum over ranks", "lower"),
    _Of("host_wait_percent", "%", "host wait as a share of the iteration time", "lower"),
    _Of("tflops_per_gpu", "TFLOP/s", "FLOPs per second and GPU, by SC21's equation 3", published=True),
    _Of(
        "percent_of_peak",
        "%",
        "FLOPs by SC21's equation 3 as a share of the GPU's dense peak",
        published=True,
        beside="tflops_per_gpu",
        label="% of peak, eq. 3",
        phrase="{} of the peak by equation 3",
    ),
    _Of(
        "percent_of_peak_computed",
        "%",
        "computed matrix products as a share of the GPU's dense peak",
        beside="tflops_per_gpu",
        label="% of peak, computed",
        phrase="{} computed",
    ),
    _Of(
        "aggregate_pflops",
        "PFLOP/s",
        "FLOPs per second of all GPUs, by SC21's equation 3",
        published=True,
        beside="tflops_per_gpu",
    ),
    _Of(
        "mfu_percent",
        "%",
        "model FLOPs utilization: 6 FLOPs per matrix weight and token, and causal attention by half; no recomputation",
        published=True,
        beside="tflops_per_gpu",
        label="MFU (%)",
        phrase="MFU {}",
    ),
    _Of("sequences_per_s", "1/s", "sequences per second", published=True),
    _Of("tokens_per_s", "1/s", "tokens per second", published=True),
    _Of("tokens_per_s_per_gpu", "1/s", "tokens per second and GPU", published=True),
    _Of("reported_tflops_per_gpu", "TFLOP/s", "rate that the program prints; its FLOP count differs by version"),
    _Of("reported_tokens_per_s_per_gpu", "1/s", "rate that the program prints"),
    _Of(
        "max_memory_allocated_bytes",
        "B",
        "peak memory that the framework allocated, maximum over ranks",
        "lower",
        is_rate=False,
        take="largest",
        least_uncertainty=0.0,
        published=True,
    ),
    _Of(
        "max_memory_reserved_bytes",
        "B",
        "peak memory that the framework reserved, maximum over ranks",
        "lower",
        is_rate=False,
        take="largest",
    ),
    _Of("theoretical_memory_bytes", "B", "memory that the program predicts", "lower", is_rate=False),
    *SAMPLED.values(),
    _Of(
        "joules_per_iteration", "J", "energy of an iteration: mean power of all GPUs times the iteration time", "lower"
    ),
    _Of(
        "joules_per_token",
        "J",
        "energy of a token: mean power of all GPUs divided by the tokens per second",
        "lower",
        published=True,
    ),
    _Of("parameters_billion", "10^9", "parameters, from the log", is_rate=False, least_uncertainty=0.0, published=True),
    _Of(
        "training_days",
        "days",
        "time to train the whole model, by SC21's equation 4, if the case has `tokens_billion`",
        "lower",
        published=True,
    ),
)
"""Metric by name, in the order of the columns.

Least uncertainties: the allocator repeats its bytes exactly; 22 cases that ran again, on the same or on another
machine, had the same peak. The memory of the whole GPU differed by up to 0.6 % between machines. The number of
parameters is counted.
"""

_SHOWN = (
    *("gpus", "tp", "pp", "cp", "dp", "ep", "vp", "mbs", "gbs", "microbatches", "layers", "hidden", "heads", "seq"),
    *("vocab", "dtype", "recompute", "offload", "scatter_gather", "sequence_parallel", "distributed_optimizer", "ddp"),
)
MEGATRON = ProgramNames(
    ProgramAxes(MegatronSettings, AXES),
    METRICS,
    groups={"model": ModelFields, "training": TrainingFields},
    exported=SETTING_COLUMNS,
    shown=tuple(replace(AXES.get(name) or _OTHER_SETTINGS[name], name=name) for name in _SHOWN),
)
"""Names that experiments with a program of the Megatron family may use."""
