"""Program of a case on a cluster: its code and data, their places and records, and the images of its jobs.

`repro images import` creates three files for each image in the staging folder: a link, its target and a record.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import StringConstraints, TypeAdapter

from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import CodeFields, Paper
from orchestrator.catalog.library import Entry
from orchestrator.clusters.container import MountFields, read_image
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError, require_none
from orchestrator.job_spec import Resources
from orchestrator.paths import Folders
from orchestrator.programs.command import BoundProgram, ContainerImage, job_command, without_flags
from orchestrator.programs.record import (
    DATA_FILES,
    GITHUB,
    JobContext,
    Need,
    Program,
    PublicFile,
    Repository,
    TokenData,
    directory_hint,
    fetch_command,
    find_program,
)

_Record = TypeVar("_Record")

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
        return {Repository: "git checkout", PublicFile: "file"}.get(type(self.need), "token data")

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
    items: list[Item] = []
    for source in (source for source in sources if source.is_required):
        path = directory / (data_name if data_name and isinstance(source.need, TokenData) else source.default_name)
        items.append(Item(source, path, str(path / getattr(source.need, "subfolder", ""))))
    return items


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


def stored_record(record_type: type[_Record], file: Path) -> _Record | None:
    """Return the record in this JSON file; None if there is none, or if it cannot be read."""
    try:
        return TypeAdapter(record_type).validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None


_HEAD_BYTES = 128
_SQUASHFS, _SQUASHFS_BYTES = b"hsqs", 96
_SIF, _SIF_AT, _SIF_CREATED_AT = b"SIF_MAGIC\0", 32, 64
_NS = 10**9


def file_identity(file: Path) -> str | None:
    """Return the identity of an image file, as `FORMAT:BYTES:TIME[:DIGEST]`; None if this machine cannot read it.

    A squashfs or SIF has the time of its creation and a digest of its superblock, so a copy has the same identity. A
    file of another format has the time of its last change. A folder has none: its own time is not that of its files.

    The superblock of squashfs 4.0 has the creation time in seconds at byte 8, and also the number of files, the bytes
    used and the positions of all tables (kernel, fs/squashfs/squashfs_fs.h). The header of SIF has a random id at byte
    48 and its creation time at byte 64 (sylabs/sif, pkg/sif/sif.go).
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block
        try:
            status, head = os.fstat(descriptor), b""
            if stat.S_ISREG(status.st_mode):
                head = os.read(descriptor, _HEAD_BYTES)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):  # ValueError: the path has a NUL
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    if head.startswith(_SQUASHFS) and len(head) >= _SQUASHFS_BYTES:
        created = struct.unpack_from("<I", head, 8)[0] * _NS
        return _text("squashfs", status.st_size, created, head[:_SQUASHFS_BYTES])
    if head[_SIF_AT:].startswith(_SIF) and len(head) == _HEAD_BYTES:
        return _text("sif", status.st_size, struct.unpack_from("<q", head, _SIF_CREATED_AT)[0] * _NS, head)
    return _text("file", status.st_size, status.st_mtime_ns)


def _text(kind: str, size: int, time_ns: int, superblock: bytes = b"") -> str:
    seconds, rest = divmod(time_ns, _NS)
    try:
        time = f"{datetime.fromtimestamp(seconds, timezone.utc):%Y%m%dT%H%M%S}"
    except (ValueError, OverflowError, OSError):  # a garbled header
        time = str(seconds)
    fraction = f".{rest:09}" if rest else ""
    digest = f":{hashlib.sha256(superblock).hexdigest()[:12]}" if superblock else ""
    return f"{kind}:{size}:{time}{fraction}Z{digest}"


def program_for(case: Case, paper: Paper, cluster: Cluster, folders: Folders) -> BoundProgram:
    """Return the program of a case on a cluster.

    ReproError if the profile does not define the program, the paper has no code for it, or the program does not
    support a setting of the case.
    """
    program = find_program(case.program)
    site = cluster.profile.programs.site(program.name)
    if site is None:
        needed = [name for name, field in program.site.model_fields.items() if field.is_required()]
        hint = f"set in the profile: programs: {program.name}: {', '.join(needed)}"
        if program.needs:
            hint += f"; {directory_hint(program.name, cluster.name)}"
        raise ReproError(Problem(f"{cluster.name} does not define program {program.name}", hint=hint))
    return program.bind(JobContext(case, paper, site, _image(case, paper, cluster), folders))


def described_program(
    case: Case, entry: Entry, cluster: Cluster, folders: Folders, resources: Resources
) -> BoundProgram:
    """Return the program of a case whose experiment describes it. ReproError for each file that is missing."""
    fields = case.described
    assert fields is not None
    settings = {**case.settings, "gpus": case.gpus, "nodes": resources.nodes, "processes": resources.tasks}
    command = job_command(fields, settings, entry.file.parent, lambda path: entry.location("program", *path))
    image, path = _image(case, entry.paper, cluster), cluster.profile.programs.described(case.program).path
    first = command.words[0]
    return BoundProgram(
        name=case.program,
        command=command.words[:1],
        arguments=(*without_flags(command.words[1:], case.argument_changes), *case.arguments),
        code=command.version,
        python=first if re.fullmatch(r"(/.*/)?python[0-9.]*", first) else None,
        image=image.name,
        image_path=image.path,
        image_digest=image.digest,
        environment=command.environment,
        data=None,
        site_values=((path, ("programs", case.program, "path")),) if path else (),
        launcher=None,
        path=path,
        origin=entry.location("program"),
        copies=str(folders.program(re.sub(r"[^\w.-]", "_", f"{case.program}-{command.version}"))),
        files=command.files,
        steps=command.steps,
    )


