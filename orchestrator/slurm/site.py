"""Facts of a Slurm site that a login node can collect, and the choice of a partition and its nodes, account and QOS."""

from __future__ import annotations

import grp
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from orchestrator.errors import Problem, ReproError, Unreachable, names_hint
from orchestrator.slurm.command import AccountingUnreachable, CommandResult, checked, read_settings, run_slurm
from orchestrator.slurm.notation import parse_time_limit

ASSOCIATION_FIELDS = ("DefaultAccount", "Account", "Partition", "QOS", "DefaultQOS")
QOS_FIELDS = ("Name", "MaxWall", "MaxTRES", "MaxTRESPU", "GrpTRES", "MaxJobsPU", "MaxSubmitJobsPU", "Flags")


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
    """Quality of service and its limits; None where there is no limit, 0 where nothing is allowed.

    `max_nodes` and `max_gpus` are the largest numbers for one job: the least of the limits for a job, for a user and
    for all jobs together. `gpu_types` are further limits of GPUs, each for one type. `max_jobs` is the number of
    running jobs of one user, `max_submit_jobs` that of jobs in the queue; each task of an array counts. `is_first`:
    the limits take precedence over those of the partition's QOS (flag OverPartQOS).
    """

    name: str
    max_wall_s: int | None = None
    max_nodes: int | None = None
    max_gpus: int | None = None
    max_jobs: int | None = None
    max_submit_jobs: int | None = None
    gpu_types: tuple[tuple[str, int], ...] = ()
    is_first: bool = False


def parse_associations(stdout: str) -> tuple[Association, ...]:
    """Parse `sacctmgr --noheader --parsable2 show user ... withassoc` with ASSOCIATION_FIELDS."""
    return tuple(
        Association(account, names(qos), default_qos or None, partition or None, account == default_account)
        for default_account, account, partition, qos, default_qos in _rows(stdout, len(ASSOCIATION_FIELDS))
        if account
    )


def parse_qos(stdout: str) -> tuple[Qos, ...]:
    """Parse `sacctmgr --noheader --parsable2 show qos` with QOS_FIELDS; rows may lack the last field."""
    parsed = []
    width = len(QOS_FIELDS)
    for row in (*_rows(stdout, width), *([*row, ""] for row in _rows(stdout, width - 1))):
        name, wall, job, user, group, running, submitted, flags = row
        if not name:
            continue
        least: dict[str, int] = {}
        for limit in ",".join((job, user, group)).split(","):
            what, _, text = limit.strip().lower().partition("=")
            if (count := number(text)) is not None:
                least[what] = min(count, least.get(what, count))
        types = tuple((what.removeprefix(_GPU_TYPE), n) for what, n in least.items() if what.startswith(_GPU_TYPE))
        counts = (least.get("node"), least.get("gres/gpu"), number(running), number(submitted))
        parsed.append(Qos(name, parse_time_limit(wall), *counts, types, "OverPartQOS" in names(flags)))
    return tuple(parsed)


def _rows(stdout: str, width: int) -> Iterator[list[str]]:
    for line in stdout.splitlines():
        row = [field.strip() for field in line.split("|")]
        if len(row) == width:
            yield row


_GPU_TYPE = "gres/gpu:"
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
_SIZE = re.compile(r"\b(\d{1,3}) ?(?:gb?\b|$)")
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
    frequent kind, and is empty if Slurm does not show nodes to the user. `preempt_mode` is None if Slurm stops no job
    of this partition for another job.
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
    preempt_mode: str | None = None

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
    shown = records(partitions, "PartitionName")
    return tuple(replace(_partition(record, members), preempt_mode=_preempt_mode(record, shown)) for record in shown)


def _preempt_mode(record: dict[str, str], others: Iterable[dict[str, str]]) -> str | None:
    """Return the mode if jobs of other partitions come first; all partitions may have the mode of the cluster."""
    mode, tier = record.get("PreemptMode", "OFF"), number(record.get("PriorityTier", "")) or 0
    if mode in ("OFF", "GANG"):
        return None
    is_last = any(
        other.get("PreemptMode") == "OFF" or (number(other.get("PriorityTier", "")) or 0) > tier for other in others
    )
    return mode if is_last else None


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
        allow_groups=frozenset({"root"})
        if record.get("RootOnly") == "YES"
        else _allowed(record.get("AllowGroups", "ALL")),
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


