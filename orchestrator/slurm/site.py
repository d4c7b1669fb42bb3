"""Facts of a Slurm site that a login node can collect, and the choice of a partition and its nodes, account and QOS."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.errors import Problem, ReproError, Unreachable, did_you_mean
from orchestrator.slurm.command import AccountingUnreachable, CommandResult, last_words, read_settings, run_slurm
from orchestrator.slurm.site_parsers import (
    ASSOCIATION_FIELDS,
    QOS_FIELDS,
    Association,
    NodeKind,
    Partition,
    Qos,
    parse_associations,
    parse_partitions,
    parse_qos,
    records,
)

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
"""The release of pyxis that brought an option: its changelog and the history of its args.c, up to 0.24.0."""


@dataclass(frozen=True, slots=True)
class SrunOptions:
    """The long options of srun, without dashes, and those of them that come from pyxis."""

    names: frozenset[str] = frozenset()
    pyxis: frozenset[str] = frozenset()

    @property
    def has_pyxis(self) -> bool:
        """Return whether srun has the options of pyxis."""
        return "container-image" in self.pyxis

    @property
    def has_environment(self) -> bool:
        """Whether there is CSCS's container engine, `--environment`; Slurm itself has no such option."""
        return "environment" in self.names

    @property
    def pyxis_versions(self) -> tuple[str, str | None] | None:
        """The oldest release that these options fit, and the first that is too new (None where none is known).

        None without pyxis.
        """
        if not self.has_pyxis:
            return None
        oldest = max(since for name, since in PYXIS_SINCE.items() if name in self.pyxis)
        newer = [since for name, since in PYXIS_SINCE.items() if name not in self.pyxis and since > oldest]
        return _dotted(oldest), _dotted(min(newer)) if newer else None


def parse_options(stdout: str) -> SrunOptions:
    """From `srun --help`. An option of a plug-in has the plug-in's name in front of its description."""
    names: set[str] = set()
    pyxis: set[str] = set()
    undescribed = ""  # the option whose description has not begun yet
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
    """From `srun --mpi=list`, both streams: one kind to a line, and the releases of PMIx in a line of their own."""
    kinds: list[str] = []
    for line in output.splitlines():
        text = line.strip().removeprefix("srun: ").strip()
        head, mark, tail = text.partition("versions available:")
        for word in tail.split(",") if mark else [head]:
            if _MPI_KIND.fullmatch(word.strip()):
                kinds.append(word.strip())
    return tuple(dict.fromkeys(kinds))


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


