"""Commands for cluster profiles: list, show, check, new, schema."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Annotated, Any, Optional

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli.options import Json, Scale, session_of
from orchestrator.cli.output import as_json, data, message, next_command, table
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import find_folders
from orchestrator.text import counted

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Cluster profiles: the YAML files of sites.")

Name = Annotated[
    str, typer.Argument(help="Name of a cluster, or path of its profile.", autocompletion=completion.clusters)
]
NewName = Annotated[str, typer.Argument(help="Name of the new cluster.")]
Resolved = Annotated[bool, typer.Option("--resolved", help="Show each value with its file and line.")]
Partition = Annotated[
    Optional[str],  # noqa: UP045  typer evaluates it, on Python 3.10 too
    typer.Option("--partition", help="Partition to describe. Default: the one with GPUs."),
]
OnExperiment = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--experiment",
        help="Ask sbatch whether it accepts the smallest and the largest job of this experiment.",
        autocompletion=completion.experiments,
    ),
]
ProbeJob = Annotated[bool, typer.Option("--job", help="Also run a job of one minute that checks a node.")]


@app.command("list")
def list_clusters(json: Json = False) -> None:
    """List all profiles and their open values."""
    folders = find_folders()
    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for name in sorted(api.cluster_names(folders)):
        try:
            rows.append(_row(api.find_cluster(folders, name)))
        except ReproError as error:
            problems += error.problems
    if json:
        as_json(rows)
    elif rows:
        table(rows, list(rows[0]))
    if problems:
        raise ReproError(*problems)
    next_command("repro clusters show NAME", "a profile and its open values")


@app.command()
def show(name: Name, resolved: Resolved = False, json: Json = False) -> None:
    """Show a profile with all layers merged."""
    cluster = api.find_cluster(find_folders(), name)
    layered = cluster.layered
    values = [
        {"field": api.dotted(path), "value": value, "from": layered.where(path)}
        for path, value in api.leaves(layered.value)
    ]
    if json:
        as_json(values if resolved else layered.value)
        return
    if resolved:
        table([row | {"value": _yaml(row["value"])} for row in values], ["field", "value", "from"])
    else:
        import yaml  # not for --help

        data(yaml.safe_dump(layered.value, sort_keys=False, allow_unicode=True, width=120).rstrip("\n"))
    message(f"{cluster.name}: {', then '.join(api.shown(file) for file in cluster.files)}")
    for blank in cluster.unfilled:
        message(f"open: {api.dotted(blank.path)}: {blank.text}")
    if cluster.unfilled:
        message(f"set open values in {api.shown(cluster.overlay)}")
    next_command(f"repro clusters check {shlex.quote(name)}", "compare it with the live cluster")


@app.command()
def check(
    context: typer.Context,
    name: Name,
    experiment: OnExperiment = None,
    scale: Scale = None,
    job: ProbeJob = False,
    json: Json = False,
) -> None:
    """Compare a profile with the live cluster.

    Checks names, limits, nodes, pyxis and paths; with --job also what a compute node sees.
    """
    session = session_of(context)
    checked = api.check_cluster(
        session.folders, name, session.reporter.message, experiment=experiment, scale=scale, job=job
    )
    cluster, findings = checked.cluster, checked.findings
    rows = [
        {
            "result": finding.result,
            "place": finding.place,
            "check": finding.check,
            "found": finding.found,
            "from": finding.where,
            "mend": finding.hint,
        }
        for finding in findings
    ]
    if json:
        as_json(rows)
    else:
        table(rows, ["result", "place", "check", "found"])  # faults follow again, with location and hint
    if checked.problems:
        raise ReproError(*checked.problems)
    unchecked = [finding for finding in findings if finding.result == "not checked"]
    results = Counter(finding.result for finding in findings)
    others = "".join(f", {results[result]} {result}" for result in ("later", "unknown") if results[result])
    message(f"{cluster.name}: {counted(results['ok'], 'check')} passed{others}")
    on_nodes = sum(finding.place == "compute" for finding in unchecked)
    quoted = shlex.quote(name)
    if cluster.is_slurm and not job:
        purpose = f"also the {counted(on_nodes, 'path')} of compute nodes" if on_nodes else "also a compute node"
        next_command(f"repro clusters check {quoted} --job", purpose)
    else:
        next_command(f"repro submit figure-13 --cluster {quoted} --dry-run", "the jobs of an experiment")


@app.command()
def new(name: NewName, partition: Partition = None) -> None:
    """Write a profile from what Slurm reports on this login node."""
    data(str(api.new_cluster(find_folders(), name, partition, message)))
    next_command(f"repro clusters check {shlex.quote(name)}", "what is right, wrong and open")


@app.command()
def schema() -> None:
    """Print the JSON Schema of profiles, for editors."""
    data(api.schema_text().rstrip("\n"))


def _row(cluster: api.Cluster) -> dict[str, Any]:
    profile, hardware = cluster.profile, cluster.hardware
    return {
        "cluster": cluster.name,
        "about": profile.about,
        "scheduler": profile.scheduler,
        "nodes": hardware.nodes,
        "gpus": f"{hardware.gpus_per_node} x {hardware.gpu}" if hardware.gpu else None,
        "container": profile.container.runtime if profile.container else None,
        "open": len(cluster.unfilled),
    }


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if not isinstance(value, (list, dict)) else ("[]" if isinstance(value, list) else "{}")
