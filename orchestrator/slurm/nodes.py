"""Nodes, GPUs and partitions of a Slurm site, as scontrol prints them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from orchestrator.slurm.notation import parse_time_limit

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
