"""Comparison of a profile with the settings of its cluster, as a login node sees them. Without side effects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from orchestrator.clusters.check_accounting import AccountingChecks
from orchestrator.clusters.check_result import Finding, Result, SiteChecks, is_blank, nearest, there_are
from orchestrator.clusters.layers import dotted
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.yaml import shown
from orchestrator.errors import did_you_mean
from orchestrator.slurm.notation import format_time_limit, time_limit_s
from orchestrator.slurm.site import Site
from orchestrator.slurm.site_parsers import NodeKind, Partition


def check_login(cluster: Cluster, site: Site) -> list[Finding]:
    """Return the findings about a profile, in the order of its fields."""
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
    """Yield a finding for each open value. Values of one workload or image are `later`, all others are `open`."""
    for blank in cluster.unfilled:
        name = dotted(blank.path)
        can_wait = blank.path[0] == "workloads" or blank.path[:2] == ("container", "images")
        result: Result = "later" if can_wait else "open"
        yield Finding(name, "login", result, blank.text, blank.where, f"set it in {shown(cluster.overlay)}")
    if cluster.profile.hardware is not None:
        for fact in ("gpu", "gpu_memory_gb", "peak_tflops"):
            if not getattr(cluster.hardware, fact):
                found, where = "missing, but plans for GPUs need it", cluster.layered.where(("hardware",))
                yield Finding(f"hardware.{fact}", "login", "later", found, where, f"add hardware: {fact}:")


class _Checks(SiteChecks):
    """Checks against Slurm. Each method checks one subject."""

    def partition(self) -> Iterator[Finding]:
        """Check the partition."""
        name = self.slurm.partition
        if name is not None and is_blank(name):
            return
        there = [one.name for one in self.site.partitions]
        if name is None and self.job_partition is None:
            hint = f"set slurm: partition:; there are: {', '.join(there)}"
            yield self.at("slurm.partition", "wrong", "missing, and the cluster has no default partition", hint)
        elif self.job_partition is None:
            yield self.at("slurm.partition", "wrong", f"{name}: no such partition", nearest(str(name), there))
        elif not self.job_partition.is_up:
            yield self.at(
                "slurm.partition",
                "wrong",
                f"{self.job_partition.name} is not up",
                "choose a partition that sinfo -s lists as up",
            )
        else:
            default = "" if name else ", the default"
            yield self.at(
                "slurm.partition", "ok", f"{self.job_partition.name}{default}, {self.job_partition.nodes} nodes"
            )

    def names(self) -> Iterator[Finding]:
        """Check the names of features and reservations."""
        if self.slurm.constraint and not is_blank(self.slurm.constraint) and self.job_partition:
            there = sorted(self.job_partition.features)
            missing = [name for name in _features(self.slurm.constraint) if name not in there]
            if not self.job_partition.kinds:
                yield self.at("slurm.constraint", "unknown", "Slurm does not show its nodes to this user")
            elif missing:
                found = f"no node of {self.job_partition.name} has {', '.join(missing)}"
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
        """Check the limits of the profile against the limits of the partition."""
        partition = self.job_partition
        if partition is None:
            return
        given = {"time_limit": self.slurm.time_limit, "max_time": self.slurm.max_time}
        for field, value in given.items():
            if value is None:
                continue
            if partition.max_time_s is not None and time_limit_s(value) > partition.max_time_s:
                found = f"{value}, but {partition.name} allows {format_time_limit(partition.max_time_s)}"
                yield self.at(
                    f"slurm.{field}", "wrong", found, f"set {field}: {format_time_limit(partition.max_time_s)}"
                )
            else:
                yield self.at(f"slurm.{field}", "ok", value)
        nodes = self.most_nodes()
        if partition.max_nodes and nodes > partition.max_nodes:
            found = f"jobs may have {nodes} nodes, but {partition.name} allows {partition.max_nodes}"
            yield self.at("slurm.max_nodes", "wrong", found, f"set max_nodes: {partition.max_nodes}")

    def nodes(self) -> Iterator[Finding]:
        """Check `hardware`, `site.architecture` and the CPUs of each task against the nodes."""
        partition, hardware = self.job_partition, self.cluster.hardware
        if partition is None:
            return
        there = sum(kind.count for kind in self._asked_for) if self._asked_for else partition.nodes
        such = " such nodes" if self._asked_for and there < partition.nodes else ""
        if hardware.nodes > there:
            found = f"is {hardware.nodes}, but {partition.name} has {there}{such}"
            yield self.at("hardware.nodes", "wrong", found, f"set nodes: {there}")
        else:
            yield self.at("hardware.nodes", "ok", f"{hardware.nodes} of {there}{such}")
        if not partition.kinds:
            yield self.at("hardware.gpus_per_node", "unknown", "Slurm does not show its nodes to this user")
            return
        gpus = list(self._gpus(partition))
        yield from gpus
        if not any(one.is_fault for one in gpus):  # the number of tasks on a node depends on its GPUs
            yield from self._cpus(partition)
        architecture = self.cluster.profile.site.architecture
        known = {kind.architecture for kind in self._asked_for or partition.kinds if kind.architecture}
        if architecture and known and architecture not in known:
            found = f"is {architecture}, but the nodes are {' and '.join(sorted(known))}"
            yield self.at("site.architecture", "wrong", found)

    def _cpus(self, partition: Partition) -> Iterator[Finding]:
        cpus, most = self.slurm.cpus_per_task, max(kind.cpus for kind in self._asked_for or partition.kinds)
        tasks = self.cluster.hardware.gpus_per_node if self.slurm.tasks == "per-gpu" else 1
        if cpus and cpus * tasks > most:
            found = f"{tasks} tasks of {cpus}, but the nodes have {most} CPUs"
            yield self.at("slurm.cpus_per_task", "wrong", found, f"set cpus_per_task: {max(most // tasks, 1)}")
        elif cpus:
            yield self.at("slurm.cpus_per_task", "ok", f"{tasks} tasks of {cpus} on {most} CPUs")

    @cached_property
    def _asked_for(self) -> list[NodeKind]:
        """The nodes of the partition that have the GPUs and the feature that jobs request."""
        kinds = self.job_partition.kinds if self.job_partition else ()
        feature = self.slurm.constraint
        found = [kind for kind in kinds if feature in kind.features] if feature in self._all_features else list(kinds)
        if self.slurm.gpu_request == "none":
            return found
        return [kind for kind in found if _count(kind, self.slurm.gres_type)]

    @property
    def _all_features(self) -> frozenset[str]:
        return self.job_partition.features if self.job_partition else frozenset()

    def _gpus(self, partition: Partition) -> Iterator[Finding]:
        hardware, kind = self.cluster.hardware, self.slurm.gres_type
        if not partition.gpu_nodes:
            if self.slurm.gpu_request == "none":
                yield self.at(
                    "hardware.gpus_per_node", "unknown", "Slurm has no GPUs in this partition, and jobs request none"
                )
            else:
                hint = "set gpu_request: none if jobs get whole nodes"
                yield self.at("slurm.gpu_request", "wrong", f"Slurm has no GPUs in partition {partition.name}", hint)
            return
        kinds = sorted({gres.kind for gres in partition.gres if gres.name == "gpu" and gres.kind})
        if kind and kind not in kinds:
            hint = did_you_mean(kind, kinds) or f"there are: {', '.join(kinds) or 'GPUs without a type'}"
            yield self.at("slurm.gres_type", "wrong", f"{kind}: no such GPU type in {partition.name}", hint)
            kind = None
        elif kind:
            yield self.at("slurm.gres_type", "ok", kind)
        counts = sorted({count for node in self._asked_for or partition.kinds if (count := _count(node, kind))})
        if hardware.gpus_per_node not in counts:
            there = " or ".join(map(str, counts))
            found = f"is {hardware.gpus_per_node}, but the nodes have {there}"
            yield self.at("hardware.gpus_per_node", "wrong", found, f"set gpus_per_node: {counts[-1]}")
        else:
            yield self.at("hardware.gpus_per_node", "ok", str(hardware.gpus_per_node))

    def launching(self) -> Iterator[Finding]:
        """Check the MPI type of srun."""
        mpi, kinds = self.slurm.mpi, self.site.mpi_kinds
        if mpi is None:
            return
        if not kinds:
            yield self.at("slurm.mpi", "unknown", "srun does not list its MPI types")
        elif mpi in (*kinds, "none"):
            yield self.at("slurm.mpi", "ok", mpi)
        else:
            yield self.at("slurm.mpi", "wrong", f"{mpi}: srun has no such MPI type", nearest(mpi, kinds))

    def container(self) -> Iterator[Finding]:
        """Check the container runtime against the options of srun."""
        container, srun = self.cluster.profile.container, self.site.srun
        if container is None:
            return
        if container.runtime == "edf":
            if srun.has_environment:
                yield self.at("container.runtime", "ok", "srun has --environment")
            else:
                hint = "edf needs the container engine of CSCS; set runtime: pyxis on other sites"
                yield self.at("container.runtime", "wrong", "srun has no --environment", hint)
        elif container.runtime == "pyxis":
            if not srun.has_pyxis:
                hint = "install pyxis, or remove container: from the profile"
                yield self.at("container.runtime", "wrong", "srun has no --container-image, the option of pyxis", hint)
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
                hint = f"{fits}; install a newer version, or remove {field}:"
                yield self.at(field, "wrong", f"this pyxis has no --{option}", hint)
        if container.version is None:
            if not container.writable and "container-readonly" not in self.site.srun.pyxis:
                hint = f'{fits}; set container: version: "{oldest}"'
                yield self.at("container.version", "wrong", "this pyxis has no --container-readonly", hint)
            return
        version = _numbers(container.version)
        if version < _numbers(oldest) or (too_new is not None and version >= _numbers(too_new)):
            found = f"is {container.version}, but {fits}"
            yield self.at("container.version", "wrong", found, f'set version: "{oldest}"')
        else:
            yield self.at("container.version", "ok", container.version)


def _features(constraint: str) -> list[str]:
    """Return the feature names in a constraint such as `[rack1*2|rack2*2]&80g`."""
    return [name for part in re.split(r"[&|,()\[\]!\s]+", constraint) if (name := part.partition("*")[0])]


def _count(node: NodeKind, kind: str | None) -> int:
    return sum(gres.count for gres in node.gres if gres.name == "gpu" and kind in (None, gres.kind))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
