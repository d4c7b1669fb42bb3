"""Who submitted what from which code: recorded with every run."""

from __future__ import annotations

import platform
import socket
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import orchestrator
from orchestrator.ownership import user_name

_PACKAGES = ("submitit", "pydantic", "jinja2", "sqlalchemy", "torch", "megatron-core")


@dataclass(frozen=True, slots=True)
class Provenance:
    user: str
    host: str
    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, str]


def provenance(checkout: Path) -> Provenance:
    """`git_commit` and `git_dirty` are None where the data folders are no git checkout (an installed wheel)."""
    commit = git_says(checkout, "rev-parse", "HEAD")
    status = git_says(checkout, "status", "--porcelain", "--untracked-files=no") if commit else None
    return Provenance(
        user=user_name(),
        host=socket.gethostname(),
        git_commit=commit,
        git_dirty=None if status is None else bool(status),
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    found = {"repro": orchestrator.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_says(folder: Path, *words: str) -> str | None:
    """None where the folder is no checkout of its own, or git cannot tell."""
    if not (folder / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
