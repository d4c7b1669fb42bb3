"""Commands for programs: what they need, and the fetch of their code and data."""

from __future__ import annotations

import re
from json import dumps
from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.options import argument, value_option
from orchestrator.cli.output import as_row, data, filled_columns, message, suggest, table
from orchestrator.paths import find_folders

workloads = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Programs that cases run, with their code and data."
)

Name = Annotated[str, argument("WORKLOAD", "Name of a workload.", completion.workloads)]
Directory = Annotated[
    str | None,
    value_option(
        "--directory", "FOLDER", "Fetch into this folder. Default: the paths in the profile's workloads: section."
    ),
]
Text = Annotated[
    str | None,
    value_option("--text", "FILE", "Make the data of this text, a .jsonl file with key text. Default: random tokens."),
]
Python = Annotated[
    str | None,
    value_option("--python", "PATH", "With --text: a Python with the program's packages. Default: the one of repro."),
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Print the script for a machine with internet. Fetches nothing.")
]


@workloads.command("list")
def list_workloads(context: typer.Context, json: option.Json = False) -> None:
    """List the programs and what each one needs."""
    rows = api.rows_of(api.WorkloadRow, api.workload_needs())
    if json:
        context.obj.json.put(workloads=rows)
    else:
        cells = [as_row(row) | {"commit": (row.commit or "")[:12], "needs": ", ".join(row.needs)} for row in rows]
        table(cells, list(cells[0]))
    suggest("the source of each", "workloads show", rows[0].workload)


@workloads.command()
def show(context: typer.Context, name: Name, cluster: option.ClusterName = None, json: option.Json = False) -> None:
    """Show what a program needs, its sources, and what is there."""
    shown = api.show_workload(name, cluster)
    rows = api.rows_of(api.NeedRow, shown.needs)
    if json:
        context.obj.json.put(workloads=[api.row_of(api.WorkloadRow, shown)], needs=rows)
    elif rows:
        short = [_short(row) for row in rows]
        table(short, filled_columns(short))
    workload = shown.workload
    message(f"{workload.name}: {workload.about}")
    for status in shown.needs:
        if status.source.published_data:
            message(f"data of the paper: {status.source.published_data}")
    states = {status.state for status in shown.needs if status.source.is_required}
    if not rows:
        message("needs no code or data from elsewhere")
    elif cluster is None:
        suggest("what is there on this machine, or another cluster", "workloads show", name, cluster="local")
    elif states == {"there"}:
        suggest("the profile and its paths", "clusters check", cluster)
    elif "not in the profile" in states:
        place = find_folders().home / "workloads"  # jobs can read the home folder
        suggest("or another shared folder", "workloads fetch", name, cluster=cluster, directory=place)
    else:
        suggest("fetch what is missing", "workloads fetch", name, cluster=cluster)


@workloads.command()
def fetch(
    context: typer.Context,
    name: Name,
    cluster: option.OnCluster,
    directory: Directory = None,
    text: Text = None,
    python: Python = None,
    offline: Offline = False,
    json: option.Json = False,
) -> None:
    """Fetch a program's code and data to the shared file system.

    It runs on this machine, the login node, and starts no job. Existing files and folders are checked and not changed.
    """
    if offline:
        commands = api.offline_fetch(name, cluster, directory=directory, text=text, python=python)
        if json:
            context.obj.json.put(commands=commands.splitlines())
        else:
            data(commands.rstrip("\n"))
        return
    planned = api.plan_fetch(name, cluster, directory=directory, text=text, python=python)
    if not planned.items:
        message(f"{planned.workload.name} needs no code or data from elsewhere")
    else:
        message("fetching on this machine; no job is started")
    rows: list[api.FetchedFile] = []
    for fetched in planned.run(message):
        row = api.row_of(api.FetchedFile, fetched)
        rows.append(row)
        if row.how != "fetched":  # else the script has printed it
            message(f"{row.field}: {row.how}, {', '.join(map(str, row.files))}")
    if json:
        settings = [api.FetchedSetting(field, value) for field, value in planned.settings]
        context.obj.json.put(fetched=rows, settings=settings)
    elif planned.settings:
        data(f"workloads:\n  {planned.workload.name}:")
        for field, value in planned.settings:
            data(f"    {field}: {_yaml_text(value)}")
    if planned.settings:
        message(f"set these fields in {api.shown(planned.cluster.overlay)}")
    if planned.unmounted:
        message(f"jobs run in containers: add {' and '.join(planned.unmounted)} to container: mounts: of the profile")
    suggest("the profile and its paths", "clusters check", cluster)


def _short(row: api.NeedRow) -> dict[str, object]:
    """Return a row of the table: commit and checksum in one column, with their first digits."""
    digest = f"sha256:{row.sha256}"[:19] if row.sha256 else None
    what = row.what if row.required else f"{row.what}, optional"
    kept = {name: getattr(row, name) for name in ("field", "what", "state", "path", "fetched")}
    return kept | {"what": what, "version": digest or str(row.commit or "")[:12], "source": row.source}


def _yaml_text(value: str) -> str:
    """Return a path as YAML: in quotes unless its characters are harmless. JSON's quotes are YAML's."""
    return value if re.fullmatch(r"/[\w./-]*", value, re.ASCII) else dumps(value, ensure_ascii=False)
