"""Facts of a Slurm site that a login node can collect, and the choice of a partition and its nodes, account and QOS."""

from __future__ import annotations

import grp
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

from orchestrator.errors import Problem, ReproError, Unreachable, names_hint
from orchestrator.slurm.command import AccountingUnreachable, CommandResult, checked, read_settings, run_slurm
from orchestrator.slurm.notation import parse_time_limit
from orchestrator.text import counted

_SCOPES = {
    "MaxWall": "job wall",
    "MaxTRES": "job",
    "MaxTRESPU": "user",
    "MaxTRESPA": "account",
    "GrpTRES": "group",
    "MaxJobsPU": "user jobs",
    "MaxJobs": "user jobs",
    "GrpJobs": "group jobs",
    "MaxSubmitJobsPU": "user queue",
    "MaxSubmitJobs": "user queue",
    "GrpSubmitJobs": "group queue",
}
"""Scopes of limits by field of sacctmgr. Fields with one scope limit the same, for a QOS and for an association."""

_GROUP_LIMITS = ("GrpTRES", "GrpJobs", "GrpSubmitJobs")
ASSOCIATION_FIELDS = (
    *("DefaultAccount", "Account", "Partition", "QOS", "DefaultQOS"),
    *("MaxWall", "MaxTRES", "MaxJobs", "MaxSubmitJobs", *_GROUP_LIMITS),
)
ACCOUNT_FIELDS = ("Account", "ParentName", "User", *_GROUP_LIMITS)
"""Other limits of an account are those of its users, unless they have their own. sacctmgr does this."""
QOS_FIELDS = (
    *("Name", "MaxWall", "MaxTRES", "MaxTRESPU", "GrpTRES", "MaxJobsPU", "MaxSubmitJobsPU"),
    *("Flags", "Preempt", "PreemptMode", "MaxTRESPA", "GrpJobs", "GrpSubmitJobs"),
)

Limits = Mapping[str, int]
"""Limits by scope and resource: `job gres/gpu`, `group gres/gpu:a100`, `user jobs`, `job wall` (s). 0: none at all."""


@dataclass(frozen=True, slots=True)
class Association:
    """Account that the user may use. `partition` is None if it applies to all partitions.

    `limits` include those of the account and the accounts above it.
    """

    account: str
    qos: tuple[str, ...] = ()
    default_qos: str | None = None
    partition: str | None = None
    is_default: bool = False
    limits: Limits = field(default_factory=dict)

    @property
    def usual_qos(self) -> str | None:
        """Return the QOS of jobs that request none; None if it is that of the cluster."""
        return self.default_qos or (self.qos[0] if len(self.qos) == 1 else None)

    def within(self, accounts: Mapping[str, Limits]) -> Association:
        """Return the association with the limits of its account, too."""
        return replace(self, limits=_tightest(self.limits, accounts.get(self.account, {})))


@dataclass(frozen=True, slots=True)
class Qos:
    """Quality of service. Its jobs preempt those of the QOS in `preempts`.

    `preempt_mode` is the mode in which its own jobs are preempted; None if it is that of the cluster.
    """

    name: str
    limits: Limits = field(default_factory=dict)
    flags: frozenset[str] = frozenset()
    preempts: frozenset[str] = frozenset()
    preempt_mode: str | None = None


def parse_associations(stdout: str) -> tuple[Association, ...]:
    """Parse `sacctmgr --noheader --parsable2 show user ... withassoc` with ASSOCIATION_FIELDS."""
    return tuple(
        Association(
            row["Account"],
            names(row["QOS"]),
            row["DefaultQOS"] or None,
            row["Partition"] or None,
            row["Account"] == row["DefaultAccount"],
            _limits(row),
        )
        for row in _rows(stdout, ASSOCIATION_FIELDS, least=5)
        if row["Account"]
    )


def parse_accounts(stdout: str) -> Mapping[str, Limits]:
    """Parse `sacctmgr ... show association` with ACCOUNT_FIELDS: the limits of each account and of those above it."""
    rows = {row["Account"]: row for row in _rows(stdout, ACCOUNT_FIELDS) if not row["User"]}

    def limits(account: str, below: tuple[str, ...] = ()) -> Limits:
        row = rows.get(account)
        if row is None or account in below:
            return {}
        return _tightest(_limits(row), limits(row["ParentName"], (*below, account)))

    return {account: limits(account) for account in rows}


def parse_qos(stdout: str) -> tuple[Qos, ...]:
    """Parse `sacctmgr --noheader --parsable2 show qos` with QOS_FIELDS."""
    return tuple(
        Qos(
            row["Name"],
            _limits(row),
            frozenset(names(row["Flags"])),
            frozenset(names(row["Preempt"])),
            mode.upper() if (mode := row["PreemptMode"]) not in ("", "cluster") else None,
        )
        for row in _rows(stdout, QOS_FIELDS, least=7)
        if row["Name"]
    )


