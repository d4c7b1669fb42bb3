"""Deny list of nodes: nodes of a cluster that no job may use, until a time or without end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from orchestrator.api import DEFAULT, Session, require_text
from orchestrator.clusters.resolve import Cluster, find_cluster, recorded_cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.identity import user_name
from orchestrator.launch.denied_nodes import denied_note, known_nodes, with_denied_nodes
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.denied_nodes import (
    DeniedNode,
    denied_nodes,
    record_allowed,
    record_denied,
    slurm_clusters,
)
from orchestrator.masking import masked
from orchestrator.paths import Folders
from orchestrator.slurm.notation import MOST_NODES, expand_node_names

_LONGEST_REASON = 200
_NAMES_SHOWN = 8
_LAST_YEAR = 2999  # of the ledger's times
_UNTIL_HINT = "a day (2026-12-31) or a time in UTC (2026-12-31T18:00)"


@dataclass(frozen=True, slots=True)
class DenyList:
    """Entries of a deny list. `was_checked`: Slurm confirmed that it has these nodes."""

    entries: tuple[DeniedNode, ...]
    was_checked: bool = True


def deny_nodes(
    nodes: Sequence[str] | str,
    because: str,
    *,
    until: str | None = None,
    cluster: str | None = None,
    session: Session = DEFAULT,
) -> DenyList:
    """Exclude nodes of a cluster from each submission from now on: names or sets of Slurm, `n[1-4,7]`.

    `until` is a day, which is included, or a time; times are UTC. Without `cluster` it is the only Slurm cluster of the
    ledger. ReproError for wrong names, a wrong or past time, or nodes that Slurm does not have.
    """
    require_text([because])
    problems: list[Problem] = []
    names = _expanded(nodes, problems)
    reason = _reason(because, problems)
    end = _end(until, problems)
    profile = _slurm_cluster(session.folders, session.existing_ledger(), cluster, problems)
    partitions = known_nodes(profile) if profile is not None and names else None
    if profile is not None and partitions is not None:
        known = sorted(frozenset().union(*partitions.values()))
        problems += _unknown(names, known, f"the Slurm of {profile.name}")
    if problems or profile is None:
        raise ReproError(*problems)
    ledger = session.existing_ledger(create=True)
    assert ledger is not None
    at, by = now(), user_name()
    entries = tuple(DeniedNode(profile.name, name, reason, end, at, by) for name in names)
    record_denied(ledger, entries)
    return DenyList(entries, partitions is not None)


def allow_nodes(
    nodes: Sequence[str] | str, *, cluster: str | None = None, session: Session = DEFAULT
) -> tuple[DeniedNode, ...]:
    """Take nodes off the deny list of a cluster; return their entries. ReproError if one is not denied."""
    problems: list[Problem] = []
    names = _expanded(nodes, problems)
    ledger = session.existing_ledger()
    entries = denied_nodes(ledger) if ledger is not None else ()
    name = cluster and re.sub(r"\.yaml$", "", cluster.rpartition("/")[2])
    if name is None:
        wanted = {entry.cluster for entry in entries if entry.node in names}
        if len(wanted) > 1:
            hint = f"--cluster {' or --cluster '.join(sorted(wanted))}"
            problems.append(Problem("denied on several clusters", f"{', '.join(names)}:", hint))
        name = min(wanted, default=None)
    denied = {entry.node: entry for entry in entries if entry.cluster == name}
    if not denied and names and not problems:
        place = f" on {name}" if name else ""
        problems.append(Problem(f"not denied{place}", f"{', '.join(names)}:", "repro nodes list"))
    elif denied:
        problems += _unknown(names, sorted(denied), f"the deny list of {name}")
    if problems or ledger is None or name is None:
        raise ReproError(*problems)
    record_allowed(ledger, name, names, user_name())
    return tuple(denied[node] for node in names)


def list_denied_nodes(
    *, cluster: str | None = None, ended: bool = False, session: Session = DEFAULT
) -> tuple[DeniedNode, ...]:
    """Return the denied nodes of a cluster, or of all; with `ended`, also entries that ended."""
    if cluster is not None:
        cluster = find_cluster(session.folders, cluster).name
    ledger = session.existing_ledger()
    return denied_nodes(ledger, cluster, ended=ended) if ledger is not None else ()


def without_denied_nodes(cluster: Cluster, *, session: Session = DEFAULT) -> Cluster:
    """Return the cluster with its deny list, so that its jobs exclude these nodes."""
    return with_denied_nodes(cluster, session.existing_ledger())


def exclusion_notes(cluster: Cluster, *, session: Session = DEFAULT) -> list[str]:
    """Return a note about the denied nodes of a cluster; an empty list if it has none."""
    return list(denied_note(without_denied_nodes(cluster, session=session)))


def _expanded(nodes: Sequence[str] | str, problems: list[Problem]) -> list[str]:
    """Return the names of all nodes, each once."""
    names: dict[str, None] = {}
    for text in [nodes] if isinstance(nodes, str) else nodes:
        expanded = expand_node_names(text)
        names |= dict.fromkeys(expanded)
        if not expanded:
            hint = f"names or sets of Slurm of at most {MOST_NODES} nodes: n7, n[1-4,7]"
            problems.append(Problem("not node names", f"{text}:", hint))
    return list(names)


def _reason(because: str, problems: list[Problem]) -> str:
    reason = masked(because.strip())
    if not reason or not reason.isprintable() or len(reason) > _LONGEST_REASON:
        problems.append(Problem(f"--because: must be one line of 1 to {_LONGEST_REASON} characters"))
    return reason


def _end(until: str | None, problems: list[Problem]) -> datetime | None:
    """Return the time (UTC) at which the entry ends. A day is included."""
    if until is None:
        return None
    try:
        end = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", until.strip()))
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", until.strip()):
            end += timedelta(days=1)
        if end.tzinfo is not None:
            end = end.astimezone(timezone.utc).replace(tzinfo=None)
        if end.year > _LAST_YEAR:
            raise ValueError(until)
    except (ValueError, OverflowError):
        problems.append(Problem(f"--until {until}: not a day or time", hint=_UNTIL_HINT))
        return None
    if end <= now():
        problems.append(Problem(f"--until {until}: is in the past", hint=_UNTIL_HINT))
    return end


def _slurm_cluster(
    folders: Folders, ledger: Ledger | None, name: str | None, problems: list[Problem]
) -> Cluster | None:
    """Return the named cluster, or the only Slurm cluster of the ledger."""
    try:
        cluster = find_cluster(folders, name) if name is not None else _only_cluster(folders, ledger)
    except ReproError as error:
        problems += error.problems
        return None
    if cluster.is_slurm:
        return cluster
    mpirun = cluster.profile.mpirun
    hint = "give a Slurm cluster" if mpirun is None else f"remove the nodes from {mpirun.hostfile}"
    problems.append(Problem(f"{cluster.name} has no Slurm, so it has no nodes to exclude", hint=hint))
    return None


def _only_cluster(folders: Folders, ledger: Ledger | None) -> Cluster:
    files = slurm_clusters(ledger) if ledger is not None else {}
    if len(files) != 1:
        names = " or ".join(f"--cluster {name}" for name in sorted(files)) or "add --cluster NAME"
        what = "the ledger has jobs of several Slurm clusters" if files else "the ledger has no jobs of a Slurm cluster"
        raise ReproError(Problem(what, hint=names))
    [(name, file)] = files.items()
    return recorded_cluster(folders, name, file)


def _unknown(names: Sequence[str], known: Sequence[str], place: str) -> list[Problem]:
    """Return a problem for each name that the place does not have."""
    listed = ", ".join(known[:_NAMES_SHOWN]) + (", ..." if len(known) > _NAMES_SHOWN else "")
    return [
        Problem(f"{place} has no such node", f"{name}:", f"there are: {listed}") for name in names if name not in known
    ]
