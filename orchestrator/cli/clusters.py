"""Commands about cluster profiles: list, show, check, new, schema."""

from __future__ import annotations

import getpass
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from orchestrator.cli import completion
from orchestrator.cli.options import Json, Scale
from orchestrator.cli.output import as_json, data, next_command, say, table
from orchestrator.errors import Problem, ReproError
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.catalog.case import Case
    from orchestrator.catalog.library import Entry
    from orchestrator.clusters.check_result import Finding
    from orchestrator.clusters.resolve import Cluster
    from orchestrator.paths import Folders

app = typer.Typer(no_args_is_help=True, help="Cluster profiles: what a site's YAML file says, and whether it is right.")

Name = Annotated[
    str, typer.Argument(help="A cluster's name, or the path of its profile.", autocompletion=completion.clusters)
]
NewName = Annotated[str, typer.Argument(help="What the new cluster is to be called.")]
Resolved = Annotated[bool, typer.Option("--resolved", help="Every value with the file and line it comes from.")]
Partition = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--partition", help="Which partition to describe; else the one that has GPUs."),
]
OnExperiment = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--experiment",
        help="Ask sbatch whether it would take the smallest and the largest job of it.",
        autocompletion=completion.experiments,
    ),
]
ProbeJob = Annotated[bool, typer.Option("--job", help="Also run a job of one minute, which sees what the nodes see.")]


@app.command("list")
def list_clusters(json: Json = False) -> None:
    """All cluster profiles, and how much of each is still to be filled in."""
    from orchestrator.clusters.resolve import cluster_names, find_cluster
    from orchestrator.paths import find_folders

    folders = find_folders()
    rows: list[dict[str, Any]] = []
    faults: list[Problem | str] = []
    for name in sorted(cluster_names(folders)):
        try:
            rows.append(_row(find_cluster(folders, name)))
        except ReproError as error:
            faults += error.problems
    if json:
        as_json(rows)
    elif rows:
        table(rows, list(rows[0]))
    if faults:
        raise ReproError(*faults)
    next_command("repro clusters show NAME", "what a profile says, and what it leaves open")


@app.command()
def show(name: Name, resolved: Resolved = False, json: Json = False) -> None:
    """A cluster as jobs find it: every layer merged; with --resolved where each value was written."""
    from orchestrator.clusters.layers import dotted, leaves
    from orchestrator.clusters.resolve import find_cluster
    from orchestrator.config.yaml import shown
    from orchestrator.paths import find_folders

    cluster = find_cluster(find_folders(), name)
    places = cluster.layered.where
    if json:
        as_json(
            [
                {"field": dotted(path), "value": value, "from": places(path)}
                for path, value in leaves(cluster.layered.value)
            ]
            if resolved
            else cluster.layered.value
        )
        return
    if resolved:
        rows = [
            {"field": dotted(path), "value": _yaml(value), "from": places(path)}
            for path, value in leaves(cluster.layered.value)
        ]
        table(rows, ["field", "value", "from"])
    else:
        import yaml

        data(yaml.safe_dump(cluster.layered.value, sort_keys=False, allow_unicode=True, width=120).rstrip("\n"))
    say(f"{cluster.name}: {', then '.join(shown(file) for file in cluster.files)}")
    for blank in cluster.unfilled:
        say(f"open: {dotted(blank.path)}: {blank.text}")
    if cluster.unfilled:
        say(f"what is open belongs into {shown(cluster.overlay)}")
    next_command(f"repro clusters check {shlex.quote(name)}", "whether it is right on this cluster")


