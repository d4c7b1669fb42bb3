"""Configuration of a job, as the ledger stores it in JSON."""

from __future__ import annotations

import dataclasses
import functools
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


@dataclass(frozen=True, slots=True)
class ComputedProducts:
    """Products that a program leaves out of the ones that SC21's eq. 3 counts."""

    causal_attention: bool
    skips_last_product: bool


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Configuration of a job: every value that a reader of its results computes with.

    `point` has the case's values on the axes that name it, `settings` on every axis. `computes` is None for jobs that
    were recorded before it existed, `settings` is empty for them. A part that was stored incompletely is None.
    `argument_changes` are the options `--arg` and `--no-arg` that changed the arguments.
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
    data: str | None = None
    image_path: str | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    peak_tflops: float | None = None

    @property
    def warmup_iterations(self) -> int:
        """Return the iterations that do not count for metrics; 0 if they are not recorded."""
        return self.training.warmup_iterations if self.training else 0

    def value(self, axis: str) -> Value | None:
        """Return the job's value on an axis. Jobs without `settings` have only the values that name the case."""
        return (self.settings or self.point).get(axis)

    def to_json(self) -> dict[str, object]:
        """Return the JSON object that the ledger stores, with its keys in order."""
        stored: dict[str, Any] = dataclasses.asdict(self)
        stored |= {name: list(getattr(self, name)) for name in _WORDS}
        left_out = {name for name in ("computes", "argument_changes") if not stored[name]}
        if self.model is not None and self.model.positions == "learned":
            del stored["model"]["positions"]
        return {name: value for name, value in stored.items() if name not in left_out}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> JobSpec:
        """Read a stored configuration. Fields that an older version did not store get their defaults."""
        values = {name: value for name in _PLAIN if (value := stored.get(name)) is not None}
        parts: dict[str, Any] = {name: _part(name, stored.get(name)) for name in _PARTS}
        words: dict[str, Any] = {name: tuple(stored.get(name) or ()) for name in _WORDS}
        return cls(**values, **parts, **words)


_Part = ModelShape | Layout | Training | Resources | ComputedProducts
_PARTS: Mapping[str, type[_Part]] = {
    "model": ModelShape,
    "layout": Layout,
    "training": Training,
    "resources": Resources,
    "computes": ComputedProducts,
}
_WORDS = ("arguments", "argument_changes")
_PLAIN = tuple(field.name for field in dataclasses.fields(JobSpec) if field.name not in (*_PARTS, *_WORDS))
_FIELDS = {name: frozenset(field.name for field in dataclasses.fields(part)) for name, part in _PARTS.items()}


def _part(name: str, stored: object) -> _Part | None:
    """Make a part from the fields that were stored; None where a field without a default is missing."""
    if not isinstance(stored, Mapping):
        return None
    try:
        return _part_of(name, tuple(stored), *stored.values())
    except TypeError:
        return None


@functools.lru_cache(maxsize=1024, typed=True)  # jobs share most parts; 1, 1.0 and True stay different
def _part_of(name: str, fields: tuple[str, ...], *values: Any) -> _Part:
    values_by_field = zip(fields, values, strict=True)
    return _PARTS[name](**{field: value for field, value in values_by_field if field in _FIELDS[name]})
