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


class Compared:
    """One profile and one site. `partition` is where jobs go; None where there is no such one."""

    def __init__(self, cluster: Cluster, site: Site) -> None:
        assert cluster.profile.slurm is not None
        self.cluster, self.site = cluster, site
        self.slurm: SlurmFields = cluster.profile.slurm
        names = [self.slurm.partition] if self.slurm.partition else [p.name for p in site.partitions if p.is_default]
        self.where_jobs_go: Partition | None = site.partition(names[0]) if names else None

    def most_nodes(self, also: int | None = None) -> int:
        """The largest job that planning lets through."""
        return min(most for most in (also, self.slurm.max_nodes, self.cluster.hardware.nodes) if most)

    def longest(self, also: str | None = None) -> str:
        """The longest job that planning lets through; without a limit, what a job asks for that says nothing itself."""
        return min(
            (text for text in (also, self.slurm.max_time) if text), key=time_limit_s, default=self.slurm.time_limit
        )

    def at(self, field: str, result: Result, found: str, hint: str | None = None) -> Finding:
        """A finding about a field of the profile, such as `slurm.qos`."""
        where = self.cluster.layered.where(tuple(field.split(".")))
        return Finding(field, "login", result, found, where, hint)


def nearest(word: str, there: Sequence[str]) -> str:
    """A mend for a name that is not there."""
    return did_you_mean(word, there) or there_are(there)


def there_are(names: Sequence[str]) -> str:
    return f"there are: {', '.join(names) or 'none'}"


def is_blank(text: str) -> bool:
    """Whether it is still to be filled in."""
    return "<" in text


Result = Literal["ok", "wrong", "open", "later", "unknown", "not checked"]
"""`open`: still to be filled in; `later`: before that is submitted which needs it. `unknown`: who was asked does not
say. `not checked`: it takes a job on a node, or hardware that the profile does not have."""

Location = Literal["login", "compute"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is the profile's field, or what else was looked at; `where` its file, line and column."""

    check: str
    place: Location
    result: Result
    found: str
    where: str | None = None
    hint: str | None = None

    @property
    def is_fault(self) -> bool:
        return self.result in ("wrong", "open")


CORRECT = "correct it, or put it there"

Presence = Literal["yes", "no", "unreadable"]
"""Whether a path exists; `unreadable`: this user may not read it."""


@dataclass(frozen=True, slots=True)
class SitePath:
    """A path that must exist; `check` is the profile's field, `mend` is the hint if the path is missing.

    With `is_read`, jobs read the file as the user who submits them.
    """

    check: str
    path: str
    where: str
    hint: str = CORRECT
    is_read: bool = False


def site_paths(cluster: Cluster) -> list[SitePath]:
    """Every path of the profile that is filled in and that can be looked for before a job runs."""
    found = [*_images(cluster), *_mounts(cluster), *_workloads(cluster), *_working_folder(cluster)]
    for block, name in (("site", "staging_folder"), ("mpirun", "hostfile")):
        value = getattr(getattr(cluster.profile, block), name, None)
        if value is not None:
            found.append(SitePath(f"{block}.{name}", value, cluster.layered.where((block, name))))
    return [one for one in found if "<" not in one.path and "{" not in one.path]


def path_findings(cluster: Cluster, place: Location, there: dict[str, Presence] | None = None) -> list[Finding]:
    """A finding for each path: as this machine sees it on `login`, or as a job saw it on `compute`."""
    return [_finding(cluster, one, place, there) for one in site_paths(cluster)]


def presence(path: str) -> Presence:
    """Return whether this path exists here."""
    # os.path's is False, too, for what this user may not look at.
    if not os.path.exists(path):  # noqa: PTH110
        return "no"
    return "yes" if os.access(path, os.R_OK) else "unreadable"


def _finding(cluster: Cluster, one: SitePath, place: Location, there: dict[str, Presence] | None) -> Finding:
    if place == "login" and not cluster.profile.site.login_sees_paths:
        return Finding(one.check, "compute", "not checked", f"{one.path}: only nodes see it", one.where, "say --job")
    if place == "compute" and there is None:
        return Finding(one.check, place, "not checked", one.path, one.where, "say --job")
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
        if isinstance(item, MountFields):  # of some jobs only: such paths come and go with them
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
            if contained and field == "python":  # the image's own, of which a job can tell
                continue
            # Megatron-LM's data sets are two files, which it is told without their endings.
            path = f"{value}.idx" if field == "data_path" else value
            where = cluster.layered.where(("workloads", name, field))
            yield SitePath(f"workloads.{name}.{field}", _on_the_host(path, cluster), where)


def _on_the_host(path: str, cluster: Cluster) -> str:
    """Programs are told where things lie in their container, which may be under another name than on the node."""
    container = cluster.profile.container
    for item in container.mounts if container else ():
        source, _, rest = (item.mount if isinstance(item, MountFields) else item).partition(":")
        target = rest.partition(":")[0].rstrip("/")
        if source.startswith("/") and target and f"{path}/".startswith(f"{target}/"):
            return source.rstrip("/") + path[len(target) :]
    return path


def _working_folder(cluster: Cluster) -> Iterator[SitePath]:
    """Where sbatch is told to start jobs: where there is no such folder, Slurm takes /tmp without an error."""
    slurm = cluster.profile.slurm
    for i, word in enumerate(slurm.sbatch if slurm else ()):
        name, _, folder = word.partition("=")
        if name == "--chdir" and folder:
            yield SitePath("slurm.sbatch --chdir", folder, cluster.layered.where(("slurm", "sbatch", i)))