_SACCTMGR = ("sacctmgr", "--noheader", "--parsable2", "show")
_SILENT = ("--oneliner", "--noheader", "--parsable2")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Site:
    """A Slurm site as one user sees it.

    `associations` are the user's, and `qos` everybody's; None where accounting does not answer, and then one of the
    `complaints` says why. `settings` are all of `scontrol show config`, as printed. `mpi_kinds` are what `srun --mpi`
    takes.
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

    def partition(self, name: str) -> Partition | None:
        """Return the partition of this name."""
        return next((candidate for candidate in self.partitions if candidate.name == name), None)

    def qos_named(self, name: str | None) -> Qos | None:
        """Return the QOS of this name."""
        return next((qos for qos in self.qos or () if qos.name == name), None)

    @property
    def enforces_accounts(self) -> bool:
        """Whether a job without an account that the user has is refused."""
        flags = {flag.strip().lower() for flag in self.settings.get("AccountingStorageEnforce", "").split(",")}
        return bool(flags & {"associations", "limits", "qos", "safe", "wckeys", "all"})


class _Refused(Unreachable):
    """Slurm answers, and has something against the question."""


def read_site(user: str) -> Site:
    """Ask Slurm about the site, in eight commands; `user` is whose accounts are wanted.

    Raises Unreachable where Slurm is not there or slurmctld does not answer. Accounting that does not answer is a
    complaint, and so are nodes, reservations and MPI kinds that Slurm keeps to itself.
    """
    complaints: list[str] = []

    def perhaps(ask: Callable[[], T], otherwise: T) -> T:
        try:
            return ask()
        except (AccountingUnreachable, _Refused) as away:
            complaints.append(str(away))
            return otherwise

    settings = read_settings()
    cluster = settings.get("ClusterName", "")
    partitions = _said("scontrol", "--oneliner", "show", "partition")
    nodes = perhaps(lambda: _said("scontrol", "--oneliner", "show", "node"), "")
    whose = ("user", "where", f"name={user}", f"cluster={cluster}", "withassoc")
    return Site(
        user=user,
        cluster_name=cluster,
        slurm_version=settings.get("SLURM_VERSION", ""),
        partitions=parse_partitions(partitions, nodes),
        associations=perhaps(lambda: parse_associations(_accounting(whose, ASSOCIATION_FIELDS)), None),
        qos=perhaps(lambda: parse_qos(_accounting(("qos",), QOS_FIELDS)), None),
        srun=parse_options(_said("srun", "--help")),
        mpi_kinds=perhaps(_mpi_kinds, ()),
        settings=settings,
        reservations=perhaps(_reservations, ()),
        complaints=tuple(dict.fromkeys(complaints)),
    )


def _accounting(what: Sequence[str], fields: Sequence[str]) -> str:
    return _said(*_SACCTMGR, *what, "format=" + ",".join(fields))


def _mpi_kinds() -> tuple[str, ...]:
    answer = _checked(run_slurm(["srun", "--mpi=list"]))
    return parse_mpi_kinds(f"{answer.stdout}\n{answer.stderr}")  # older releases log them to stderr


def _reservations() -> tuple[str, ...]:
    stdout = _said("scontrol", "--oneliner", "show", "reservation")
    return tuple(record["ReservationName"] for record in records(stdout, "ReservationName"))


def _said(*argv: str) -> str:
    return _checked(run_slurm(argv)).stdout


def _checked(answer: CommandResult) -> CommandResult:
    """Return the answer of a command. Raise _Refused if the command failed: its output is no answer then."""
    if answer.returncode == 0:
        return answer
    message = last_words(answer.stderr) or f"failed with exit code {answer.returncode}"
    command = " ".join(word for word in answer.argv[:5] if word not in _SILENT)
    raise _Refused(Problem(f"{command}: {message}"))


# An option's line begins near the margin; its description, which may name other options, stands far right of it.


@dataclass(frozen=True, slots=True)
class Choice:
    """One partition and one kind of its nodes; `kind` counts no nodes where Slurm keeps them from the user.

    `accounts` are the user's that the partition takes. `association` is that of the default account, or of the only
    one; None where neither is among them.
    """

    site: Site
    partition: Partition
    kind: NodeKind
    accounts: tuple[str, ...]
    association: Association | None

    @property
    def allowed_qos(self) -> tuple[str, ...]:
        """Those of the association that the partition takes."""
        own = self.association.qos if self.association else ()
        return tuple(name for name in own if self.partition.takes_qos(name))

    @property
    def qos(self) -> str | None:
        """The association's default if the partition takes it, else the only one that it takes."""
        default, allowed = self._default_qos, self.allowed_qos
        if default is not None and self.partition.takes_qos(default):
            return default
        return allowed[0] if len(allowed) == 1 else None

    @property
    def needs_qos(self) -> bool:
        """Whether a job that names no QOS is refused, and it is not clear which one it could name."""
        return self.qos is None and (self._default_qos is not None or self.partition.allow_qos is not None)

    @property
    def _default_qos(self) -> str | None:
        return self.association.default_qos if self.association else None

    @property
    def limits(self) -> tuple[Qos, ...]:
        """The QOS whose limits hold: the partition's own, whose word comes first, and the job's.

        That order is Slurm's (Resource Limits, "Hierarchy") but for a QOS with the flag OverPartQOS.
        """
        qos = (self.site.qos_named(self.partition.qos), self.site.qos_named(self.qos))
        return tuple(limit for limit in qos if limit)

    @property
    def node_limits(self) -> dict[str, int]:
        """What keeps a job from having all nodes of this kind -> how many it can then have."""
        nodes = next((qos.max_nodes for qos in self.limits if qos.max_nodes), None)
        gpus = next((qos.max_gpus for qos in self.limits if qos.max_gpus), None)
        bounds = {
            "scontrol show partition: MaxNodes": self.partition.max_nodes,
            "sacctmgr show qos: its limit of nodes": nodes,
            "sacctmgr show qos: its limit of GPUs": gpus // self.kind.gpu.count if gpus and self.kind.gpu else None,
        }
        available = self.kind.count or self.partition.nodes
        return {why: bound for why, bound in bounds.items() if bound and bound < available}

    @property
    def longest_s(self) -> int | None:
        """The longest that a job may take; None: as long as it likes."""
        wall = next((qos.max_wall_s for qos in self.limits if qos.max_wall_s), None)
        return min((limit for limit in (self.partition.max_time_s, wall) if limit), default=None)

    @property
    def rivals(self) -> tuple[NodeKind, ...]:
        """The other kinds in the partition that a job asking for these GPUs could be given as well."""
        return tuple(kind for kind in self.partition.kinds if kind != self.kind and _could_take(kind, self.kind))


def choose(site: Site, partition: str | None = None) -> Choice:
    """Without `partition` the default one if it has GPUs, else the one with most GPU nodes.

    Of unlike nodes those with GPUs of which there are most. ReproError where there is no such partition.
    """
    chosen = _asked_for(site, partition) if partition is not None else _best(site)
    kind = max(
        chosen.kinds,
        key=lambda nodes: (nodes.gpu is not None, nodes.count),
        default=NodeKind(0, 0, 0),
    )
    # Slurm takes the association for the partition before the one for all.
    associations = sorted(
        (association for association in site.associations or () if association.partition in (None, chosen.name)),
        key=lambda association: association.partition is None,
    )
    associations = [association for association in associations if chosen.takes_account(association.account)]
    accounts = tuple(dict.fromkeys(association.account for association in associations))
    default = next((association for association in associations if association.is_default), None)
    return Choice(site, chosen, kind, accounts, default or (associations[0] if len(accounts) == 1 else None))


def _asked_for(site: Site, name: str) -> Partition:
    partition = site.partition(name)
    if partition is None:
        names = [candidate.name for candidate in site.partitions]
        hint = did_you_mean(name, names) or f"there are: {', '.join(names) or 'none'}"
        raise ReproError(Problem(f"{name}: no such partition", hint=hint))
    if not partition.nodes:
        raise ReproError(Problem(f"{name}: a partition without nodes"))
    return partition


def _best(site: Site) -> Partition:
    usable = [partition for partition in site.partitions if partition.nodes]
    if not usable:
        raise ReproError(Problem("Slurm shows no partition with nodes", hint="`sinfo` lists what you may see"))
    default = next((partition for partition in usable if partition.is_default), None)
    if default is not None and default.gpu_nodes:
        return default
    return max(usable, key=lambda partition: (partition.gpu_nodes, partition.is_up, partition.is_default))


def _could_take(kind: NodeKind, chosen: NodeKind) -> bool:
    if chosen.gpu is None:
        return True
    gpu = chosen.gpu
    return any(gres.name == "gpu" and gres.count >= gpu.count and gpu.kind in (None, gres.kind) for gres in kind.gres)
