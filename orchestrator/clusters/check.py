"""Comparison of a profile with its paths, and with the settings and the accounting of its cluster."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from orchestrator.clusters.container import MountFields, release
from orchestrator.clusters.machine import gpu_facts, gpu_models
from orchestrator.clusters.profile import QosFields, SlurmFields
from orchestrator.clusters.program import CORRECT, FetchRecord, SitePath, needed_paths, stored_record
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.yaml import KeyPath, dotted
from orchestrator.errors import did_you_mean, names_hint, there_are
from orchestrator.programs.plug_ins import called
from orchestrator.programs.record import find_program, known_program
from orchestrator.slurm.accounting import Association
from orchestrator.slurm.nodes import NodeKind, Partition
from orchestrator.slurm.notation import format_time_limit, time_limit_s
from orchestrator.slurm.site import Bound, Choice, Preemption, Site, ranked, zeros
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
    requested = gpu_models(slurm.gres_type) if slurm and slurm.gres_type and slurm.gpu_request != "none" else set()
    named = gpu_models(hardware.gpu or "")
    if requested and named and not requested & named:
        model = max(requested).upper()
        message = f"is {hardware.gpu}, but gres_type requests {model}"
        yield field_finding(cluster, "hardware.gpu", "wrong", message, f"set gpu: {model}, or another gres_type")


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
            message = f"{self.job_partition.name} is only for {self.job_partition.owners}"
            yield self._at("slurm.partition", "wrong", message, self._elsewhere())
        elif self.job_partition.needs_reservation and not self.slurm.reservation:
            message = f"{self.job_partition.name} is only for jobs with a reservation"
            hint = f"set reservation: {self.site.reservations[0]}" if self.site.reservations else self._elsewhere()
            yield self._at("slurm.partition", "wrong", message, hint)
        else:
            default = "" if name else ", the default"
            message = f"{self.job_partition.name}{default}, {counted(self.job_partition.nodes, 'node')}"
            if (preemption := self._preemption(None)) and not preemption.qos:
                message += f", {preemption}"
            yield self._at("slurm.partition", "ok", message)

    def _preemption(self, qos: str | None) -> Preemption | None:
        return self.site.preemption(self.job_partition, qos) if self.job_partition else None

    @cached_property
    def _choices(self) -> list[Choice]:
        """Partitions that jobs of the user can use, the best one first; those with GPUs, unless jobs request none."""
        usable = (choice for choice in ranked(self.site) if choice.obstacle is None)
        return [choice for choice in usable if choice.kind.gpu or self.slurm.gpu_request == "none"]

    def _elsewhere(self) -> str:
        """Return the hint that lists the other partitions which the user can use, with what the first needs."""
        others = [choice for choice in self._choices if choice.partition != self.job_partition]
        if not others:
            return "ask the administrator of the cluster for access to GPUs"
        mine = self._associations[0].account if self._associations else None
        accounts = others[0].usable_accounts
        needs = ", ".join(self._needs(others[0], mine if mine in accounts else next(iter(accounts), None)))
        names = ", ".join(choice.partition.name for choice in others)
        return f"use another partition: {names}{f' ({others[0].partition.name} with {needs})' if needs else ''}"

    def _other_account(self, wanted: str | None) -> str:
        """Return the hint for an account that cannot use the partition."""
        for choice in self._choices:
            others = [name for name in choice.usable_accounts if name != wanted]
            if choice.partition == self.job_partition and others:
                needs = ", ".join(self._needs(choice, others[0]))
                return f"set {needs}, which can use partition {choice.partition.name}"
        return self._elsewhere()

    def _needs(self, choice: Choice, account: str | None) -> Iterator[str]:
        """Yield the account and the QOS that jobs in a partition need, if they are not those of the profile."""
        link = next(
            (link for link in self.site.associations_for(choice.partition.name) if link.account == account), None
        )
        if link is None:
            return
        if account != self.slurm.account_name and (self.slurm.account_name or not link.is_default):
            yield f"account: {account}"
        choice, given = replace(choice, association=link), self.slurm.qos
        is_usable = given in choice.allowed_qos if given else choice.partition.takes_qos(link.usual_qos or "")
        least = choice.kind.gpu.count if choice.kind.gpu and choice.partition.is_exclusive else 1
        if isinstance(given, list) or not is_usable or choice.largest_with(given or link.usual_qos) < least:
            best = max(choice.allowed_qos, key=choice.largest_with, default=None)
            if best or given:
                yield f"qos: {best or 'null'}"

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
        names = [of.name for of in self.slurm.qos or ()] if not isinstance(self.slurm.qos, str) else [self.slurm.qos]
        most = self.site.partition_limits(partition, names[0] if names else self._usual_qos)
        for field, value in {"time_limit": self.slurm.time_limit, "max_time": self.slurm.max_time}.items():
            if value and time_limit_s(value) > most.get("wall", time_limit_s(value)):
                longest = format_time_limit(most["wall"])
                message = f"{value}, but {partition.name} allows {longest}"
                yield self._at(f"slurm.{field}", "wrong", message, f"set {field}: {longest}")
            elif value:
                yield self._at(f"slurm.{field}", "ok", value)
        nodes = self._most_nodes()
        if nodes > (most.get("node") or nodes):
            message = f"jobs may have {counted(nodes, 'node')}, but {partition.name} allows {most['node']}"
            yield self._at("slurm.max_nodes", "wrong", message, f"set max_nodes: {most['node']}")

    def nodes(self) -> Iterator[Finding]:
        """Check `hardware`, `site.architecture` and the CPUs of each task against the nodes."""
        partition, hardware = self.job_partition, self.cluster.hardware
        if partition is None:
            return
        count = sum(kind.count for kind in self._job_nodes) if self._job_nodes else partition.nodes
        such = " such nodes" if self._job_nodes and count < partition.nodes else ""
        if hardware.nodes > count:
            message = f"is {hardware.nodes}, but {partition.name} has {count}{such}"
            yield self._at("hardware.nodes", "wrong", message, f"set nodes: {count}" if count else self._elsewhere())
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
            hint = f"{'' if most >= tasks else 'tasks: per-node, '}cpus_per_task: {most // tasks or most}"
            yield self._at("slurm.cpus_per_task", "wrong", message, f"set {hint}")
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
            slices = {gres.kind for node in partition.kinds for gres in node.slices}
            unknown = "a MIG slice, no whole GPU" if kind in slices else f"no such GPU type in {partition.name}"
            yield self._named("slurm.gres_type", kind, kinds or ["GPUs without a type"], unknown)
            kind = kind if kind in kinds else None
        elif kinds and any(node.slices for node in self._job_nodes):
            message = f"missing, and jobs could get MIG slices in {partition.name}"
            yield self._at("slurm.gres_type", "wrong", message, f"set gres_type: {kinds[0]}")
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
            if default is None:
                yield self._at("slurm.account", "wrong", "missing, but Slurm requires one", _your_accounts(mine))
            else:
                yield self._account_in_partition(default, f"none; Slurm uses {default}")
        elif wanted not in {link.account for link in mine}:
            hint = did_you_mean(wanted, [link.account for link in mine]) or _your_accounts(mine)
            yield self._at("slurm.account", "wrong", f"{wanted} is not an account of {self.site.user}", hint)
        else:
            yield self._account_in_partition(wanted, wanted)

    def _account_in_partition(self, account: str, shown: str) -> Finding:
        partition = self.job_partition
        if partition and not self._associations:
            message = f"{account} cannot use partition {partition.name}"
        elif partition and not partition.takes_account(account):
            message = f"partition {partition.name} does not accept {account}"
        else:
            return self._at("slurm.account", "ok", shown)
        return self._at("slurm.account", "wrong", message, self._other_account(account))

    @cached_property
    def _associations(self) -> list[Association]:
        """Associations of the account in the partition."""
        wanted, partition = self.slurm.account_name, self.job_partition.name if self.job_partition else None
        links = self.site.associations_for(partition)
        return [link for link in links if (link.account == wanted if wanted else link.is_default)]

    @property
    def _usual_qos(self) -> str | None:
        return self._associations[0].usual_qos if self._associations else None

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
        usual, partition = self._usual_qos, self.job_partition
        if partition is None or not (self._associations or partition.qos):
            return
        if self._associations and not (partition.takes_qos(usual) if usual else partition.allow_qos is None):
            what = f"{usual}, the default QOS" if usual else "jobs without a QOS"
            yield self._at(
                "slurm.qos", "wrong", f"missing, and {partition.name} does not accept {what}", self._set_qos()
            )
        else:
            yield self._within_limits(usual, None, ("slurm", "qos"))

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
            yield self._of_qos(name, path, "wrong", message, self._set_qos())
        elif self.job_partition and not self.job_partition.takes_qos(name):
            message = f"partition {self.job_partition.name} does not accept it"
            yield self._of_qos(name, path, "wrong", message, self._set_qos())
        else:
            yield self._within_limits(name, given, path)

    def _of_qos(
        self, name: str | None, path: KeyPath, result: Result, message: str, hint: str | None = None
    ) -> Finding:
        check = f"slurm.qos {name}" if name else "slurm.qos"
        return Finding(check, "login", result, message, self.cluster.location(path), hint)

    def _set_qos(self, but: str | None = None) -> str:
        """Return the hint for a QOS that jobs cannot use: the others of this account, another account or partition."""
        link = self._associations[0] if self._associations else None
        takes = self.job_partition.takes_qos if self.job_partition else bool
        usable = [name for name in (link.qos if link else ()) if takes(name) and name != but and self._is_usable(name)]
        is_free = self.job_partition is None or self.job_partition.allow_qos is None
        if link and not link.qos and is_free and self.slurm.qos is not None:
            return f"remove qos: account {link.account} has no QOS"
        if not usable:
            return self._other_account(link.account if link else None)
        return f"set qos: {' or '.join(usable)}" if but else there_are(usable)

    def _bounds(self, qos: str | None) -> dict[str, Bound]:
        """Return the limits of a job. Without `gres_type`, the GPUs are those of the partition if it has one type."""
        kinds = {gres.kind for node in self._job_nodes for gres in node.gpus}
        kind = next(iter(kinds)) if len(kinds) == 1 else self.slurm.gres_type
        link = self._associations[0] if self._associations else None
        return self.site.bounds(self.job_partition, qos, link, kind)

    def _zeros(self, qos: str | None) -> list[str]:
        """Return the limits of this QOS that allow no job of the profile."""
        return zeros(self._bounds(qos), has_gpus=self.slurm.gpu_request != "none")

    def _is_usable(self, qos: str) -> bool:
        """Return whether jobs of the profile can have this QOS. Some partitions give only whole nodes."""
        bound = self._bounds(qos).get("gres/gpu")
        has_whole_nodes = bound is None or bound.value >= self.cluster.hardware.gpus_per_node
        return not self._zeros(qos) and (
            has_whole_nodes or not (self.job_partition and self.job_partition.is_exclusive)
        )

    def _within_limits(self, name: str | None, given: QosFields | None, path: KeyPath) -> Finding:
        """Return the finding about the limits of a QOS, and of the account. Without a name, jobs have no QOS."""
        if nothing := self._zeros(name):
            return self._of_qos(name, path, "wrong", "; ".join(nothing), self._set_qos(name))
        excesses = list(self._excesses(name, given or QosFields(name="none")))
        if excesses:
            message, hints = "; ".join(what for what, _ in excesses), [hint for _, hint in excesses]
            hint = f"set {', '.join(hints)}" if all(hints) else self._set_qos(name)
            return self._of_qos(name, path, "wrong", message, hint)
        message, preemption = "its limits allow the limits of the profile", self._preemption(name)
        if preemption and preemption.qos:
            message += f"; {preemption}"
        return self._of_qos(name, path, "ok", message)

    def _excesses(self, name: str | None, given: QosFields) -> Iterator[tuple[str, str]]:
        """Yield each limit of the profile that exceeds the limit in Slurm, with a hint, or "" if no field helps."""
        nodes, limit = self._most_nodes(given.max_nodes), self._longest(given.max_time)
        # `limits` reports those of the partition.
        bounds = {of: bound for of, bound in self._bounds(name).items() if bound.source != self._partition_source}

        def excess(what: str, bound: Bound, text: object) -> str:
            source = "" if bound.source.startswith("QOS ") else f" ({bound.source})"
            return f"jobs may {what}, Slurm's limit is {text}{source}"

        if (bound := bounds.get("node")) and nodes > bound.value:
            yield excess(f"have {counted(nodes, 'node')}", bound, bound.value), f"max_nodes: {bound.value}"
            nodes = bound.value
        per_node = self.cluster.hardware.gpus_per_node
        gpus = min(given.max_gpus or nodes * per_node, nodes * per_node)
        bound = bounds.get("gres/gpu") if self.slurm.gpu_request != "none" else None
        if bound and gpus > bound.value:
            hint = f"max_gpus: {bound.value}" if given.max_gpus else f"max_nodes: {bound.value // per_node}"
            if bound.value < per_node and not given.max_gpus:
                hint = f"qos: [{{name: {name}, max_gpus: {bound.value}}}]" if name else ""
            yield excess(f"have {counted(gpus, 'GPU')}", bound, bound.value), hint
        if bound and bound.value < per_node and self.slurm.exclusive:
            hint = "" if self.job_partition and self.job_partition.is_exclusive else "exclusive: false"
            yield excess(f"have all {per_node} GPUs of a node (exclusive)", bound, bound.value), hint
        if (bound := bounds.get("wall")) and time_limit_s(limit) > bound.value:
            field = "max_time" if given.max_time or self.slurm.max_time else "time_limit"
            longest = format_time_limit(bound.value)
            yield excess(f"take {limit}", bound, longest), f"{field}: {longest}"

    @property
    def _partition_source(self) -> str:
        return f"partition {self.job_partition.name}" if self.job_partition else ""


def _count(node: NodeKind, kind: str | None) -> int:
    return sum(gres.count for gres in node.gpus if kind in (None, gres.kind))


def _your_accounts(mine: tuple[Association, ...]) -> str:
    return f"your accounts are: {', '.join(sorted({link.account for link in mine})) or 'none'}"
