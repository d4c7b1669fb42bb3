"""Programs of the Megatron family: one module per argument dialect."""

from __future__ import annotations

from orchestrator.errors import Problem, ReproError
from orchestrator.megatron.programs.base import AnyMegatronProgram, MegatronProgram
from orchestrator.programs.record import find_program, known_program


def find_megatron(name: str) -> AnyMegatronProgram:
    """Return the program of this name; ReproError if there is none of the Megatron family."""
    found = find_program(name)
    if not isinstance(found, MegatronProgram):
        raise ReproError(Problem(f"{name}: no program of the Megatron family"))
    return found


def megatron_named(name: str) -> AnyMegatronProgram | None:
    """Return the program of this name or other name; None if the Megatron family has none."""
    found = known_program(name)
    return found if isinstance(found, MegatronProgram) else None