@dataclass(frozen=True, slots=True)
class Site:
    """Facts of a Slurm site as one user sees them.

    `associations` are those of the user, `qos` those of the site; None, with a complaint, if accounting is
    not reachable. `settings` are those of `scontrol show config`. `mpi_kinds` are the values of `srun --mpi`.
    `groups` are the Unix groups of the user; None if unknown.
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
        return next((qos for qos in self.qos or () if qos.name == name), None)

    def limit(self, name: str, partition: Partition | None, qos: str | None, gpu_type: str | None = None) -> int | None:
        """Return the limit in effect, a field of `Qos`: that of the partition's QOS, else that of the job's QOS.

        This is Slurm's order (Resource Limits, "Hierarchy"); a job's QOS with the flag OverPartQOS comes first. A limit
        of `max_gpus` for this type of GPU counts, too.
        """
        both = [of for of in (self.qos_named(partition.qos if partition else None), self.qos_named(qos)) if of]
        if both and both[-1].is_first:
            both.reverse()
        rows: list[list[int | None]] = [[getattr(of, name) for of in both]]
        if name == "max_gpus" and gpu_type:
            rows.append([dict(of.gpu_types).get(gpu_type.lower()) for of in both])
        firsts = [next((value for value in row if value is not None), None) for row in rows]
        return min((value for value in firsts if value is not None), default=None)

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
        flags = {flag.strip().lower() for flag in self.settings.get("AccountingStorageEnforce", "").split(",")}
        return bool(flags & {"associations", "limits", "qos", "safe", "wckeys", "all"})


class _Refused(Unreachable):
    """Slurm answers, but refuses the request."""


def read_site(user: str) -> Site:
    """Return the facts of the site, from eight commands, with the accounts of `user`.

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
    associations_of = ("user", "where", f"name={user}", f"cluster={cluster}", "withassoc")

    def accounting(what: Sequence[str], fields: Sequence[str]) -> str:
        return _stdout(*_SACCTMGR, *what, "format=" + ",".join(fields))

    def mpi_kinds() -> tuple[str, ...]:
        answer = _answer("srun", "--mpi=list")
        return parse_mpi_kinds(f"{answer.stdout}\n{answer.stderr}")  # older releases log them to stderr

    def reservations() -> tuple[str, ...]:
        stdout = _stdout("scontrol", "--oneliner", "show", "reservation")
        return tuple(record["ReservationName"] for record in records(stdout, "ReservationName"))

    return Site(
        user=user,
        cluster_name=cluster,
        slurm_version=settings.get("SLURM_VERSION", ""),
        partitions=parse_partitions(partitions, nodes),
        associations=if_shown(lambda: parse_associations(accounting(associations_of, ASSOCIATION_FIELDS)), None),
        qos=if_shown(lambda: parse_qos(accounting(("qos",), QOS_FIELDS)), None),
        srun=parse_options(_stdout("srun", "--help")),
        mpi_kinds=if_shown(mpi_kinds, ()),
        settings=settings,
        reservations=if_shown(reservations, ()),
        complaints=tuple(dict.fromkeys(complaints)),
        groups=_groups(),
    )


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


