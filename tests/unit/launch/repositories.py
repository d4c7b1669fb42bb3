"""Git repositories of tests, and items of a program that come from them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from orchestrator.clusters.program import Item, Source
from orchestrator.programs.record import Need, PublicFile, Repository

AUTHOR = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")


def git(folder: Path, *words: str) -> str:
    """Run git in a folder; return what it prints."""
    done = subprocess.run(["git", "-C", str(folder), *AUTHOR, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def make_repository(folder: Path) -> list[str]:
    """Make a repository with three commits on the branch `release`; return their hashes, the first one first."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "release")
    for i in range(3):
        (folder / "pretrain_gpt.py").write_text(f"print({i})\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"commit {i}")
    return git(folder, "rev-list", "--reverse", "HEAD").split()


def item(need: Need, path: Path, address: str = "", commit: str | None = None) -> Item:
    """Return an item at a path, from another address than the public one."""
    address = address or (need.url if isinstance(need, PublicFile) else "made by repro")
    return Item(Source(need, address, commit, is_required=True), path, str(path))


def checkout(origin: Path, commit: str, path: Path) -> Item:
    """Return the item of a checkout."""
    return item(Repository(), path, f"file://{origin}", commit)
