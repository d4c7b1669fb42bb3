"""A profile's account and QOS, compared with what Slurm's accounting says. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from orchestrator.clusters.check_result import Compared, Finding, is_blank, nearest, there_are
from orchestrator.clusters.slurm_options import QosFields
from orchestrator.config.yaml import KeyPath
from orchestrator.errors import did_you_mean
from orchestrator.slurm.notation import format_time_limit, time_limit_s
from orchestrator.slurm.site_parsers import Association, Qos


class AccountingChecks(Compared):
    """Each method a field."""

    def account(self) -> Iterator[Finding]:
        wanted, mine = self.slurm.account_name, self.site.associations
        if wanted is not None and is_blank(wanted):
            return
        if not self.site.enforces_accounts:
            yield self.at("slurm.account", "ok", f"{wanted or 'none named'}; Slurm asks for none and checks none")
        elif mine is None:
            yield self.at("slurm.account", "unknown", "accounting does not answer")
        elif wanted is None:
            default = next((one.account for one in mine if one.is_default), None)
            if default:
                yield self.at("slurm.account", "ok", f"none named; Slurm takes {default}")
            else:
                yield self.at("slurm.account", "wrong", "none named, and Slurm asks for one", _yours(mine))
        elif wanted not in {one.account for one in mine}:
            hint = did_you_mean(wanted, [one.account for one in mine]) or _yours(mine)
            yield self.at("slurm.account", "wrong", f"{wanted} is no account of {self.site.user}", hint)
        elif not self._associations:
            found = f"{wanted} is not for partition {self.where_jobs_go.name if self.where_jobs_go else ''}"
            yield self.at("slurm.account", "wrong", found, "take another account or partition")
        elif self.where_jobs_go and not self.where_jobs_go.takes_account(wanted):
            found = f"partition {self.where_jobs_go.name} takes no jobs of {wanted}"
            yield self.at("slurm.account", "wrong", found, "take another account or partition")
        else:
            yield self.at("slurm.account", "ok", wanted)

    @cached_property
    def _associations(self) -> list[Association]:
        """What says which QOS the profile's account may use, the one for the partition first, as Slurm takes them."""
        wanted, partition = self.slurm.account_name, self.where_jobs_go.name if self.where_jobs_go else None
        found = [
            link
            for link in self.site.associations or ()
            if (link.account == wanted if wanted else link.is_default)
            and (partition is None or link.partition in (None, partition))
        ]
        return sorted(found, key=lambda link: link.partition is None)

    def qos(self) -> Iterator[Finding]:
        """Those that are named; of what jobs get otherwise only what is wrong."""
        given = self.slurm.qos
        if given is None:
            yield from (one for one in self._unnamed_qos() if one.is_fault)
            return
        if isinstance(given, str):
            yield from self._one_qos(QosFields(name=given), ("slurm", "qos"))
            return
        for i, one in enumerate(given):
            yield from self._one_qos(one, ("slurm", "qos", i))

    def _unnamed_qos(self) -> Iterator[Finding]:
        default = self._associations[0].default_qos if self._associations else None
        name = default or (self.where_jobs_go.qos if self.where_jobs_go else None)
        if name is not None and self.site.qos_named(name):
            if default and self.where_jobs_go and not self.where_jobs_go.takes_qos(default):
                found = f"none named, and {default}, which jobs get then, is not for {self.where_jobs_go.name}"
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
            found = f"not for account {self._associations[0].account}"
            yield Finding(check, "login", "wrong", found, where, there_are(self._allowed()))
        elif self.where_jobs_go and not self.where_jobs_go.takes_qos(one.name):
            found = f"not for partition {self.where_jobs_go.name}"
            yield Finding(check, "login", "wrong", found, where, there_are(self._allowed()))
        else:
            yield self._within_limits(one, path)

    def _allowed(self) -> list[str]:
        """The QOS that this account may use in this partition."""
        names = self._associations[0].qos if self._associations else ()
        return [name for name in names if self.where_jobs_go is None or self.where_jobs_go.takes_qos(name)]

    def _within_limits(self, one: QosFields, path: KeyPath) -> Finding:
        check, where = f"slurm.qos {one.name}", self.cluster.layered.where(path)
        beyond = list(self._beyond(one))
        if not beyond:
            return Finding(check, "login", "ok", "its limits allow what the profile says", where)
        found = "; ".join(what for what, _ in beyond)
        return Finding(check, "login", "wrong", found, where, ", ".join(hint for _, hint in beyond))

    def _beyond(self, said: QosFields) -> Iterator[tuple[str, str]]:
        """What the profile lets a job of this QOS have and Slurm does not give; with the mend."""
        nodes, gpus, limit = self.most_nodes(said.max_nodes), said.max_gpus, self.longest(said.max_time)
        most = self._least(said.name, "max_nodes")
        if most is not None and nodes > most:
            yield f"jobs may have {nodes} nodes, Slurm's limit is {most}", f"max_nodes: {most}"
            nodes = most
        per_node = self.cluster.hardware.gpus_per_node
        gpus = min(gpus or nodes * per_node, nodes * per_node)
        most = self._least(said.name, "max_gpus")
        if most is not None and gpus > most:
            hint = f"max_gpus: {most}" if said.max_gpus else f"max_nodes: {max(most // per_node, 1)}"
            yield f"jobs may have {gpus} GPUs, Slurm's limit is {most}", hint
        most = self._least(said.name, "max_wall_s")
        if most is not None and time_limit_s(limit) > most:
            field = "max_time" if said.max_time or self.slurm.max_time else "time_limit"
            yield (
                f"jobs may take {limit}, Slurm's limit is {format_time_limit(most)}",
                f"{field}: {format_time_limit(most)}",
            )

    def _least(self, name: str, limit: str) -> int | None:
        """The limit that holds: the partition's own QOS has the first word (Slurm's Resource Limits, "Hierarchy")."""
        own = self.site.qos_named(self.where_jobs_go.qos) if self.where_jobs_go else None
        both: tuple[Qos | None, ...] = (own, self.site.qos_named(name))
        return next((value for qos in both if qos and (value := getattr(qos, limit)) is not None), None)


def _yours(mine: tuple[Association, ...]) -> str:
    return f"yours are: {', '.join(sorted({one.account for one in mine})) or 'none'}"
