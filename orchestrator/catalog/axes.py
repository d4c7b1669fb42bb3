"""Axes of a case: the names that matrices, rows, rules and `--where` may set, with the type of each value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from orchestrator.config.model import Count, Strict, Text, fault_of, optional, shortened
from orchestrator.errors import did_you_mean
from orchestrator.fields import Column, kind_of
from orchestrator.job_spec import Value
from orchestrator.megatron.model import ContextCommunication, DdpKind, Recompute

Flag = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class InColumn:
    """Declaration of the column of an axis in exports, if it has another name or a unit."""

    name: str
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis of a case: its name in experiments, in `--where` and in JSON, and its column in exports."""

    name: str
    column: Column


class ParallelAxes(Strict):
    """Names, program, parallel sizes and switches of a case."""

    case: Annotated[Text | None, InColumn("row")] = optional("Name of a row.", "1.7B")
    model: Text | None = optional("Name of a model that `paper.yaml` defines in `models`.", "gpt-6.7b")
    workload: Text | None = optional("Program of the case: `repro workloads list` prints the names.", "pretrain")
    gpus: Count | None = optional("Number of GPUs of the job.", 64)
    pp: Annotated[Count | None, InColumn("pipeline_parallel")] = optional(
        "Number of pipeline stages: the pipeline-parallel size. Without it: 1.", 8
    )
    tp: Annotated[Count | None, InColumn("tensor_parallel")] = optional(
        "Tensor-parallel size, a number of GPUs. Without it: 1.", 8
    )
    dp: Annotated[Count | None, InColumn("data_parallel")] = optional(
        "Data-parallel size, a number of replicas of the model. It follows from the other sizes; a given value is "
        "checked.",
        2,
    )
    cp: Annotated[Count | None, InColumn("context_parallel")] = optional(
        "Context-parallel size, a number of GPUs. Without it: 1.", 2
    )
    ep: Annotated[Count | None, InColumn("expert_parallel")] = optional(
        "Expert-parallel size, a number of GPUs. Without it: 1.", 4
    )
    etp: Annotated[Count | None, InColumn("expert_tensor_parallel")] = optional(
        "Tensor-parallel size inside experts, a number of GPUs. Without it: `tp`.", 1
    )
    vp: Annotated[Count | None, InColumn("virtual_stages")] = optional(
        "Number of virtual stages of a pipeline stage: above 1 the schedule is interleaved. Without it: 1.", 2
    )
    recompute: Recompute | None = optional(
        "Activations that the backward pass computes again: none, selective (attention scores), full (all of a "
        "layer), or ours (norms and activation functions, as in ATC'24). Without it: none."
    )
    offload: Share | None = optional(
        "Share of the activations that is moved to the host, from 0 to 1. Without it: 0.", 0.5
    )
    scatter_gather: Flag | None = optional(
        "true: the scatter/gather optimisation of SC21, section 4.1. Without it: true."
    )
    sequence_parallel: Flag | None = optional(
        "true: norms and dropouts are split along the sequence. Without it: false."
    )
    distributed_optimizer: Flag | None = optional(
        "true: the optimizer state is split over data-parallel ranks. Without it: the workload's default."
    )
    cp_comm: Annotated[ContextCommunication | None, InColumn("context_communication")] = optional(
        "Communication of context parallelism. Without it: p2p."
    )
    ddp: DdpKind | None = optional("Implementation of data parallelism in Megatron-LM of 2021. Without it: local.")
    label: Text | None = optional("Name of the case in the source. It has no influence on the job.", "302-cp2")


class ModelAxes(Strict):
    """Sizes of a model that an experiment gives: the fields of `ModelShape`, any of which may follow from a rule."""

    layers: Count | None = optional("Number of transformer layers.", 24)
    hidden: Count | None = optional("Hidden size, a number of elements.", 2304)
    heads: Count | None = optional("Number of attention heads.", 24)
    kv_groups: Annotated[Count | None, InColumn("key_value_groups")] = optional(
        "Number of key and value heads. Without it: `heads`.", 8
    )
    ffn: Annotated[Count | None, InColumn("ffn_hidden")] = optional(
        "Width of the feed-forward layer or of an expert, a number of elements. Without it: 4 x `hidden`.", 9216
    )
    experts: Count | None = optional("Number of experts of a layer. Without it the layers are dense.", 8)
    experts_per_token: Count | None = optional("Number of experts that process each token.", 2)
    seq: Annotated[Count | None, InColumn("sequence_length", "tokens")] = optional(
        "Length of a sequence in tokens.", 2048
    )
    vocab: Annotated[Count | None, InColumn("vocabulary", "tokens")] = optional(
        "Size of the vocabulary in tokens.", 51200
    )


