"""Findings of a profile check, and the checks of the paths in a profile."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from orchestrator.clusters.container import MountFields
from orchestrator.clusters.needs import fetch_record, needed_paths
from orchestrator.clusters.resolve import Cluster
from orchestrator.clusters.slurm_fields import SlurmFields
from orchestrator.config.yaml import dotted
from orchestrator.errors import did_you_mean
from orchestrator.fields import Field
from orchestrator.slurm.notation import time_limit_s
from orchestrator.slurm.site import Site
from orchestrator.slurm.site_parsers import Partition
from orchestrator.workloads import workloads
from orchestrator.workloads.needs import fetch_command
from orchestrator.workloads.pretrain import PRETRAIN

Result = Literal["ok", "wrong", "open", "later", "unknown", "not checked"]
"""Result of a check. `open`: the value must be filled in. `later`: only some jobs need the value. `unknown`: Slurm does
not answer. `not checked`: the check needs a job on a node, or hardware that the profile does not have."""

Place = Literal["login", "compute"]
"""Kind of node that a check is about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. `check` is the field of the profile, or another subject; `location` is its place there."""

    check: str
    place: Place
    result: Result
    message: str
    location: str | None = None
    hint: str | None = None

    @property
    def is_fault(self) -> bool:
        """True if the user must correct the profile or the site."""
        return self.result in ("wrong", "open")


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A check of a profile as a row: `found` is the message, `location` the place in the profile."""

    result: Result
    place: Place
    check: str
    found: Annotated[str, Field(of="message")]
    location: str | None
    hint: str | None


class SiteChecks:
    """A profile and its site. `job_partition` is the partition of jobs; None if it does not exist."""

    def __init__(self, cluster: Cluster, site: Site) -> None:
        assert cluster.profile.slurm is not None
        self.cluster, self.site = cluster, site
        self.slurm: SlurmFields = cluster.profile.slurm
        names = [self.slurm.partition] if self.slurm.partition else [p.name for p in site.partitions if p.is_default]
        self.job_partition: Partition | None = site.partition(names[0]) if names else None

    def most_nodes(self, limit: int | None = None) -> int:
        """Return the number of nodes of the largest job that the planner accepts, with a further limit."""
        return min(most for most in (limit, self.slurm.max_nodes, self.cluster.hardware.nodes) if most)

    def longest(self, limit: str | None = None) -> str:
        """Return the time limit of the longest job that the planner accepts; without limits, the default time limit."""
        limits = [text for text in (limit, self.slurm.max_time) if text]
        return min(limits, key=time_limit_s, default=self.slurm.time_limit)

    def at(self, field: str, result: Result, message: str, hint: str | None = None) -> Finding:
        """Return a finding about a field of the profile, such as `slurm.qos`."""
        return Finding(field, "login", result, message, self.cluster.location(tuple(field.split("."))), hint)


def nearest_name(name: str, names: Sequence[str]) -> str:
    """Return the hint for an unknown name: the nearest name, or all names."""
    return did_you_mean(name, names) or there_are(names)


def there_are(names: Sequence[str]) -> str:
    """Return the hint that lists all names."""
    return f"there are: {', '.join(names) or 'none'}"


def is_blank(text: str) -> bool:
    """Return whether a value is open, such as `<your account>`."""
    return "<" in text


CORRECT = "correct the path, or create it"

Presence = Literal["yes", "no", "unreadable"]
"""Existence of a path. `unreadable`: this user may not read it."""


@dataclass(frozen=True, slots=True)
class SitePath:
    """Path that must exist. `check` is the field of the profile, `hint` is for a missing path.

    If `is_read`, jobs read the file as the user who submits them. `record` is the record of its fetch, if it can have
    one.
    """

    check: str
    path: str
    location: str
    hint: str = CORRECT
    is_read: bool = False
    record: Path | None = None


def site_paths(cluster: Cluster) -> list[SitePath]:
    """Return the paths of the profile that can be checked before a job runs. Open values are left out."""
    paths = [*_images(cluster), *_mounts(cluster), *_workloads(cluster), *_working_folder(cluster)]
    for block, name in (("site", "staging_folder"), ("mpirun", "hostfile")):
        value = getattr(getattr(cluster.profile, block), name, None)
        if value is not None:
            paths.append(SitePath(f"{block}.{name}", value, cluster.location((block, name))))
    return [path for path in paths if "<" not in path.path and "{" not in path.path]