def _limits(row: Mapping[str, str]) -> Limits:
    limits = {}
    for name in _SCOPES.keys() & row.keys():
        for part in row[name].lower().split(","):
            resource, _, text = part.rpartition("=")
            value = parse_time_limit(text) if name == "MaxWall" else number(text)
            if value is not None:
                limits[f"{_SCOPES[name]} {resource.strip()}".strip()] = value
    return limits


def _tightest(*several: Limits) -> Limits:
    return {key: min(limits[key] for limits in several if key in limits) for limits in several for key in limits}


def _rows(stdout: str, fields: Sequence[str], least: int | None = None) -> Iterator[dict[str, str]]:
    """Yield the rows of sacctmgr by field. Rows with only the first fields are accepted, from `least` fields on."""
    for line in stdout.splitlines():
        row = [cell.strip() for cell in line.split("|")]
        if (least or len(fields)) <= len(row) <= len(fields):
            yield dict.fromkeys(fields, "") | dict(zip(fields, row, strict=False))


_GRES_PART = re.compile(r"(?:\([^)]*\)?|[^,(])+")  # `(S:0,2)` contains a comma, too
_COUNT = re.compile(r"(\d{1,15})([KMGTP]?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Gres:
    """Generic resource of one node: name, kind and count, as in `gpu:h100:8`. A site may have no kinds."""

    name: str
    kind: str | None
    count: int

    def __str__(self) -> str:
        return ":".join((self.name, *([self.kind] if self.kind else []), str(self.count)))

    def is_met_by(self, other: Gres) -> bool:
        """Return whether a request for this resource fits the other one. Without a kind, every kind fits."""
        return other.name == self.name and other.count >= self.count and self.kind in (None, other.kind)


_SLICE = re.compile(r"(?<!no)(?<!no )mig(?!r)|slice|vgpu|\bgrid\b|\b\d ?of ?\d\b|\b[1-7]g(?![a-z])")
_SIZE = re.compile(r"\b(\d{1,3}(?= ?gb?\b)|\d{2,3}$)")
_LEAST_GB = {
    24: ("a30",),
    40: ("a100", "a800"),
    64: ("h100",),
    80: ("h800",),
    90: ("h20", "gh200"),
    100: ("h200",),
    150: ("b100", "b200", "gb200", "b300", "gb300"),
}
"""GPUs that NVIDIA's MIG can divide, by their smallest memory in GB. A smaller size in a name is that of a slice."""


def normalized(text: str) -> str:
    """Return a name with spaces as separators: `nvidia a100 sxm4 80gb` for `nvidia_a100-sxm4-80gb`."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def _has_small_memory(name: str) -> bool:
    sizes = [int(size) for size in _SIZE.findall(name)]
    return any(
        size < least and model in name.split() for least in _LEAST_GB for model in _LEAST_GB[least] for size in sizes
    )


def is_slice(text: str) -> bool:
    """Return whether a GRES type or a feature names a MIG slice: `a100_3g.20gb`, `a100_10g`, `a100mig`."""
    name = normalized(text)
    return _SLICE.search(name) is not None or _has_small_memory(name)


@dataclass(frozen=True)
class NodeKind:
    """Number of equal nodes, and what each has. `cpus` is the number for jobs: hardware threads if Slurm counts these.

    `architecture` is None if no such node has ever reported to slurmctld.
    """

    count: int
    cpus: int
    memory_mb: int
    gres: tuple[Gres, ...] = ()
    features: frozenset[str] = frozenset()
    architecture: str | None = None

    @cached_property
    def gpus(self) -> tuple[Gres, ...]:
        """Return the GPUs of a node by type, without MIG slices: NCCL does not connect slices."""
        gpus = [gres for gres in self.gres if gres.name == "gpu" and gres.count]
        # A site that names slices by their size alone also has a slice of half the memory, `a100_40g`.
        sizes_only = any(_has_small_memory(normalized(gres.kind)) for gres in gpus if gres.kind)
        return tuple(gres for gres in gpus if not self._is_sliced(gres, sizes_only))

    @property
    def gpu(self) -> Gres | None:
        """Return the GPUs of a node: the most frequent type."""
        return max(self.gpus, key=lambda gres: gres.count, default=None)

    @property
    def slices(self) -> tuple[Gres, ...]:
        """Return the MIG slices of a node."""
        return tuple(gres for gres in self.gres if gres.name == "gpu" and gres.count and gres not in self.gpus)

    def _is_sliced(self, gres: Gres, sizes_only: bool) -> bool:
        if gres.kind is None:
            return any(map(is_slice, self.features))
        name = normalized(gres.kind)
        has_size = sizes_only and _SIZE.search(name) is not None and "sxm" not in name and "pcie" not in name
        return has_size or is_slice(gres.kind)


@dataclass(frozen=True, slots=True)
class Partition:
    """Configuration of a partition. None means no limit; for `allow_...` it means all.

    `nodes` is the number of all nodes, including those that are down. `qos` is that of the partition; its limits take
    precedence over those of a job's QOS. `is_exclusive`: jobs always get whole nodes. `kinds` begins with the most
    frequent kind, and is empty if Slurm does not show nodes to the user. `allow_groups` is empty if only root may use
    the partition. `preempt_mode` is None if it is off; a partition without its own mode has that of the cluster.
    `neighbors` are the partitions with common nodes; None if unknown.
    """

    name: str
    is_default: bool = False
    is_up: bool = True
    nodes: int = 0
    max_nodes: int | None = None
    max_time_s: int | None = None
    default_time_s: int | None = None
    allow_accounts: frozenset[str] | None = None
    deny_accounts: frozenset[str] = frozenset()
    allow_qos: frozenset[str] | None = None
    deny_qos: frozenset[str] = frozenset()
    qos: str | None = None
    is_exclusive: bool = False
    kinds: tuple[NodeKind, ...] = ()
    allow_groups: frozenset[str] | None = None
    needs_reservation: bool = False
    preempt_mode: str | None = None
    priority_tier: int = 1
    neighbors: frozenset[str] | None = None

    @property
    def gpu_nodes(self) -> int:
        """Return the number of nodes with GPUs."""
        return sum(kind.count for kind in self.kinds if kind.gpu)

    @property
    def owners(self) -> str:
        """Return the groups whose users may use the partition."""
        return f"the groups {', '.join(sorted(self.allow_groups))}" if self.allow_groups else "root"

    def takes_account(self, account: str) -> bool:
        """Return whether jobs of this account may run in the partition."""
        return account not in self.deny_accounts and (self.allow_accounts is None or account in self.allow_accounts)

    def takes_qos(self, qos: str) -> bool:
        """Return whether jobs with this QOS may run in the partition."""
        return qos not in self.deny_qos and (self.allow_qos is None or qos in self.allow_qos)


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Return the resources of `gpu:h100:8(S:0-1),nvme:1`.

    A count may end in K, M, G, T or P (powers of 1024); a missing count is 1.
    """
    resources = []
    for part in _GRES_PART.findall(text):
        name, *words = (word.strip() for word in part.partition("(")[0].split(":"))
        if not name or name == "N/A":
            continue
        words = [word for word in words if word != "no_consume"]
        counted = _COUNT.fullmatch(words[-1]) if words else None
        count = int(counted[1]) * 1024 ** " KMGTP".index(counted[2] or " ") if counted else 1
        kind = ":".join(words[:-1] if counted else words)
        resources.append(Gres(name, kind or None, count))
    return tuple(resources)


def parse_partitions(partitions: str, nodes: str) -> tuple[Partition, ...]:
    """Parse `scontrol --oneliner show partition` and `show node`, in Slurm's order."""
    members: dict[str, list[NodeKind]] = {}
    neighbors: dict[str, set[str]] = {}
    for record in records(nodes, "NodeName"):
        of_node = names(record.get("Partitions", ""))
        for name in of_node:
            members.setdefault(name, []).append(_node(record))
            neighbors.setdefault(name, set()).update(of_node)
    parsed = (_partition(record, members) for record in records(partitions, "PartitionName"))
    return tuple(
        replace(part, neighbors=frozenset(neighbors[part.name])) if part.name in neighbors else part for part in parsed
    )


def parse_node_names(nodes: str) -> dict[str, frozenset[str]]:
    """Parse `scontrol --oneliner show node`: the nodes of each partition. Nodes without a partition are under ""."""
    members: dict[str, set[str]] = {}
    for record in records(nodes, "NodeName"):
        for name in names(record.get("Partitions", "")) or ("",):
            members.setdefault(name, set()).add(record["NodeName"])
    return {name: frozenset(group) for name, group in members.items()}


def _partition(record: dict[str, str], members: dict[str, list[NodeKind]]) -> Partition:
    name = record["PartitionName"]
    kinds = _alike(members.get(name, []))
    own_qos = names(record.get("QoS", ""))
    is_for_root, mode = record.get("RootOnly") == "YES", record.get("PreemptMode", "OFF")
    return Partition(
        name=name,
        is_default=record.get("Default") == "YES",
        is_up=record.get("State") == "UP",
        nodes=number(record.get("TotalNodes", "")) or sum(kind.count for kind in kinds),
        max_nodes=number(record.get("MaxNodes", "")),
        max_time_s=parse_time_limit(record.get("MaxTime", "")),
        default_time_s=parse_time_limit(record.get("DefaultTime", "")),
        allow_accounts=_allowed(record.get("AllowAccounts", "ALL")),
        deny_accounts=frozenset(names(record.get("DenyAccounts", ""))),
        allow_qos=_allowed(record.get("AllowQos", "ALL")),
        deny_qos=frozenset(names(record.get("DenyQos", ""))),
        qos=own_qos[0] if own_qos else None,
        is_exclusive=record.get("OverSubscribe") == "EXCLUSIVE",
        kinds=kinds,
        allow_groups=frozenset() if is_for_root else _allowed(record.get("AllowGroups", "ALL")),
        needs_reservation=record.get("ReqResv") == "YES",
        preempt_mode=mode if mode not in ("OFF", "GANG") else None,
        priority_tier=number(record.get("PriorityTier", "")) or 0,
    )


def _allowed(text: str) -> frozenset[str] | None:
    return None if text in ("ALL", "(null)") else frozenset(names(text))


def _node(record: dict[str, str]) -> NodeKind:
    return NodeKind(
        count=1,
        # CPUEfctv excludes the CPUs of slurmd. Before Slurm 22.05 there is only CPUTot.
        cpus=number(record.get("CPUEfctv", "")) or number(record.get("CPUTot", "")) or 0,
        memory_mb=number(record.get("RealMemory", "")) or 0,
        gres=parse_gres(record.get("Gres", "")),
        features=frozenset(names(record.get("AvailableFeatures", ""))),
        architecture=record.get("Arch"),
    )


def _alike(nodes: Iterable[NodeKind]) -> tuple[NodeKind, ...]:
    """Return the distinct kinds, the most frequent first. A node that never reported counts as one of its kind."""
    nodes = list(nodes)
    architectures = {replace(node, architecture=None): node.architecture for node in nodes if node.architecture}
    counts = Counter(
        node if node.architecture else replace(node, architecture=architectures.get(node)) for node in nodes
    )
    return tuple(replace(node, count=count) for node, count in counts.most_common())


_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_]*)=(\S*)")
_NOTHING = frozenset({"", "(null)", "N/A"})