@dataclass(frozen=True, slots=True)
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

    @property
    def qos(self) -> str | None:
        """Return the default QOS of the association if jobs can use it here, else the one that allows the largest jobs.

        None if several allow equally large jobs.
        """
        default, allowed = self.association.default_qos if self.association else None, self.allowed_qos
        sizes = {name: self.largest_with(name) for name in allowed}
        most = max(sizes.values(), default=0)
        if default is not None and self.partition.takes_qos(default) and (self.largest_with(default) or not most):
            return default
        best = [name for name, size in sizes.items() if size == most]
        return best[0] if len(best) == 1 else None

    @property
    def needs_qos(self) -> bool:
        """Return whether Slurm refuses jobs without a QOS, and the right QOS is not known."""
        has_default = self.association is not None and self.association.default_qos is not None
        return self.qos is None and (has_default or self.partition.allow_qos is not None)

    def limit(self, name: str) -> int | None:
        """Return the limit that applies to the job, a field of `Qos`."""
        return self._limit(name, self.qos)

    def _limit(self, name: str, qos: str | None) -> int | None:
        return self.site.limit(name, self.partition, qos, self.kind.gpu.kind if self.kind.gpu else None)

    def largest_with(self, qos: str | None) -> int:
        """Return the largest number of GPUs that a job with this QOS can have; of nodes, if the nodes have no GPUs."""
        if 0 in (self._limit("max_jobs", qos), self._limit("max_submit_jobs", qos)):
            return 0
        available = self.kind.count or self.partition.nodes
        bounds = (available, self.partition.max_nodes, self._limit("max_nodes", qos))
        nodes = min(bound for bound in bounds if bound is not None)
        if self.kind.gpu is None:
            return nodes
        gpus, most = nodes * self.kind.gpu.count, self._limit("max_gpus", qos)
        return gpus if most is None else min(gpus, most)

    @property
    def largest(self) -> int:
        """Return the largest number of GPUs that a job of the user can have; of nodes, if the nodes have no GPUs."""
        if self.needs_qos:
            return max(map(self.largest_with, self.allowed_qos), default=0)
        return self.largest_with(self.qos)

    @property
    def has_whole_nodes(self) -> bool:
        """Return whether the limits allow all GPUs of a node."""
        return self.largest >= (self.kind.gpu.count if self.kind.gpu else 1)

    @property
    def obstacle(self) -> str | None:
        """Return the reason why jobs of the user cannot run here; None if they can, or if Slurm does not show it."""
        partition, mine = self.partition, self.site.associations
        if not partition.is_up:
            return "not up"
        if not self.site.takes_groups(partition):
            return f"only for the groups {', '.join(sorted(partition.allow_groups or ()))}"
        if mine is not None and not self.accounts and (mine or partition.allow_accounts is not None):
            return "accepts none of your accounts"
        if self.association and self.needs_qos and not self.allowed_qos:
            return "accepts no QOS of your accounts"
        if self.largest == 0 and partition.nodes:
            which = " and ".join(dict.fromkeys(name for name in (partition.qos, self.qos) if name))
            what = "GPUs" if self.kind.gpu and self.limit("max_gpus") == 0 else "jobs"
            return f"QOS {which} allows no {what}" if which else f"allows no {what}"
        return None

    @property
    def node_limits(self) -> dict[str, int]:
        """Return the limits below the number of nodes of this kind, by the command that shows the limit."""
        gpus = self.limit("max_gpus")
        bounds = {
            "scontrol show partition: MaxNodes": self.partition.max_nodes,
            "sacctmgr show qos: its limit of nodes": self.limit("max_nodes"),
            "sacctmgr show qos: its limit of GPUs": max(gpus // self.kind.gpu.count, 1)
            if gpus and self.kind.gpu
            else None,
        }
        available = self.kind.count or self.partition.nodes
        return {why: bound for why, bound in bounds.items() if bound and bound < available}

    @property
    def longest_s(self) -> int | None:
        """Return the longest time limit of a job in seconds; None if there is no limit."""
        limits = (self.partition.max_time_s, self.limit("max_wall_s"))
        return min(filter(None, limits), default=None)

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
        """Return the order of partitions: one that the user can use, with GPUs, for whole nodes, not preemptible.

        Then the default one, the one with most GPUs for a job, and the largest one.
        """
        partition, gpus = self.partition, self.largest if self.kind.gpu else 0
        usable = (self.obstacle is None, gpus > 0, self.has_whole_nodes, partition.preempt_mode is None)
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
        best = max(choices, key=_account_rank)
        equals = {
            choice.association.account
            for choice in choices
            if choice.association and _account_rank(choice) == _account_rank(best)
        }
        return replace(best, association=None) if len(equals) > 1 else best

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
