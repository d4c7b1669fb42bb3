"""Command group `config`: settings that apply to every command."""

from __future__ import annotations

import typer

from orchestrator import api
from orchestrator.cli.options import Database, Json
from orchestrator.cli.output import as_json, as_row, next_command, table

config = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Your settings, and where each one comes from.")


@config.callback()
def _group() -> None:
    """Your settings, and where each one comes from."""


@config.command()
def show(json: Json = False, database: Database = None) -> None:
    """Print each setting with its origin: option, environment variable, file:line:column or default."""
    rows = [as_row(row) for row in api.config_rows(database)]
    if json:
        as_json(rows)
        return
    texts = [row | {"value": _text(row["value"])} for row in rows]
    table(texts, ["setting", "value", "origin"])
    next_command("repro clusters show NAME --resolved", "each value of a cluster, with its origin")


def _text(value: object) -> str | None:
    return ", ".join(value) if isinstance(value, tuple) else value if isinstance(value, str) else None
