"""Nodes that jobs may not use: those of the profile, of the ledger's deny list, and those that failed before."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Sequence

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.denied_nodes import denied_nodes
from orchestrator.planning.plan import Plan
from orchestrator.slurm.notation import expand_node_names
from orchestrator.slurm.site import read_node_names
from orchestrator.text import counted

_DIRECTIVE = re.compile(r"^#SBATCH --exclude=(\S+)$", re.MULTILINE)
_EXCLUDE = "--exclude="


def with_denied_nodes(cluster: Cluster, ledger: Ledger | None) -> Cluster:
    """Return the cluster with the nodes that its deny list has now. Only Slurm can exclude nodes."""
    if ledger is None or not cluster.is_slurm:
        return cluster
    return dataclasses.replace(cluster, denied=denied_nodes(ledger, cluster.name))


def denied_note(cluster: Cluster) -> Iterator[str]:
    """Yield a note about the denied nodes, if there are any."""
    if cluster.denied:
        groups = [f"{', '.join(nodes)} ({explanation})" for explanation, nodes in cluster.denied_by_reason.items()]
        yield f"jobs on {cluster.name} exclude {counted(len(cluster.denied), 'node')}: {'; '.join(groups)}"


def exclude_options(
    options: Sequence[str], script: str, denied: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options of a submission that excludes failed and denied nodes, and those without the failed nodes.

    `options` are those of the attempt. sbatch uses its `--exclude` instead of the script's, so it has these nodes, too.
    """
    others = [word for word in options if not word.startswith(_EXCLUDE)]
    failed = {
        node for word in options if word.startswith(_EXCLUDE) for node in expand_node_names(word[len(_EXCLUDE) :])
    }
    in_script = {node for match in _DIRECTIVE.finditer(script) for node in expand_node_names(match[1])}
    always = in_script | set(denied)

    def excluding(nodes: set[str]) -> tuple[str, ...]:
        return (*([] if nodes <= in_script else [_EXCLUDE + ",".join(sorted(nodes))]), *others)

    return excluding(always | failed), excluding(always)


def require_enough_nodes(plans: Sequence[Plan], cluster: Cluster) -> None:
    """Raise ReproError if the nodes that are not denied cannot hold a job, or Slurm has no such node.

    Without Slurm's answer nothing is checked: sbatch then refuses the job.
    """
    slurm = cluster.profile.slurm
    if slurm is None or not cluster.denied:
        return
    denied = {entry.node: entry for entry in cluster.denied}
    problems = [
        Problem(f"{node} is in nodelist, and it is {denied[node].explanation}", hint=_allow(cluster, [node]))
        for node in expand_node_names(slurm.nodelist)
        if node in denied
    ]
    partitions = known_nodes(cluster)
    if partitions is not None:
        everywhere = frozenset().union(*partitions.values())
        if unknown := [node for node in denied if node not in everywhere]:
            what = f"{', '.join(unknown)} denied on {cluster.name}, and Slurm has no such node"
            problems.append(Problem(what, hint=_allow(cluster, unknown)))
        nodes = partitions[slurm.partition] if slurm.partition else everywhere
        lost = [node for node in denied if node in nodes]
        remaining = nodes - set(lost) - {node for names in slurm.exclude for node in expand_node_names(names)}
        largest = max(plans, key=lambda plan: plan.resources.nodes)
        if lost and largest.resources.nodes > len(remaining):
            place = f"partition {slurm.partition}" if slurm.partition else cluster.name
            because = ", ".join(f"{node}: {denied[node].reason}" for node in lost)
            what = f"{largest.label} needs {counted(largest.resources.nodes, 'node')}, and {place} has "
            what += f"{len(remaining)} of {len(nodes)} left: {len(lost)} denied ({because})"
            problems.append(Problem(what, hint=f"a smaller --scale, or {_allow(cluster, lost)}"))
    if problems:
        raise ReproError(*problems)


def known_nodes(cluster: Cluster) -> dict[str, frozenset[str]] | None:
    """Return the nodes of each partition; None if this machine does not see the Slurm of the cluster.

    A Slurm without the profile's partition is that of another cluster.
    """
    try:
        partitions = read_node_names()
    except Unreachable:
        return None
    slurm = cluster.profile.slurm
    if not partitions or slurm is None or (slurm.partition is not None and slurm.partition not in partitions):
        return None
    return partitions


def _allow(cluster: Cluster, nodes: Sequence[str]) -> str:
    return f"repro nodes allow {' '.join(nodes)} --cluster {cluster.name}"
