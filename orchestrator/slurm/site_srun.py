"""What a site's srun can do: the options that `srun --help` lists, and the kinds of `srun --mpi=list`; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# An option's line begins near the margin; its description, which may name other options, stands far right of it.
_OPTION = re.compile(r"^ {1,8}(?:-\w[, ]\s*)?--(?P<name>[A-Za-z][A-Za-z0-9-]*)")
_TAG = "[pyxis]"
_MPI_KIND = re.compile(r"[A-Za-z0-9_.+-]+")

PYXIS_SINCE: Mapping[str, tuple[int, int]] = {
    "container-image": (0, 1),
    "container-mount-home": (0, 3),
    "container-remap-root": (0, 4),
    "container-save": (0, 7),
    "container-entrypoint": (0, 8),
    "container-writable": (0, 11),
    "container-readonly": (0, 11),
    "container-env": (0, 15),
    "container-entrypoint-log": (0, 20),
    "container-unshare": (0, 24),
}
"""The release of pyxis that brought an option: its changelog and the history of its args.c, up to 0.24.0."""


@dataclass(frozen=True, slots=True)
class SrunOptions:
    """The long options of srun, without dashes, and those of them that come from pyxis."""

    names: frozenset[str] = frozenset()
    pyxis: frozenset[str] = frozenset()

    @property
    def has_pyxis(self) -> bool:
        return "container-image" in self.pyxis

    @property
    def has_environment(self) -> bool:
        """Whether there is CSCS's container engine, `--environment`; Slurm itself has no such option."""
        return "environment" in self.names

    @property
    def pyxis_versions(self) -> tuple[str, str | None] | None:
        """The oldest release that these options fit, and the first that is too new (None where none is known).

        None without pyxis.
        """
        if not self.has_pyxis:
            return None
        oldest = max(since for name, since in PYXIS_SINCE.items() if name in self.pyxis)
        newer = [since for name, since in PYXIS_SINCE.items() if name not in self.pyxis and since > oldest]
        return _dotted(oldest), _dotted(min(newer)) if newer else None


def parse_options(stdout: str) -> SrunOptions:
    """From `srun --help`. An option of a plug-in has the plug-in's name in front of its description."""
    found: set[str] = set()
    pyxis: set[str] = set()
    undescribed = ""  # the option whose description has not begun yet
    for line in stdout.splitlines():
        words = line.strip()
        if match := _OPTION.match(line):
            undescribed = match["name"]
            found.add(undescribed)
            words = line[match.end() :].partition("  ")[2].strip()
        if undescribed and words:
            if words.startswith(_TAG):
                pyxis.add(undescribed)
            undescribed = ""
    return SrunOptions(frozenset(found), frozenset(pyxis))


def parse_mpi_kinds(output: str) -> tuple[str, ...]:
    """From `srun --mpi=list`, both streams: one kind to a line, and the releases of PMIx in a line of their own."""
    found: list[str] = []
    for line in output.splitlines():
        words = line.strip().removeprefix("srun: ").strip()
        head, mark, tail = words.partition("versions available:")
        for word in tail.split(",") if mark else [head]:
            if _MPI_KIND.fullmatch(word.strip()):
                found.append(word.strip())
    return tuple(dict.fromkeys(found))


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
