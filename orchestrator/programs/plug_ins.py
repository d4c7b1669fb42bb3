"""Plug-ins: entry points of installed packages, in groups `repro.NAME`. Each is imported when it is used.

The files of the packages are read here: the import of `importlib.metadata` would make `repro --help` slower, and the
module fails for a package that is half uninstalled.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestrator.errors import Problem, ReproError

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
