"""Git checkouts of programs, and the check that one is at its commit."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from orchestrator.errors import Problem, ReproError

_FULL_HASH = re.compile("[0-9a-f]{40}")


def git_output(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command; None if the folder is not a checkout, or git fails."""
    if not (folder / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def is_hash(commit: str) -> bool:
    """Return whether this is a full hash, and not a branch or tag."""
    return _FULL_HASH.fullmatch(commit) is not None


def is_at(folder: Path, commit: str) -> bool:
    """Return whether HEAD of a checkout is this commit (a hash or the start of one), or this branch or tag."""
    head = git_output(folder, "rev-parse", "HEAD")
    if head is None:
        return False
    named = (git_output(folder, "rev-parse", "--verify", f"{name}^{{commit}}") for name in (commit, f"origin/{commit}"))
    return head.startswith(commit) or (not is_hash(commit) and head in named)


def require_checkout(folder: Path, url: str, commit: str) -> str:
    """Return HEAD of an existing checkout; ReproError if it is no checkout, has changes, or is at another commit."""
    location = f"{folder}:"
    head = git_output(folder, "rev-parse", "HEAD")
    if head is None:
        hint = "move it away, or name another folder"
        raise ReproError(Problem("exists, and is not a git checkout that you can read", location, hint))
    changed = git_output(folder, "status", "--porcelain", "--untracked-files=no")
    git = f"git -C {shlex.quote(str(folder))}"
    if changed is None:
        raise ReproError(
            Problem("git status does not end, so local changes are unknown", location, f"try: {git} status")
        )
    if changed:
        hint = f"look at them: {git} status; or name another folder"
        raise ReproError(Problem("this checkout has local changes, so it stays as it is", location, hint))
    if not is_at(folder, commit):
        wanted = commit[:10] if is_hash(commit) else commit
        what = f"this checkout is at commit {head[:10]}, and must be at {wanted}; it stays as it is"
        hint = f"{git} fetch --depth 1 {url} {commit} && {git} checkout --detach FETCH_HEAD; or name another folder"
        raise ReproError(Problem(what, location, hint))
    return head
