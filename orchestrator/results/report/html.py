"""The page: one file that needs nothing but a browser. What stands on it is made in `report_page`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.database import Ledger
from orchestrator.masking import masked
from orchestrator.results.atomic_write import written_whole
from orchestrator.results.outcome import FigureOutcome
from orchestrator.results.report.page import Page, page_of
from orchestrator.text import with_symbols

PAGE = "index.html"
_GENERATOR = b'<meta name="generator" content="repro '
_GENERATOR_WITHIN = 300
"""Bytes from the page's start."""


def report(ledger: Ledger, figures: Sequence[FigureOutcome], templates: Path) -> str:
    """The page about these figures; the same ledger and the same version give the same text."""
    return rendered(page_of(ledger, figures), templates)


def rendered(page: Page, templates: Path) -> str:
    """Every text on it is escaped, without what looks secret, and shows what it would else do.

    Nothing can be loaded, and no script but its own can run: the page tells the browser so, by the script's digest.
    """
    environment = _environment(templates)
    style, script = (environment.get_template(f"report.{kind}.j2").render() for kind in ("css", "js"))
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {_digest(script)}"
    template = environment.get_template("report.html.j2")
    return template.render(page=page, style=style, script=script, policy=policy)


def require_folder(folder: Path, force: bool) -> None:
    """ReproError unless a page can be written there: a new folder, an empty one, or one with only an earlier page."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ReproError(Problem(f"{folder}: a file, not a folder", hint="give -o a folder of its own"))
    others = sorted(path.name for path in folder.iterdir() if not _is_ours(path))
    if others and not force:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        hint = f"give -o a folder of its own; --force writes {PAGE} beside it"
        raise ReproError(Problem(f"{folder}: holds something else ({others[0]}{more})", hint=hint))


def write_report(text: str, folder: Path) -> Path:
    """The page in its folder, whole or not at all; returns its path."""
    file = folder / PAGE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReproError(Problem(f"{folder}: cannot be made ({error.strerror})")) from None
    with written_whole(file) as part:
        part.write_text(text, encoding="utf-8")
    return file


@lru_cache
def _environment(templates: Path) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=_harmless,
    )


def _harmless(value: Any) -> Any:
    """What every `{{ }}` goes through before it is escaped, but for what a template has made or calls safe."""
    return with_symbols(masked(value)) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _is_ours(path: Path) -> bool:
    """An earlier page, or what an interrupted command has left of one."""
    if path.is_symlink() or not path.is_file():
        return False
    if path.name.startswith(f".{PAGE}."):
        return True
    with path.open("rb") as file:
        return path.name == PAGE and _GENERATOR in file.read(_GENERATOR_WITHIN)
