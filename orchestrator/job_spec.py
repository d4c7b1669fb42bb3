"""Configuration of a job, as the ledger stores it in JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.megatron.model import Layout, ModelShape, Training

Value = int | float | bool | str
"""Value of a case on an axis."""


def shown_changes(changes: Iterable[str]) -> str:
    """Return changes of arguments as they are typed: `--arg --lr=0.001 --no-arg --overlap-sp-ag`."""
    return " ".join(change.replace("=", " ", 1) for change in changes)


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources that a job requests from the scheduler. `gpus_per_node` is 0 where processes run on CPU cores."""

    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    time_limit: str

    @property
    def tasks(self) -> int:
        """Return the number of tasks of the job."""
        return self.nodes * self.tasks_per_node

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of the job; 0 on CPU cores."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class ComputedProducts:
    """Products that a program leaves out of the ones that SC21's eq. 3 counts."""

    causal_attention: bool
    skips_last_product: bool


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Configuration of a job: every value that a reader of its results computes with.

    `point` has the case's values on the axes that name it, `settings` on every axis.
    `argument_changes` are the options `--arg` and `--no-arg` that changed the arguments.
    `program` is the block of the program that the experiment describes (`programs.program.ProgramFields`), in JSON.
    `gpu` and `peak_tflops` (TFLOP/s per GPU) are None for a job on CPU cores or on an unknown GPU.
    """

    point: Mapping[str, Value] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)
    device: str | None = None
    model: ModelShape | None = None
    layout: Layout | None = None
    training: Training | None = None
    resources: Resources | None = None
    arguments: tuple[str, ...] = ()
    argument_changes: tuple[str, ...] = ()
    computes: ComputedProducts | None = None
    program: Mapping[str, object] | None = None
    data: str | None = None
    image_path: str | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    peak_tflops: float | None = None

    @property
    def warmup_iterations(self) -> int:
        """Return the iterations that do not count for metrics; 0 if they are not recorded."""
        return self.training.warmup_iterations if self.training else 0

    @property
    def units(self) -> Mapping[str, str]:
        """Return the units of the described program's metrics that have one."""
        metrics: Any = (self.program or {}).get("metrics", {})
        return {name: fields["unit"] for name, fields in metrics.items() if fields.get("unit")}

    def value(self, axis: str) -> Value | None:
        """Return the job's value on an axis."""
        return self.settings.get(axis)

    def to_json(self) -> dict[str, object]:
        """Return the JSON object that the ledger stores, with its keys in order."""
        stored: dict[str, Any] = dataclasses.asdict(self)
        stored |= {name: list(getattr(self, name)) for name in _WORDS}
        left_out = {name for name in ("computes", "argument_changes", "program") if not stored[name]}
        if self.model is not None and self.model.positions == "learned":
            del stored["model"]["positions"]
        return {name: value for name, value in stored.items() if name not in left_out}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> JobSpec:
        """Read a stored configuration without unknown fields; TypeError if a part has fields of another version."""
        parts = {name: part(**stored[name]) for name, part in _PARTS.items() if stored.get(name) is not None}
        values = {**stored, **parts, **{name: tuple(stored.get(name, ())) for name in _WORDS}}
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values})


_PARTS: Mapping[str, type[ModelShape | Layout | Training | Resources | ComputedProducts]] = {
    "model": ModelShape,
    "layout": Layout,
    "training": Training,
    "resources": Resources,
    "computes": ComputedProducts,
}
_WORDS = ("arguments", "argument_changes")