def number(text: str) -> int | None:
    """Return a whole number; None for other text, such as `UNLIMITED`."""
    text = text.strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def names(text: str) -> tuple[str, ...]:
    """Return the items of a comma-separated list; empty for `(null)`, `N/A` and ""."""
    return tuple(word for part in text.split(",") if (word := part.strip()) not in _NOTHING)


def records(stdout: str, first: str) -> list[dict[str, str]]:
    """Return the fields `Name=value` of every line of `scontrol --oneliner` that begins with `first=`.

    If a name comes twice, the first one counts: free text (a node's Reason) comes last, so it cannot replace a field.
    """
    lines = (line for line in stdout.splitlines() if line.startswith(f"{first}="))
    return [dict(reversed(_FIELD.findall(line))) for line in lines]


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
"""First release of pyxis with an option: from its changelog and the history of args.c, up to 0.24.0."""


@dataclass(frozen=True, slots=True)
class SrunOptions:
    """Long options of srun without dashes, and those of them that come from pyxis."""

    names: frozenset[str] = frozenset()
    pyxis: frozenset[str] = frozenset()

    @property
    def has_pyxis(self) -> bool:
        """Return whether srun has the options of pyxis."""
        return "container-image" in self.pyxis

    @property
    def pyxis_versions(self) -> tuple[str, str | None] | None:
        """Return the oldest release with these options, and the first release that is too new; None without pyxis.

        The second value is None if no newer release is known.
        """
        if not self.has_pyxis:
            return None
        oldest = max(since for name, since in PYXIS_SINCE.items() if name in self.pyxis)
        newer = [since for name, since in PYXIS_SINCE.items() if name not in self.pyxis and since > oldest]
        return ".".join(map(str, oldest)), ".".join(map(str, min(newer))) if newer else None


