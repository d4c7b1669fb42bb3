"""Nodes that jobs may not use: those of the profile, of the user's deny list, and those that failed before.

The deny list of a cluster is the file `nodes/CLUSTER.yaml` beside the user's configuration. It is a layer of the
cluster's profile that only adds to `slurm: exclude`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import groupby
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from orchestrator.clusters.resolve import Cluster
from orchestrator.config.model import Strict, read_model
from orchestrator.config.yaml import Document, KeyPath, Location, read_document
from orchestrator.errors import Problem, Unreachable, require_none
from orchestrator.files import locked, single_name, written_whole
from orchestrator.paths import deny_folder
from orchestrator.planning.plan import Plan
from orchestrator.slurm.notation import MOST_NODES, expand_node_names
from orchestrator.slurm.site import read_node_names
from orchestrator.text import counted

_LONGEST_REASON = 200
_LAST_YEAR = 2999

_DIRECTIVE = re.compile(r"^#SBATCH --exclude=(\S+)$", re.MULTILINE)
_EXCLUDE = "--exclude="


def _nodes(names: str) -> str:
    if not expand_node_names(names):
        raise ValueError(f"must be nodes as Slurm writes them, at most {MOST_NODES}: n7, n[1-4,7]")
    return names


def _reason(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > _LONGEST_REASON:
        raise ValueError(f"must be one line of 1 to {_LONGEST_REASON} characters")
    return text


def _until(text: str) -> str:
    try:
        if _end_of(text).year > _LAST_YEAR:
            raise ValueError(text)
    except (ValueError, OverflowError):
        raise ValueError("must be a day (2026-12-31) or a time in UTC (2026-12-31T18:00)") from None
    return text


def _end_of(until: str) -> datetime:
    """Return the time (UTC) at which an entry ends. A day is included."""
    end = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", until))
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", until):
        end += timedelta(days=1)
    return end.replace(tzinfo=timezone.utc) if end.tzinfo is None else end


class DenyEntry(Strict):
    """Entry of a deny list."""

    nodes: list[Annotated[str, AfterValidator(_nodes)]] = Field(min_length=1, description="Nodes as Slurm writes them.")
    because: Annotated[str, AfterValidator(_reason)] = Field(description="Reason, one line.")
    until: Annotated[str, AfterValidator(_until)] | None = Field(
        default=None, description="Last day, or a time in UTC."
    )


class DenyFile(Strict):
    """Fields of a deny list."""

    denied: list[DenyEntry] = []


@dataclass(frozen=True, slots=True)
class DeniedNode:
    """A node that no job of a cluster may use. `until` is a day or a time in UTC; None for an entry without end."""

    cluster: str
    node: str
    reason: str
    until: str | None

    @property
    def is_over(self) -> bool:
        """Return whether the entry has ended."""
        return self.until is not None and _end_of(self.until) <= datetime.now(timezone.utc)

    @property
    def explanation(self) -> str:
        """Reason and end: `denied: ECC, until 2026-12-31`."""
        return f"denied: {self.reason}" + (f", until {self.until}" if self.until else "")


def denied_clusters() -> list[str]:
    """Return the clusters that have a deny list."""
    return sorted(file.stem for file in deny_folder().glob("[!.]*.yaml"))


def denied_nodes(cluster: str, *, ended: bool = False) -> dict[DeniedNode, Location]:
    """Return the denied nodes of a cluster with the location of their entries. ReproError for a wrong file.

    With `ended`, there are also entries that ended.
    """
    file = _file(cluster)
    document = read_document(file) if file.exists() else Document("", {})
    entries = {
        DeniedNode(cluster, node, entry.because, entry.until): document.place(("denied", i))
        for i, entry in enumerate(read_model(DenyFile, document).denied)
        for names in entry.nodes
        for node in expand_node_names(names)
    }
    return {entry: location for entry, location in entries.items() if ended or not entry.is_over}


def change_denied_nodes(cluster: str, nodes: Collection[str], entries: Sequence[DeniedNode] = ()) -> None:
    """Replace the entries of these nodes in a deny list. Other processes wait."""
    file = _file(cluster)
    with locked(file, wait=True), written_whole(file) as part:
        kept = [entry for entry in denied_nodes(cluster, ended=True) if entry.node not in nodes]
        part.write_text(_file_text(cluster, [*kept, *entries]), encoding="utf-8")


def _file(cluster: str) -> Path:
    return deny_folder() / single_name(f"{cluster}.yaml")


def _file_text(cluster: str, entries: Sequence[DeniedNode]) -> str:
    """Return the content of a deny list. A string of JSON is one of YAML."""
    lines = [f"# Nodes of {cluster} that your jobs do not use. You may edit this file; `repro nodes` removes comments."]
    lines.append("denied:" if entries else "denied: []")
    for (reason, until), group in groupby(entries, lambda entry: (entry.reason, entry.until)):
        lines.append(f"  - nodes: {json.dumps([entry.node for entry in group])}")
        lines.append(f"    because: {json.dumps(reason, ensure_ascii=False)}")
        lines += [f"    until: {until}"] if until else []
    return "\n".join(lines) + "\n"


def with_denied_nodes(cluster: Cluster) -> Cluster:
    """Return the cluster whose profile excludes also the nodes of the deny list. Only Slurm can exclude nodes.

    The profile that is recorded with a run has no denied nodes.
    """
    slurm = cluster.profile.slurm
    if slurm is None or not cluster.is_slurm:
        return cluster
    denied = {entry.node: location for entry, location in denied_nodes(cluster.name).items()}
    excluded = [*slurm.exclude, *denied]
    locations: dict[KeyPath, Location] = {
        ("slurm", "exclude", i): location for i, location in enumerate(denied.values(), len(slurm.exclude))
    }
    return dataclasses.replace(
        cluster,
        profile=cluster.profile.model_copy(update={"slurm": slurm.model_copy(update={"exclude": excluded})}),
        layered=dataclasses.replace(cluster.layered, locations={**cluster.layered.locations, **locations}),
    )


def denied_note(cluster: Cluster) -> Iterator[str]:
    """Yield a note about the denied nodes, if there are any."""
    entries = list(denied_nodes(cluster.name)) if cluster.is_slurm else []
    if entries:
        nodes: dict[str, list[str]] = {}
        for entry in entries:
            nodes.setdefault(entry.explanation, []).append(entry.node)
        groups = [f"{', '.join(names)} ({explanation})" for explanation, names in nodes.items()]
        yield f"jobs on {cluster.name} exclude {counted(len(entries), 'node')}: {'; '.join(groups)}"


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

    `cluster` is that of `with_denied_nodes`. Without Slurm's answer nothing is checked: sbatch then refuses the job.
    """
    slurm = cluster.profile.slurm
    denied = {entry.node: entry for entry in denied_nodes(cluster.name)}
    if slurm is None or not denied:
        return
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
        remaining = nodes - {node for names in slurm.exclude for node in expand_node_names(names)}
        largest = max(plans, key=lambda plan: plan.resources.nodes)
        if lost and largest.resources.nodes > len(remaining):
            place = f"partition {slurm.partition}" if slurm.partition else cluster.name
            because = ", ".join(f"{node}: {denied[node].reason}" for node in lost)
            what = f"{largest.label} needs {counted(largest.resources.nodes, 'node')}, and {place} has "
            what += f"{len(remaining)} of {len(nodes)} left: {len(lost)} denied ({because})"
            problems.append(Problem(what, hint=f"a smaller --scale, or {_allow(cluster, lost)}"))
    require_none(problems)


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
