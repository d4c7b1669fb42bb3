"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import Problem, ReproError


@contextlib.contextmanager
def written_whole(file: Path) -> Iterator[Path]:
    """Yield a path to write to. It replaces the file at the end, so an interrupted command leaves no partial file."""
    part = file.with_name(f".{file.name}.part{file.suffix}")
    try:
        yield part
        part.replace(file)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise ReproError(Problem(f"{file}: cannot be written ({error.strerror})")) from None
        raise


def require_place(file: Path) -> None:
    """ReproError unless a file can be written there: said before all the work and not after it."""
    folder = file.parent
    if file.is_dir():
        raise ReproError(Problem(f"{file}: a folder, not a file", hint="name a file in it"))
    if file.exists() and not file.is_file():  # a device, whose place a file would take
        raise ReproError(Problem(f"{file}: no regular file", hint="leave -o out, and redirect what is printed"))
    if not folder.exists():
        raise ReproError(Problem(f"{file}: there is no folder {folder}", hint=f"mkdir -p {shlex.quote(str(folder))}"))
    if not folder.is_dir():
        raise ReproError(Problem(f"{file}: {folder} is no folder"))
    if not os.access(folder, os.W_OK):
        raise ReproError(Problem(f"{file}: {folder} is read-only to you", hint="name a file elsewhere"))
