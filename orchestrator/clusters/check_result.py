"""Findings of a profile check, and the checks of the paths that a profile names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.clusters.container import MountFields
from orchestrator.clusters.resolve import Cluster
from orchestrator.clusters.slurm_options import SlurmFields
from orchestrator.errors import did_you_mean
from orchestrator.slurm.notation import time_limit_s
from orchestrator.slurm.site import Site
from orchestrator.slurm.site_parsers import Partition


class SiteChecks:
    """A profile and its site. `job_partition` is the partition of jobs; None if it does not exist."""

    def __init__(self, cluster: Cluster, site: Site) -> None:
        assert cluster.profile.slurm is not None
        self.cluster, self.site = cluster, site
        self.slurm: SlurmFields = cluster.profile.slurm
        names = [self.slurm.partition] if self.slurm.partition else [p.name for p in site.partitions if p.is_default]
        self.job_partition: Partition | None = site.partition(names[0]) if names else None

    def most_nodes(self, also: int | None = None) -> int:
        """Return the number of nodes of the largest job that the planner accepts."""
        return min(most for most in (also, self.slurm.max_nodes, self.cluster.hardware.nodes) if most)

    def longest(self, also: str | None = None) -> str:
        """Return the time limit of the longest job that the planner accepts; without limits, the default time limit."""
        return min(
            (text for text in (also, self.slurm.max_time) if text), key=time_limit_s, default=self.slurm.time_limit
        )

    def at(self, field: str, result: Result, found: str, hint: str | None = None) -> Finding:
        """Return a finding about a field of the profile, such as `slurm.qos`."""
        where = self.cluster.layered.where(tuple(field.split(".")))
        return Finding(field, "login", result, found, where, hint)


def nearest(word: str, there: Sequence[str]) -> str:
    """Return the hint for an unknown name: the nearest name, or all names."""
    return did_you_mean(word, there) or there_are(there)


def there_are(names: Sequence[str]) -> str:
    """Return the hint that lists all names."""
    return f"there are: {', '.join(names) or 'none'}"


def is_blank(text: str) -> bool:
    """Return whether a value is open, such as `<your account>`."""
    return "<" in text


Result = Literal["ok", "wrong", "open", "later", "unknown", "not checked"]
"""Result of a check. `open`: the value must be filled in. `later`: only some jobs need the value. `unknown`: Slurm does
not answer. `not checked`: the check needs a job on a node, or hardware that the profile does not have."""

Location = Literal["login", "compute"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. `check` is the field of the profile, or another subject; `where` is its location."""

    check: str
    place: Location
    result: Result
    found: str
    where: str | None = None
    hint: str | None = None

    @property
    def is_fault(self) -> bool:
        """Whether the user must correct the profile or the site."""
        return self.result in ("wrong", "open")


CORRECT = "correct the path, or create it"

Presence = Literal["yes", "no", "unreadable"]
"""Whether a path exists; `unreadable`: this user may not read it."""


@dataclass(frozen=True, slots=True)
class SitePath:
    """Path that must exist. `check` is the field of the profile, `hint` is for a missing path.

    If `is_read`, jobs read the file as the user who submits them.
    """

    check: str
    path: str
    where: str
    hint: str = CORRECT
    is_read: bool = False


def site_paths(cluster: Cluster) -> list[SitePath]:
    """Return the paths of the profile that can be checked before a job runs. Open values are left out."""
    paths = [*_images(cluster), *_mounts(cluster), *_workloads(cluster), *_working_folder(cluster)]
    for block, name in (("site", "staging_folder"), ("mpirun", "hostfile")):
        value = getattr(getattr(cluster.profile, block), name, None)
        if value is not None:
            paths.append(SitePath(f"{block}.{name}", value, cluster.layered.where((block, name))))
    return [path for path in paths if "<" not in path.path and "{" not in path.path]


def path_findings(cluster: Cluster, place: Location, there: dict[str, Presence] | None = None) -> list[Finding]:
    """Return a finding for each path: as seen by this machine (`login`) or by a job (`compute`)."""
    return [_finding(cluster, one, place, there) for one in site_paths(cluster)]


