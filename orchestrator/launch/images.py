"""The images of a profile: which file stands for each, whether it is there, and who imported it when."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.clusters.container import read_image
from orchestrator.clusters.resolve import Cluster
from orchestrator.clusters.staged_images import image_uri, import_record, imported_file, is_there, recorded_uris
from orchestrator.errors import Problem, ReproError

if TYPE_CHECKING:
    from orchestrator.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class ImageRow:
    """An image of a profile. `says` is the profile's word, `location` what jobs are given: a file, or a registry's
    name for it; None until the profile is filled in.

    `there` is yes or no of a file, "on the nodes" where this machine does not see it, None where jobs use no file.
    `digest` (of the registry's `manifest`, or of the `file`), `imported` (UTC) and `user` are those of the record
    beside the file, None where the site keeps the file itself; `bytes` is the file's size.
    """

    name: str
    says: str
    location: str | None
    there: str | None
    digest: str | None
    digest_of: str | None
    imported: str | None
    user: str | None
    bytes: int | None
    where: str


def image_rows(cluster: Cluster) -> list[ImageRow]:
    """Every image of the profile, in its order."""
    container = cluster.profile.container
    return [_row(cluster, name, says) for name, says in container.images.items()] if container else []


def require_images(plans: Sequence[Plan], cluster: Cluster) -> None:
    """ReproError where this machine sees that a job's image file is missing, or was imported from somewhere else."""
    if not cluster.profile.site.login_sees_paths:
        return
    problems: list[Problem] = []
    for name in dict.fromkeys(plan.program.image for plan in plans if plan.program.image):
        file = imported_file(cluster, name)
        if file is None:
            problems += _absent_file(cluster, name)
            continue
        hint = f"repro images import --cluster {cluster.name} {shlex.quote(name)}"
        uri = image_uri(cluster, name)
        sources = recorded_uris(import_record(file)) or [uri]
        if not is_there(file):
            problems.append(Problem(f"{name} is not imported yet", hint=hint))
        elif uri not in sources:
            problems.append(Problem(f"{name}: {file} was imported from {' and '.join(sources)}", hint=hint))
    if problems:
        raise ReproError(*problems)


def image_warnings(plans: Sequence[Plan], cluster: Cluster) -> list[str]:
    """Return a warning for each image file whose folder this machine does not see: it cannot be looked for."""
    if not cluster.profile.site.login_sees_paths:
        return []
    names = dict.fromkeys(plan.program.image for plan in plans if plan.program.image)
    files = ((name, _own_file(cluster, name)) for name in names)
    return [
        f"{cluster.layered.where(('container', 'images', name))} container.images.{name}: {file} cannot be looked for, "
        f"because {file.parent} is not on this machine"
        for name, file in files
        if file is not None and not is_there(file) and not is_there(file.parent)
    ]


def _absent_file(cluster: Cluster, name: str) -> Iterator[Problem]:
    file = _own_file(cluster, name)
    if file is not None and not is_there(file) and is_there(file.parent):
        where = cluster.layered.where(("container", "images", name))
        hint = "correct the path, or put the image there; if only nodes see it, say site: {login_sees_paths: false}"
        yield Problem(f"container.images.{name}: {file}: no such file", where, hint)


def _own_file(cluster: Cluster, name: str) -> Path | None:
    """The absolute path that the profile itself names as this image; None for every other image."""
    location = cluster.image_location(name)
    own = location is not None and location.startswith("/") and imported_file(cluster, name) is None
    return Path(str(location)) if own else None


def _row(cluster: Cluster, name: str, says: str) -> ImageRow:
    location = cluster.image_location(name)
    if location is not None and location.startswith("<"):
        location = None
    path = read_image(location).path if location is not None else None
    record: dict[str, Any] = {}
    there, size = (None if location and not path else "no"), None
    if path is not None and not cluster.profile.site.login_sees_paths:
        there = "on the nodes"
    elif path is not None and is_there(Path(path)):
        there, record, size = "yes", import_record(Path(path)), _size(Path(path))
    digest, digest_of, imported, user = (_text(record, key) for key in ("digest", "digest_of", "imported", "user"))
    where = cluster.layered.where(("container", "images", name))
    return ImageRow(name, says, location, there, digest, digest_of, imported, user, size, where)


def _size(file: Path) -> int | None:
    """In bytes; None for a folder, which Apptainer takes for an image as well."""
    found = file.stat()
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _text(record: dict[str, Any], key: str) -> str | None:
    value = record.get(key)
    return value if isinstance(value, str) else None
