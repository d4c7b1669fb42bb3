"""Git checkouts of programs: fetched at one commit, and never changed where they exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from orchestrator.clusters.needs import OFFLINE_HINT
from orchestrator.errors import Problem, ReproError, Unreachable

_FULL_HASH = re.compile("[0-9a-f]{40}")

# A connection that brings fewer than 1,000 bytes/s for 60 s counts as lost.
_OPTIONS = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60", "-c", "core.hooksPath=/dev/null")

_NETWORK = re.compile(
    "could not resolve|failed to connect|couldn't connect|connection (refused|reset|timed out|was reset)|timed out"
    "|network is unreachable|no route to host|unable to look up|early eof|the remote end hung up|returned error: 5"
    "|operation too slow|unexpected disconnect|recv failure|could not read from remote repository",
    re.IGNORECASE,
)
_NOT_OFFERED = re.compile("not our ref|unadvertised object|couldn't find remote ref|no such remote ref", re.IGNORECASE)
_NO_SPACE = re.compile("no space left|disk quota exceeded", re.IGNORECASE)


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
        what = f"this checkout is at commit {head[:10]}, and must be at {_shown(commit)}; it stays as it is"
        hint = f"{git} fetch --depth 1 {url} {commit} && {git} checkout --detach FETCH_HEAD; or name another folder"
        raise ReproError(Problem(what, location, hint))
    return head


def fetch_checkout(url: str, commit: str, target: Path, part: Path) -> str:
    """Fetch a commit, or a branch or tag, into `part`, and rename it to `target`. Return the full hash.

    An existing `part` is continued. ReproError if the repository does not have the commit; Unreachable without a
    connection.
    """
    if shutil.which("git") is None:
        raise ReproError(Problem("git is not on this machine", hint="load or install git, then repeat the command"))
    for lock in part.glob(".git/*.lock"):  # left by a killed git; the caller excludes other fetches
        lock.unlink()
    _git(url, "init", "-q", str(part))
    if git_output(part, "remote", "get-url", "origin") is None:
        _git(url, "-C", str(part), "remote", "add", "origin", url)
    try:
        _git(url, "-C", str(part), "fetch", "-q", "--no-tags", "--depth", "1", "origin", commit)
        revision = "FETCH_HEAD"
    except _NotOffered:
        _fetch_everything(url, commit, part)
        revision = commit
    if not is_hash(commit):  # by which `is_at` knows the branch or tag
        _git(url, "-C", str(part), "update-ref", f"refs/remotes/origin/{commit}", f"{revision}^{{commit}}")
    _git(url, "-C", str(part), "checkout", "-q", "--force", "--detach", revision)
    head = require_checkout(part, url, commit)
    os.rename(part, target)  # noqa: PTH104  replaces an empty folder; Path.replace is the same call
    return head


def _fetch_everything(url: str, commit: str, part: Path) -> None:
    """Fetch all branches and tags: the server offers no single commits, or the hash is abbreviated."""
    unshallow = ("--unshallow",) if (part / ".git" / "shallow").exists() else ()
    _git(url, "-C", str(part), "fetch", "-q", "--tags", *unshallow, "origin", "+refs/heads/*:refs/remotes/origin/*")
    if git_output(part, "cat-file", "-t", commit) != "commit":
        what = f"the repository has no commit, branch or tag {_shown(commit)}"
        raise ReproError(Problem(what, f"{url}:"))


class _NotOffered(Exception):
    """The server does not offer a commit or branch."""


def _git(url: str, *words: str) -> None:
    """Run git; raise the error that its message stands for."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_DIR")}
    environment = {**kept, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    command = ["git", *_OPTIONS, *words]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    if done.returncode == 0:
        return
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reason = next(
        (line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "git failed"
    )
    if _NO_SPACE.search(done.stderr):
        raise ReproError(Problem(f"git: {reason}", f"{url}:", "free space, then repeat the command"))
    if _NOT_OFFERED.search(done.stderr):
        raise _NotOffered(reason)
    if _NETWORK.search(done.stderr):
        raise Unreachable(Problem(f"git: {reason}", f"{url}:", OFFLINE_HINT))
    raise ReproError(Problem(f"git: {reason}", f"{url}:"))


def _shown(commit: str) -> str:
    return commit[:10] if is_hash(commit) else commit
