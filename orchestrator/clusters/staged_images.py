"""Images that `repro images import` left in the staging folder: a link for each, its file, and a record beside it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from orchestrator.clusters.container import read_image
from orchestrator.clusters.resolve import Cluster


def imported_file(cluster: Cluster, name: str) -> Path | None:
    """The file that an import of this image leaves for jobs; None where they use something else."""
    container, location = cluster.profile.container, cluster.image_location(name)
    says = container.images.get(name) if container else None
    if says is None or location is None or location == says or location.startswith("<"):
        return None
    return Path(location)


def image_uri(cluster: Cluster, name: str) -> str:
    """Return the address that this image is imported from, in the syntax of the tool that imports it."""
    container = cluster.profile.container
    assert container is not None
    image = read_image(container.images[name])
    return f"docker://{image.for_docker if container.runtime == 'apptainer' else image.for_enroot}"


def import_record(file: Path) -> dict[str, Any]:
    """What an import wrote beside the file; {} where there is nothing readable."""
    try:
        found = json.loads(Path(f"{file.resolve()}.json").read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: links that go round in a circle
        return {}
    return found if isinstance(found, dict) else {}


def recorded_uris(record: dict[str, Any]) -> list[str]:
    """Return the names under which the image was imported, the first one first."""
    others = record.get("other_uris")
    return [uri for uri in (record.get("uri"), *(others if isinstance(others, list) else ())) if isinstance(uri, str)]


def recorded_digest(record: dict[str, Any]) -> str | None:
    """Return `sha256:` and 64 digits; None where the record has no such digest."""
    digest = record.get("digest")
    return digest if isinstance(digest, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else None


def image_of_jobs(cluster: Cluster, name: str) -> tuple[str | None, str | None]:
    """Return what jobs use as the image of this name, and its digest where an import recorded it.

    Jobs use the file with the digest in its name, not the link to it: a later import changes the link, and a queued job
    would run with another image than its identity says.
    """
    location = cluster.image_location(name)
    if location is None or not location.startswith("/") or not cluster.profile.site.login_sees_paths:
        return location, None
    file = Path(location)
    digest = recorded_digest(import_record(file))
    target = _link(file) if digest else None
    return (str(file.with_name(target)) if target else location), digest


def is_there(file: Path) -> bool:
    return os.path.exists(file)  # noqa: PTH110  False, too, where it cannot be looked at


def _link(file: Path) -> str | None:
    """Return the name in the same folder that this link has as its target; None for every other file."""
    try:
        target = os.readlink(file)  # noqa: PTH115  the text, as it stands
    except OSError:
        return None
    return target if "/" not in target else None
