"""Program of a case on a cluster, and the images of its jobs.

`repro images import` creates three files for each image in the staging folder: a link, its target and a record.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import Paper
from orchestrator.clusters.container import read_image
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import Folders
from orchestrator.workloads import find_workload
from orchestrator.workloads.base import ContainerImage, JobContext, Program


def program_for(case: Case, paper: Paper, cluster: Cluster, folders: Folders) -> Program:
    """Return the program of a case on a cluster.

    ReproError if the profile does not define the workload, the paper has no code for it, or the workload does not
    support a setting of the case.
    """
    workload = find_workload(case.workload)
    site = cluster.profile.workloads.site(workload.name)
    if site is None:
        needed = [name for name, field in workload.site.model_fields.items() if field.is_required()]
        hint = f"set in the profile: workloads: {workload.name}: {', '.join(needed)}"
        raise ReproError(Problem(f"{cluster.name} does not define workload {workload.name}", hint=hint))
    job = JobContext(case, paper, site, _image(workload.name, paper, cluster), folders)
    return workload.program(job, workload.all_arguments(case, site))


def is_offered(workload: str, cluster: Cluster) -> bool:
    """Return whether the profile defines the workload."""
    return cluster.profile.workloads.site(workload) is not None


def image_of(workload: str, paper: Paper, cluster: Cluster) -> tuple[str | None, str | None]:
    """Return the name of a workload's image in the paper and its path at the site; (None, None) without one."""
    if cluster.profile.container is None:
        return None, None
    name = paper.images.get(workload, workload)
    return name, cluster.image_location(name)


def _image(workload: str, paper: Paper, cluster: Cluster) -> ContainerImage:
    name, _ = image_of(workload, paper, cluster)
    return ContainerImage(name, *image_of_jobs(cluster, name)) if name is not None else ContainerImage()


def imported_file(cluster: Cluster, name: str) -> Path | None:
    """Return the file that the import of this image creates; None if jobs do not use an imported file."""
    container, location = cluster.profile.container, cluster.image_location(name)
    given = container.images.get(name) if container else None
    if given is None or location is None or location == given or location.startswith("<"):
        return None
    return Path(location)


def image_uri(cluster: Cluster, name: str) -> str:
    """Return the address that this image is imported from, in the syntax of the tool that imports it."""
    container = cluster.profile.container
    assert container is not None
    image = read_image(container.images[name])
    return f"docker://{image.for_docker if container.runtime == 'apptainer' else image.for_enroot}"


def import_record(file: Path) -> dict[str, Any]:
    """Return the record that the import wrote beside the file; {} if it cannot be read."""
    try:
        record = json.loads(Path(f"{file.resolve()}.json").read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links
        return {}
    return record if isinstance(record, dict) else {}


def recorded_uris(record: dict[str, Any]) -> list[str]:
    """Return the addresses that the image was imported from, the first one first."""
    others = record.get("other_uris")
    return [uri for uri in (record.get("uri"), *(others if isinstance(others, list) else ())) if isinstance(uri, str)]


def recorded_digest(record: dict[str, Any]) -> str | None:
    """Return the digest, `sha256:` and 64 digits; None if the record has none."""
    digest = record.get("digest")
    return digest if isinstance(digest, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else None


def image_of_jobs(cluster: Cluster, name: str) -> tuple[str | None, str | None]:
    """Return the image that jobs use for this name, and its digest if an import recorded it.

    Jobs use the file with the digest in its name and not the link to it. A later import changes the link, and a queued
    job would run with an image that does not match its identity.
    """
    location = cluster.image_location(name)
    if location is None or not location.startswith("/") or not cluster.profile.site.login_sees_paths:
        return location, None
    file = Path(location)
    digest = recorded_digest(import_record(file))
    target = _link(file) if digest else None
    return (str(file.with_name(target)) if target else location), digest


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
class ImageRow:
    """Image of a profile.

    `says` is the value in the profile. `location` is the file or registry name for jobs, if filled in.
    `there` is yes or no for a file, "on the nodes" if this machine does not see it, and None if jobs use no file.
    `digest` (of the registry's `manifest`, or of the `file`), `imported` (UTC) and `user` are from the record beside
    the file; None if the site keeps the file itself. `bytes` is the size of the file.
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
    """Return the images of the profile, in its order."""
    container = cluster.profile.container
    return [_row(cluster, name, says) for name, says in container.images.items()] if container else []


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
    """Return the size in bytes; None for a folder, which Apptainer accepts as an image."""
    found = file.stat()
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _text(record: dict[str, Any], key: str) -> str | None:
    value = record.get(key)
    return value if isinstance(value, str) else None
