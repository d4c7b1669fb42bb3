"""Axes of a case: the names that matrices, rows, rules and `--where` may set, with the type of each value."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.config.model import Count, Strict, Text, shortened
from orchestrator.errors import did_you_mean
from orchestrator.job_spec import Value
from orchestrator.megatron.model import ContextCommunication, DdpKind, Recompute

Flag = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]


class ParallelAxes(Strict):
    """Name of the row and of the paper's model, workload, parallel sizes and switches; `label` is the source's name.

    Parallel sizes are pipeline, tensor, data, context, expert and expert-tensor (`pp`, `tp`, `dp`, `cp`, `ep`, `etp`);
    `vp` is the number of virtual stages.
    """

    case: Text | None = None
    model: Text | None = None
    workload: Text | None = None
    gpus: Count | None = None
    pp: Count | None = None
    tp: Count | None = None
    dp: Count | None = None
    cp: Count | None = None
    ep: Count | None = None
    etp: Count | None = None
    vp: Count | None = None
    recompute: Recompute | None = None
    offload: Share | None = None
    scatter_gather: Flag | None = None
    sequence_parallel: Flag | None = None
    distributed_optimizer: Flag | None = None
    cp_comm: ContextCommunication | None = None
    ddp: DdpKind | None = None
    label: Text | None = None


class ModelAxes(Strict):
    """Sizes of a model that an experiment gives: the fields of `ModelShape`, any of which may follow from a rule."""

    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_groups: Count | None = None
    ffn: Count | None = None
    experts: Count | None = None
    experts_per_token: Count | None = None
    seq: Count | None = None
    vocab: Count | None = None


class BatchAxes(Strict):
    """Microbatch and global batch size in sequences, and the tokens of the whole training, in billions.

    `tokens_billion` has no influence on the job. It gives the training days of the case.
    """

    mbs: Count | None = None
    gbs: Count | None = None
    tokens_billion: Count | None = None


class Settings(BatchAxes, ModelAxes, ParallelAxes):
    """Values on any axes. Pydantic orders the fields by base class, the last base first."""

    def given(self) -> dict[str, Value]:
        """Return the values that are set, in the order of the axes."""
        values = self.__dict__  # an experiment has thousands of rows, and getattr of a model is slow
        return {name: values[name] for name in AXES if values[name] is not None}


AXES: tuple[str, ...] = tuple(Settings.model_fields)
"""Names of all axes, in the order in which they name a case."""


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


ByAxis = Annotated[dict[Annotated[str, AfterValidator(_axis)], T], AfterValidator(_in_order)]
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
        message = str(error.errors()[0]["msg"])
        raise ValueError(f"{message[:1].lower()}{message[1:]}, got {shortened(value)}") from None
    return checked
