"""A profile compared with its live cluster, as far as a login node sees it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from orchestrator.clusters.check_accounting import AccountingChecks
from orchestrator.clusters.check_result import Compared, Finding, Result, is_blank, nearest, there_are
from orchestrator.clusters.layers import dotted
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.yaml import shown
from orchestrator.errors import did_you_mean
from orchestrator.slurm.notation import format_time_limit, time_limit_s
from orchestrator.slurm.site import Site
from orchestrator.slurm.site_parsers import NodeKind, Partition


def check_login(cluster: Cluster, site: Site) -> list[Finding]:
    """Everything that Slurm says of this profile, in the order of the profile."""
    checks, accounting = _Checks(cluster, site), AccountingChecks(cluster, site)
    return [
        *open_fields(cluster),
        *checks.partition(),
        *accounting.account(),
        *accounting.qos(),
        *checks.names(),
        *checks.limits(),
        *checks.nodes(),
        *checks.launching(),
        *checks.container(),
    ]


def open_fields(cluster: Cluster) -> Iterator[Finding]:
    """What the administrator has still to write; what only one workload or image needs, can wait for it."""
    for blank in cluster.unfilled:
        name = dotted(blank.path)
        can_wait = blank.path[0] == "workloads" or blank.path[:2] == ("container", "images")
        result: Result = "later" if can_wait else "open"
        yield Finding(name, "login", result, blank.text, blank.where, f"write it in {shown(cluster.overlay)}")
    if cluster.profile.hardware is not None:
        for fact in ("gpu", "gpu_memory_gb", "peak_tflops"):
            if not getattr(cluster.hardware, fact):
                found, where = "not said; plans for GPUs need it", cluster.layered.where(("hardware",))
                yield Finding(f"hardware.{fact}", "login", "later", found, where, f"add hardware: {fact}:")


class _Checks(Compared):
    """Each method a subject."""

    def partition(self) -> Iterator[Finding]:
        name = self.slurm.partition
        if name is not None and is_blank(name):
            return
        there = [one.name for one in self.site.partitions]
        if name is None and self.where_jobs_go is None:
            hint = f"add slurm: partition:; there are: {', '.join(there)}"
            yield self.at("slurm.partition", "wrong", "none named, and the cluster has no default", hint)
        elif self.where_jobs_go is None:
            yield self.at("slurm.partition", "wrong", f"{name}: no such partition", nearest(str(name), there))
        elif not self.where_jobs_go.is_up:
            yield self.at(
                "slurm.partition", "wrong", f"{self.where_jobs_go.name} is not up", "sinfo -s shows those that are"
            )
        else:
            default = "" if name else ", the default"
            yield self.at(
                "slurm.partition", "ok", f"{self.where_jobs_go.name}{default}, {self.where_jobs_go.nodes} nodes"
            )

    def names(self) -> Iterator[Finding]:
        """Features and reservations."""
        if self.slurm.constraint and not is_blank(self.slurm.constraint) and self.where_jobs_go:
            there = sorted(self.where_jobs_go.features)
            missing = [name for name in _features(self.slurm.constraint) if name not in there]
            if not self.where_jobs_go.kinds:
                yield self.at("slurm.constraint", "unknown", "Slurm does not show its nodes to this user")
            elif missing:
                found = f"no node of {self.where_jobs_go.name} has {', '.join(missing)}"
                yield self.at("slurm.constraint", "wrong", found, nearest(missing[0], there))
            else:
                yield self.at("slurm.constraint", "ok", self.slurm.constraint)
        wanted = self.slurm.reservation
        if wanted and not is_blank(wanted):
            missing = [name for name in wanted.split(",") if name not in self.site.reservations]
            if missing and any("reservation" in complaint for complaint in self.site.complaints):
                yield self.at("slurm.reservation", "unknown", "Slurm does not show its reservations to this user")
            elif missing:
                found = f"{', '.join(missing)}: no such reservation"
                yield self.at("slurm.reservation", "wrong", found, there_are(self.site.reservations))
            else:
                yield self.at("slurm.reservation", "ok", wanted)

    def limits(self) -> Iterator[Finding]:
        """What the partition allows a job."""
        partition = self.where_jobs_go
        if partition is None:
            return
        given = {"time_limit": self.slurm.time_limit, "max_time": self.slurm.max_time}
        for field, value in given.items():
            if value is None:
                continue
            if partition.max_time_s is not None and time_limit_s(value) > partition.max_time_s:
                found = f"{value}, but {partition.name} allows {format_time_limit(partition.max_time_s)}"
                yield self.at(f"slurm.{field}", "wrong", found, f"{field}: {format_time_limit(partition.max_time_s)}")
            else:
                yield self.at(f"slurm.{field}", "ok", value)
        nodes = self.most_nodes()
        if partition.max_nodes and nodes > partition.max_nodes:
            found = f"jobs may have {nodes} nodes, but {partition.name} allows {partition.max_nodes}"
            yield self.at("slurm.max_nodes", "wrong", found, f"max_nodes: {partition.max_nodes}")

    def nodes(self) -> Iterator[Finding]:
        """What the nodes are, against hardware: and what jobs ask of each."""
        partition, hardware = self.where_jobs_go, self.cluster.hardware
        if partition is None:
            return
        there = sum(kind.count for kind in self._asked_for) if self._asked_for else partition.nodes
        such = " such nodes" if self._asked_for and there < partition.nodes else ""
        if hardware.nodes > there:
            found = f"says {hardware.nodes}, {partition.name} has {there}{such}"
            yield self.at("hardware.nodes", "wrong", found, f"nodes: {there}")
        else:
            yield self.at("hardware.nodes", "ok", f"{hardware.nodes} of {there}{such}")
        if not partition.kinds:
            yield self.at("hardware.gpus_per_node", "unknown", "Slurm does not show its nodes to this user")
            return
        gpus = list(self._gpus(partition))
        yield from gpus
        if not any(one.is_fault for one in gpus):  # else there is no telling how many tasks a node should have
            yield from self._cpus(partition)
        said = self.cluster.profile.site.architecture
        known = {kind.architecture for kind in self._asked_for or partition.kinds if kind.architecture}
        if said and known and said not in known:
            found = f"says {said}, the nodes are {' and '.join(sorted(known))}"
            yield self.at("site.architecture", "wrong", found)

    def _cpus(self, partition: Partition) -> Iterator[Finding]:
        cpus, most = self.slurm.cpus_per_task, max(kind.cpus for kind in self._asked_for or partition.kinds)
        tasks = self.cluster.hardware.gpus_per_node if self.slurm.tasks == "per-gpu" else 1
        if cpus and cpus * tasks > most:
            found = f"{tasks} tasks of {cpus}, but the nodes have {most} CPUs"
            yield self.at("slurm.cpus_per_task", "wrong", found, f"cpus_per_task: {max(most // tasks, 1)}")
        elif cpus:
            yield self.at("slurm.cpus_per_task", "ok", f"{tasks} tasks of {cpus} on {most} CPUs")

    @cached_property
    def _asked_for(self) -> list[NodeKind]:
        """The partition's nodes that a job can be given, by GPUs and by a constraint of one feature."""
        kinds = self.where_jobs_go.kinds if self.where_jobs_go else ()
        feature = self.slurm.constraint
        found = [kind for kind in kinds if feature in kind.features] if feature in self._all_features else list(kinds)
        if self.slurm.gpu_request == "none":
            return found
        return [kind for kind in found if _count(kind, self.slurm.gres_type)]

    @property
    def _all_features(self) -> frozenset[str]:
        return self.where_jobs_go.features if self.where_jobs_go else frozenset()

    def _gpus(self, partition: Partition) -> Iterator[Finding]:
        hardware, kind = self.cluster.hardware, self.slurm.gres_type
        if not partition.gpu_nodes:
            if self.slurm.gpu_request == "none":
                yield self.at("hardware.gpus_per_node", "unknown", "Slurm counts no GPUs here, and none are asked for")
            else:
                hint = "gpu_request: none, if jobs have whole nodes"
                yield self.at("slurm.gpu_request", "wrong", f"Slurm knows no GPUs in {partition.name}", hint)
            return
        kinds = sorted({gres.kind for gres in partition.gres if gres.name == "gpu" and gres.kind})
        if kind and kind not in kinds:
            hint = did_you_mean(kind, kinds) or f"there are: {', '.join(kinds) or 'GPUs without a type'}"
            yield self.at("slurm.gres_type", "wrong", f"{kind}: no such type of GPU in {partition.name}", hint)
            kind = None
        elif kind:
            yield self.at("slurm.gres_type", "ok", kind)
        counts = sorted({count for node in self._asked_for or partition.kinds if (count := _count(node, kind))})
        if hardware.gpus_per_node not in counts:
            there = " or ".join(map(str, counts))
            found = f"says {hardware.gpus_per_node}, the nodes have {there}"
            yield self.at("hardware.gpus_per_node", "wrong", found, f"gpus_per_node: {counts[-1]}")
        else:
            yield self.at("hardware.gpus_per_node", "ok", str(hardware.gpus_per_node))

    def launching(self) -> Iterator[Finding]:
        """How processes are started: the kind of MPI."""
        mpi, kinds = self.slurm.mpi, self.site.mpi_kinds
        if mpi is None:
            return
        if not kinds:
            yield self.at("slurm.mpi", "unknown", "srun does not list its kinds")
        elif mpi in (*kinds, "none"):
            yield self.at("slurm.mpi", "ok", mpi)
        else:
            yield self.at("slurm.mpi", "wrong", f"{mpi}: srun knows no such kind", nearest(mpi, kinds))

    def container(self) -> Iterator[Finding]:
        container, srun = self.cluster.profile.container, self.site.srun
        if container is None:
            return
        if container.runtime == "edf":
            if srun.has_environment:
                yield self.at("container.runtime", "ok", "srun has --environment")
            else:
                hint = "it is the container engine of CSCS; elsewhere runtime: pyxis"
                yield self.at("container.runtime", "wrong", "srun has no --environment", hint)
        elif container.runtime == "pyxis":
            if not srun.has_pyxis:
                hint = "install pyxis, or take container: out of the profile"
                yield self.at("container.runtime", "wrong", "srun has no --container-image: there is no pyxis", hint)
                return
            oldest, too_new = srun.pyxis_versions or ("0", None)
            fits = f"srun's options are those of pyxis {oldest}" + (
                f", older than {too_new}" if too_new else " or newer"
            )
            yield self.at("container.runtime", "ok", fits)
            yield from self._pyxis_version(oldest, too_new, fits)

    def _pyxis_version(self, oldest: str, too_new: str | None, fits: str) -> Iterator[Finding]:
        container = self.cluster.profile.container
        assert container is not None
        needs = {
            "container.pass_env": (container.pass_env, "container-env"),
            "env_from": (self.cluster.profile.env_from, "container-env"),
            "container.writable": (container.writable, "container-writable"),
        }
        for field, (is_asked, option) in needs.items():
            if is_asked and option not in self.site.srun.pyxis:
                hint = f"{fits}: install a newer one, or take {field}: out"
                yield self.at(field, "wrong", f"this pyxis has no --{option}", hint)
        if container.version is None:
            if not container.writable and "container-readonly" not in self.site.srun.pyxis:
                hint = f'{fits}: write version: "{oldest}" below container:'
                yield self.at("container.version", "wrong", "this pyxis has no --container-readonly", hint)
            return
        said = _numbers(container.version)
        if said < _numbers(oldest) or (too_new is not None and said >= _numbers(too_new)):
            yield self.at("container.version", "wrong", f"says {container.version}, but {fits}", f'version: "{oldest}"')
        else:
            yield self.at("container.version", "ok", container.version)


def _features(constraint: str) -> list[str]:
    """The names in `[rack1*2|rack2*2]&80g`, without counts and operators."""
    return [name for part in re.split(r"[&|,()\[\]!\s]+", constraint) if (name := part.partition("*")[0])]


def _count(node: NodeKind, kind: str | None) -> int:
    return sum(gres.count for gres in node.gres if gres.name == "gpu" and kind in (None, gres.kind))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
