"""Associations, accounts and QOS of a Slurm site with their limits, as sacctmgr prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.slurm.nodes import names, number
from orchestrator.slurm.notation import parse_time_limit

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


def parse_accounts(stdout: str) -> dict[str, Limits]:
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