def parse_options(stdout: str) -> SrunOptions:
    """Parse `srun --help`. The description of a plug-in's option begins with the plug-in's name."""
    names: set[str] = set()
    pyxis: set[str] = set()
    undescribed = ""  # the option whose description follows
    for line in stdout.splitlines():
        description = line.strip()
        if match := _OPTION.match(line):
            undescribed = match["name"]
            names.add(undescribed)
            description = line[match.end() :].partition("  ")[2].strip()
        if undescribed and description:
            if description.startswith(_TAG):
                pyxis.add(undescribed)
            undescribed = ""
    return SrunOptions(frozenset(names), frozenset(pyxis))


def parse_mpi_kinds(output: str) -> tuple[str, ...]:
    """Parse both streams of `srun --mpi=list`: one kind per line, and the releases of PMIx in one line."""
    kinds: list[str] = []
    for line in output.splitlines():
        text = line.strip().removeprefix("srun: ").strip()
        head, mark, tail = text.partition("versions available:")
        for word in tail.split(",") if mark else [head]:
            if _MPI_KIND.fullmatch(word.strip()):
                kinds.append(word.strip())
    return tuple(dict.fromkeys(kinds))


_SACCTMGR = ("sacctmgr", "--noheader", "--parsable2", "show")
_SILENT = ("--oneliner", "--noheader", "--parsable2")

T = TypeVar("T")


class Bound(NamedTuple):
    """Limit of a job, and the QOS, account or partition that sets it: `QOS gpu`."""

    value: int
    source: str


