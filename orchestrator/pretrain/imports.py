"""Faster imports of torch and Megatron-Core, which are some 2,000 modules."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from stat import S_ISDIR

_LARGE_PACKAGES = ("torch", "megatron.core")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import without the garbage collector, and keep compiled files where Python would compile at each start.

    The collector finds nothing among imported modules, and is never to look at them again: not in the training loop,
    not in a forked process, whose memory it would copy, and not when the process ends.
    """
    _keep_bytecode()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _keep_bytecode() -> None:
    """Keep compiled files in a folder of this user if the installation has none, as images that are built without.

    Without compiled files the imports take about three times as long.
    """
    if all(_is_kept(package) for package in _LARGE_PACKAGES):
        return
    folder = Path(tempfile.gettempdir()) / f"pretrain-bytecode-{os.getuid()}"
    if _is_private(folder):
        sys.pycache_prefix = str(folder)
        sys.dont_write_bytecode = False


def _is_kept(package: str) -> bool:
    """Return whether the compiled files of this package exist, or Python can write them beside the sources."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return True
    if Path(cache_from_source(spec.origin)).exists():
        return True
    return not sys.dont_write_bytecode and os.access(Path(spec.origin).parent, os.W_OK)


def _is_private(folder: Path) -> bool:
    """Make the folder. False if another user owns it or can write to it: Python would run that user's code."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
