"""A cache of compiled Python files for installations that have none, such as images built without them."""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from stat import S_ISDIR

_LARGE_PACKAGES = ("torch", "megatron.core")


def keep_bytecode() -> None:
    """Let Python keep its compiled files in a folder of this user, where it would compile torch at each start.

    Without compiled files the imports of torch and Megatron-Core take about three times as long.
    """
    if all(_is_kept(package) for package in _LARGE_PACKAGES):
        return
    folder = Path(tempfile.gettempdir()) / f"pretrain-bytecode-{os.getuid()}"
    if _is_private(folder):
        sys.pycache_prefix = str(folder)
        sys.dont_write_bytecode = False


def _is_kept(package: str) -> bool:
    """Whether compiled files of this package are there, or Python can write them beside the sources."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return True
    if Path(cache_from_source(spec.origin)).exists():
        return True
    return not sys.dont_write_bytecode and os.access(Path(spec.origin).parent, os.W_OK)


def _is_private(folder: Path) -> bool:
    """Make the folder. False if somebody else owns it or can write to it: Python would run their code."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
