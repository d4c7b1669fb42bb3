"""A cluster's name -> its profile: the shared file, the private overlay on top, every value's origin kept."""

from __future__ import annotations

import os
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.clusters.machine import Machine, this_machine
from orchestrator.clusters.profile import ClusterProfile
from orchestrator.documents.hardware import HardwareFields
from orchestrator.documents.model import placeholders, read_model
from orchestrator.documents.source import Document, Path_, read_document, shown
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.folders import Folders


@dataclass(frozen=True, slots=True)
class Unfilled:
    """A value that is still `<what to write here>`."""

    path: Path_
    text: str
    where: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """A profile ready for planning. `values` is the merged YAML, recorded with each run."""

    name: str
    profile: ClusterProfile
    hardware: HardwareFields
    machine: Machine | None
    values: dict[str, Any]
    unfilled: tuple[Unfilled, ...]
    overlay: Path
    has_overlay: bool

    def require_filled(self, workload: str, image: str | None) -> list[Problem]:
        """What this job needs and the site has not filled in yet; other workloads' blanks do not matter."""
        open_ones = [blank for blank in self.unfilled if _matters(blank.path, workload, image)]
        if not open_ones:
            return []
        names = ", ".join(_dotted(blank.path) for blank in open_ones)
        if not self.has_overlay:
            base = open_ones[0].where.partition(":")[0]
            mend = f"{base} keeps what is private to a site there: {names}"
            return [Problem("no such file", shown(self.overlay), mend)]
        mend = f"write it in {shown(self.overlay)}"
        return [Problem(f"{_dotted(b.path)}: still to be filled in, {b.text}", b.where, mend) for b in open_ones]


def cluster_names(folders: Folders) -> dict[str, Path]:
    """Name -> file of every cluster profile; overlays are no clusters of their own."""
    return {path.stem: path for path in folders.cluster_files() if not path.stem.endswith(".local")}


def find_cluster(folders: Folders, name: str) -> Cluster:
    """Read the profile of this name, or at this path; ReproError has every fault of the file and its overlay."""
    file = _profile_file(folders, name)
    overlay = _overlay(folders, file)
    documents: list[Document] = []
    problems: list[Problem] = []
    has_overlay = os.path.isfile(overlay)  # noqa: PTH113  False, too, for a name that no file can have
    for path in (file, overlay) if has_overlay else (file,):
        try:
            documents.append(read_document(path))
        except ReproError as error:
            problems.extend(error.problems)
    if problems:
        raise ReproError(*problems)
    merged = _Merged(documents)
    profile = read_model(ClusterProfile, Document(documents[0].file, merged.value), merged.where)
    machine = this_machine() if profile.scheduler == "local" else None
    hardware = profile.hardware or (machine.hardware() if machine else None)
    assert hardware is not None
    blanks = tuple(Unfilled(path, text, merged.where(path)) for path, text in placeholders(merged.value))
    return Cluster(file.stem, profile, hardware, machine, merged.value, blanks, overlay, has_overlay)


def _profile_file(folders: Folders, name: str) -> Path:
    if "/" in name or name.endswith(".yaml"):
        return Path(name)
    names = cluster_names(folders)
    if name in names:
        return names[name]
    mend = did_you_mean(name, names) or f"there are: {', '.join(sorted(names)) or 'none'}"
    raise ReproError(Problem(f"{name}: no such cluster", mend=mend))


def _overlay(folders: Folders, file: Path) -> Path:
    """Where the private values of a profile are, or belong: never into an installed package."""
    name = f"{file.stem}.local.yaml"
    if file.parent != folders.shipped / "clusters":
        return file.with_name(name)
    places = [base / "clusters" / name for base in (Path.cwd(), folders.home, folders.shipped)]
    return next((path for path in places if path.is_file()), folders.home / "clusters" / name)


class _Merged:
    """Documents laid over one another: mappings field by field, everything else replaced whole."""

    def __init__(self, documents: list[Document]) -> None:
        self.documents = documents
        self.value: dict[str, Any] = {}
        for document in documents:
            if not isinstance(document.value, dict):
                raise ReproError(Problem("must be fields and values, `name: value`", str(document.place(()))))
            self.value = _lay_over(self.value, document.value)

    def where(self, path: Path_) -> str:
        """The file, line and column a value came from: the last document that has it."""
        for document in reversed(self.documents):
            if path in document.keys:
                return str(document.keys[path])
            if path in document.values and path:
                return str(document.values[path])
        return str(self.documents[0].place(path))


def _lay_over(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = deepcopy(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            result[key] = _lay_over(below, value)
        else:
            result[key] = deepcopy(value)
    return result


def _matters(path: Path_, workload: str, image: str | None) -> bool:
    if path[:1] == ("workloads",):
        return path[1] == workload
    if path[:2] == ("container", "images"):
        return path[2] == image
    return True


def _dotted(path: Iterable[str | int]) -> str:
    return ".".join(str(part) for part in path)
