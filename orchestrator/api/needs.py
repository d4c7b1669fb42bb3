"""Code and data of workloads: what each needs, where it is, and its fetch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.api import DEFAULT, Session
from orchestrator.catalog.library import published_code
from orchestrator.clusters.needs import (
    FetchRecord,
    Item,
    Source,
    fetch_command,
    fetch_record,
    items_at,
    items_of,
    require_placed,
    sources_of,
)
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.launch.fetch import Fetched, fetch_items, item_state
from orchestrator.launch.offline import offline_commands
from orchestrator.workloads import find_workload, workload_name, workloads
from orchestrator.workloads.base import AnyWorkload


@dataclass(frozen=True, slots=True)
class NeedStatus:
    """What a workload needs; with a cluster that has a place for it, also the item, its state and its record.

    `state` is "there", "missing", or what is wrong.
    """

    source: Source
    item: Item | None = None
    state: str | None = None
    record: FetchRecord | None = None


@dataclass(frozen=True, slots=True)
class WorkloadNeeds:
    """A workload and all that it needs."""

    workload: AnyWorkload
    needs: tuple[NeedStatus, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Items of a workload at their places. `settings` are the fields that the profile must have for them."""

    workload: AnyWorkload
    cluster: Cluster
    items: tuple[Item, ...]
    settings: tuple[tuple[str, str], ...]

    def run(self) -> Iterator[Fetched]:
        """Fetch what is missing, on this machine. Errors are those of `fetch_items`."""
        return fetch_items(self.items)


def workload_needs(session: Session = DEFAULT) -> list[WorkloadNeeds]:
    """Return all workloads with what they need."""
    code = published_code(session.folders)
    return [
        WorkloadNeeds(workload, tuple(NeedStatus(source) for source in sources_of(workload, code)))
        for workload in workloads().values()
    ]


def show_workload(name: str, cluster: str | None = None, *, session: Session = DEFAULT) -> WorkloadNeeds:
    """Return what a workload needs; with a cluster, also what is there."""
    workload = find_workload(workload_name(name))
    sources = sources_of(workload, published_code(session.folders))
    if cluster is None:
        return WorkloadNeeds(workload, tuple(NeedStatus(source) for source in sources))
    profile = find_cluster(session.folders, cluster)
    items = {item.source.need.field: item for item in items_of(workload, profile, sources)}
    sees = profile.profile.site.login_sees_paths
    return WorkloadNeeds(workload, tuple(_status(source, items.get(source.need.field), sees) for source in sources))


def _status(source: Source, item: Item | None, is_seen: bool) -> NeedStatus:
    if item is None:
        return NeedStatus(source, None, "not in the profile" if source.is_required else "not used")
    if not is_seen:
        return NeedStatus(source, item, "on the nodes")
    return NeedStatus(source, item, item_state(item), fetch_record(item.record_file))


def plan_fetch(
    name: str, cluster: str, directory: Path | str | None = None, *, offline: bool = False, session: Session = DEFAULT
) -> Fetch:
    """Return what `Fetch.run` fetches: at the paths of the profile, or in a folder. Nothing is fetched yet.

    ReproError if the profile lacks a path, or if this machine does not see its paths (unless `offline`).
    """
    workload, profile = find_workload(workload_name(name)), find_cluster(session.folders, cluster)
    sources = sources_of(workload, published_code(session.folders))
    if directory is None:
        items = items_of(workload, profile, sources)
        require_placed(workload, profile, sources, items, is_written_here=not offline)
        return Fetch(workload, profile, tuple(items), ())
    folder = Path(directory).expanduser().absolute()
    items = items_at(sources, folder)
    return Fetch(workload, profile, tuple(items), tuple((item.source.need.field, item.value) for item in items))


def offline_fetch(name: str, cluster: str, directory: Path | str | None = None, *, session: Session = DEFAULT) -> str:
    """Return the shell commands that fetch the items on another machine, with what to copy and how to check it."""
    fetch = plan_fetch(name, cluster, directory, offline=True, session=session)
    if not fetch.items:
        raise ReproError(Problem(f"{fetch.workload.name} needs nothing from elsewhere"))
    again = fetch_command(fetch.workload.name, cluster)
    if directory is not None:
        again += f" --directory {shlex.quote(str(Path(directory).expanduser().absolute()))}"
    return offline_commands(fetch.workload.name, fetch.items, again)