def zeros(bounds: Mapping[str, Bound], *, has_gpus: bool) -> list[str]:
    """Return the limits that allow no job."""
    what = {"gres/gpu": "GPUs"} if has_gpus else {}
    what |= {"node": "nodes", "jobs": "running jobs", "queue": "jobs", "wall": "time"}
    return [f"{bound.source} allows no {what[of]}" for of, bound in bounds.items() if of in what and not bound.value]


class Preemption(NamedTuple):
    """Mode in which Slurm stops jobs for those of other QOS or partitions: REQUEUE, CANCEL or SUSPEND.

    `is_own`: the site sets the mode for this QOS or partition. Otherwise it is that of the cluster.
    """

    mode: str
    qos: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    is_own: bool = False

    def __str__(self) -> str:
        others = [f"{what} {', '.join(of)}" for what, of in (("QOS", self.qos), ("partition", self.partitions)) if of]
        return f"preemptible by jobs of {others[0] if others else 'other partitions'} (PreemptMode={self.mode})"


@dataclass(frozen=True)
class Site:
    """Facts of a Slurm site as one user sees them.

    `associations` are those of the user, `qos` those of the site; None, with a complaint, if accounting is
    not reachable. `settings` are those of `scontrol show config`. `mpi_kinds` are the values of `srun --mpi`.
    `groups` are the Unix groups of the user; None if unknown, and for root, whom every partition accepts.
    """

    user: str
    cluster_name: str
    slurm_version: str
    partitions: tuple[Partition, ...] = ()
    associations: tuple[Association, ...] | None = None
    qos: tuple[Qos, ...] | None = None
    srun: SrunOptions = field(default_factory=SrunOptions)
    mpi_kinds: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    reservations: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()
    groups: frozenset[str] | None = None

    def partition(self, name: str) -> Partition | None:
        """Return the partition of this name."""
        return next((candidate for candidate in self.partitions if candidate.name == name), None)

    def qos_named(self, name: str | None) -> Qos | None:
        """Return the QOS of this name."""
        return self._qos_by_name.get(name or "")

    @cached_property
    def _qos_by_name(self) -> dict[str, Qos]:
        return {qos.name: qos for qos in self.qos or ()}

    @cached_property
    def _preempting(self) -> dict[str, tuple[str, ...]]:
        """QOS whose jobs preempt those of a QOS."""
        preempted = sorted({name for qos in self.qos or () for name in qos.preempts})
        return {name: tuple(qos.name for qos in self.qos or () if name in qos.preempts) for name in preempted}

    def bounds(
        self, partition: Partition | None, qos: str | None, link: Association | None, gpu_type: str | None = None
    ) -> dict[str, Bound]:
        """Return the limits of a job by resource: `node`, `gres/gpu`, `jobs`, `queue` and `wall` (s).

        Slurm's order for each limit (Resource Limits, "Hierarchy"): the QOS of the partition, the QOS of the job, the
        association. A job's QOS with the flag OverPartQOS comes first. The partition's own limits always apply, unless
        a QOS has a flag against it. A limit of GPUs of the type `gpu_type` counts as one of GPUs.
        """
        order = [(f"QOS {of.name}", of.limits) for of in self._qos_in_order(partition, qos)]
        if link:
            order.append((f"account {link.account}", link.limits))
        first: dict[str, Bound] = {}
        for source, limits in reversed(order if self._enforces_limits else []):
            first |= {key: Bound(value, source) for key, value in limits.items()}
        if partition:
            first |= {
                f"partition {resource}": Bound(value, f"partition {partition.name}")
                for resource, value in self.partition_limits(partition, qos).items()
            }
        least: dict[str, Bound] = {}
        for key, bound in first.items():
            resource = key.partition(" ")[2]
            if gpu_type and resource == f"gres/gpu:{gpu_type.lower()}":
                resource = "gres/gpu"
            least[resource] = min(bound, least.get(resource, bound))
        return least

    def partition_limits(self, partition: Partition, qos: str | None) -> Limits:
        """Return MaxNodes and MaxTime of a partition, as `node` and `wall`, unless a QOS of the job overrides them."""
        flags = {flag for of in self._qos_in_order(partition, qos) for flag in of.flags}
        own = {
            "node": None if "PartitionMaxNodes" in flags else partition.max_nodes,
            "wall": None if "PartitionTimeLimit" in flags else partition.max_time_s,
        }
        return {resource: value for resource, value in own.items() if value is not None}

    def _qos_in_order(self, partition: Partition | None, qos: str | None) -> list[Qos]:
        both = [of for of in (self.qos_named(partition.qos if partition else None), self.qos_named(qos)) if of]
        return both[::-1] if both and "OverPartQOS" in both[-1].flags else both

    def preemption(self, partition: Partition, qos: str | None) -> Preemption | None:
        """Return how Slurm can stop jobs for other jobs; None if it does not.

        If a partition has PreemptMode=OFF, the mode of the others is their own, also if their tiers are equal.
        """
        kind, own = self.settings.get("PreemptType", "preempt/partition_prio"), self.qos_named(qos)
        if kind == "preempt/qos" and self._preempting:
            stronger = self._preempting.get(qos or "", ())
            mode = (own and own.preempt_mode) or self.settings.get("PreemptMode", "OFF")
            is_stopped = own and stronger and mode not in ("OFF", "GANG")
            return Preemption(mode, stronger, is_own=bool(own and own.preempt_mode)) if is_stopped else None
        higher = tuple(
            other.name
            for other in self.partitions
            if kind == "preempt/partition_prio"
            and other.priority_tier > partition.priority_tier
            and (partition.neighbors is None or other.name in partition.neighbors)
        )
        is_own = any(other.preempt_mode is None for other in self.partitions)
        if partition.preempt_mode is None or not (higher or is_own):
            return None
        return Preemption(partition.preempt_mode, partitions=higher, is_own=is_own)

    def takes_groups(self, partition: Partition) -> bool:
        """Return whether the partition accepts a group of the user, or the groups are not known."""
        allowed = partition.allow_groups
        return allowed is None or self.groups is None or bool(allowed & self.groups)

    def associations_for(self, partition: str | None) -> list[Association]:
        """Return the associations for a partition (None: for all). Slurm uses the one for the partition first."""
        links = [link for link in self.associations or () if partition is None or link.partition in (None, partition)]
        return sorted(links, key=lambda link: link.partition is None)

    @property
    def enforces_accounts(self) -> bool:
        """Return whether Slurm refuses jobs without an account of the user."""
        return bool(self._enforced & {"associations", "limits", "qos", "safe", "wckeys", "all"})

    @property
    def _enforces_limits(self) -> bool:
        return not self._enforced or bool(self._enforced & {"limits", "safe", "all"})

    @cached_property
    def _enforced(self) -> set[str]:
        """Flags of AccountingStorageEnforce; none if unknown."""
        return {flag.lower() for flag in names(self.settings.get("AccountingStorageEnforce", ""))}


