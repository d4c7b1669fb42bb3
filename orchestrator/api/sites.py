"""Needs of a site: code and data of programs, the deny list of nodes, and the settings of every command."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from orchestrator.api import DEFAULT, Session, default_cluster
from orchestrator.catalog.library import published_code
from orchestrator.clusters.program import (
    FetchRecord,
    Item,
    Source,
    items_at,
    items_of,
    require_placed,
    sources_of,
    stored_record,
    unmounted,
)
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.config.model import read_model
from orchestrator.config.user import user_defaults
from orchestrator.config.yaml import Document, Location, YamlValue, shown
from orchestrator.errors import Problem, ReproError, require_none
from orchestrator.fields import Field, row_of
from orchestrator.launch.denied_nodes import (
    DeniedNode,
    DenyEntry,
    change_denied_nodes,
    denied_clusters,
    denied_nodes,
    known_nodes,
)
from orchestrator.launch.fetch import Fetched, fetch_items, item_state, render_fetch, require_usable_text
from orchestrator.masking import masked, masked_address
from orchestrator.paths import Folders, default_config_file, find_folders, user_config_file
from orchestrator.programs.record import Program, TextFile, fetch_command, find_program, program_name, programs
from orchestrator.slurm.notation import MOST_NODES, expand_node_names


@dataclass(frozen=True, slots=True)
class NeedRow:
    """Code or data that a program needs, and its state on a cluster: "there", "missing", or what is wrong.

    `commit` is the one that was fetched, else the one to fetch.
    """

    field: Annotated[str, Field(of="need.field")]
    what: Annotated[str, Field(of="kind")]
    required: Annotated[bool, Field(of="is_required")]
    state: str | None
    path: str | None
    fetched: str | None
    commit: str | None
    source: Annotated[str, Field(of="address")]
    sha256: str | None


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """A program, its commit, and the profile's fields that it needs."""

    program: str
    about: str
    commit: str | None
    needs: Sequence[str]


@dataclass(frozen=True, slots=True)
class ProgramNeeds:
    """A program and all that it needs. `published_data` are descriptions of the paper's data."""

    row: ProgramRow
    needs: tuple[NeedRow, ...]
    published_data: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """Code or data that was fetched, or was there."""

    field: Annotated[str, Field(of="item.source.need.field")]
    how: str
    files: Annotated[Sequence[Path], Field(of="item.files")]


@dataclass(frozen=True, slots=True)
class FetchedSetting:
    """A field of the profile to set, and its value."""

    field: str
    value: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Items of a program at their places.

    `settings` are the fields that the profile must have for them; empty if it has them. `command` is this command of
    `repro`. With `text`, data are those of the text.
    """

    program: Program
    cluster: Cluster
    items: tuple[Item, ...]
    settings: tuple[FetchedSetting, ...]
    templates: Path
    command: str
    text: TextFile | None = None

    @property
    def unmounted(self) -> list[str]:
        """Return the folders that `container: mounts:` of the profile lacks."""
        return sorted({str(Path(item.value).parent) for item in unmounted(self.cluster, self.items)})

    @property
    def script(self) -> str:
        """Return the script that fetches code and files on any machine."""
        return render_fetch(self.items, self.templates, self.command)

    def run(self, notify: Callable[[str], None] = lambda _: None) -> Iterator[Fetched]:
        """Fetch what is missing, on this machine. `notify` gets the script's output. Errors: `fetch_items`."""
        return fetch_items(self.items, self.templates, self.command, self.text, notify)


def program_needs(session: Session = DEFAULT) -> list[ProgramNeeds]:
    """Return all programs with what they need."""
    code = published_code(session.folders)
    return [_needs(program, sources_of(program, code)) for program in programs().values()]


def show_program(name: str, cluster: str | None = None, *, session: Session = DEFAULT) -> ProgramNeeds:
    """Return what a program needs; with a cluster, also what is there."""
    program = find_program(program_name(name))
    sources = sources_of(program, published_code(session.folders))
    return _needs(program, sources, None if cluster is None else find_cluster(session.folders, cluster))


def _needs(program: Program, sources: Sequence[Source], profile: Cluster | None = None) -> ProgramNeeds:
    items = {} if profile is None else {item.source.need.field: item for item in items_of(program, profile, sources)}
    commit = next((source.commit for source in sources if source.commit), None)
    required = [source.need.field for source in sources if source.is_required]
    return ProgramNeeds(
        ProgramRow(program.name, program.about, commit, required),
        tuple(_need(source, items.get(source.need.field), profile) for source in sources),
        tuple(source.published_data for source in sources if source.published_data),
    )


