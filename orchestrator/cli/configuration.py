"""Command group `config`: settings that apply to every command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from orchestrator import api
from orchestrator.cli import options as option
from orchestrator.cli.output import as_row, suggest, table

if TYPE_CHECKING:
    from orchestrator.cli.documents import ConfigShowDocument

config = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Your settings, and where each one comes from.")


@config.callback()
def _group() -> None:
    """Your settings, and where each one comes from."""


@config.command()
def show(context: typer.Context, json: option.Json = False, database: option.Database = None) -> None:
    """Print each setting with its origin: option, environment variable, file:line:column or default."""
    settings = api.config_rows(database)
    if json:
        document: ConfigShowDocument = {"settings": settings}
        context.obj.json.put(document)
        return
    texts = [as_row(row) | {"value": _text(row.value)} for row in settings]
    table(texts, ["setting", "value", "origin"])
    cluster = next((row.value for row in settings if row.setting == "cluster"), None)
    suggest("each value of a cluster, with its origin", "clusters show", str(cluster or "local"), resolved=True)


def _text(value: object) -> str | None:
    return ", ".join(value) if isinstance(value, tuple) else value if isinstance(value, str) else None