class _Refused(Unreachable):
    """Slurm answers, but refuses the request."""


def read_site(user: str) -> Site:
    """Return the facts of the site, from nine commands, with the accounts of `user`.

    Raise Unreachable if Slurm is not installed or slurmctld does not answer. Accounting that does not answer is a
    complaint. So are nodes, reservations and MPI kinds that Slurm does not show.
    """
    complaints: list[str] = []

    def if_shown(read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except (AccountingUnreachable, _Refused) as error:
            complaints.append(str(error))
            return otherwise

    settings = read_settings()
    cluster = settings.get("ClusterName", "")
    partitions = _stdout("scontrol", "--oneliner", "show", "partition")
    nodes = if_shown(lambda: _stdout("scontrol", "--oneliner", "show", "node"), "")
    mine = ("user", "where", f"name={user}", f"cluster={cluster}", "withassoc")
    associations = if_shown(lambda: parse_associations(_accounting(mine, ASSOCIATION_FIELDS)), None)
    no_limits: Mapping[str, Limits] = {}
    of_accounts = ("association", "where", f"cluster={cluster}", "user=")  # rows of accounts have no user
    limits = if_shown(lambda: parse_accounts(_accounting(of_accounts, ACCOUNT_FIELDS)), no_limits)
    return Site(
        user=user,
        cluster_name=cluster,
        slurm_version=settings.get("SLURM_VERSION", ""),
        partitions=parse_partitions(partitions, nodes),
        associations=associations and tuple(link.within(limits) for link in associations),
        qos=if_shown(lambda: parse_qos(_accounting(("qos",), QOS_FIELDS)), None),
        srun=parse_options(_stdout("srun", "--help")),
        mpi_kinds=if_shown(_mpi_kinds, ()),
        settings=settings,
        reservations=if_shown(_reservations, ()),
        complaints=tuple(dict.fromkeys(complaints)),
        groups=_groups() if user != "root" else None,
    )


def _accounting(what: Sequence[str], fields: Sequence[str]) -> str:
    return _stdout(*_SACCTMGR, *what, "format=" + ",".join(fields))


def _mpi_kinds() -> tuple[str, ...]:
    answer = _answer("srun", "--mpi=list")
    return parse_mpi_kinds(f"{answer.stdout}\n{answer.stderr}")  # older releases log them to stderr


def _reservations() -> tuple[str, ...]:
    stdout = _stdout("scontrol", "--oneliner", "show", "reservation")
    return tuple(record["ReservationName"] for record in records(stdout, "ReservationName"))


def _groups() -> frozenset[str]:
    """Return the names of the Unix groups of this process."""
    found = set()
    for number_of_group in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            found.add(grp.getgrgid(number_of_group).gr_name)
    return frozenset(found)


def read_node_names() -> dict[str, frozenset[str]]:
    """Return the nodes of each partition; Unreachable if Slurm does not answer, or does not show nodes to the user."""
    return parse_node_names(_stdout("scontrol", "--oneliner", "show", "node"))


def _answer(*argv: str) -> CommandResult:
    """Return the answer of a command. Raise _Refused if it failed."""
    answer = run_slurm(argv)
    return checked(answer, _Refused, " ".join(word for word in answer.argv[:5] if word not in _SILENT))


def _stdout(*argv: str) -> str:
    return _answer(*argv).stdout


@dataclass(frozen=True)
class Choice:
    """A partition and one kind of its nodes. The count of `kind` is 0 if Slurm does not show nodes to the user.

    `accounts` are those of the user that the partition accepts. `association` is the one with the largest jobs, the
    one for this partition or the one of the default account; None if several accounts are equally good.
    """

    site: Site
    partition: Partition
    kind: NodeKind
    accounts: tuple[str, ...]
    association: Association | None

    @property
    def allowed_qos(self) -> tuple[str, ...]:
        """Return the QOS of the association that the partition accepts."""
        own = self.association.qos if self.association else ()
        return tuple(name for name in own if self.partition.takes_qos(name))

    @cached_property
    def qos(self) -> str | None:
        """Return the usual QOS of the association if jobs can use it here, else the one that allows the largest jobs.

        None if several allow equally large jobs of whole nodes, and are equally safe from preemption.
        """
        usual = self.association.usual_qos if self.association else None
        ranks = {name: (size, not self._is_stopped_with(name)) for name, size in self._sizes.items()}
        most = max(ranks.values(), default=(0, True))
        if usual is not None and self.partition.takes_qos(usual) and (self.largest_with(usual) or not most[0]):
            return usual
        best = [name for name, rank in ranks.items() if rank == most]
        # Without a QOS, a profile cannot limit the GPUs of a job to less than a node.
        is_certain = len(best) == 1 or (best and most[0] < (self.kind.gpu.count if self.kind.gpu else 1))
        return best[0] if is_certain else None

    @property
    def needs_qos(self) -> bool:
        """Return whether Slurm refuses jobs without a QOS, and the right QOS is not known."""
        has_default = self.association is not None and self.association.usual_qos is not None
        return self.qos is None and (has_default or self.partition.allow_qos is not None)

    @cached_property
    def bounds(self) -> dict[str, Bound]:
        """Return the limits of a job by resource (`Site.bounds`)."""
        return self._bounds_with(self.qos)

    def _bounds_with(self, qos: str | None) -> dict[str, Bound]:
        return self.site.bounds(self.partition, qos, self.association, self.kind.gpu.kind if self.kind.gpu else None)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {name: self.largest_with(name) for name in self.allowed_qos}

    def largest_with(self, qos: str | None) -> int:
        """Return the largest number of GPUs that a job with this QOS can have; of nodes, if the nodes have no GPUs."""
        most = {resource: bound.value for resource, bound in self._bounds_with(qos).items()}
        if 0 in (most.get("jobs"), most.get("queue"), most.get("wall")):
            return 0
        nodes = self.kind.count or self.partition.nodes
        nodes = min(nodes, most.get("node", nodes))
        gpus = nodes * self.kind.gpu.count if self.kind.gpu else nodes
        return min(gpus, most.get("gres/gpu", gpus)) if self.kind.gpu else nodes

    @cached_property
    def largest(self) -> int:
        """Return the largest number of GPUs that a job of the user can have; of nodes, if the nodes have no GPUs."""
        if self.needs_qos:
            return max(self._sizes.values(), default=0)
        return self.largest_with(self.qos)

    @property
    def usable_accounts(self) -> tuple[str, ...]:
        """Return the accounts whose jobs can run here."""
        links = self.site.associations_for(self.partition.name)
        usable = (link.account for link in links if replace(self, association=link).obstacle is None)
        return tuple(account for account in dict.fromkeys(usable) if account in self.accounts)

    @property
    def has_whole_nodes(self) -> bool:
        """Return whether the limits allow all GPUs of a node."""
        return self.largest >= (self.kind.gpu.count if self.kind.gpu else 1)

    @property
    def preemption(self) -> Preemption | None:
        """Return how Slurm can stop the jobs for other jobs."""
        return self.site.preemption(self.partition, self.qos)

    @property
    def is_preemptible(self) -> bool:
        """Return whether Slurm stops the jobs for others rather than those of other partitions and QOS."""
        return self._is_stopped_with(self.qos)

    def _is_stopped_with(self, qos: str | None) -> bool:
        preemption = self.site.preemption(self.partition, qos)
        if preemption is None or preemption.is_own:
            return preemption is not None
        # On most sites urgent jobs come before all others. This is no reason against the defaults.
        usual = self.association.usual_qos if self.association else None
        return qos != usual if preemption.qos else not self.partition.is_default

    @property
    def obstacle(self) -> str | None:
        """Return the reason why jobs of the user cannot run here; None if they can, or if Slurm does not show it."""
        partition, mine = self.partition, self.site.associations
        if not partition.is_up:
            return "not up"
        if not self.site.takes_groups(partition):
            return f"only for {partition.owners}"
        if partition.needs_reservation:
            return "only for jobs with a reservation"
        if mine is not None and not self.accounts and (mine or partition.allow_accounts is not None):
            return "accepts none of your accounts"
        if self.association and self.needs_qos and not self.allowed_qos:
            return "accepts no QOS of your accounts"
        if partition.is_exclusive and self.largest and not self.has_whole_nodes:
            return f"gives whole nodes, but {self.bounds['gres/gpu'].source} allows {counted(self.largest, 'GPU')}"
        if self.largest == 0 and partition.nodes:
            return next(iter(zeros(self.bounds, has_gpus=self.kind.gpu is not None)), "your QOS allow no jobs")
        return None

    @property
    def node_limits(self) -> dict[str, int]:
        """Return the limits below the number of nodes of this kind, by the command that shows the limit."""
        available, limits = self.kind.count or self.partition.nodes, {}
        for resource, (value, source) in self.bounds.items():
            if resource == "node" and source.startswith("partition "):
                limits["scontrol show partition: MaxNodes"] = value
            elif resource == "node":
                limits[f"sacctmgr: {source} allows {counted(value, 'node')}"] = value
            elif resource == "gres/gpu" and self.kind.gpu:
                limits[f"sacctmgr: {source} allows {counted(value, 'GPU')}"] = max(value // self.kind.gpu.count, 1)
        return {why: limit for why, limit in limits.items() if 0 < limit < available}

    @property
    def longest_s(self) -> int | None:
        """Return the longest time limit of a job in seconds; None if there is no limit."""
        return self.bounds["wall"].value if "wall" in self.bounds else None

    @property
    def rivals(self) -> tuple[NodeKind, ...]:
        """Return the other kinds of nodes in the partition that Slurm could give to a job for these GPUs."""
        gpu = self.kind.gpu
        return tuple(
            kind
            for kind in self.partition.kinds
            if kind != self.kind and (gpu is None or any(map(gpu.is_met_by, kind.gres)))
        )

    @property
    def rank(self) -> tuple[bool | int, ...]:
        """Return the order of partitions: one that the user can use, with GPUs, not preemptible, for whole nodes.

        Then the default one, the one with most GPUs for a job, and the largest one.
        """
        partition, gpus = self.partition, self.largest if self.kind.gpu else 0
        usable = (self.obstacle is None, gpus > 0, not self.is_preemptible, self.has_whole_nodes)
        return (*usable, partition.is_default, gpus, partition.gpu_nodes, partition.is_up, partition.nodes)


def ranked(site: Site) -> list[Choice]:
    """Return a choice for each partition, the best one first."""
    return sorted((_in_partition(site, partition) for partition in site.partitions), key=lambda c: c.rank, reverse=True)


def choose(site: Site, partition: str | None = None) -> Choice:
    """Return the choice of a partition: the named one, else the best one for this user.

    ReproError if there is no such partition.
    """
    if partition is None:
        choice = next((choice for choice in ranked(site) if choice.partition.nodes), None)
        if choice is None:
            raise ReproError(Problem("Slurm shows no partition with nodes", hint="`sinfo` lists what you may see"))
        return choice
    named = site.partition(partition)
    if named is None:
        hint = names_hint(partition, (candidate.name for candidate in site.partitions))
        raise ReproError(Problem(f"{partition}: no such partition", hint=hint))
    if not named.nodes:
        raise ReproError(Problem(f"{partition}: a partition without nodes"))
    return _in_partition(site, named)


def _in_partition(site: Site, partition: Partition) -> Choice:
    """Return the choice of nodes, and of the account that may use most of them."""
    links = [link for link in site.associations_for(partition.name) if partition.takes_account(link.account)]
    accounts = tuple(dict.fromkeys(link.account for link in links))

    def of_kind(kind: NodeKind) -> Choice:
        choices = [Choice(site, partition, kind, accounts, link) for link in (*links, *(() if links else (None,)))]
        ranks = list(map(_account_rank, choices))
        best = [choice for choice, rank in zip(choices, ranks, strict=True) if rank == max(ranks)]
        is_certain = len({choice.association and choice.association.account for choice in best}) == 1
        return best[0] if is_certain else replace(best[0], association=None)

    kinds = partition.kinds or (NodeKind(0, 0, 0),)
    return max(
        map(of_kind, kinds),
        key=lambda choice: (choice.kind.gpu is not None, choice.has_whole_nodes, choice.largest, choice.kind.count),
    )


def _account_rank(choice: Choice) -> tuple[bool | int, ...]:
    """Return the order of accounts: those for whole nodes, for this partition, the default one, the largest jobs."""
    link = choice.association
    is_own, is_default = bool(link and link.partition), bool(link and link.is_default)
    return choice.largest > 0, choice.has_whole_nodes, is_own, is_default, choice.largest
