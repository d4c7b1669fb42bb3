"""Comparison of a profile with its paths, and with the settings and the accounting of its cluster."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from orchestrator.clusters.container import MountFields, release
from orchestrator.clusters.machine import gpu_facts, named_gpu
from orchestrator.clusters.profile import QosFields, SlurmFields
from orchestrator.clusters.program import CORRECT, FetchRecord, SitePath, needed_paths, stored_record
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.yaml import KeyPath, dotted
from orchestrator.errors import did_you_mean, names_hint, there_are
from orchestrator.programs.plug_ins import called
from orchestrator.programs.registry import find_program, known_program
from orchestrator.slurm.notation import format_time_limit, time_limit_s
from orchestrator.slurm.site import Association, NodeKind, Partition, Site, ranked
from orchestrator.text import counted

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
    found: str
    location: str | None = None
    hint: str | None = None

    @property
    def is_fault(self) -> bool:
        """True if the user must correct the profile or the site."""
        return self.result in ("wrong", "open")


def is_blank(text: str) -> bool:
    """Return whether a value is open, such as `<your account>`."""
    return "<" in text


Presence = Literal["yes", "no", "unreadable"]
"""Existence of a path. `unreadable`: this user may not read it."""


def site_paths(cluster: Cluster) -> list[SitePath]:
    """Return the paths of the profile that can be checked before a job runs. Open values are left out."""
    paths = [*_images(cluster), *_mounts(cluster), *_programs(cluster), *_working_folder(cluster)]
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
    record = stored_record(FetchRecord, wanted.record) if wanted.record and seen is None else None
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


def _programs(cluster: Cluster) -> Iterator[SitePath]:
    for name in cluster.layered.mapping("programs"):
        if known_program(name) is not None:
            yield from needed_paths(find_program(name), cluster)
            continue
        for field, value in cluster.profile.programs.described(name):
            if value and value.startswith("/") and (field == "image" or cluster.profile.container is None):
                yield SitePath(f"programs.{name}.{field}", value, cluster.location(("programs", name, field)))
    for name in cluster.layered.mapping("programs"):
        python = cluster.profile.programs.python(name)
        if python and python.startswith("/") and cluster.profile.container is None:  # only a job sees those of an image
            path = ("programs", name, "python")
            yield SitePath(dotted(path), python, cluster.location(path))


def _working_folder(cluster: Cluster) -> Iterator[SitePath]:
    """Yield the folder of `--chdir`. If it does not exist, Slurm uses /tmp without an error."""
    slurm = cluster.profile.slurm
    for i, argument in enumerate(slurm.sbatch if slurm else ()):
        name, _, folder = argument.partition("=")
        if name == "--chdir" and folder:
            yield SitePath("slurm.sbatch --chdir", folder, cluster.location(("slurm", "sbatch", i)))


def check_login(cluster: Cluster, site: Site) -> list[Finding]:
    """Return the findings about a profile, in the order of its fields."""
    checks = _SiteChecks(cluster, site)
    return [
        *open_fields(cluster),
        *data_sheet(cluster),
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
    """Yield a finding for each open value. Values of one program or image are `later`, all others are `open`."""
    for blank in cluster.unfilled:
        name = dotted(blank.path)
        can_wait = blank.path[0] == "programs" or blank.path[:2] == ("container", "images")
        result: Result = "later" if can_wait else "open"
        yield Finding(name, "login", result, blank.text, blank.location, cluster.fill_hint(blank))
    if cluster.profile.hardware is not None:
        for fact in ("gpu", "gpu_memory_gb", "peak_tflops"):
            if not getattr(cluster.hardware, fact):
                message, location = "missing, but plans for GPUs need it", cluster.location(("hardware",))
                yield Finding(f"hardware.{fact}", "login", "later", message, location, f"add hardware: {fact}:")


def data_sheet(cluster: Cluster) -> Iterator[Finding]:
    """Yield a finding for each value of `hardware` that contradicts the GPU's data sheet or the GRES type."""
    hardware, slurm = cluster.hardware, cluster.profile.slurm
    facts = gpu_facts(hardware.gpu)
    for dtype, value in hardware.peak_tflops.items():
        peak = facts.peak_tflops.get(dtype) if facts else None
        if peak and value > 1.05 * peak:
            message = (
                f"{dtype}: {value:g}, but the dense peak of {hardware.gpu} is {peak:g}; data sheets print sparse ones"
            )
            yield field_finding(cluster, "hardware.peak_tflops", "wrong", message, f"set {dtype}: {peak:g}")
    if hardware.gpu_memory_gb and hardware.gpu_memory_gb >= 1024:
        memory_gb = hardware.gpu_memory_gb * 2**20 // 10**9
        message = f"is {hardware.gpu_memory_gb} GB, which is a number of MB"
        yield field_finding(cluster, "hardware.gpu_memory_gb", "wrong", message, f"set gpu_memory_gb: {memory_gb}")
    named = named_gpu(slurm.gres_type) if slurm and slurm.gres_type else None
    mine = named_gpu(hardware.gpu) if hardware.gpu else None
    if named and mine and named.split()[0] != mine.split()[0]:
        message = f"is {hardware.gpu}, but gres_type requests {named}"
        yield field_finding(cluster, "hardware.gpu", "wrong", message, f"set gpu: {named}, or another gres_type")


