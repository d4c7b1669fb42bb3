"""A user's accounts and the qualities of service, from `sacctmgr --parsable2`; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.slurm.site_values import names, number, seconds

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
    found = []
    for default_account, account, partition, qos, default_qos in _rows(stdout, len(ASSOCIATION_FIELDS)):
        if account:
            found.append(
                Association(account, names(qos), default_qos or None, partition or None, account == default_account)
            )
    return tuple(found)


def parse_qos(stdout: str) -> tuple[Qos, ...]:
    """From `sacctmgr --noheader --parsable2 show qos` with QOS_FIELDS."""
    found = []
    for name, wall, job, user, group, running, submitted in _rows(stdout, len(QOS_FIELDS)):
        if name:
            limits = [dict(_resources(text)) for text in (job, user, group)]
            nodes, gpus = (
                min((limit[what] for limit in limits if what in limit), default=None) for what in ("node", "gres/gpu")
            )
            found.append(Qos(name, seconds(wall), nodes, gpus, number(running), number(submitted)))
    return tuple(found)


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
