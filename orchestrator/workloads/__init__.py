"""Programs that a case can run: one module per argument dialect. To add a workload, add a module that defines it."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

from orchestrator.catalog.expand import scale_fields
from orchestrator.catalog.experiment import scale_names
from orchestrator.catalog.library import Entry, named_values
from orchestrator.errors import Problem, ReproError, names_hint
from orchestrator.files import keep_files
from orchestrator.paths import Folders
from orchestrator.workloads.base import AnyWorkload, Program, Workload


@cache
def workloads() -> Mapping[str, AnyWorkload]:
    """Return every `Workload` that a module of this package defines, by name and in the order of the names."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    defined = [value for module in modules for value in vars(module).values() if isinstance(value, Workload)]
    return {workload.name: workload for workload in sorted(defined, key=lambda workload: workload.name)}


def workload_name(name: str) -> str:
    """Return the name of the workload with this other name; any other text unchanged."""
    return next((workload.name for workload in workloads().values() if name in workload.other_names), name)


def find_workload(name: str) -> AnyWorkload:
    """Return the workload of this name; ReproError if there is none."""
    workload = workloads().get(name)
    if workload is None:
        raise ReproError(Problem(f"{name}: no such workload", hint=names_hint(name, workloads())))
    return workload


def unknown_workloads(entry: Entry) -> Iterator[Problem]:
    """Yield each workload that an experiment names for its jobs and that does not exist."""
    for scale in scale_names(entry.experiment) if entry.experiment.reference_only is None else ():
        fields = scale_fields(entry, scale)
        named = [(("workload",), fields.workload)] if fields.workload is not None else []
        for path, name in (*named, *named_values(fields, "workload", to_run=True)):
            if name not in workloads():
                hint = names_hint(str(name), workloads())
                yield Problem(f"{name}: no such workload", entry.scale_location(scale, *path), hint)


def require_workload(name: str, ran: Iterable[str]) -> None:
    """Raise ReproError unless a workload has this name or it is one of the programs that jobs `ran`."""
    known = dict.fromkeys([*workloads(), *ran])
    if name not in known:
        raise ReproError(Problem(f"{name}: no such workload", hint=names_hint(name, known)))


def copy_programs(programs: Iterable[Program], folders: Folders) -> None:
    """Copy what jobs of these programs import or read to the folders where they look for it. ReproError if impossible.

    Programs with one name and code have the same files.
    """
    for program in {(program.workload, program.code): program for program in programs}.values():
        if program.origin is None:
            find_workload(program.workload).write_files(folders)
        elif copies := {file.name: file.content for file in program.files if file.text is None}:
            keep_files(Path(str(program.copies)), copies)
