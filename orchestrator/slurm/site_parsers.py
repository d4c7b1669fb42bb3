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
    """That the user may charge jobs to an account; `partition` None: in all of them."""

    account: str
    qos: tuple[str, ...] = ()
    default_qos: str | None = None
    partition: str | None = None
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class Qos:
    """A quality of service and its limits, each None where there is none.

    `max_nodes` and `max_gpus` are the most that one job can have: the least of the limits for a job, for a user and
    for all jobs together. A limit on one type of GPU is left out.
    """

    name: str
    max_wall_s: int | None = None
    max_nodes: int | None = None
    max_gpus: int | None = None
    max_jobs: int | None = None
    """Of one user, running."""
    max_submit_jobs: int | None = None
    """Of one user, in the queue; every task of an array counts."""


def parse_associations(stdout: str) -> tuple[Association, ...]:
    """From `sacctmgr --noheader --parsable2 show user ... withassoc` with ASSOCIATION_FIELDS."""
    associations = []
    for default_account, account, partition, qos, default_qos in _rows(stdout, len(ASSOCIATION_FIELDS)):
        if account:
            associations.append(
                Association(account, names(qos), default_qos or None, partition or None, account == default_account)
            )
    return tuple(associations)


def parse_qos(stdout: str) -> tuple[Qos, ...]:
    """From `sacctmgr --noheader --parsable2 show qos` with QOS_FIELDS."""
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
    """`node=2,gres/gpu=16` -> pairs."""
    for part in text.split(","):
        name, _, count = part.partition("=")
        value = number(count)
        if value is not None:
            yield name.strip(), value


_GRES_PART = re.compile(r"(?:\([^)]*\)?|[^,(])+")  # commas also stand in `(S:0,2)`
_COUNT = re.compile(r"(\d{1,15})([KMGTP]?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Gres:
    """A generic resource of one node: `gpu:h100:8` is the name, the kind (None where the site has none) and a count."""

    name: str
    kind: str | None
    count: int

    def __str__(self) -> str:
        return ":".join((self.name, *([self.kind] if self.kind else []), str(self.count)))


@dataclass(frozen=True, slots=True)
class NodeKind:
    """So many nodes that are alike. `cpus` is what jobs can have, hardware threads where Slurm counts them.

    `architecture` is None where no such node has ever reported to slurmctld.
    """

    count: int
    cpus: int
    memory_mb: int
    gres: tuple[Gres, ...] = ()
    features: frozenset[str] = frozenset()
    architecture: str | None = None

    @property
    def gpu(self) -> Gres | None:
        """Its GPUs; of several types the one it has most of."""
        gpus = [gres for gres in self.gres if gres.name == "gpu" and gres.count]
        return max(gpus, key=lambda gres: gres.count, default=None)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as it is configured; None stands for no limit, and of `allow_...` for all.

    `nodes` counts every node, those that are down too. `qos` is the partition's own, whose limits come before those
    of a job's. `is_exclusive`: jobs have whole nodes without asking. `kinds` has the most frequent first, and is
    empty where nodes are kept from the user.
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
        """The most that a node of it has; 0 where none is known."""
        return max((kind.cpus for kind in self.kinds), default=0)

    @property
    def memory_mb(self) -> int:
        """The most that a node of it has, in MiB; 0 where none is known."""
        return max((kind.memory_mb for kind in self.kinds), default=0)

    @property
    def gres(self) -> tuple[Gres, ...]:
        """Every resource that some node of it has; of each the most that one node has."""
        best: dict[tuple[str, str | None], Gres] = {}
        for gres in (gres for kind in self.kinds for gres in kind.gres):
            key = (gres.name, gres.kind)
            best[key] = max(best.get(key, gres), gres, key=lambda resource: resource.count)
        return tuple(best.values())

    @property
    def features(self) -> frozenset[str]:
        """Every feature that some node of it has."""
        return frozenset(feature for kind in self.kinds for feature in kind.features)

    @property
    def gpu_nodes(self) -> int:
        """How many of its nodes have GPUs."""
        return sum(kind.count for kind in self.kinds if kind.gpu)

    def takes_account(self, account: str) -> bool:
        """Return whether jobs of this account may run in the partition."""
        return account not in self.deny_accounts and (self.allow_accounts is None or account in self.allow_accounts)

    def takes_qos(self, qos: str) -> bool:
        """Return whether jobs with this QOS may run in the partition."""
        return qos not in self.deny_qos and (self.allow_qos is None or qos in self.allow_qos)


def parse_gres(text: str) -> tuple[Gres, ...]:
    """`gpu:h100:8(S:0-1),nvme:1` -> its resources.

    A count may end in K, M, G, T or P (powers of 1024); one that is left out is 1.
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
    """From `scontrol --oneliner show partition` and `show node`, in Slurm's order."""
    members: dict[str, list[NodeKind]] = {}
    for record in records(nodes, "NodeName"):
        for name in names(record.get("Partitions", "")):
            members.setdefault(name, []).append(_node(record))
    return tuple(_partition(record, members) for record in records(partitions, "PartitionName"))


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
        # What slurmd keeps for itself is not CPUEfctv's; before Slurm 22.05 there is only CPUTot.
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
    """`Name=value ...` of one line of `scontrol --oneliner`; of a name that comes twice the first.

    Free text (a node's Reason) stands at the end, so that nothing in it can take a field's place.
    """
    values: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        values.setdefault(name, value)
    return values


def records(stdout: str, first: str) -> list[dict[str, str]]:
    """Return the fields of every line that begins with `first=`."""
    return [fields(line) for line in stdout.splitlines() if line.startswith(f"{first}=")]