class BatchAxes(Strict):
    """Batch sizes of a case, and the tokens of its whole training."""

    mbs: Annotated[Count | None, InColumn("micro_batch_size", "sequences")] = optional(
        "Microbatch size in sequences.", 2
    )
    gbs: Annotated[Count | None, InColumn("global_batch_size", "sequences")] = optional(
        "Global batch size in sequences.", 512
    )
    tokens_billion: Annotated[Count | None, InColumn("tokens_billion", "10^9")] = optional(
        "Tokens of the whole training in 10^9, for the metric `training_days`. It does not change the job.", 300
    )


class Settings(BatchAxes, ModelAxes, ParallelAxes):
    """Values on axes: the settings of a case, or a selection of cases."""

    # Pydantic orders the fields by base class, the last base first.

    def given(self) -> dict[str, Value]:
        """Return the values that are set, in the order of the axes."""
        values = self.__dict__  # an experiment has thousands of rows, and getattr of a model is slow
        return {name: values[name] for name in AXES if values[name] is not None}


def _axes(model: type[Strict]) -> Mapping[str, Axis]:
    """Return the axes that a model declares. The meaning of a column is the description without the default."""
    axes: dict[str, Axis] = {}
    for name, info in model.model_fields.items():
        column = next((each for each in info.metadata if isinstance(each, InColumn)), InColumn(name))
        meaning = (info.description or "").partition(" Without it")[0].rstrip(".")
        meaning = meaning[:1].lower() + meaning[1:]
        axes[name] = Axis(name, Column(column.name, kind_of(info.annotation), meaning, column.unit))
    return axes


AXES: Mapping[str, Axis] = _axes(Settings)
"""Axis by name, in the order in which they name a case."""


WITHOUT_INFLUENCE = frozenset({"case", "label", "tokens_billion"})
"""Axes that have no influence on a job."""


T = TypeVar("T")


def axis_hint(name: str) -> str:
    """Return the hint for a name that is not an axis."""
    return did_you_mean(name, AXES) or f"there are: {', '.join(AXES)}"


def _axis(name: str) -> str:
    if name not in AXES:
        raise PydanticCustomError("no_such_axis", "no such axis", {"hint": axis_hint(name)})
    return name


def _in_order(values: dict[str, T]) -> dict[str, T]:
    return {name: values[name] for name in AXES if name in values}


def _matrix(values: dict[str, list[Value]]) -> dict[str, list[Value]]:
    if not values:
        raise ValueError("must have an axis")
    for name, listed in values.items():
        if not listed:
            raise ValueError(f"{name} has no values")
        if len(set(listed)) != len(listed):
            raise ValueError(f"{name} has a value twice")
    return values


_AxisName = Annotated[str, AfterValidator(_axis), WithJsonSchema({"type": "string", "enum": list(AXES)})]
ByAxis = Annotated[dict[_AxisName, T], AfterValidator(_in_order)]
"""A value for some of the axes, in the order of the axes."""
Rules = ByAxis[Text]
"""Axes that follow from others: `tp: gpus / pp`."""
Matrix = Annotated[ByAxis[list[Value]], AfterValidator(_matrix)]
"""Values of each axis: each combination is one case."""

_WHOLE = re.compile(r"-?[0-9]{1,9}")
_DECIMAL = re.compile(r"-?[0-9]{1,9}\.[0-9]{1,9}")


def read_value(axis: str, text: str) -> Value:
    """Parse `text`, as typed after `axis=`; ValueError names the values that the axis can have."""
    number = int(text) if _WHOLE.fullmatch(text) else float(text) if _DECIMAL.fullmatch(text) else None
    value: Value = number if number is not None else {"true": True, "false": False}.get(text, text)
    try:
        return checked_value(axis, value)
    except ValueError:
        if value == text:
            raise
        return checked_value(axis, text)  # a row may be called 301


def checked_value(axis: str, value: object) -> Value:
    """Return the value if the axis can have it; ValueError names the values that it can have."""
    try:
        checked: Value = getattr(Settings.model_validate({axis: value}), axis)
    except ValidationError as error:
        raise ValueError(f"{fault_of(error.errors()[0])}, got {shortened(value)}") from None
    return checked