@app.command()
def check(
    name: Name, experiment: OnExperiment = None, scale: Scale = None, job: ProbeJob = False, json: Json = False
) -> None:
    """Whether a profile is right on the live cluster: names, limits, nodes, pyxis, paths; with --job on a node, too."""
    from orchestrator.clusters.resolve import find_cluster
    from orchestrator.paths import find_folders

    folders = find_folders()
    cluster = find_cluster(folders, name)
    if not cluster.is_slurm and (job or experiment):
        raise ReproError(Problem(f"{cluster.name} has no Slurm", hint="leave --job and --experiment out"))
    if scale is not None and experiment is None:
        raise ReproError(Problem("--scale is an experiment's", hint="say which with --experiment"))
    cases = _cases(cluster, folders, experiment, scale) if experiment else None
    findings = _findings(cluster, folders, cases, job)
    rows = [
        {
            "result": one.result,
            "place": one.place,
            "check": one.check,
            "found": one.found,
            "from": one.where,
            "mend": one.hint,
        }
        for one in findings
    ]
    if json:
        as_json(rows)
    else:
        table(rows, ["result", "place", "check", "found"])
    faults = [Problem(f"{one.check}: {one.found}", one.where, one.hint) for one in findings if one.is_fault]
    if faults:
        raise ReproError(*faults)
    unseen = [one for one in findings if one.result == "not checked"]
    say(f"{cluster.name}: {counted(len(findings) - len(unseen), 'check')}, nothing wrong")
    on_nodes = sum(one.place == "compute" for one in unseen)
    if cluster.is_slurm and not job:
        also = (
            f"also the {counted(on_nodes, 'path')} that only nodes see" if on_nodes else "also what only a node shows"
        )
        next_command(f"repro clusters check {shlex.quote(name)} --job", also)
    else:
        next_command(f"repro submit figure-13 --cluster {shlex.quote(name)} --dry-run", "what would run here")


@app.command()
def new(name: NewName, partition: Partition = None) -> None:
    """Write a commented profile from what this login node can tell: scontrol, sacctmgr, srun --help."""
    from orchestrator.clusters.generate import profile_text
    from orchestrator.clusters.resolve import cluster_names
    from orchestrator.config.yaml import shown
    from orchestrator.paths import find_folders
    from orchestrator.slurm.site import read_site

    folders = find_folders()
    if not name or name.startswith((".", "-")) or "/" in name or name.endswith((".yaml", ".local")):
        raise ReproError(Problem(f"{name!r} is no name for a cluster", hint="letters, digits and dashes"))
    taken = cluster_names(folders).get(name)
    path = folders.home / "clusters" / f"{name}.yaml"
    if taken is not None or path.exists():
        where = shown(taken or path)
        raise ReproError(Problem(f"{name}: there is such a cluster", where, "take another name, or edit that file"))
    site = read_site(getpass.getuser())
    for complaint in site.complaints:
        say(f"note: {complaint}")
    text = profile_text(site, name, partition, str(folders.shipped / "clusters" / "schema.json"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    data(str(path))
    next_command(f"repro clusters check {shlex.quote(name)}", "what is right, what is wrong, and what is still open")


@app.command()
def schema() -> None:
    """The JSON Schema of profiles and overlays, for editors; shipped profiles name it in their first line."""
    from orchestrator.clusters.schema import schema_text

    data(schema_text().rstrip("\n"))


def _findings(cluster: Cluster, folders: Folders, cases: tuple[Entry, list[Case]] | None, job: bool) -> list[Finding]:
    """Everything that can be looked at from here; what a node must be asked for is asked last."""
    from orchestrator.clusters.paths import path_findings

    if not cluster.is_slurm:
        from orchestrator.launch.preflight import check_this_machine

        return [*check_this_machine(cluster), *path_findings(cluster, "login")]
    from orchestrator.clusters.check import check_login
    from orchestrator.launch.preflight import option_findings, submission_findings
    from orchestrator.launch.probe import job_findings
    from orchestrator.slurm.site import read_site

    site = read_site(getpass.getuser())
    for complaint in site.complaints:
        say(f"note: {complaint}")
    found = [*check_login(cluster, site), *option_findings(cluster)]
    found += path_findings(cluster, "login")
    if cases is not None:
        found += submission_findings(*cases, cluster, folders)
    if not job:
        return found
    if any(one.is_fault for one in found):
        say("no job was started: first what is wrong already")
        return found
    seen = job_findings(cluster, folders, say)
    return [*(one for one in found if (one.place, one.result) != ("compute", "not checked")), *seen]


def _cases(cluster: Cluster, folders: Folders, experiment: str, scale: str | None) -> tuple[Entry, list[Case]]:
    """The experiment's cases at the scale that is asked for, or that `submit` would choose."""
    from orchestrator.catalog.library import find_experiment
    from orchestrator.planning.plan import cases_at

    entry = find_experiment(folders, experiment)
    return entry, cases_at(entry, cluster, scale)


def _row(cluster: Cluster) -> dict[str, Any]:
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
