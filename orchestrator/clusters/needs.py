"""Code and data that a program needs on a cluster: where they come from, where they must be, and their records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from orchestrator.catalog.experiment import CodeFields
from orchestrator.clusters.container import MountFields
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError, require_none
from orchestrator.programs.needs import GITHUB, Need, PublicFile, Repository, TokenData, fetch_command
from orchestrator.programs.record import Program

DATA_FILES = (".bin", ".idx")
"""Extensions of the two files of a data set."""

# Neither a git option nor a path that leaves a folder.
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_REVISION = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*", re.ASCII)

OFFLINE_HINT = "without internet on this machine, --offline prints a script for another one"


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of what a field of the profile names.

    `address` is a URL, or how the data are made. `commit` is a full hash or a branch; None for files and data.
    `is_required`: a profile must set the field.
    """

    need: Need
    address: str
    commit: str | None
    is_required: bool

    @property
    def kind(self) -> str:
        """Return what it is, for people."""
        return {Repository: "git checkout", PublicFile: "file", TokenData: "token data"}[type(self.need)]

    @property
    def default_name(self) -> str:
        """Return the name in a folder of `--directory`."""
        if isinstance(self.need, PublicFile):
            return self.need.name
        if isinstance(self.need, TokenData):
            return f"random-tokens-{self.need.vocabulary}"
        commit = self.commit or ""
        short = commit[:10] if len(commit) == 40 else commit.replace("/", "-")
        return f"{self.address.rpartition('/')[2]}-{short}"

    @property
    def published_data(self) -> str | None:
        """Return the description of the paper's data; None for code and files."""
        return self.need.published if isinstance(self.need, TokenData) else None