def field_finding(cluster: Cluster, field: str, result: Result, message: str, hint: str | None = None) -> Finding:
    """Return a finding about a field of the profile, such as `slurm.qos`."""
    return Finding(field, "login", result, message, cluster.location(tuple(field.split("."))), hint)


def check_program(cluster: Cluster, _: Site) -> list[Finding]:
    """Check that this machine has the program of a container runtime."""
    container = cluster.profile.container
    assert container is not None
    if there := shutil.which(container.runtime):
        return [field_finding(cluster, "container.runtime", "ok", there)]
    message = f"this machine has no {container.runtime}; nodes may have it"
    return [field_finding(cluster, "container.runtime", "unknown", message, "use --job")]


def check_edf(cluster: Cluster, site: Site) -> list[Finding]:
    """Check that srun has the option of CSCS's container engine."""
    if "environment" in site.srun.names:
        return [field_finding(cluster, "container.runtime", "ok", "srun has --environment")]
    hint = "edf needs the container engine of CSCS; set runtime: pyxis on other sites"
    return [field_finding(cluster, "container.runtime", "wrong", "srun has no --environment", hint)]


def check_pyxis(cluster: Cluster, site: Site) -> list[Finding]:
    """Check that srun has the options of pyxis that the profile needs."""
    if not site.srun.has_pyxis:
        hint, what = "install pyxis, or remove container: from the profile", "no --container-image, the option of pyxis"
        return [field_finding(cluster, "container.runtime", "wrong", f"srun has {what}", hint)]
    oldest, too_new = site.srun.pyxis_versions or ("0", None)
    newest = f", older than {too_new}" if too_new else " or newer"
    fits = f"srun's options are those of pyxis {oldest}{newest}"
    runtime = field_finding(cluster, "container.runtime", "ok", fits)
    return [runtime, *_pyxis_version(cluster, site.srun.pyxis, oldest, too_new, fits)]


def _pyxis_version(
    cluster: Cluster, there: Collection[str], oldest: str, too_new: str | None, fits: str
) -> Iterator[Finding]:
    container = cluster.profile.container
    assert container is not None
    needs = {
        "container.pass_env": (container.pass_env, "container-env"),
        "env_from": (cluster.profile.env_from, "container-env"),
        "container.writable": (container.writable, "container-writable"),
    }
    for field, (is_used, option) in needs.items():
        if is_used and option not in there:
            hint = f"{fits}; install a newer version, or remove {field}:"
            yield field_finding(cluster, field, "wrong", f"this pyxis has no --{option}", hint)
    if container.version is None:
        if not container.writable and "container-readonly" not in there:
            hint, what = f'{fits}; set container: version: "{oldest}"', "this pyxis has no --container-readonly"
            yield field_finding(cluster, "container.version", "wrong", what, hint)
        return
    version = release(container.version)
    if version < release(oldest) or (too_new is not None and version >= release(too_new)):
        message = f"is {container.version}, but {fits}"
        yield field_finding(cluster, "container.version", "wrong", message, f'set version: "{oldest}"')
    else:
        yield field_finding(cluster, "container.version", "ok", container.version)


