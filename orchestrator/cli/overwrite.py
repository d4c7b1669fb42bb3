"""Whether a file may be written where somebody asked for it: said before all the work, and not after it."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from orchestrator.errors import Problem, ReproError


def require_leave(file: Path, force: bool) -> None:
    """To write there, and to replace what is there: with `force`, or by a person at a terminal who says so."""
    from orchestrator.atomic_write import require_place

    require_place(file)
    if not file.exists() or force:
        return
    if not sys.stdin.isatty():
        raise ReproError(Problem(f"{file}: exists already", hint="--force replaces it"))
    typer.confirm(f"Replace {file}?", abort=True, err=True)
