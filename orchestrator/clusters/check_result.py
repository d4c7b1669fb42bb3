"""Results of a profile check, and what the checks share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.clusters.resolve import Cluster
from orchestrator.clusters.slurm_options import SlurmFields
from orchestrator.errors import did_you_mean
from orchestrator.slurm.notation import time_limit_s
from orchestrator.slurm.site import Site
from orchestrator.slurm.site_parsers import Partition


class Compared:
    """One profile and one site. `partition` is where jobs go; None where there is no such one."""

    def __init__(self, cluster: Cluster, site: Site) -> None:
        assert cluster.profile.slurm is not None
        self.cluster, self.site = cluster, site
        self.slurm: SlurmFields = cluster.profile.slurm
        names = [self.slurm.partition] if self.slurm.partition else [p.name for p in site.partitions if p.is_default]
        self.where_jobs_go: Partition | None = site.partition(names[0]) if names else None

    def most_nodes(self, also: int | None = None) -> int:
        """The largest job that planning lets through."""
        return min(most for most in (also, self.slurm.max_nodes, self.cluster.hardware.nodes) if most)

    def longest(self, also: str | None = None) -> str:
        """The longest job that planning lets through; without a limit, what a job asks for that says nothing itself."""
        return min(
            (text for text in (also, self.slurm.max_time) if text), key=time_limit_s, default=self.slurm.time_limit
        )

    def at(self, field: str, result: Result, found: str, hint: str | None = None) -> Finding:
        """A finding about a field of the profile, such as `slurm.qos`."""
        where = self.cluster.layered.where(tuple(field.split(".")))
        return Finding(field, "login", result, found, where, hint)


def nearest(word: str, there: Sequence[str]) -> str:
    """A mend for a name that is not there."""
    return did_you_mean(word, there) or there_are(there)


def there_are(names: Sequence[str]) -> str:
    return f"there are: {', '.join(names) or 'none'}"


def is_blank(text: str) -> bool:
    """Whether it is still to be filled in."""
    return "<" in text


Result = Literal["ok", "wrong", "open", "later", "unknown", "not checked"]
"""`open`: still to be filled in; `later`: before that is submitted which needs it. `unknown`: who was asked does not
say. `not checked`: it takes a job on a node, or hardware that the profile does not have."""

Location = Literal["login", "compute"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is the profile's field, or what else was looked at; `where` its file, line and column."""

    check: str
    place: Location
    result: Result
    found: str
    where: str | None = None
    hint: str | None = None

    @property
    def is_fault(self) -> bool:
        return self.result in ("wrong", "open")
