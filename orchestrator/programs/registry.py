"""Programs of installed packages: entry points of the group `repro.programs`. Each is loaded when it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from orchestrator.errors import Problem, ReproError, names_hint
from orchestrator.programs.record import Program

GROUP = "repro.programs"


@cache
def _registered() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


@cache
def known_program(name: str) -> Program | None:
    """Return the program of this name or other name; None if there is none. ReproError if it cannot be loaded."""
    entry = _registered().get(name)
    if entry is None:
        return None
    try:
        loaded = entry.load()
    except Exception as error:  # the module of another author
        package = entry.dist.name if entry.dist is not None else entry.value
        what = f"{name}: the program of {package} cannot be loaded: {type(error).__name__}: {error}"
        raise ReproError(
            Problem(what.replace("\n", " "), hint=f"repair {entry.value}, or uninstall {package}")
        ) from None
    if not isinstance(loaded, Program):
        raise ReproError(Problem(f"{name}: {entry.value} is no program", hint="it must be a programs.record.Program"))
    return loaded


def programs() -> Mapping[str, Program]:
    """Return every program by name, in the order of the names. ReproError if one cannot be loaded."""
    found = (known_program(name) for name in _registered())
    return {each.name: each for each in sorted((one for one in found if one is not None), key=lambda one: one.name)}


def program_name(name: str) -> str:
    """Return the name of the program with this other name; any other text unchanged."""
    found = known_program(name)
    return name if found is None else found.name


def find_program(name: str) -> Program:
    """Return the program of this name; ReproError if there is none."""
    found = known_program(name)
    if found is None or found.name != name:
        raise ReproError(Problem(f"{name}: no such workload", hint=names_hint(name, programs())))
    return found


def probe_program() -> Program | None:
    """Return the program whose Python and image test the nodes of a cluster; None if there is none."""
    return next((program for program in programs().values() if program.probe_folder is not None), None)


def require_program(name: str, ran: Iterable[str]) -> None:
    """Raise ReproError unless a program has this name or it is one of the programs that jobs `ran`."""
    known = dict.fromkeys([*programs(), *ran])
    if name not in known:
        raise ReproError(Problem(f"{name}: no such workload", hint=names_hint(name, known)))
