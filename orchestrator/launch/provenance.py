"""Who submitted what from which code: recorded with every run."""

from __future__ import annotations

import getpass
import platform
import shlex
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import orchestrator
from orchestrator.errors import Problem, ReproError
from orchestrator.planning.plan import Plan
from orchestrator.workloads.program import Program

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
    commit = _git(checkout, "rev-parse", "HEAD")
    status = _git(checkout, "status", "--porcelain", "--untracked-files=no") if commit else None
    return Provenance(
        user=_user(),
        host=socket.gethostname(),
        git_commit=commit,
        git_dirty=None if status is None else bool(status),
        versions=_versions(),
    )


def require_commits(plans: Sequence[Plan]) -> None:
    """ReproError where a checkout that this machine sees is at another commit than its jobs would be recorded with."""
    problems = []
    for folder, commit in dict.fromkeys((_checkout(plan.program), plan.program.code) for plan in plans):
        head = _git(Path(folder), "rev-parse", "HEAD") if folder else None
        if head is not None and not head.startswith(commit):
            what = f"{folder} is at commit {head[:10]}, and the jobs would say {commit[:10]}"
            problems.append(Problem(what, mend=f"git -C {shlex.quote(str(folder))} checkout {commit}"))
    if problems:
        raise ReproError(*problems)


def _checkout(program: Program) -> str | None:
    return next((value for value, path in program.site_values if path[-1] == "checkout"), None)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"  # a container's uid without a name


def _versions() -> dict[str, str]:
    found = {"repro": orchestrator.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git(folder: Path, *words: str) -> str | None:
    if not (folder / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