def path_findings(cluster: Cluster, place: Place, seen: dict[str, Presence] | None = None) -> list[Finding]:
    """Return a finding for each path, as this machine or a job sees it. `seen` are the paths that a job has checked."""
    return [_finding(cluster, path, place, seen) for path in site_paths(cluster)]


def presence(path: str) -> Presence:
    """Return whether this path exists here."""
    # os.path.exists is also False if this user may not read the folder.
    if not os.path.exists(path):  # noqa: PTH110
        return "no"
    return "yes" if os.access(path, os.R_OK) else "unreadable"


def _finding(cluster: Cluster, wanted: SitePath, place: Place, seen: dict[str, Presence] | None) -> Finding:
    path = wanted.path
    needs_node = place == "login" and not cluster.profile.site.login_sees_paths

    def finding(result: Result, message: str, hint: str | None = None) -> Finding:
        return Finding(wanted.check, "compute" if needs_node else place, result, message, wanted.location, hint)

    if needs_node:
        return finding("not checked", f"{path}: only nodes see it", "use --job")
    if place == "compute" and seen is None:
        return finding("not checked", path, "use --job")
    state = presence(path) if seen is None else seen.get(path, "no")
    if state == "no":
        return finding("wrong", f"{path}: no such file or folder", wanted.hint)
    if state == "unreadable" and wanted.is_read:
        return finding("wrong", f"{path}: you may not read it", "ask its owner for the right to read it")
    if seen is None and wanted.check == "site.staging_folder" and not os.access(path, os.W_OK | os.X_OK):
        # Jobs do not need write permission: another user may have imported the images.
        hint = "ask its owner to import images, or to give you write permission"
        return finding("later", f"{path}: you cannot write to it", hint)
    record = fetch_record(wanted.record) if wanted.record and seen is None else None
    return finding("ok", f"{path}, fetched {record.fetched}" if record else path)


def _images(cluster: Cluster) -> Iterator[SitePath]:
    container = cluster.profile.container
    for name, given in container.images.items() if container else ():
        location = cluster.image_location(name) or given
        if location.startswith(("/", "./")):
            hint = CORRECT if location == given else f"repro images import --cluster {cluster.name}"
            source = cluster.location(("container", "images", name))
            yield SitePath(f"container.images.{name}", location, source, hint, is_read=True)


def _mounts(cluster: Cluster) -> Iterator[SitePath]:
    container = cluster.profile.container
    for i, item in enumerate(container.mounts if container else ()):
        if isinstance(item, MountFields):  # only some jobs have it, so the path may not exist yet
            continue
        source = item.partition(":")[0]
        if source not in ("tmpfs", "umount"):
            yield SitePath("container.mounts", source, cluster.location(("container", "mounts", i)))


def _workloads(cluster: Cluster) -> Iterator[SitePath]:
    for name in cluster.layered.mapping("workloads"):
        hint = fetch_command(name, cluster.name)
        for needed in needed_paths(workloads()[name], cluster):
            check = f"workloads.{name}.{needed.field}"
            yield SitePath(check, needed.path, needed.location, hint, record=needed.record_file)
    python = cluster.profile.workloads.pretrain_python
    if python and python.startswith("/") and cluster.profile.container is None:  # in an image only a job can check it
        path = ("workloads", PRETRAIN, "python")
        yield SitePath(dotted(path), python, cluster.location(path))


def _working_folder(cluster: Cluster) -> Iterator[SitePath]:
    """Yield the folder of `--chdir`. If it does not exist, Slurm uses /tmp without an error."""
    slurm = cluster.profile.slurm
    for i, argument in enumerate(slurm.sbatch if slurm else ()):
        name, _, folder = argument.partition("=")
        if name == "--chdir" and folder:
            yield SitePath("slurm.sbatch --chdir", folder, cluster.location(("slurm", "sbatch", i)))
