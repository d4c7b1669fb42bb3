"""Facts of a Slurm site that a login node can collect, and the choice of a partition and its nodes, account and QOS."""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

from orchestrator.errors import Problem, ReproError, Unreachable, names_hint
from orchestrator.slurm.accounting import (
    ACCOUNT_FIELDS,
    ASSOCIATION_FIELDS,
    QOS_FIELDS,
    Association,
    Limits,
    Qos,
    parse_accounts,
    parse_associations,
    parse_qos,
)
from orchestrator.slurm.command import AccountingUnreachable, CommandResult, checked, read_settings, run_slurm
from orchestrator.slurm.nodes import NodeKind, Partition, names, parse_node_names, parse_partitions, records
from orchestrator.text import counted

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
    associations = if_shown(lambda: _associations(user, cluster), None)
    limits = if_shown(lambda: _limits_of_accounts(cluster), dict[str, Limits]())
    return Site(
        user=user,
        cluster_name=cluster,
        slurm_version=settings.get("SLURM_VERSION", ""),
        partitions=parse_partitions(_shown("partition"), if_shown(lambda: _shown("node"), "")),
        associations=associations and tuple(link.within(limits) for link in associations),
        qos=if_shown(lambda: parse_qos(_accounting(("qos",), QOS_FIELDS)), None),
        srun=parse_options(_stdout("srun", "--help")),
        mpi_kinds=if_shown(_mpi_kinds, ()),
        settings=settings,
        reservations=if_shown(_reservations, ()),
        complaints=tuple(dict.fromkeys(complaints)),
        groups=_groups() if user != "root" else None,
    )


def _associations(user: str, cluster: str) -> tuple[Association, ...]:
    mine = ("user", "where", f"name={user}", f"cluster={cluster}", "withassoc")
    return parse_associations(_accounting(mine, ASSOCIATION_FIELDS))


def _limits_of_accounts(cluster: str) -> dict[str, Limits]:
    of_accounts = ("association", "where", f"cluster={cluster}", "user=")  # rows of accounts have no user
    return parse_accounts(_accounting(of_accounts, ACCOUNT_FIELDS))


def _accounting(what: Sequence[str], fields: Sequence[str]) -> str:
    return _stdout(*_SACCTMGR, *what, "format=" + ",".join(fields))


def _mpi_kinds() -> tuple[str, ...]:
    answer = _answer("srun", "--mpi=list")
    return parse_mpi_kinds(f"{answer.stdout}\n{answer.stderr}")  # older releases log them to stderr


def _reservations() -> tuple[str, ...]:
    return tuple(record["ReservationName"] for record in records(_shown("reservation"), "ReservationName"))


def _groups() -> frozenset[str]:
    """Return the names of the Unix groups of this process."""
    found = set()
    for number_of_group in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            found.add(grp.getgrgid(number_of_group).gr_name)
    return frozenset(found)


def read_node_names() -> dict[str, frozenset[str]]:
    """Return the nodes of each partition; Unreachable if Slurm does not answer, or does not show nodes to the user."""
    return parse_node_names(_shown("node"))


def _shown(what: str) -> str:
    return _stdout("scontrol", "--oneliner", "show", what)


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
