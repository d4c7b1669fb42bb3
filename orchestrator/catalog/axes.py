"""What may be set for a case, by the names that matrices, rows, rules and `--where` all use."""

from __future__ import annotations

import re
from typing import Annotated, Generic, TypeVar

from pydantic import Field, ValidationError, model_validator

from orchestrator.config.model import Count, Strict, Text, shortened
from orchestrator.megatron.training import ContextCommunication, DdpKind, Recompute

Flag = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Value = int | float | bool | str
"""What an axis may be set to."""


class Settings(Strict):
    """Everything that may differ between the cases of a figure.

    Sizes of the parallel groups: pipeline, tensor, data, context, expert and expert-tensor (`pp`, `tp`, `dp`, `cp`,
    `ep`, `etp`), and `vp` virtual stages. `mbs` and `gbs` are the microbatch and global batch size in sequences.
    `case` names a row; `model` one of the paper's models. The other names are those of `ModelShape` and `Training`.
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
    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_groups: Count | None = None
    ffn: Count | None = None
    experts: Count | None = None
    experts_per_token: Count | None = None
    seq: Count | None = None
    vocab: Count | None = None
    mbs: Count | None = None
    gbs: Count | None = None

    def given(self) -> dict[str, Value]:
        """What is set, in the order of the axes."""
        return {name: getattr(self, name) for name in AXES if getattr(self, name) is not None}


AXES: tuple[str, ...] = tuple(Settings.model_fields)
"""Names of all axes, in the order in which they name a case."""

T = TypeVar("T")


class ByAxis(Strict, Generic[T]):
    """Something for some of the axes."""

    case: T | None = None
    model: T | None = None
    workload: T | None = None
    gpus: T | None = None
    pp: T | None = None
    tp: T | None = None
    dp: T | None = None
    cp: T | None = None
    ep: T | None = None
    etp: T | None = None
    vp: T | None = None
    recompute: T | None = None
    offload: T | None = None
    scatter_gather: T | None = None
    sequence_parallel: T | None = None
    distributed_optimizer: T | None = None
    cp_comm: T | None = None
    ddp: T | None = None
    layers: T | None = None
    hidden: T | None = None
    heads: T | None = None
    kv_groups: T | None = None
    ffn: T | None = None
    experts: T | None = None
    experts_per_token: T | None = None
    seq: T | None = None
    vocab: T | None = None
    mbs: T | None = None
    gbs: T | None = None

    def given(self) -> dict[str, T]:
        return {name: getattr(self, name) for name in AXES if getattr(self, name) is not None}


class AxisRules(ByAxis[Text]):
    """Axes that follow from others: `tp: gpus / pp`."""


class AxisValues(ByAxis[list[Value]]):
    """The matrix: every combination of these values is one case."""

    @model_validator(mode="after")
    def _has_values(self) -> AxisValues:
        if not self.given():
            raise ValueError("names no axis")
        for name, values in self.given().items():
            if not values:
                raise ValueError(f"{name} has no values")
            if len(set(values)) != len(values):
                raise ValueError(f"{name} names a value twice")
        return self


_WHOLE = re.compile(r"-?[0-9]{1,9}")
_DECIMAL = re.compile(r"-?[0-9]{1,9}\.[0-9]{1,9}")


def read_value(axis: str, text: str) -> Value:
    """What `text`, as typed after `axis=`, stands for; ValueError says what it may be."""
    number = int(text) if _WHOLE.fullmatch(text) else float(text) if _DECIMAL.fullmatch(text) else None
    meant: Value = number if number is not None else {"true": True, "false": False}.get(text, text)
    try:
        return checked_value(axis, meant)
    except ValueError:
        if meant == text:
            raise
        return checked_value(axis, text)  # a row may be called 301


def checked_value(axis: str, value: object) -> Value:
    """The value itself if this axis can have it; ValueError says what it may be."""
    try:
        found: Value = getattr(Settings.model_validate({axis: value}), axis)
    except ValidationError as error:
        said = str(error.errors()[0]["msg"])
        raise ValueError(f"{said[:1].lower()}{said[1:]}, got {shortened(value)}") from None
    return found