@dataclass(frozen=True, slots=True)
class Item:
    """Need of a program at a place: a checkout, a file, or the prefix of a data set.

    `path` is its absolute path on this machine, `value` the value of the field in the profile: for a checkout it can be
    one of its folders, and in a container a path can have another name. `location` is the place of the value.
    """

    source: Source
    path: Path
    value: str
    location: str | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Paths that must exist."""
        if isinstance(self.source.need, TokenData):
            return tuple(self.path.with_name(self.path.name + ending) for ending in DATA_FILES)
        return (self.path,)

    @property
    def record_file(self) -> Path:
        """Return the file with the record of the fetch, in the folder of the item."""
        return record_file(self.path)


CORRECT = "correct the path, or create it"


@dataclass(frozen=True, slots=True)
class SitePath:
    """Path that must exist. `check` is the field of the profile, `hint` is for a missing path.

    If `is_read`, jobs read the file as the user who submits them. `record` is the record of its fetch, if it can have
    one.
    """

    check: str
    path: str
    location: str
    hint: str = CORRECT
    is_read: bool = False
    record: Path | None = None


@dataclass(frozen=True, slots=True)
class FetchRecord:
    """Record of a fetch. `sha256` has the checksum of each file by name; `fetched` is a time in UTC."""

    source: str
    commit: str | None
    sha256: Mapping[str, str]
    fetched: str
    user: str


def sources_of(program: Program, code: Mapping[str, CodeFields]) -> list[Source]:
    """Return what the program needs. Published code of a paper replaces the repository of the program."""
    return [_source(program, need, code) for need in program.needs]


def _source(program: Program, need: Need, code: Mapping[str, CodeFields]) -> Source:
    is_required = program.site.model_fields[need.field].is_required()
    if isinstance(need, PublicFile):
        return Source(need, need.url, None, is_required)
    if isinstance(need, TokenData):
        return Source(need, f"random tokens below {need.vocabulary}, made by repro", None, is_required)
    name, commit = need.name, need.commit
    published = code.get(program.name) if need.field == "checkout" else None
    if published is not None:  # as for the jobs (JobContext.commit)
        name, commit = published.repository, published.commit
    if name is None or commit is None:
        raise ReproError(Problem(f"no paper.yaml names the code of {program.name}"))
    if not _REPOSITORY.fullmatch(name) or not _REVISION.fullmatch(commit):
        what = f"code of {program.name}: {name} at {commit}: not a repository of GitHub with a commit, branch or tag"
        raise ReproError(Problem(what, hint="correct code: in paper.yaml"))
    return Source(need, f"{GITHUB}/{name}", commit, is_required)


def items_at(sources: Sequence[Source], directory: Path, data_name: str | None = None) -> list[Item]:
    """Return the required items in a folder, under their default names, or with another name of the data set."""
    names = {
        source: data_name if data_name and isinstance(source.need, TokenData) else source.default_name
        for source in sources
        if source.is_required
    }
    return [
        Item(source, directory / name, str(directory / name / getattr(source.need, "subfolder", "")))
        for source, name in names.items()
    ]


def items_of(program: Program, cluster: Cluster, sources: Sequence[Source]) -> list[Item]:
    """Return the items at the paths of the profile. Open values, and optional fields without a value, are left out."""
    items: list[Item] = []
    for source in sources:
        need = source.need
        value = getattr(cluster.profile.programs.site(program.name), need.field, None)
        if value is not None and not value.startswith("<"):
            subfolder = f"/{need.subfolder}" if isinstance(need, Repository) and need.subfolder else ""
            path = Path(host_path(value, cluster).removesuffix(subfolder))
            items.append(Item(source, path, value, cluster.location(("programs", program.name, need.field))))
    return items


def needed_paths(program: Program, cluster: Cluster) -> Iterator[SitePath]:
    """Yield the absolute paths of the profile that jobs of the program read. Open values are left out."""
    site = cluster.profile.programs.site(program.name)
    for need in program.needs:
        value = getattr(site, need.field, None)
        if value is None or not value.startswith("/"):
            continue
        path, location = host_path(value, cluster), cluster.location(("programs", program.name, need.field))
        check, hint = f"programs.{program.name}.{need.field}", fetch_command(program.name, cluster.name)
        for ending in DATA_FILES if isinstance(need, TokenData) else ("",):
            yield SitePath(check, path + ending, location, hint, record=record_file(Path(path)))


def require_placed(
    program: Program, cluster: Cluster, sources: Sequence[Source], items: Sequence[Item], *, is_written_here: bool
) -> None:
    """Raise ReproError if the profile lacks a required path.

    With `is_written_here`, also if this machine does not see the paths.
    """
    problems: list[Problem] = []
    placed = {item.source.need.field for item in items}
    missing = [source.need.field for source in sources if source.is_required and source.need.field not in placed]
    if missing:
        what = f"programs.{program.name}: {', '.join(missing)} not filled in"
        hint = f"set them in {shown(cluster.overlay)}, or choose a folder: --directory /SHARED/FOLDER"
        problems.append(Problem(what, cluster.location(("programs", program.name)), hint))
    if is_written_here and not cluster.profile.site.login_sees_paths:
        location = cluster.location(("site", "login_sees_paths"))
        hint = "add --offline: it prints a script, which you can run on a machine that sees them"
        problems.append(Problem("this machine does not see the paths of the profile", location, hint))
    require_none(problems)


def host_path(path: str, cluster: Cluster) -> str:
    """Return the path on the host of a path in the container."""
    for source, target in _mounts(cluster):
        if f"{path}/".startswith(f"{target}/"):
            return source + path[len(target) :]
    return path


def _mounts(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield the folders of the host that containers of jobs have, each with its path in the container."""
    container = cluster.profile.container
    for item in container.mounts if container else ():
        source, _, rest = (item.mount if isinstance(item, MountFields) else item).partition(":")
        if source.startswith("/"):
            yield source.rstrip("/"), (rest.partition(":")[0] or source).rstrip("/")


def unmounted(cluster: Cluster, items: Sequence[Item]) -> list[Item]:
    """Return the files and data that jobs do not see in their container. Job scripts mount the checkout themselves.

    Empty for runtimes that mount file systems of the site by themselves.
    """
    container = cluster.profile.container
    if container is None or container.record.mounts_site:
        return []
    targets = [target for _, target in _mounts(cluster)]
    return [
        item
        for item in items
        if not isinstance(item.source.need, Repository)
        and not any(f"{item.value}/".startswith(f"{target}/") for target in targets)
    ]


def record_file(path: Path) -> Path:
    """Return the file with the record of what was fetched to this path."""
    return path.with_name(f"{path.name}.fetched.json")


def fetch_record(file: Path) -> FetchRecord | None:
    """Return the record in this file; None if there is none, or if it cannot be read."""
    try:
        return TypeAdapter(FetchRecord).validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None