def _need(source: Source, item: Item | None, profile: Cluster | None) -> NeedRow:
    """Return a need; with a profile, also its state, and with an item that this machine sees, the record of a fetch."""
    state, record = None, None
    if item is None and profile is not None:
        state = "not in the profile" if source.is_required else "not used"
    elif item is not None and profile is not None:
        is_seen = profile.profile.site.login_sees_paths
        state = item_state(item) if is_seen else "on the nodes"
        record = stored_record(FetchRecord, item.record_file) if is_seen else None
    return row_of(
        NeedRow,
        source,
        state=state,
        path=None if item is None else str(item.path),
        fetched=record and record.fetched,
        commit=(record and record.commit) or source.commit,
        sha256=getattr(source.need, "sha256", None),
    )


def plan_fetch(
    name: str,
    cluster: str,
    *,
    directory: Path | str | None = None,
    text: Path | str | None = None,
    python: str | None = None,
    offline: bool = False,
    session: Session = DEFAULT,
) -> Fetch:
    """Return what `Fetch.run` fetches. Nothing is fetched yet.

    `directory` is the folder for all items, in place of the paths of the profile. `text` is a file to make data of, and
    `python` the Python that has the program's packages, by default the one of this process. With `offline`,
    `Fetch.script` fetches code and files on a machine with internet, to places below any folder.

    ReproError if the profile lacks a path, if this machine does not see its paths, or if the text cannot be used.
    """
    program, profile = find_program(program_name(name)), find_cluster(session.folders, cluster)
    sources = sources_of(program, published_code(session.folders))
    if directory is None:
        items = items_of(program, profile, sources)
        require_placed(program, profile, sources, items, is_written_here=not offline)
        settings: tuple[FetchedSetting, ...] = ()
    else:
        # The name that the tool gives to the data of a text.
        items = items_at(sources, _absolute(directory), None if text is None else f"{Path(text).stem}_text_document")
        settings = tuple(FetchedSetting(item.source.need.field, item.value) for item in items)
        site = profile.profile.programs.site(program.name)
        if all(getattr(site, setting.field, None) == setting.value for setting in settings):
            settings = ()
    given = None
    if text is not None:
        given = TextFile(_absolute(text), python or sys.executable)
        require_usable_text(given, program.name, items)
    paths = {"--directory": directory and _absolute(directory), "--text": text and _absolute(text), "--python": python}
    words = [f"{option} {shlex.quote(str(path))}" for option, path in paths.items() if path]
    command = " ".join([fetch_command(program.name, cluster), *words])
    if offline and not items:
        raise ReproError(Problem(f"{program.name} needs nothing from elsewhere"))
    return Fetch(program, profile, tuple(items), settings, session.folders.templates, command, given)


def _absolute(path: Path | str) -> Path:
    if not str(path):
        raise ReproError(Problem("the name of a folder or file is empty", hint="give a path"))
    return Path(path).expanduser().absolute()


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
    require_none(Problem("not node names", f"{text}:", hint) for text in texts if not expand_node_names(text))
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
    require_none(Problem(what, f"{name}:", hint) for name in names if name not in known)


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """A setting that applies to every command. `origin` is an option, a variable, `file:line:column` or a default."""

    setting: str
    value: str | tuple[str, ...] | None
    origin: str


def config_rows(database: str | None = None) -> list[ConfigRow]:
    """Return the settings of every command, with secrets masked. ReproError has every problem of the configuration.

    `database` is the value of the option.
    """
    folders, file, defaults = find_folders(), user_config_file(), user_defaults()
    default_cluster()  # for its problems
    ledger = database or defaults.database or str(folders.home / "results.db")
    origins = {"cluster": "not set", "database": "default", "notify": "not set", **defaults.origins}
    if database:
        origins["database"] = "--database"
    return [
        ConfigRow("configuration", shown(file or default_config_file()), "file" if file else "no such file"),
        ConfigRow("home", str(folders.home), folders.home_origin),
        ConfigRow("cluster", defaults.cluster, origins["cluster"]),
        ConfigRow("database", masked(ledger), origins["database"]),
        ConfigRow(
            "notify", tuple(masked_address(address.url) for address in defaults.notify) or None, origins["notify"]
        ),
    ]