class _SiteChecks:
    """Checks of a profile against Slurm and its accounting. Each method checks one subject.

    `job_partition` is the partition of jobs; None if it does not exist.
    """

    def __init__(self, cluster: Cluster, site: Site) -> None:
        assert cluster.profile.slurm is not None
        self.cluster, self.site = cluster, site
        self.slurm: SlurmFields = cluster.profile.slurm
        names = [self.slurm.partition] if self.slurm.partition else [p.name for p in site.partitions if p.is_default]
        self.job_partition: Partition | None = site.partition(names[0]) if names else None

    def _most_nodes(self, limit: int | None = None) -> int:
        """Return the number of nodes of the largest job that the planner accepts, with a further limit."""
        return min(most for most in (limit, self.slurm.max_nodes, self.cluster.hardware.nodes) if most)

    def _longest(self, limit: str | None = None) -> str:
        """Return the time limit of the longest job that the planner accepts; without limits, the default time limit."""
        limits = [text for text in (limit, self.slurm.max_time) if text]
        return min(limits, key=time_limit_s, default=self.slurm.time_limit)

    def _at(self, field: str, result: Result, message: str, hint: str | None = None) -> Finding:
        """Return a finding about a field of the profile, such as `slurm.qos`."""
        return field_finding(self.cluster, field, result, message, hint)

    def _named(self, field: str, name: str, names: Sequence[str], unknown: str) -> Finding:
        """Return whether a name is one of Slurm's names."""
        if name in names:
            return self._at(field, "ok", name)
        return self._at(field, "wrong", f"{name}: {unknown}", names_hint(name, names))

    def partition(self) -> Iterator[Finding]:
        """Check the partition."""
        name = self.slurm.partition
        if name is not None and is_blank(name):
            return
        there = [partition.name for partition in self.site.partitions]
        if name is None and self.job_partition is None:
            hint = f"set slurm: partition:; {there_are(there)}"
            yield self._at("slurm.partition", "wrong", "missing, and the cluster has no default partition", hint)
        elif self.job_partition is None:
            yield self._named("slurm.partition", str(name), there, "no such partition")
        elif not self.job_partition.is_up:
            hint = "choose a partition that sinfo -s lists as up"
            yield self._at("slurm.partition", "wrong", f"{self.job_partition.name} is not up", hint)
        elif not self.site.takes_groups(self.job_partition):
            groups = ", ".join(sorted(self.job_partition.allow_groups or ()))
            message = f"{self.job_partition.name} is only for the groups {groups}"
            yield self._at("slurm.partition", "wrong", message, self._elsewhere())
        else:
            default = "" if name else ", the default"
            message = f"{self.job_partition.name}{default}, {counted(self.job_partition.nodes, 'node')}"
            if mode := self.job_partition.preempt_mode:
                message += f", preemptible (PreemptMode={mode}): Slurm can stop jobs for other jobs"
            yield self._at("slurm.partition", "ok", message)

    def _elsewhere(self) -> str:
        """Return the hint that lists the other partitions with GPUs that the user can use."""
        usable = [choice for choice in ranked(self.site) if choice.obstacle is None and choice.kind.gpu]
        others = [choice.partition.name for choice in usable if choice.partition != self.job_partition]
        if not others:
            return "ask the administrator of the cluster for access to GPUs"
        return f"use another partition: {', '.join(others)}"

    def names(self) -> Iterator[Finding]:
        """Check the names of features and reservations."""
        if self.slurm.constraint and not is_blank(self.slurm.constraint) and self.job_partition:
            there = sorted({feature for kind in self.job_partition.kinds for feature in kind.features})
            parts = re.split(r"[&|,()\[\]!\s]+", self.slurm.constraint)  # such as `[rack1*2|rack2*2]&80g`
            missing = [name for part in parts if (name := part.partition("*")[0]) and name not in there]
            if not self.job_partition.kinds:
                yield self._at("slurm.constraint", "unknown", "Slurm does not show its nodes to this user")
            elif missing:
                message = f"no node of {self.job_partition.name} has {', '.join(missing)}"
                yield self._at("slurm.constraint", "wrong", message, names_hint(missing[0], there))
            else:
                yield self._at("slurm.constraint", "ok", self.slurm.constraint)
        wanted = self.slurm.reservation
        if wanted and not is_blank(wanted):
            missing = [name for name in wanted.split(",") if name not in self.site.reservations]
            if missing and any("reservation" in complaint for complaint in self.site.complaints):
                yield self._at("slurm.reservation", "unknown", "Slurm does not show its reservations to this user")
            elif missing:
                message = f"{', '.join(missing)}: no such reservation"
                yield self._at("slurm.reservation", "wrong", message, there_are(self.site.reservations))
            else:
                yield self._at("slurm.reservation", "ok", wanted)

    def limits(self) -> Iterator[Finding]:
        """Check the limits of the profile against the limits of the partition."""
        partition = self.job_partition
        if partition is None:
            return
        for field, value in {"time_limit": self.slurm.time_limit, "max_time": self.slurm.max_time}.items():
            if value and partition.max_time_s is not None and time_limit_s(value) > partition.max_time_s:
                longest = format_time_limit(partition.max_time_s)
                message = f"{value}, but {partition.name} allows {longest}"
                yield self._at(f"slurm.{field}", "wrong", message, f"set {field}: {longest}")
            elif value:
                yield self._at(f"slurm.{field}", "ok", value)
        nodes = self._most_nodes()
        if partition.max_nodes and nodes > partition.max_nodes:
            message = f"jobs may have {counted(nodes, 'node')}, but {partition.name} allows {partition.max_nodes}"
            yield self._at("slurm.max_nodes", "wrong", message, f"set max_nodes: {partition.max_nodes}")

    def nodes(self) -> Iterator[Finding]:
        """Check `hardware`, `site.architecture` and the CPUs of each task against the nodes."""
        partition, hardware = self.job_partition, self.cluster.hardware
        if partition is None:
            return
        count = sum(kind.count for kind in self._job_nodes) if self._job_nodes else partition.nodes
        such = " such nodes" if self._job_nodes and count < partition.nodes else ""
        if hardware.nodes > count:
            message = f"is {hardware.nodes}, but {partition.name} has {count}{such}"
            yield self._at("hardware.nodes", "wrong", message, f"set nodes: {count}")
        else:
            yield self._at("hardware.nodes", "ok", f"{hardware.nodes} of {count}{such}")
        if not partition.kinds:
            yield self._at("hardware.gpus_per_node", "unknown", "Slurm does not show its nodes to this user")
            return
        gpus = list(self._gpus(partition))
        yield from gpus
        if not any(finding.is_fault for finding in gpus):  # the number of tasks on a node depends on its GPUs
            yield from self._cpus(partition)
        architecture = self.cluster.profile.site.architecture
        there = {kind.architecture for kind in self._job_nodes or partition.kinds if kind.architecture}
        if architecture and there and architecture not in there:
            message = f"is {architecture}, but the nodes are {' and '.join(sorted(there))}"
            yield self._at("site.architecture", "wrong", message)

    def _cpus(self, partition: Partition) -> Iterator[Finding]:
        cpus, most = self.slurm.cpus_per_task, max(kind.cpus for kind in self._job_nodes or partition.kinds)
        tasks = self.cluster.hardware.gpus_per_node if self.slurm.tasks == "per-gpu" else 1
        if cpus and cpus * tasks > most:
            message = f"{counted(tasks, 'task')} of {cpus}, but the nodes have {counted(most, 'CPU')}"
            yield self._at("slurm.cpus_per_task", "wrong", message, f"set cpus_per_task: {max(most // tasks, 1)}")
        elif cpus:
            yield self._at("slurm.cpus_per_task", "ok", f"{counted(tasks, 'task')} of {cpus} on {counted(most, 'CPU')}")

    @cached_property
    def _job_nodes(self) -> list[NodeKind]:
        """Nodes of the partition that have the GPUs and the feature that jobs request."""
        kinds = self.job_partition.kinds if self.job_partition else ()
        feature = self.slurm.constraint
        if any(feature in kind.features for kind in kinds):
            kinds = tuple(kind for kind in kinds if feature in kind.features)
        if self.slurm.gpu_request == "none":
            return list(kinds)
        return [kind for kind in kinds if _count(kind, self.slurm.gres_type)]

    def _gpus(self, partition: Partition) -> Iterator[Finding]:
        hardware, kind = self.cluster.hardware, self.slurm.gres_type
        if not partition.gpu_nodes:
            if self.slurm.gpu_request == "none":
                message = "Slurm has no GPUs in this partition, and jobs request none"
                yield self._at("hardware.gpus_per_node", "unknown", message)
            else:
                hint = "set gpu_request: none if jobs get whole nodes"
                message = f"Slurm has no GPUs in partition {partition.name}"
                if any(node.slices for node in partition.kinds):
                    message, hint = f"{partition.name} has only MIG slices, no whole GPUs", self._elsewhere()
                yield self._at("slurm.gpu_request", "wrong", message, hint)
            return
        kinds = sorted({gres.kind for node in partition.kinds for gres in node.gpus if gres.kind})
        if kind:
            names = kinds or ["GPUs without a type"]
            yield self._named("slurm.gres_type", kind, names, f"no such GPU type in {partition.name}")
            kind = kind if kind in kinds else None
        counts = sorted({count for node in self._job_nodes or partition.kinds if (count := _count(node, kind))})
        if hardware.gpus_per_node not in counts:
            there = " or ".join(map(str, counts))
            message = f"is {hardware.gpus_per_node}, but the nodes have {there}"
            yield self._at("hardware.gpus_per_node", "wrong", message, f"set gpus_per_node: {counts[-1]}")
        else:
            yield self._at("hardware.gpus_per_node", "ok", str(hardware.gpus_per_node))

    def launching(self) -> Iterator[Finding]:
        """Check the MPI type of srun."""
        mpi, kinds = self.slurm.mpi, self.site.mpi_kinds
        if mpi is not None and not kinds:
            yield self._at("slurm.mpi", "unknown", "srun does not list its MPI types")
        elif mpi is not None:
            known = ["none"] if mpi == "none" else kinds  # srun always accepts none
            yield self._named("slurm.mpi", mpi, known, "srun has no such MPI type")

    def container(self) -> Iterator[Finding]:
        """Check the container runtime against the options of srun."""
        container = self.cluster.profile.container
        if container is not None:
            yield from called(container.record.check, "check", list, self.cluster, self.site)

    def account(self) -> Iterator[Finding]:
        """Check the account."""
        wanted, mine = self.slurm.account_name, self.site.associations
        if wanted is not None and is_blank(wanted):
            return
        if not self.site.enforces_accounts:
            yield self._at("slurm.account", "ok", f"{wanted or 'none'}; Slurm does not check accounts")
        elif mine is None:
            yield self._at("slurm.account", "unknown", "accounting does not answer")
        elif wanted is None:
            default = next((link.account for link in mine if link.is_default), None)
            if default:
                yield self._at("slurm.account", "ok", f"none; Slurm uses {default}")
            else:
                yield self._at("slurm.account", "wrong", "missing, but Slurm requires one", _your_accounts(mine))
        elif wanted not in {link.account for link in mine}:
            hint = did_you_mean(wanted, [link.account for link in mine]) or _your_accounts(mine)
            yield self._at("slurm.account", "wrong", f"{wanted} is not an account of {self.site.user}", hint)
        elif not self._associations:
            message = f"{wanted} cannot use partition {self.job_partition.name if self.job_partition else ''}"
            yield self._at("slurm.account", "wrong", message, "use another account or partition")
        elif self.job_partition and not self.job_partition.takes_account(wanted):
            message = f"partition {self.job_partition.name} does not accept {wanted}"
            yield self._at("slurm.account", "wrong", message, "use another account or partition")
        else:
            yield self._at("slurm.account", "ok", wanted)

    @cached_property
    def _associations(self) -> list[Association]:
        """Associations of the account in the partition."""
        wanted, partition = self.slurm.account_name, self.job_partition.name if self.job_partition else None
        links = self.site.associations_for(partition)
        return [link for link in links if (link.account == wanted if wanted else link.is_default)]

    def qos(self) -> Iterator[Finding]:
        """Check each QOS of the profile. Without one, yield only faults of the default QOS."""
        given = self.slurm.qos
        if given is None:
            yield from (finding for finding in self._unnamed_qos() if finding.is_fault)
            return
        if isinstance(given, str):
            yield from self._named_qos(QosFields(name=given), ("slurm", "qos"))
            return
        for i, qos in enumerate(given):
            yield from self._named_qos(qos, ("slurm", "qos", i))

    def _unnamed_qos(self) -> Iterator[Finding]:
        default = self._associations[0].default_qos if self._associations else None
        name = default or (self.job_partition.qos if self.job_partition else None)
        if name is not None and self.site.qos_named(name):
            if default and self.job_partition and not self.job_partition.takes_qos(default):
                message = f"missing, and {self.job_partition.name} does not accept {default}, the default QOS"
                yield self._at("slurm.qos", "wrong", message, there_are(self._allowed()))
            else:
                yield self._within_limits(QosFields(name=name), ("slurm", "qos"))

    def _named_qos(self, given: QosFields, path: KeyPath) -> Iterator[Finding]:
        name = given.name
        if is_blank(name):
            return
        if self.site.qos is None:
            yield self._of_qos(name, path, "unknown", "accounting does not answer")
        elif self.site.qos_named(name) is None:
            yield self._of_qos(name, path, "wrong", "no such QOS", names_hint(name, [q.name for q in self.site.qos]))
        elif self._associations and name not in self._associations[0].qos:
            message = f"account {self._associations[0].account} cannot use it"
            yield self._of_qos(name, path, "wrong", message, there_are(self._allowed()))
        elif self.job_partition and not self.job_partition.takes_qos(name):
            message = f"partition {self.job_partition.name} does not accept it"
            yield self._of_qos(name, path, "wrong", message, there_are(self._allowed()))
        else:
            yield self._within_limits(given, path)

    def _of_qos(self, name: str, path: KeyPath, result: Result, message: str, hint: str | None = None) -> Finding:
        return Finding(f"slurm.qos {name}", "login", result, message, self.cluster.location(path), hint)

    def _allowed(self) -> list[str]:
        """Return the names of the QOS that this account may use in this partition."""
        names = self._associations[0].qos if self._associations else ()
        return [name for name in names if self.job_partition is None or self.job_partition.takes_qos(name)]

    def _within_limits(self, given: QosFields, path: KeyPath) -> Finding:
        excesses = list(self._excesses(given))
        if not excesses:
            return self._of_qos(given.name, path, "ok", "its limits allow the limits of the profile")
        message, hints = "; ".join(what for what, _ in excesses), ", ".join(hint for _, hint in excesses if hint)
        if not all(hint for _, hint in excesses):
            others = [name for name in self._allowed() if name != given.name and self._most_gpus(name) != 0]
            hints = f"qos: {' or '.join(others)}" if others else ""
            return self._of_qos(given.name, path, "wrong", message, f"set {hints}" if hints else self._elsewhere())
        return self._of_qos(given.name, path, "wrong", message, f"set {hints}")

    def _most_gpus(self, qos: str) -> int | None:
        return self.site.limit("max_gpus", self.job_partition, qos, self.slurm.gres_type)

    def _excesses(self, given: QosFields) -> Iterator[tuple[str, str]]:
        """Yield each limit of the profile that exceeds the limit in Slurm, with a hint."""
        nodes, gpus, limit = self._most_nodes(given.max_nodes), given.max_gpus, self._longest(given.max_time)
        most = self.site.limit("max_nodes", self.job_partition, given.name)
        if most is not None and nodes > most:
            hint = f"max_nodes: {most}" if most else ""  # no value of the profile allows 0
            yield f"jobs may have {counted(nodes, 'node')}, Slurm's limit is {most}", hint
            nodes = most
        per_node = self.cluster.hardware.gpus_per_node
        gpus = min(gpus or nodes * per_node, nodes * per_node)
        most = self._most_gpus(given.name)
        if most is not None and gpus > most:
            hint = f"max_gpus: {most}" if given.max_gpus else f"max_nodes: {most // per_node}"
            if most < per_node and not given.max_gpus:
                hint = f"qos: [{{name: {given.name}, max_gpus: {most}}}]"
            hint = hint if most else ""
            yield f"jobs may have {counted(gpus, 'GPU')}, Slurm's limit is {most}", hint
        most = self.site.limit("max_wall_s", self.job_partition, given.name)
        if most is not None and time_limit_s(limit) > most:
            field = "max_time" if given.max_time or self.slurm.max_time else "time_limit"
            longest = format_time_limit(most)
            yield f"jobs may take {limit}, Slurm's limit is {longest}", f"{field}: {longest}"


def _count(node: NodeKind, kind: str | None) -> int:
    return sum(gres.count for gres in node.gpus if kind in (None, gres.kind))


def _your_accounts(mine: tuple[Association, ...]) -> str:
    return f"your accounts are: {', '.join(sorted({link.account for link in mine})) or 'none'}"
