"""Where on a site a user's jobs would go: partition, kind of node, account and QOS, and what those allow; pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.slurm.site import Association, NodeKind, Partition, Qos, Site


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
        found = (self.site.qos_named(self.partition.qos), self.site.qos_named(self.qos))
        return tuple(one for one in found if one)

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
        there = self.kind.count or self.partition.nodes
        return {why: bound for why, bound in bounds.items() if bound and bound < there}

    @property
    def longest_s(self) -> int | None:
        """The longest that a job may take; None: as long as it likes."""
        wall = next((qos.max_wall_s for qos in self.limits if qos.max_wall_s), None)
        return min((limit for limit in (self.partition.max_time_s, wall) if limit), default=None)

    @property
    def rivals(self) -> tuple[NodeKind, ...]:
        """The other kinds in the partition that a job asking for these GPUs could be given as well."""
        return tuple(one for one in self.partition.kinds if one != self.kind and _could_take(one, self.kind))


def choose(site: Site, partition: str | None = None) -> Choice:
    """Without `partition` the default one if it has GPUs, else the one with most GPU nodes.

    Of unlike nodes those with GPUs of which there are most. ReproError where there is no such partition.
    """
    chosen = _asked_for(site, partition) if partition is not None else _best(site)
    kind = max(chosen.kinds, key=lambda one: (one.gpu is not None, one.count), default=NodeKind(0, 0, 0))
    # Slurm takes the association for the partition before the one for all.
    here = sorted(
        (one for one in site.associations or () if one.partition in (None, chosen.name)),
        key=lambda one: one.partition is None,
    )
    here = [one for one in here if chosen.takes_account(one.account)]
    accounts = tuple(dict.fromkeys(one.account for one in here))
    default = next((one for one in here if one.is_default), None)
    return Choice(site, chosen, kind, accounts, default or (here[0] if len(accounts) == 1 else None))


def _asked_for(site: Site, name: str) -> Partition:
    found = site.partition(name)
    if found is None:
        names = [one.name for one in site.partitions]
        hint = did_you_mean(name, names) or f"there are: {', '.join(names) or 'none'}"
        raise ReproError(Problem(f"{name}: no such partition", hint=hint))
    if not found.nodes:
        raise ReproError(Problem(f"{name}: a partition without nodes"))
    return found


def _best(site: Site) -> Partition:
    usable = [one for one in site.partitions if one.nodes]
    if not usable:
        raise ReproError(Problem("Slurm shows no partition with nodes", hint="`sinfo` lists what you may see"))
    default = next((one for one in usable if one.is_default), None)
    if default is not None and default.gpu_nodes:
        return default
    return max(usable, key=lambda one: (one.gpu_nodes, one.is_up, one.is_default))


def _could_take(other: NodeKind, ours: NodeKind) -> bool:
    if ours.gpu is None:
        return True
    wanted = ours.gpu
    return any(
        gres.name == "gpu" and gres.count >= wanted.count and wanted.kind in (None, gres.kind) for gres in other.gres
    )
