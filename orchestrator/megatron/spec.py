"""Configuration of a job of the Megatron family, as the ledger stores it, and its settings in exports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import JobSpec
from orchestrator.megatron.axes import AXES, SETTING_COLUMNS
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.model import Layout, ModelShape, Training

_OF_FIGURE = ("case", "label", "model", "program", "tokens_billion")
"""Axes whose values belong to the figure; another figure that shares the job may have other values."""
_TRAINING_FIELDS = ("dtype", "attention", "dropout", "iterations", "warmup_iterations")


@dataclass(frozen=True, slots=True)
class ComputedProducts:
    """Products that a program leaves out of the ones that SC21's eq. 3 counts."""

    causal_attention: bool
    skips_last_product: bool


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """Values of a job that only the Megatron family has. Jobs of older versions of repro may lack some.

    `peak_tflops` (TFLOP/s per GPU) is None for a job on CPU cores or on an unknown GPU.
    """

    model: ModelShape | None = None
    layout: Layout | None = None
    training: Training | None = None
    computes: ComputedProducts | None = None
    peak_tflops: float | None = None

    @property
    def warmup_iterations(self) -> int:
        """Return the iterations that do not count for metrics; 0 if they are not recorded."""
        return self.training.warmup_iterations if self.training else 0

    def to_json(self) -> dict[str, object]:
        """Return the values that the ledger stores in the job's configuration."""
        stored = dataclasses.asdict(self)
        if self.model is not None and self.model.positions == "learned":
            del stored["model"]["positions"]
        return stored


_PARTS: Mapping[str, type[ModelShape | Layout | Training | ComputedProducts]] = {
    "model": ModelShape,
    "layout": Layout,
    "training": Training,
    "computes": ComputedProducts,
}


def training_spec(spec: JobSpec) -> TrainingSpec:
    """Return these values of a job. ReproError if a part has fields of another version."""
    try:
        stored = {name: spec.own[name] for name in _PARTS if spec.own.get(name) is not None}
        parts: dict[str, Any] = {name: _PARTS[name](**values) for name, values in stored.items()}
    except TypeError as error:
        what = f"the configuration of a job is one of another version of repro ({error})"
        raise ReproError(Problem(what)) from None
    return TrainingSpec(**parts, peak_tflops=spec.own.get("peak_tflops"))


def exported_settings(case: TrainingCase, spec: JobSpec | None) -> dict[str, object]:
    """Return the recorded settings of the job (the experiment may have been edited since), else the planned ones."""
    ran: JobSpec | TrainingCase = spec if spec is not None and spec.settings else case
    parts = training_spec(ran) if isinstance(ran, JobSpec) else ran
    settings = {**ran.settings, **{axis: case.settings.get(axis) for axis in _OF_FIGURE}}
    values: dict[str, object] = {AXES[axis].name: value for axis, value in settings.items() if axis in AXES}
    values |= {name: getattr(parts.training, name, None) for name in _TRAINING_FIELDS}
    values |= {"family": parts.model and parts.model.family, "device": ran.device}
    values["microbatches"] = parts.layout and parts.layout.microbatches
    return {column.name: values.get(column.name) for column in SETTING_COLUMNS}
