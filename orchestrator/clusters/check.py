"""A profile compared with its live cluster, as far as a login node sees it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.clusters.finding import Finding, Result
from orchestrator.clusters.placement import QosFields, SlurmFields, seconds
from orchestrator.clusters.resolve import Cluster
from orchestrator.documents.source import shown
from orchestrator.errors import did_you_mean
from orchestrator.slurm.site import Association, NodeKind, Partition, Qos, Site


def check_login(cluster: Cluster, site: Site) -> list[Finding]:
    """Everything that Slurm says of this profile, in the order of the profile."""
    checks = _Checks(cluster, site)
    return [
        *open_fields(cluster),
        *checks.partition(),
        *checks.account(),
        *checks.qos(),
        *checks.names(),
        *checks.limits(),
        *checks.nodes(),
        *checks.launching(),
        *checks.container(),
    ]


def open_fields(cluster: Cluster) -> Iterator[Finding]:
    """What the administrator has still to write; what only one workload or image needs, can wait for it."""
    for blank in cluster.unfilled:
        name = ".".join(str(part) for part in blank.path)
        can_wait = blank.path[0] == "workloads" or blank.path[:2] == ("container", "images")
        result: Result = "later" if can_wait else "open"
        yield Finding(name, "login", result, blank.text, blank.where, f"write it in {shown(cluster.overlay)}")


class _Checks:
    """One profile against one site; each method a subject."""

    def __init__(self, cluster: Cluster, site: Site) -> None:
        assert cluster.profile.slurm is not None
        self.cluster, self.site = cluster, site
        self.slurm: SlurmFields = cluster.profile.slurm
        names = [self.slurm.partition] if self.slurm.partition else [p.name for p in site.partitions if p.is_default]
        self.where_jobs_go: Partition | None = site.partition(names[0]) if names else None

    def partition(self) -> Iterator[Finding]:
        name = self.slurm.partition
        if name is None or _is_blank(name):
            if self.where_jobs_go is None and name is None:
                yield self._at("partition", "wrong", "the cluster has no default", "add slurm: partition:")
            return
        there = [one.name for one in self.site.partitions]
        if self.where_jobs_go is None:
            mend = did_you_mean(name, there) or f"there are: {', '.join(there)}"
            yield self._at("partition", "wrong", f"{name}: no such partition", mend)
        elif not self.where_jobs_go.is_up:
            yield self._at("partition", "wrong", f"{name} is not up", "sinfo -s shows those that are")
        else:
            yield self._at("partition", "ok", f"{name}, {self.where_jobs_go.nodes} nodes")

    def account(self) -> Iterator[Finding]:
        wanted, mine = self.slurm.account_name, self.site.associations
        if wanted is not None and _is_blank(wanted):
            return
        if mine is None:
            yield self._at("account", "unknown", "accounting does not answer")
        elif wanted is None:
            default = next((one.account for one in mine if one.is_default), None)
            if default or not self.site.enforces_accounts:
                yield self._at("account", "ok", f"none named; Slurm takes {default or 'any'}")
            else:
                yield self._at("account", "wrong", "none named, and Slurm asks for one", _there(mine))
        elif wanted not in {one.account for one in mine}:
            mend = did_you_mean(wanted, [one.account for one in mine]) or _there(mine)
            yield self._at("account", "wrong", f"{wanted} is no account of {self.site.user}", mend)
        elif self.where_jobs_go and not self.where_jobs_go.takes_account(wanted):
            found = f"partition {self.where_jobs_go.name} takes no jobs of {wanted}"
            yield self._at("account", "wrong", found, "take another account or partition")
        else:
            yield self._at("account", "ok", wanted)

    def qos(self) -> Iterator[Finding]:
        given = self.slurm.qos
        if given is None:
            return
        named = [QosFields(name=given)] if isinstance(given, str) else given
        for i, one in enumerate(named):
            where = self.cluster.layered.where(("slurm", "qos") if isinstance(given, str) else ("slurm", "qos", i))
            if not _is_blank(one.name):
                yield self._one_qos(one, where)

    def _one_qos(self, one: QosFields, where: str) -> Finding:
        check = f"qos {one.name}"
        if self.site.qos is None:
            return Finding(check, "login", "unknown", "accounting does not answer", where)
        known = self.site.qos_named(one.name)
        if known is None:
            names = [qos.name for qos in self.site.qos]
            mend = did_you_mean(one.name, names) or f"there are: {', '.join(names)}"
            return Finding(check, "login", "wrong", "no such QOS", where, mend)
        mine = [link for link in self.site.associations or () if link.account == self.slurm.account_name]
        if mine and not any(one.name in link.qos for link in mine):
            allowed = ", ".join(sorted({name for link in mine for name in link.qos})) or "none"
            return Finding(check, "login", "wrong", f"not for {self.slurm.account_name}", where, f"it has: {allowed}")
        if self.where_jobs_go and not self.where_jobs_go.takes_qos(one.name):
            return Finding(check, "login", "wrong", f"not in partition {self.where_jobs_go.name}", where)
        beyond = list(_beyond(one, known))
        if beyond:
            return Finding(check, "login", "wrong", "; ".join(beyond), where, "sacctmgr show qos lists its limits")
        return Finding(check, "login", "ok", "its limits allow what the profile says", where)

    def names(self) -> Iterator[Finding]:
        """Features and reservations."""
        if self.slurm.constraint and not _is_blank(self.slurm.constraint) and self.where_jobs_go:
            asked = re.findall(r"[A-Za-z_][\w.:=-]*", self.slurm.constraint)
            there = sorted(self.where_jobs_go.features)
            missing = [name for name in asked if name not in there]
            if missing and self.where_jobs_go.kinds:
                mend = did_you_mean(missing[0], there) or f"there are: {', '.join(there) or 'none'}"
                yield self._at("constraint", "wrong", f"no node has {', '.join(missing)}", mend)
            else:
                yield self._at("constraint", "ok", self.slurm.constraint)
        wanted = self.slurm.reservation
        if wanted and not _is_blank(wanted):
            if wanted in self.site.reservations:
                yield self._at("reservation", "ok", wanted)
            else:
                mend = f"there are: {', '.join(self.site.reservations) or 'none'}"
                yield self._at("reservation", "wrong", f"{wanted}: no such reservation", mend)

    def limits(self) -> Iterator[Finding]:
        partition = self.where_jobs_go
        if partition is None:
            return
        given = {"time_limit": self.slurm.time_limit, "max_time": self.slurm.max_time}
        for field, value in given.items():
            if value is None:
                continue
            if partition.max_time_s is not None and seconds(value) > partition.max_time_s:
                found = f"{value}, but {partition.name} allows {_clock(partition.max_time_s)}"
                yield self._at(field, "wrong", found, f"at most {_clock(partition.max_time_s)}")
            else:
                yield self._at(field, "ok", value)
        if self.slurm.max_nodes and partition.max_nodes and self.slurm.max_nodes > partition.max_nodes:
            found = f"{self.slurm.max_nodes}, but {partition.name} allows {partition.max_nodes}"
            yield self._at("max_nodes", "wrong", found, f"at most {partition.max_nodes}")

    def nodes(self) -> Iterator[Finding]:
        """What the nodes are, against hardware: and what jobs ask of each."""
        partition, hardware = self.where_jobs_go, self.cluster.hardware
        if partition is None:
            return
        if hardware.nodes > partition.nodes:
            found = f"says {hardware.nodes}, {partition.name} has {partition.nodes}"
            yield self._hardware("nodes", "wrong", found, f"nodes: {partition.nodes}")
        else:
            yield self._hardware("nodes", "ok", f"{hardware.nodes} of {partition.nodes}")
        if not partition.kinds:
            yield self._hardware("gpus_per_node", "unknown", "Slurm does not show its nodes to this user")
            return
        yield from self._gpus(partition)
        cpus = self.slurm.cpus_per_task
        tasks = hardware.gpus_per_node if self.slurm.tasks == "per-gpu" else 1
        if cpus and cpus * tasks > partition.cpus_per_node:
            found = f"{tasks} tasks of {cpus}, but the nodes have {partition.cpus_per_node} CPUs"
            yield self._at("cpus_per_task", "wrong", found, f"at most {partition.cpus_per_node // tasks}")
        said = self.cluster.profile.site.architecture
        known = {kind.architecture for kind in partition.kinds if kind.architecture}
        if said and known and said not in known:
            where = self.cluster.layered.where(("site", "architecture"))
            yield Finding("site.architecture", "login", "wrong", f"the nodes are {', '.join(sorted(known))}", where)

    def _gpus(self, partition: Partition) -> Iterator[Finding]:
        hardware, kind = self.cluster.hardware, self.slurm.gres_type
        with_gpus = [node for node in partition.kinds if node.gpu]
        if not with_gpus:
            if self.slurm.gpu_request == "none":
                yield self._hardware("gpus_per_node", "unknown", "Slurm counts no GPUs here, and none are asked for")
            else:
                mend = "gpu_request: none, if jobs have whole nodes"
                yield self._at("gpu_request", "wrong", f"Slurm knows no GPUs in {partition.name}", mend)
            return
        kinds = sorted({gres.kind for gres in partition.gres if gres.name == "gpu" and gres.kind})
        if kind and kind not in kinds:
            mend = did_you_mean(kind, kinds) or f"there are: {', '.join(kinds) or 'GPUs without a type'}"
            yield self._at("gres_type", "wrong", f"{kind}: no such type of GPU", mend)
        elif kind:
            yield self._at("gres_type", "ok", kind)
        counts = sorted({_count(node, kind) for node in with_gpus})
        if hardware.gpus_per_node not in counts:
            there = " or ".join(map(str, counts))
            found = f"says {hardware.gpus_per_node}, the nodes have {there}"
            yield self._hardware("gpus_per_node", "wrong", found, f"gpus_per_node: {counts[-1]}")
        else:
            yield self._hardware("gpus_per_node", "ok", str(hardware.gpus_per_node))

    def launching(self) -> Iterator[Finding]:
        """How processes are started: the kind of MPI, and further options of srun."""
        mpi, kinds = self.slurm.mpi, self.site.mpi_kinds
        if mpi and kinds:
            if mpi in (*kinds, "none"):
                yield self._at("mpi", "ok", mpi)
            else:
                mend = did_you_mean(mpi, kinds) or f"there are: {', '.join(kinds)}"
                yield self._at("mpi", "wrong", f"{mpi}: srun knows no such kind", mend)
        known = self.site.srun.names
        for i, word in enumerate(self.slurm.srun):
            name = word.partition("=")[0]
            if name.startswith("--") and known and name[2:] not in known:
                nearest = did_you_mean(name, [f"--{one}" for one in known])
                where = self.cluster.layered.where(("slurm", "srun", i))
                yield Finding("slurm.srun", "login", "wrong", f"srun has no {name}", where, nearest)

    def container(self) -> Iterator[Finding]:
        container, srun = self.cluster.profile.container, self.site.srun
        if container is None:
            return
        if container.runtime == "edf" and not srun.has_environment:
            yield self._container("runtime", "wrong", "srun has no --environment", "it is the container engine of CSCS")
        elif container.runtime == "pyxis":
            if not srun.has_pyxis:
                mend = "install pyxis, or take container: out of the profile"
                yield self._container("runtime", "wrong", "srun has no --container-image: there is no pyxis", mend)
                return
            oldest, too_new = srun.pyxis_versions or ("0", None)
            fits = f"srun's options are those of pyxis {oldest}" + (f" up to {too_new}" if too_new else " or newer")
            yield self._container("runtime", "ok", fits)
            yield from self._pyxis_version(oldest, too_new, fits)

    def _pyxis_version(self, oldest: str, too_new: str | None, fits: str) -> Iterator[Finding]:
        container = self.cluster.profile.container
        assert container is not None
        for field, option in (("pass_env", "container-env"), ("writable", "container-writable")):
            if getattr(container, field) and option not in self.site.srun.pyxis:
                yield self._container(field, "wrong", f"this pyxis has no --{option}", "a newer pyxis has it")
        if container.version is None:
            return
        said = _numbers(container.version)
        if said < _numbers(oldest) or (too_new is not None and said >= _numbers(too_new)):
            yield self._container("version", "wrong", f"says {container.version}, but {fits}", f"version: {oldest}")
        else:
            yield self._container("version", "ok", container.version)

    def _at(self, field: str, result: Result, found: str, mend: str | None = None) -> Finding:
        return Finding(f"slurm.{field}", "login", result, found, self.cluster.layered.where(("slurm", field)), mend)

    def _hardware(self, field: str, result: Result, found: str, mend: str | None = None) -> Finding:
        where = self.cluster.layered.where(("hardware", field))
        return Finding(f"hardware.{field}", "login", result, found, where, mend)

    def _container(self, field: str, result: Result, found: str, mend: str | None = None) -> Finding:
        where = self.cluster.layered.where(("container", field))
        return Finding(f"container.{field}", "login", result, found, where, mend)


def _beyond(said: QosFields, known: Qos) -> Iterator[str]:
    """What the profile promises and the QOS does not give."""
    if said.max_time and known.max_wall_s is not None and seconds(said.max_time) > known.max_wall_s:
        yield f"max_time {said.max_time}, Slurm's is {_clock(known.max_wall_s)}"
    if said.max_nodes and known.max_nodes is not None and said.max_nodes > known.max_nodes:
        yield f"max_nodes {said.max_nodes}, Slurm's is {known.max_nodes}"
    if said.max_gpus and known.max_gpus is not None and said.max_gpus > known.max_gpus:
        yield f"max_gpus {said.max_gpus}, Slurm's is {known.max_gpus}"


def _count(node: NodeKind, kind: str | None) -> int:
    return sum(gres.count for gres in node.gres if gres.name == "gpu" and kind in (None, gres.kind))


def _there(mine: tuple[Association, ...]) -> str:
    return f"yours are: {', '.join(sorted({one.account for one in mine})) or 'none'}"


def _is_blank(text: str) -> bool:
    return "<" in text


def _clock(limit_s: int) -> str:
    """Seconds as a profile writes them."""
    days, rest = divmod(limit_s, 86400)
    return f"{f'{days}-' if days else ''}{rest // 3600}:{rest % 3600 // 60:02}:{rest % 60:02}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
