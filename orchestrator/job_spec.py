"""Configuration of a job, as the ledger stores it in JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
class JobSpec:
    """Configuration of a job: every value that a reader of its results computes with.

    `point` has the case's values on the axes that name it, `settings` on every axis.
    `argument_changes` are the options `--arg` and `--no-arg` that changed the arguments.
    `program` is the block of the program that the experiment describes (`programs.program.ProgramFields`), in JSON.
    `gpu` is None for a job on CPU cores or on an unknown GPU. `own` has the values that a known program adds, in JSON
    (`programs.record.Program.spec_values`).
    """

    point: Mapping[str, Value] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)
    device: str | None = None
    resources: Resources | None = None
    arguments: tuple[str, ...] = ()
    argument_changes: tuple[str, ...] = ()
    program: Mapping[str, object] | None = None
    data: str | None = None
    image_path: str | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def units(self) -> Mapping[str, str]:
        """Return the units of the described program's metrics that have one."""
        metrics: Any = (self.program or {}).get("metrics", {})
        return {name: fields["unit"] for name, fields in metrics.items() if fields.get("unit")}

    def to_json(self) -> dict[str, object]:
        """Return the JSON object that the ledger stores: the values of all programs, then those of its own program."""
        stored = {name: getattr(self, name) for name in _SHARED}  # no copies: a run has thousands of jobs
        stored |= {name: list(stored[name]) for name in _WORDS}
        stored["resources"] = self.resources and dataclasses.asdict(self.resources)
        left_out = {name for name in ("argument_changes", "program") if not stored[name]}
        return {name: value for name, value in stored.items() if name not in left_out} | dict(self.own)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> JobSpec:
        """Read a stored configuration; TypeError if its resources have fields of another version."""
        values = {name: stored[name] for name in _SHARED if name in stored}
        values |= {name: tuple(stored.get(name, ())) for name in _WORDS}
        if values.get("resources") is not None:
            values["resources"] = Resources(**values["resources"])
        return cls(**values, own={name: value for name, value in stored.items() if name not in _SHARED})


_WORDS = ("arguments", "argument_changes")
_SHARED = [field.name for field in dataclasses.fields(JobSpec) if field.name != "own"]
