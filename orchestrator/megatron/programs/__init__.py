"""Programs of the Megatron family: one module per argument dialect."""

from __future__ import annotations

from orchestrator.errors import Problem, ReproError
from orchestrator.megatron.programs.base import AnyWorkload, Workload
from orchestrator.programs.registry import find_program, known_program


def find_workload(name: str) -> AnyWorkload:
    """Return the program of this name; ReproError if there is none of the Megatron family."""
    found = find_program(name)
    if not isinstance(found, Workload):
        raise ReproError(Problem(f"{name}: no program of the Megatron family"))
    return found


def workload_named(name: str) -> AnyWorkload | None:
    """Return the program of this name or other name; None if the Megatron family has none."""
    found = known_program(name)
    return found if isinstance(found, Workload) else None