def presence(path: str) -> Presence:
    """Return whether this path exists here."""
    # os.path.exists is also False if this user may not read the folder.
    if not os.path.exists(path):  # noqa: PTH110
        return "no"
    return "yes" if os.access(path, os.R_OK) else "unreadable"


def _finding(cluster: Cluster, one: SitePath, place: Location, there: dict[str, Presence] | None) -> Finding:
    if place == "login" and not cluster.profile.site.login_sees_paths:
        return Finding(one.check, "compute", "not checked", f"{one.path}: only nodes see it", one.where, "use --job")
    if place == "compute" and there is None:
        return Finding(one.check, place, "not checked", one.path, one.where, "use --job")
    seen = presence(one.path) if there is None else there.get(one.path, "no")
    if seen == "no":
        return Finding(one.check, place, "wrong", f"{one.path}: no such file or folder", one.where, one.hint)
    if seen == "unreadable" and one.is_read:
        hint = "ask its owner for the right to read it"
        return Finding(one.check, place, "wrong", f"{one.path}: you may not read it", one.where, hint)
    if there is None and one.check == "site.staging_folder" and not os.access(one.path, os.W_OK | os.X_OK):
        # Jobs do not need it: another user may have imported the images.
        hint = "ask its owner to import images, or to give you write permission"
        return Finding(one.check, place, "later", f"{one.path}: you cannot write to it", one.where, hint)
    return Finding(one.check, place, "ok", one.path, one.where)


def _images(cluster: Cluster) -> Iterator[SitePath]:
    container = cluster.profile.container
    for name, given in container.images.items() if container else ():
        location = cluster.image_location(name) or given
        if location.startswith(("/", "./")):
            hint = CORRECT if location == given else f"repro images import --cluster {cluster.name}"
            where = cluster.layered.where(("container", "images", name))
            yield SitePath(f"container.images.{name}", location, where, hint, is_read=True)


def _mounts(cluster: Cluster) -> Iterator[SitePath]:
    container = cluster.profile.container
    for i, item in enumerate(container.mounts if container else ()):
        if isinstance(item, MountFields):  # only some jobs have it, so the path may not exist yet
            continue
        source = item.partition(":")[0]
        if source not in ("tmpfs", "umount"):
            where = cluster.layered.where(("container", "mounts", i))
            yield SitePath("container.mounts", source, where)


def _workloads(cluster: Cluster) -> Iterator[SitePath]:
    contained = cluster.profile.container is not None
    for name, fields in cluster.layered.value.get("workloads", {}).items():
        for field, value in fields.items() if isinstance(fields, dict) else ():
            if not isinstance(value, str) or not value.startswith("/"):
                continue
            if contained and field == "python":  # a path inside the image; only a job can check it
                continue
            # A data set of Megatron-LM is two files, and `data_path` is their path without the extension.
            path = f"{value}.idx" if field == "data_path" else value
            where = cluster.layered.where(("workloads", name, field))
            yield SitePath(f"workloads.{name}.{field}", _on_the_host(path, cluster), where)


def _on_the_host(path: str, cluster: Cluster) -> str:
    """Return the path on the node of a path in the container."""
    container = cluster.profile.container
    for item in container.mounts if container else ():
        source, _, rest = (item.mount if isinstance(item, MountFields) else item).partition(":")
        target = rest.partition(":")[0].rstrip("/")
        if source.startswith("/") and target and f"{path}/".startswith(f"{target}/"):
            return source.rstrip("/") + path[len(target) :]
    return path


def _working_folder(cluster: Cluster) -> Iterator[SitePath]:
    """Yield the folder of `--chdir`. If it does not exist, Slurm uses /tmp without an error."""
    slurm = cluster.profile.slurm
    for i, word in enumerate(slurm.sbatch if slurm else ()):
        name, _, folder = word.partition("=")
        if name == "--chdir" and folder:
            yield SitePath("slurm.sbatch --chdir", folder, cluster.layered.where(("slurm", "sbatch", i)))
