"""Programs of installed packages: entry points of the group `repro.programs`. Each is loaded when it is used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache

from pydantic import ValidationError

from orchestrator.errors import Problem, ReproError, names_hint
from orchestrator.programs.axes import MetricDefinition
from orchestrator.programs.plug_ins import Registry, plug_ins
from orchestrator.programs.program import ProgramFields, metric_definitions
from orchestrator.programs.record import Program

GROUP = "repro.programs"


def _checked(name: str, found: object) -> Program:
    if not isinstance(found, Program):
        raise TypeError("is not a programs.record.Program")
    entries = plug_ins(GROUP)
    registered = entries.get(found.name)
    if name not in (found.name, *found.other_names) or registered is None or registered.value != entries[name].value:
        raise TypeError(f"is the program {found.name}, which is not registered by this package")
    return found


PROGRAMS = Registry(GROUP, _checked)


def known_program(name: str) -> Program | None:
    """Return the program of this name or other name; None if there is none. ReproError if it cannot be loaded."""
    return PROGRAMS.find(name)


def programs() -> Mapping[str, Program]:
    """Return every program by name, in the order of the names, without those that cannot be loaded."""
    return dict(sorted({one.name: one for one in PROGRAMS.loaded().values()}.items()))


def program_name(name: str) -> str:
    """Return the name of the program with this other name; any other text unchanged."""
    found = known_program(name)
    return name if found is None else found.name


def find_program(name: str) -> Program:
    """Return the program of this name; ReproError if there is none."""
    found = known_program(name)
    if found is None or found.name != name:
        raise _unknown(name, programs())
    return found


def probe_program() -> Program | None:
    """Return the program whose Python and image test the nodes of a cluster; None if there is none."""
    return next((program for program in programs().values() if program.probe_folder is not None), None)


def require_program(name: str, ran: Iterable[str]) -> None:
    """Raise ReproError unless a program has this name or it is one of the programs that jobs `ran`."""
    ran, known = set(ran), known_program(name)
    if name not in ran and (known is None or known.name != name):
        raise _unknown(name, dict.fromkeys([*programs(), *sorted(ran)]))


def _unknown(name: str, known: Iterable[str]) -> ReproError:
    return ReproError(Problem(f"{name}: no such program", hint=names_hint(name, known)), *PROGRAMS.broken())


def definitions_of(program: str, described: Mapping[str, object] | None) -> Mapping[str, MetricDefinition]:
    """Return the metrics of a job's program: `described` is `JobSpec.program`, None for a known program."""
    if described is not None:
        return metric_definitions(recorded_program(json.dumps(described)))
    return find_program(program_name(program)).names.metrics


@lru_cache(maxsize=256)
def recorded_program(text: str) -> ProgramFields:
    """Return the described program that a job's configuration has, from its JSON. ReproError if it is damaged."""
    try:
        return ProgramFields.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ReproError(Problem(f"the record of the job's program is not valid: {where}: {first['msg']}")) from None
