"""Plug-ins: entry points of installed packages, in groups `repro.NAME`. Each is imported when it is used.

The files of the packages are read here: the import of `importlib.metadata` would make `repro --help` slower, and the
module fails for a package that is half uninstalled.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

from orchestrator.errors import Problem, ReproError

T = TypeVar("T")

_OWN = "orchestrator."
_LINE = re.compile(r"(?P<name>[^=\s][^=]*?)\s*=\s*(?P<value>[^\s;\[]+)")


def imported(value: str) -> object:
    """Import a module, and return it or its attribute: `toy.programs:TOY`. ImportError if this fails in any way."""
    name, _, attribute = value.partition(":")
    try:
        module = importlib.import_module(name)
        return getattr(module, attribute) if attribute else module
    except (Exception, SystemExit) as error:  # the module of another author
        what = " ".join(f"cannot be loaded: {type(error).__name__}: {error}".split())
        raise ImportError(what) from error


def called(value: str, what: str, kind: type[T], *arguments: object) -> T:
    """Call the function or class that a record names. ReproError if it cannot be loaded, or returns another type."""
    try:
        function = imported(value)
    except ImportError as error:
        raise ReproError(Problem(f"{value}: the {what} {error}")) from None
    if not callable(function) or not isinstance(found := function(*arguments), kind):
        raise ReproError(Problem(f"{value}: the {what} returns no {kind.__name__}"))
    return found


@dataclass(frozen=True, slots=True)
class PlugIn:
    """Entry point of a package. Its value is a module, or an attribute of one: `toy.programs:TOY`."""

    group: str
    name: str
    value: str
    package: str

    def load(self) -> object:
        """Import the module and return it or its attribute. ReproError if this fails in any way."""
        try:
            return imported(self.value)
        except ImportError as error:
            raise ReproError(self.broken(str(error))) from error

    def broken(self, what: str) -> Problem:
        """Return the problem of a plug-in, in one line that names the package and the entry point."""
        place = f"{self.group}: {self.name} = {self.value} of package {self.package}:"
        return Problem(" ".join(what.split()), place, hint=f"repair {self.package}, or uninstall it")

    def source(self) -> str:
        """Return the text of its module, without an import; empty if there is none."""
        top, *parts = self.value.partition(":")[0].split(".")
        for folder in map(Path, sys.path):
            for file in (folder / Path(top, *parts, "__init__.py"), folder / Path(top, *parts).with_suffix(".py")):
                with suppress(OSError, ValueError):
                    return file.read_text(encoding="utf-8")
        return ""


@cache
def _found() -> Mapping[str, list[PlugIn]]:
    """Return the plug-ins of each group by name; of two with one name the shipped one is first."""
    files = [file for folder in sys.path for file in sorted(Path(folder).glob("*-info/entry_points.txt"))]
    packages = {file.parent.name.partition("-")[0]: file for file in reversed(files)}  # the first one is imported
    found: dict[str, list[PlugIn]] = {}
    for package, file in packages.items():
        group = ""
        for line in _lines(file):
            if line.startswith("["):
                group = line.strip("[] ")
            elif group.startswith("repro.") and (match := _LINE.match(line)) is not None:
                found.setdefault(group, []).append(PlugIn(group, match["name"], match["value"], package))
    for of_group in found.values():
        of_group.sort(key=lambda one: (one.name, not one.value.startswith(_OWN), one.package))
    return found


def _lines(file: Path) -> Iterable[str]:
    with suppress(OSError, ValueError):
        text = file.read_text(encoding="utf-8")
        if "[repro." in text:
            return map(str.strip, text.splitlines())
    return ()


def plug_ins(group: str) -> dict[str, PlugIn]:
    """Return the plug-ins of a group by name. A name that two packages register belongs to the first one."""
    return {one.name: one for one in reversed(_found().get(group, []))}


def with_taken_names(group: str, taken: Iterable[str] = ()) -> list[Problem]:
    """Return the problem of each plug-in whose name another one, or `repro` itself, has."""
    names, taken = plug_ins(group), set(taken)
    return [
        one.broken(f"the name {one.name} is taken")
        for one in _found().get(group, [])
        if names[one.name] is not one or one.name in taken
    ]


class Registry(Generic[T]):
    """Objects of a group by name: those of `repro`, then those of packages. Each is loaded when it is used, once.

    `checked` returns the object of an entry point; TypeError with the reason if it does not fit the name.
    """

    def __init__(self, group: str, checked: Callable[[str, object], T], own: Mapping[str, T] | None = None) -> None:
        self._group, self._checked, self._own = group, checked, own or {}
        self._found = cache(self._load)

    def find(self, name: str) -> T | None:
        """Return the object of this name; None if there is none. ReproError if it cannot be loaded or does not fit."""
        found = self._found(name)
        if isinstance(found, ReproError):
            raise found
        return found

    def names(self) -> list[str]:
        """Return all names, those of `repro` first."""
        return list(dict.fromkeys([*self._own, *plug_ins(self._group)]))

    def loaded(self) -> dict[str, T]:
        """Return every object by name, without those that cannot be loaded."""
        found = {name: self._found(name) for name in self.names()}
        return {name: one for name, one in found.items() if one is not None and not isinstance(one, ReproError)}

    def broken(self) -> list[Problem]:
        """Return the problem of each plug-in that cannot be loaded, or whose name is taken."""
        found = map(self._found, plug_ins(self._group))
        problems = [problem for one in found if isinstance(one, ReproError) for problem in one.problems]
        return [*problems, *with_taken_names(self._group, self._own)]

    def _load(self, name: str) -> T | ReproError | None:
        if name in self._own:
            return self._own[name]
        if (entry := plug_ins(self._group).get(name)) is None:
            return None
        try:
            return self._checked(name, entry.load())
        except ReproError as error:
            return error
        except TypeError as error:
            return ReproError(entry.broken(str(error)))


_REGISTRIES = {
    "repro.programs": "orchestrator.programs.record:PROGRAMS",
    "repro.claims": "orchestrator.catalog.claims:KINDS",
    "repro.runtimes": "orchestrator.clusters.container:RUNTIMES",
    "repro.readers": "orchestrator.reading.reader:READERS",
}
"""Group -> its registry. The commands of `repro.commands` are found by the help, which loads none."""


def broken_plug_ins() -> list[Problem]:
    """Return the problem of each plug-in that cannot be loaded, or whose name is taken."""
    registries = [imported(registry) for group, registry in _REGISTRIES.items() if plug_ins(group)]
    return [problem for one in registries if isinstance(one, Registry) for problem in one.broken()]
