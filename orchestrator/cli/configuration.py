"""Command group `config`: settings that apply to every command."""

from __future__ import annotations

import typer

from orchestrator import api
from orchestrator.cli.options import Database, Json
from orchestrator.cli.output import as_row, table
from orchestrator.cli.suggestion import suggest

config = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Your settings, and where each one comes from.")


@config.callback()
def _group() -> None:
    """Your settings, and where each one comes from."""


@config.command()
def show(context: typer.Context, json: Json = False, database: Database = None) -> None:
    """Print each setting with its origin: option, environment variable, file:line:column or default."""
    settings = api.config_rows(database)
    if json:
        context.obj.json.put(settings=settings)
        return
    texts = [as_row(row) | {"value": _text(row.value)} for row in settings]
    table(texts, ["setting", "value", "origin"])
    cluster = next((row.value for row in settings if row.setting == "cluster"), None)
    suggest(context, "each value of a cluster, with its origin", "clusters show", str(cluster or "local"), "--resolved")


def _text(value: object) -> str | None:
    return ", ".join(value) if isinstance(value, tuple) else value if isinstance(value, str) else None
