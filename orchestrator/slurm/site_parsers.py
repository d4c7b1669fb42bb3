"""Parsers of scontrol and sacctmgr output: partitions, nodes, accounts and QOS. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from orchestrator.slurm.notation import parse_time_limit

ASSOCIATION_FIELDS = ("DefaultAccount", "Account", "Partition", "QOS", "DefaultQOS")
QOS_FIELDS = ("Name", "MaxWall", "MaxTRES", "MaxTRESPU", "GrpTRES", "MaxJobsPU", "MaxSubmitJobsPU")


@dataclass(frozen=True, slots=True)
class Association:
    """Account that the user may use. `partition` is None if it applies to all partitions."""

    account: str
    qos: tuple[str, ...] = ()
    default_qos: str | None = None
    partition: str | None = None
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class Qos:
    """Quality of service and its limits; None where there is no limit.

    `max_nodes` and `max_gpus` are the largest numbers for one job: the least of the limits for a job, for a user and
    for all jobs together. A limit on one type of GPU is left out. `max_jobs` is the number of running jobs of one user,
    `max_submit_jobs` that of jobs in the queue; each task of an array counts.
    """

    name: str
    max_wall_s: int | None = None
    max_nodes: int | None = None
    max_gpus: int | None = None
    max_jobs: int | None = None
    max_submit_jobs: int | None = None


def parse_associations(stdout: str) -> tuple[Association, ...]:
    """Parse `sacctmgr --noheader --parsable2 show user ... withassoc` with ASSOCIATION_FIELDS."""
    associations = []
    for default_account, account, partition, qos, default_qos in _rows(stdout, len(ASSOCIATION_FIELDS)):
        if account:
            associations.append(
                Association(account, names(qos), default_qos or None, partition or None, account == default_account)
            )
    return tuple(associations)


def parse_qos(stdout: str) -> tuple[Qos, ...]:
    """Parse `sacctmgr --noheader --parsable2 show qos` with QOS_FIELDS."""
    parsed = []
    for name, wall, job, user, group, running, submitted in _rows(stdout, len(QOS_FIELDS)):
        if name:
            limits = [dict(_resources(text)) for text in (job, user, group)]
            nodes, gpus = (
                min((limit[what] for limit in limits if what in limit), default=None) for what in ("node", "gres/gpu")
            )
            parsed.append(Qos(name, parse_time_limit(wall), nodes, gpus, number(running), number(submitted)))
    return tuple(parsed)


def _rows(stdout: str, width: int) -> Iterator[list[str]]:
    for line in stdout.splitlines():
        row = [field.strip() for field in line.split("|")]
        if len(row) == width:
            yield row


def _resources(text: str) -> Iterator[tuple[str, int]]:
    """Yield the pairs of `node=2,gres/gpu=16`."""
    for part in text.split(","):
        name, _, count = part.partition("=")
        value = number(count)
        if value is not None:
            yield name.strip(), value


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


@dataclass(frozen=True, slots=True)
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

    @property
    def gpu(self) -> Gres | None:
        """Return the GPUs of a node: the most frequent type."""
        gpus = [gres for gres in self.gres if gres.name == "gpu" and gres.count]
        return max(gpus, key=lambda gres: gres.count, default=None)


@dataclass(frozen=True, slots=True)
class Partition:
    """Configuration of a partition. None means no limit; for `allow_...` it means all.

    `nodes` is the number of all nodes, including those that are down. `qos` is that of the partition; its limits take
    precedence over those of a job's QOS. `is_exclusive`: jobs always get whole nodes. `kinds` begins with the most
    frequent kind, and is empty if Slurm does not show nodes to the user.
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

    @property
    def cpus_per_node(self) -> int:
        """Return the largest number of CPUs of a node; 0 if no node is known."""
        return max((kind.cpus for kind in self.kinds), default=0)

    @property
    def memory_mb(self) -> int:
        """Return the largest memory of a node in MiB; 0 if no node is known."""
        return max((kind.memory_mb for kind in self.kinds), default=0)

    @property
    def gres(self) -> tuple[Gres, ...]:
        """Return the resources of the nodes, each with its largest count on one node."""
        best: dict[tuple[str, str | None], Gres] = {}
        for gres in (gres for kind in self.kinds for gres in kind.gres):
            key = (gres.name, gres.kind)
            best[key] = max(best.get(key, gres), gres, key=lambda resource: resource.count)
        return tuple(best.values())

    @property
    def features(self) -> frozenset[str]:
        """Return the features of the nodes."""
        return frozenset(feature for kind in self.kinds for feature in kind.features)

    @property
    def gpu_nodes(self) -> int:
        """Return the number of nodes with GPUs."""
        return sum(kind.count for kind in self.kinds if kind.gpu)

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
    for record in records(nodes, "NodeName"):
        for name in names(record.get("Partitions", "")):
            members.setdefault(name, []).append(_node(record))
    return tuple(_partition(record, members) for record in records(partitions, "PartitionName"))


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


def fields(line: str) -> dict[str, str]:
    """Return the fields `Name=value` of one line of `scontrol --oneliner`; the first one if a name comes twice.

    Free text (a node's Reason) comes last, so it cannot replace a field.
    """
    values: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        values.setdefault(name, value)
    return values


def records(stdout: str, first: str) -> list[dict[str, str]]:
    """Return the fields of every line that begins with `first=`."""
    return [fields(line) for line in stdout.splitlines() if line.startswith(f"{first}=")]
