"""How a run is to go: in which order, how much of it at once, after what, and when to stop. Kept with the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`max_parallel`: no more of the run's jobs at once, whatever they ask for. `at_once`: elements of one array.

    `after`: ids of the scheduler that must have ended first; `follows` the same on this machine: a job's folder, and
    the process id of its queue. `canary`: the job that has to be verified before the others start. `stop_after`: so
    many failures of one class end the rest. `warm_ups`: the scheduler's id of a job that compiles kernels -> the jobs
    that need them.
    """

    max_parallel: int | None = None
    after: tuple[str, ...] = ()
    follows: tuple[tuple[str, int], ...] = ()
    canary: str | None = None
    stop_after: int | None = None
    warm_ups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    at_once: int = 1

    @property
    def has_gate(self) -> bool:
        """Whether each job has to look, before it starts, at what became of others."""
        return self.canary is not None or self.stop_after is not None

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunOptions:
        known = {one.name for one in dataclasses.fields(cls)}
        given = {name: kept for name, kept in value.items() if name in known}
        given["after"] = tuple(given.get("after", ()))
        given["follows"] = tuple((folder, queue) for folder, queue in given.get("follows", ()))
        given["warm_ups"] = {name: tuple(jobs) for name, jobs in given.get("warm_ups", {}).items()}
        return cls(**given)
