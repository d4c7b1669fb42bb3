"""What a login node can tell of its Slurm site: partitions and nodes, accounts, settings, and what srun can do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.errors import Problem, Unreachable
from orchestrator.slurm.command import AccountingUnreachable, CommandResult, last_words, run_slurm
from orchestrator.slurm.site_accounting import (
    ASSOCIATION_FIELDS,
    QOS_FIELDS,
    Association,
    Qos,
    parse_associations,
    parse_qos,
)
from orchestrator.slurm.site_nodes import Gres, NodeKind, Partition, parse_gres, parse_partitions
from orchestrator.slurm.site_srun import SrunOptions, parse_mpi_kinds, parse_options
from orchestrator.slurm.site_values import records

__all__ = [
    "Association",
    "Gres",
    "NodeKind",
    "Partition",
    "Qos",
    "Site",
    "SrunOptions",
    "parse_gres",
    "parse_settings",
    "read_site",
]

_SETTING = re.compile(r"(\S+)\s*=[ \t]*(.*)")
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
        return next((one for one in self.partitions if one.name == name), None)

    def qos_named(self, name: str | None) -> Qos | None:
        return next((one for one in self.qos or () if one.name == name), None)

    @property
    def enforces_accounts(self) -> bool:
        """Whether a job without an account that the user has is refused."""
        words = {word.strip().lower() for word in self.settings.get("AccountingStorageEnforce", "").split(",")}
        return bool(words & {"associations", "limits", "qos", "safe", "wckeys", "all"})


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

    settings = parse_settings(_said("scontrol", "show", "config"))
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


def parse_settings(stdout: str) -> dict[str, str]:
    """From `scontrol show config`; of a name that comes twice the first."""
    found: dict[str, str] = {}
    for line in stdout.splitlines():
        if match := _SETTING.fullmatch(line):
            found.setdefault(match[1], match[2].strip())
    return found


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
    """The answer itself; raises when the command failed, since then its output says nothing."""
    if answer.returncode == 0:
        return answer
    words = last_words(answer.stderr) or f"failed with exit code {answer.returncode}"
    command = " ".join(word for word in answer.argv[:5] if word not in _SILENT)
    raise _Refused(Problem(f"{command}: {words}"))