def _image(case: Case, paper: Paper, cluster: Cluster) -> ContainerImage:
    name, path = image_of(case, paper, cluster)
    return ContainerImage() if name is None else ContainerImage(name, *image_of_jobs(cluster, name, path))


def is_offered(program: str, cluster: Cluster) -> bool:
    """Return whether the profile defines the program."""
    return cluster.profile.programs.site(program) is not None


def image_of(case: Case, paper: Paper, cluster: Cluster) -> tuple[str | None, str | None]:
    """Return the name of a case's image and its path at the site; (None, None) without containers.

    The name is that of the program in the paper. For a program that the experiment describes, the profile decides
    before the experiment, and both may give a file or the name in a registry in place of a name of `container.images`.
    """
    container = cluster.profile.container
    if container is None:
        return None, None
    if case.described is None:
        name = paper.images.get(case.program, case.program)
        return name, cluster.image_location(name) or cluster.example_image(name)
    of_profile = case.program if case.program in container.images else None
    given = cluster.profile.programs.described(case.program).image or of_profile or case.described.image
    if given is None:
        return case.program, cluster.example_image(case.program)
    return given, cluster.image_location(given) or given


def imported_file(cluster: Cluster, name: str) -> Path | None:
    """Return the file that the import of this image creates; None if jobs do not use an imported file."""
    container, source = cluster.profile.container, cluster.image_location(name)
    value = container.images.get(name) if container else None
    if value is None or source is None or source == value or source.startswith("<"):
        return None
    return Path(source)


def image_uri(cluster: Cluster, name: str) -> str:
    """Return the address that this image is imported from, in the syntax of the tool that imports it."""
    container = cluster.profile.container
    assert container is not None
    image = read_image(container.images[name])
    return f"docker://{image.for_docker if container.record.imports_by == 'apptainer' else image.for_enroot}"


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """Record of an import, beside the imported file. Missing fields are empty.

    `uri` and `other_uris` are the addresses that the image was imported from. `digest` is that of the registry's
    `manifest` or of the `file` (`digest_of`). `imported` is a time in UTC.
    """

    uri: str | None = None
    other_uris: tuple[str, ...] = ()
    digest: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    digest_of: str | None = None
    imported: str | None = None
    user: str | None = None

    @property
    def uris(self) -> tuple[str, ...]:
        """All addresses, the first one first."""
        return (self.uri, *self.other_uris) if self.uri else self.other_uris


def import_record(file: Path) -> ImportRecord:
    """Return the record beside the file. It is empty if it cannot be read."""
    try:
        return stored_record(ImportRecord, Path(f"{file.resolve()}.json")) or ImportRecord()
    except (ValueError, RuntimeError):  # a NUL in the name; a loop of links
        return ImportRecord()


def image_of_jobs(cluster: Cluster, name: str, path: str | None = None) -> tuple[str | None, str | None]:
    """Return the image that jobs use for this name, and the digest that an import recorded, else the file's identity.

    The second is None for an image of a registry, and for a file that this machine does not see or cannot read.
    Jobs use the file with the digest in its name and not the link to it. A later import changes the link, and a queued
    job would run with an image that does not match its identity. A command reads each file once.
    `path` is the image if the profile has none of this name.
    """
    location = cluster.image_location(name) or path
    if location is None or not location.startswith("/") or not cluster.profile.site.login_sees_paths:
        return location, None
    if location not in cluster.image_files:
        file = Path(location)
        digest = import_record(file).digest
        target = _link(file) if digest else None
        used = str(file.with_name(target) if target else file)
        cluster.image_files[location] = used, digest or file_identity(file)
    return cluster.image_files[location]


def is_there(file: Path) -> bool:
    """Return whether a file exists; False if its folder cannot be read."""
    return os.path.exists(file)  # noqa: PTH110  Path.exists raises PermissionError


def _link(file: Path) -> str | None:
    """Return the target of a link if it is in the same folder; None for every other file."""
    try:
        target = os.readlink(file)  # noqa: PTH115  the unchanged text
    except OSError:
        return None
    return target if "/" not in target else None


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image of a profile with the record of its import, which is empty if the site keeps the file itself.

    `value` is the value in the profile, at `location`. `source` is the file or registry name for jobs, if filled in.
    `there` is yes or no for a file, "on the nodes" if this machine does not see it, and None if jobs use no file.
    `bytes` is the size of the file.
    """

    image: str
    value: str
    source: str | None
    there: str | None
    digest: str | None
    digest_of: str | None
    imported: str | None
    user: str | None
    bytes: int | None
    location: str


def image_rows(cluster: Cluster) -> list[ImageFile]:
    """Return the images of the profile, in its order."""
    container = cluster.profile.container
    return [_row(cluster, name, value) for name, value in container.images.items()] if container else []


def _row(cluster: Cluster, name: str, value: str) -> ImageFile:
    source = cluster.image_location(name)
    if source is not None and source.startswith("<"):
        source = None
    path = read_image(source).path if source is not None else None
    record, size = ImportRecord(), None
    there = None if source and not path else "no"
    if path is not None and not cluster.profile.site.login_sees_paths:
        there = "on the nodes"
    elif path is not None and is_there(Path(path)):
        there, record, status = "yes", import_record(Path(path)), Path(path).stat()
        size = status.st_size if stat.S_ISREG(status.st_mode) else None  # Apptainer accepts a folder as an image
    recorded = record.digest, record.digest_of, record.imported, record.user
    return ImageFile(name, value, source, there, *recorded, size, cluster.location(("container", "images", name)))
