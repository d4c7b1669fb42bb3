"""Comparison of the account and QOS of a profile with Slurm's accounting. Without side effects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from orchestrator.clusters.check_result import Finding, SiteChecks, is_blank, nearest, there_are
from orchestrator.clusters.slurm_options import QosFields
from orchestrator.config.yaml import KeyPath
from orchestrator.errors import did_you_mean
from orchestrator.slurm.notation import format_time_limit, time_limit_s
from orchestrator.slurm.site_parsers import Association, Qos


class AccountingChecks(SiteChecks):
    """Checks against Slurm's accounting. Each method checks one field."""

    def account(self) -> Iterator[Finding]:
        """Check the account."""
        wanted, mine = self.slurm.account_name, self.site.associations
        if wanted is not None and is_blank(wanted):
            return
        if not self.site.enforces_accounts:
            yield self.at("slurm.account", "ok", f"{wanted or 'none'}; Slurm does not check accounts")
        elif mine is None:
            yield self.at("slurm.account", "unknown", "accounting does not answer")
        elif wanted is None:
            default = next((one.account for one in mine if one.is_default), None)
            if default:
                yield self.at("slurm.account", "ok", f"none; Slurm uses {default}")
            else:
                yield self.at("slurm.account", "wrong", "missing, but Slurm requires one", _your_accounts(mine))
        elif wanted not in {one.account for one in mine}:
            hint = did_you_mean(wanted, [one.account for one in mine]) or _your_accounts(mine)
            yield self.at("slurm.account", "wrong", f"{wanted} is not an account of {self.site.user}", hint)
        elif not self._associations:
            found = f"{wanted} cannot use partition {self.job_partition.name if self.job_partition else ''}"
            yield self.at("slurm.account", "wrong", found, "take another account or partition")
        elif self.job_partition and not self.job_partition.takes_account(wanted):
            found = f"partition {self.job_partition.name} does not accept {wanted}"
            yield self.at("slurm.account", "wrong", found, "take another account or partition")
        else:
            yield self.at("slurm.account", "ok", wanted)

    @cached_property
    def _associations(self) -> list[Association]:
        """The associations of the account. Slurm uses the one for the partition first."""
        wanted, partition = self.slurm.account_name, self.job_partition.name if self.job_partition else None
        found = [
            link
            for link in self.site.associations or ()
            if (link.account == wanted if wanted else link.is_default)
            and (partition is None or link.partition in (None, partition))
        ]
        return sorted(found, key=lambda link: link.partition is None)

    def qos(self) -> Iterator[Finding]:
        """Check each QOS of the profile. Without one, yield only faults of the default QOS."""
        given = self.slurm.qos
        if given is None:
            yield from (finding for finding in self._unnamed_qos() if finding.is_fault)
            return
        if isinstance(given, str):
            yield from self._one_qos(QosFields(name=given), ("slurm", "qos"))
            return
        for i, one in enumerate(given):
            yield from self._one_qos(one, ("slurm", "qos", i))

    def _unnamed_qos(self) -> Iterator[Finding]:
        default = self._associations[0].default_qos if self._associations else None
        name = default or (self.job_partition.qos if self.job_partition else None)
        if name is not None and self.site.qos_named(name):
            if default and self.job_partition and not self.job_partition.takes_qos(default):
                found = f"missing, and {self.job_partition.name} does not accept {default}, the default QOS"
                yield self.at("slurm.qos", "wrong", found, there_are(self._allowed()))
            else:
                yield self._within_limits(QosFields(name=name), ("slurm", "qos"))

    def _one_qos(self, one: QosFields, path: KeyPath) -> Iterator[Finding]:
        check, where = f"slurm.qos {one.name}", self.cluster.layered.where(path)
        if is_blank(one.name):
            return
        if self.site.qos is None:
            yield Finding(check, "login", "unknown", "accounting does not answer", where)
        elif self.site.qos_named(one.name) is None:
            hint = nearest(one.name, [qos.name for qos in self.site.qos])
            yield Finding(check, "login", "wrong", "no such QOS", where, hint)
        elif self._associations and one.name not in self._associations[0].qos:
            found = f"account {self._associations[0].account} cannot use it"
            yield Finding(check, "login", "wrong", found, where, there_are(self._allowed()))
        elif self.job_partition and not self.job_partition.takes_qos(one.name):
            found = f"partition {self.job_partition.name} does not accept it"
            yield Finding(check, "login", "wrong", found, where, there_are(self._allowed()))
        else:
            yield self._within_limits(one, path)

    def _allowed(self) -> list[str]:
        """Return the names of the QOS that this account may use in this partition."""
        names = self._associations[0].qos if self._associations else ()
        return [name for name in names if self.job_partition is None or self.job_partition.takes_qos(name)]

    def _within_limits(self, one: QosFields, path: KeyPath) -> Finding:
        check, where = f"slurm.qos {one.name}", self.cluster.layered.where(path)
        beyond = list(self._beyond(one))
        if not beyond:
            return Finding(check, "login", "ok", "its limits allow the limits of the profile", where)
        found = "; ".join(what for what, _ in beyond)
        return Finding(check, "login", "wrong", found, where, "set " + ", ".join(hint for _, hint in beyond))

    def _beyond(self, given: QosFields) -> Iterator[tuple[str, str]]:
        """Yield each limit of the profile that exceeds the limit in Slurm, with a hint."""
        nodes, gpus, limit = self.most_nodes(given.max_nodes), given.max_gpus, self.longest(given.max_time)
        most = self._least(given.name, "max_nodes")
        if most is not None and nodes > most:
            yield f"jobs may have {nodes} nodes, Slurm's limit is {most}", f"max_nodes: {most}"
            nodes = most
        per_node = self.cluster.hardware.gpus_per_node
        gpus = min(gpus or nodes * per_node, nodes * per_node)
        most = self._least(given.name, "max_gpus")
        if most is not None and gpus > most:
            hint = f"max_gpus: {most}" if given.max_gpus else f"max_nodes: {max(most // per_node, 1)}"
            yield f"jobs may have {gpus} GPUs, Slurm's limit is {most}", hint
        most = self._least(given.name, "max_wall_s")
        if most is not None and time_limit_s(limit) > most:
            field = "max_time" if given.max_time or self.slurm.max_time else "time_limit"
            yield (
                f"jobs may take {limit}, Slurm's limit is {format_time_limit(most)}",
                f"{field}: {format_time_limit(most)}",
            )

    def _least(self, name: str, limit: str) -> int | None:
        """Return the limit in effect. The QOS of the partition comes first (Slurm's Resource Limits, "Hierarchy")."""
        own = self.site.qos_named(self.job_partition.qos) if self.job_partition else None
        both: tuple[Qos | None, ...] = (own, self.site.qos_named(name))
        return next((value for qos in both if qos and (value := getattr(qos, limit)) is not None), None)


def _your_accounts(mine: tuple[Association, ...]) -> str:
    return f"your accounts are: {', '.join(sorted({one.account for one in mine})) or 'none'}"
