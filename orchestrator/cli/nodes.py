"""Commands for the deny list of nodes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.options import session_of
from orchestrator.cli.output import message, suggest, table
from orchestrator.text import counted

nodes = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Nodes that your jobs may not use, one list per cluster."
)

Nodes = Annotated[list[str], typer.Argument(help="Nodes as Slurm writes them: n7 'n[1-4,7]'.", metavar="NODES")]
Because = Annotated[str, typer.Option("--because", metavar="TEXT", help="The reason, for later.")]
Until = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="DATE", help="Last day, 2026-12-31, or a time in UTC, 2026-12-31T18:00. Default: no end."
    ),
]
OnlyCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="CLUSTER", help="Only nodes of this cluster.", autocompletion=completion.clusters
    ),
]
Ended = Annotated[bool, typer.Option("--all", help="Also entries that have ended.")]


@nodes.command()
def deny(
    context: typer.Context,
    names: Nodes,
    *,
    because: Because,
    until: Until = None,
    cluster: option.OnCluster,
    json: option.Json = False,
) -> None:
    """Exclude nodes from each submission from now on. Jobs that are already in Slurm's queue stay as they are."""
    denied = api.deny_nodes(names, because, cluster, until=until, session=session_of(context))
    if json:
        context.obj.json.put(nodes=denied.entries)
    first = denied.entries[0]
    listed = ", ".join(entry.node for entry in denied.entries)
    message(f"{first.cluster}: {counted(len(denied.entries), 'node')} {first.explanation}: {listed}")
    if not denied.was_checked:
        message(f"note: this machine does not see the Slurm of {first.cluster}, so the names were not checked")
    suggest("when they are repaired", "nodes allow", *names, cluster=first.cluster)


@nodes.command("list")
def list_nodes(
    context: typer.Context,
    *,
    cluster: OnlyCluster = None,
    ended: Ended = False,
    json: option.Json = False,
) -> None:
    """List the denied nodes."""
    entries = api.list_denied_nodes(cluster=cluster, ended=ended, session=session_of(context))
    rows = [asdict(entry) for entry in entries]
    if json:
        context.obj.json.put(nodes=entries)
    elif rows:
        table(rows, list(rows[0]))
    else:
        message("no node is denied")
    if not rows:
        suggest("how to exclude a node from submissions", "nodes deny", "--help")
    elif not ended:
        first = entries[0]
        suggest("use the node again", "nodes allow", first.node, cluster=first.cluster)


@nodes.command()
def allow(
    context: typer.Context, names: Nodes, *, cluster: option.ClusterName = None, json: option.Json = False
) -> None:
    """Take nodes off the deny list."""
    entries = api.allow_nodes(names, cluster=cluster)
    if json:
        context.obj.json.put(nodes=entries)
    listed = ", ".join(entry.node for entry in entries)
    message(f"{entries[0].cluster}: {counted(len(entries), 'node')} allowed again: {listed}")
    suggest("the nodes that are denied", "nodes list")
