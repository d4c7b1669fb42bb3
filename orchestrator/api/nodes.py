"""Deny list of nodes: nodes of a cluster that no job of the user may use, until a time or without end."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.api import DEFAULT, Session
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.config.model import read_model
from orchestrator.config.yaml import Document, Location, YamlValue
from orchestrator.errors import Problem, ReproError
from orchestrator.launch.denied_nodes import (
    DeniedNode,
    DenyEntry,
    change_denied_nodes,
    denied_clusters,
    denied_nodes,
    known_nodes,
)
from orchestrator.masking import masked
from orchestrator.paths import Folders
from orchestrator.slurm.notation import MOST_NODES, expand_node_names

_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class DenyList:
    """Entries of a deny list. `was_checked`: Slurm confirmed that it has these nodes."""

    entries: tuple[DeniedNode, ...]
    was_checked: bool = True


def deny_nodes(
    nodes: Sequence[str] | str, because: str, cluster: str, *, until: str | None = None, session: Session = DEFAULT
) -> DenyList:
    """Exclude nodes of a cluster from each submission from now on: names or sets of Slurm, `n[1-4,7]`.

    `until` is a day, which is included, or a time; times are UTC. An entry of the same node is replaced. ReproError for
    wrong names, a wrong or past time, or nodes that Slurm does not have.
    """
    names = _expanded(nodes)
    fields: dict[str, YamlValue] = {"nodes": [*names], "because": masked(because.strip()), "until": until}
    entry = read_model(DenyEntry, Document("", fields, values={(): Location("nodes deny:")}))
    profile = _slurm_cluster(session.folders, cluster)
    partitions = known_nodes(profile)
    if partitions is not None:
        _require_known(names, frozenset().union(*partitions.values()), f"the Slurm of {profile.name}")
    entries = tuple(DeniedNode(profile.name, name, entry.because, entry.until) for name in names)
    if entries[0].is_over:
        raise ReproError(Problem("until: is in the past", "nodes deny:", "give a later day or time"))
    change_denied_nodes(profile.name, names, entries)
    return DenyList(entries, partitions is not None)


def allow_nodes(nodes: Sequence[str] | str, *, cluster: str | None = None) -> tuple[DeniedNode, ...]:
    """Take nodes off the deny list of a cluster; return their entries. ReproError if one is not denied."""
    names = _expanded(nodes)
    listed = f"{', '.join(names)}:"
    name = cluster and re.sub(r"\.yaml$", "", cluster.rpartition("/")[2])
    entries = [entry for each in ([name] if name else denied_clusters()) for entry in denied_nodes(each, ended=True)]
    if name is None:
        having = sorted({entry.cluster for entry in entries if entry.node in names})
        if len(having) > 1:
            hint = f"--cluster {' or --cluster '.join(having)}"
            raise ReproError(Problem("denied on several clusters", listed, hint))
        name = having[0] if having else None
    denied = {entry.node: entry for entry in entries if entry.cluster == name}
    if name is None or not denied:
        raise ReproError(Problem(f"not denied on {name}" if name else "not denied", listed, "repro nodes list"))
    _require_known(names, denied, f"the deny list of {name}")
    change_denied_nodes(name, names)
    return tuple(denied[node] for node in names)


def list_denied_nodes(
    *, cluster: str | None = None, ended: bool = False, session: Session = DEFAULT
) -> tuple[DeniedNode, ...]:
    """Return the denied nodes of a cluster, or of all; with `ended`, also entries that ended."""
    names = denied_clusters() if cluster is None else [find_cluster(session.folders, cluster).name]
    return tuple(entry for name in names for entry in denied_nodes(name, ended=ended))


def _expanded(nodes: Sequence[str] | str) -> list[str]:
    """Return the names of all nodes, each once."""
    texts = [nodes] if isinstance(nodes, str) else nodes
    hint = f"names or sets of Slurm of at most {MOST_NODES} nodes: n7, n[1-4,7]"
    if wrong := [Problem("not node names", f"{text}:", hint) for text in texts if not expand_node_names(text)]:
        raise ReproError(*wrong)
    return list(dict.fromkeys(name for text in texts for name in expand_node_names(text)))


def _slurm_cluster(folders: Folders, name: str) -> Cluster:
    cluster = find_cluster(folders, name)
    if cluster.is_slurm:
        return cluster
    mpirun = cluster.profile.mpirun
    hint = "give a Slurm cluster" if mpirun is None else f"remove the nodes from {mpirun.hostfile}"
    raise ReproError(Problem(f"{cluster.name} has no Slurm, so it has no nodes to exclude", hint=hint))


def _require_known(names: Sequence[str], known: Collection[str], place: str) -> None:
    """Raise ReproError with each name that the place does not have."""
    listed = ", ".join(sorted(known)[:_NAMES_SHOWN]) + (", ..." if len(known) > _NAMES_SHOWN else "")
    what, hint = f"{place} has no such node", f"there are: {listed}"
    if unknown := [Problem(what, f"{name}:", hint) for name in names if name not in known]:
        raise ReproError(*unknown)
