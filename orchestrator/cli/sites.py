"""Commands for a site: `clusters` for profiles, `images` for images that jobs share, `config` for your settings."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.options import all_settings, argument, session_of, value_option
from orchestrator.cli.output import as_row, data, filled_columns, message, next_command, suggest, table
from orchestrator.errors import EXIT_FAILED, Problem, ReproError
from orchestrator.paths import find_folders
from orchestrator.text import counted

POLL_S = 5.0
"""Interval between two looks at imports that a command waits for."""

clusters = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Cluster profiles: the YAML files of sites.")
config = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Your settings, and where each one comes from.")
images = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Images of a registry as files that jobs share.")

Name = Annotated[
    str,
    argument("CLUSTER", "Name of a cluster, or path of its profile.", completion.clusters),
]
NewName = Annotated[str, argument("CLUSTER", "Name of the new cluster.")]
Resolved = Annotated[bool, typer.Option("--resolved", help="Show each value with its file and line.")]
Partition = Annotated[
    str | None,
    value_option("--partition", "PARTITION", "Partition to describe. Default: the one with GPUs."),
]
OnExperiment = Annotated[
    str | None,
    value_option(
        "--experiment",
        "EXPERIMENT",
        "Ask sbatch whether it accepts the smallest and the largest job of this experiment.",
        completion.experiments,
    ),
]
ImageNames = Annotated[
    list[str] | None,
    argument("IMAGE...", "Names of the profile's images. Default: all that come from a registry.", completion.images),
]
Again = Annotated[bool, typer.Option("--again", help="Import existing files again.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all imports have ended, then print the results.")]
ProbeJob = Annotated[bool, typer.Option("--job", help="Also run a job of one minute that checks a node.")]


@clusters.command("list")
def list_clusters(context: typer.Context, json: option.Json = False) -> None:
    """List all profiles and their open values."""
    folders = find_folders()
    rows: list[api.ClusterRow] = []
    problems: list[Problem] = []
    for name in sorted(api.cluster_names(folders)):
        try:
            rows.append(api.row_of(api.ClusterRow, api.find_cluster(folders, name)))
        except ReproError as error:
            problems += error.problems
    if json:
        context.obj.json.put(clusters=rows)
    elif rows:
        columns = ["cluster", "about", "scheduler", "nodes", "gpus", "container", "open"]
        table([_cluster_cells(row) for row in rows], columns)
    if problems:
        raise ReproError(*problems)
    if rows:
        suggest("a profile and its open values", "clusters show", rows[0].cluster)


@clusters.command()
def show(
    context: typer.Context,
    name: Name,
    resolved: Resolved = False,
    settings: option.Settings = None,
    json: option.Json = False,
) -> None:
    """Show a profile with all layers merged."""
    cluster = api.find_cluster(find_folders(), name, api.read_settings(settings or ()).of_profile)
    layered = cluster.layered
    values = [
        api.ProfileField(api.dotted(path), value, str(layered.location(path)))
        for path, value in api.leaves(layered.value)
    ]
    if json:
        row = api.row_of(api.ClusterRow, cluster)
        context.obj.json.put(clusters=[row], fields=values, profiles=[layered.value])
    elif resolved:
        cells = [{"field": row.field, "value": _yaml(row.value), "from": row.location} for row in values]
        table(cells, ["field", "value", "from"])
    else:
        import yaml  # not for --help

        data(yaml.safe_dump(layered.value, sort_keys=False, allow_unicode=True, width=120).rstrip("\n"))
    layers = [*(api.shown(file) for file in cluster.files), *(str(setting.location) for setting in cluster.settings)]
    message(f"{cluster.name}: {', then '.join(layers)}")
    for blank in cluster.unfilled:
        message(f"open: {api.dotted(blank.path)}: {blank.text}")
    if cluster.unfilled:
        message(f"set open values in {api.shown(cluster.overlay)}")
    suggest("compare it with the live cluster", "clusters check", name, settings=settings)


@clusters.command()
def check(
    context: typer.Context,
    name: Name,
    *,
    experiment: OnExperiment = None,
    scale: option.Scale = None,
    job: ProbeJob = False,
    settings: option.Settings = None,
    partition: option.Partition = None,
    qos: option.QosName = None,
    reservation: option.Reservation = None,
    nodelist: option.NodeList = None,
    exclude: option.Exclude = None,
    time: option.JobTime = None,
    json: option.Json = False,
) -> None:
    """Compare a profile with the live cluster.

    Checks names, limits, nodes, pyxis and paths; with --job also what a compute node sees.
    """
    chosen = all_settings(settings, partition, qos, reservation, nodelist, exclude, time)
    session = session_of(context)
    checked = api.check_cluster(
        session.folders,
        name,
        session.reporter.message,
        experiment=experiment,
        scale=scale,
        job=job,
        settings=api.read_settings(chosen),
    )
    cluster, findings = checked.cluster, checked.findings
    if json:
        context.obj.json.put(checks=findings)
    else:
        columns = ["result", "place", "check", "found"]  # faults follow again, with location and hint
        table([as_row(finding) for finding in findings], columns)
    if checked.problems:
        raise ReproError(*checked.problems)
    unchecked = [finding for finding in findings if finding.result == "not checked"]
    results = Counter(finding.result for finding in findings)
    others = "".join(f", {results[result]} {result}" for result in ("later", "unknown") if results[result])
    message(f"{cluster.name}: {counted(results['ok'], 'check')} passed{others}")
    on_nodes = sum(finding.place == "compute" for finding in unchecked)
    if cluster.is_slurm and not job:
        purpose = f"also the {counted(on_nodes, 'path')} of compute nodes" if on_nodes else "also a compute node"
        suggest(purpose, "clusters check", name, experiment=experiment, scale=scale, settings=chosen, job=True)
    else:
        example = bool(cluster.unfilled)
        options = {"cluster": name, "scale": scale, "settings": chosen, "example": example, "dry_run": True}
        suggest("the jobs of an experiment", "submit", experiment or "figure-13", **options)


@clusters.command()
def new(context: typer.Context, name: NewName, partition: Partition = None, json: option.Json = False) -> None:
    """Write a profile from what Slurm reports on this login node."""
    file = api.new_cluster(find_folders(), name, partition, message)
    if json:
        context.obj.json.put(files=api.written_files("profile", file))
    else:
        data(str(file))
    suggest("what is right, wrong and open", "clusters check", name)


@clusters.command()
def schema() -> None:
    """Print the JSON Schema of profiles, for editors."""
    data(api.schema_text().rstrip("\n"))


def _cluster_cells(row: api.ClusterRow) -> dict[str, object]:
    gpus = f"{row.gpus_per_node} x {row.gpu}" if row.gpu else None
    return as_row(row) | {"gpus": gpus, "open": len(row.open)}


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if not isinstance(value, (list, dict)) else ("[]" if isinstance(value, list) else "{}")


@images.command("list")
def list_images(context: typer.Context, cluster: option.OnCluster, json: option.Json = False) -> None:
    """List the images: file, presence, and who imported it."""
    profile = api.find_cluster(find_folders(), cluster)
    rows = api.image_rows(profile)
    if json:
        context.obj.json.put(images=rows)
    elif rows:
        shown = [_image_row(row) for row in rows]
        table(shown, filled_columns(shown))
    else:
        message(f"{profile.name} defines no images")
    missing = [row for row in rows if row.there in ("no", "on the nodes") and api.imported_file(profile, row.image)]
    if missing:
        suggest("import the images of the registry", "images import", cluster=cluster)
    else:
        suggest("the whole profile", "clusters check", cluster)


@images.command("import")
def import_images(
    context: typer.Context,
    cluster: option.OnCluster,
    names: ImageNames = None,
    again: Again = False,
    wait: Wait = False,
    json: option.Json = False,
) -> None:
    """Import images from their registry, one job for each."""
    folders = find_folders()
    profile = api.with_denied_nodes(api.find_cluster(folders, cluster))
    wanted = api.wanted_images(profile, names or [], again)
    for name in wanted.already:
        message(f"{name}: imported already; --again imports it again")
    is_local = bool(wanted.to_import) and profile.profile.site.offline_nodes
    if is_local:
        message(f"compute nodes of {profile.name} reach no registry: this machine imports")
    imports: list[api.Import] = []
    for started in api.import_images(profile, folders, wanted.to_import):
        imports.append(started)
        if json:
            context.obj.json.put(imports=_import_rows(imports, {}))
        else:
            data(f"{started.name}  {started.job_id or 'here'}  {started.file}")
    if imports and not is_local:
        message(f"{counted(len(imports), 'import')} submitted")
    if imports and (is_local or wait):
        failures = _wait(imports, cluster)
        if json:
            context.obj.json.put(imports=_import_rows(imports, failures))
        _print_results(imports, failures, cluster)
    suggest("the imported images", "images list", cluster=cluster)


def _import_rows(imports: Sequence[api.Import], failures: Mapping[str, str]) -> list[api.ImageImport]:
    return [api.row_of(api.ImageImport, one, error=failures.get(one.name)) for one in imports]


def _print_results(imports: Sequence[api.Import], failures: Mapping[str, str], cluster: str) -> None:
    """Print the results of imports that have ended; exit code 1 if one failed."""
    for each in imports:
        message(f"{each.name}: {failures.get(each.name, 'imported')}")
    failed = [each for each in imports if each.name in failures]
    if not failed:
        return
    if failed[0].job_id is not None:
        next_command(f"cat {shlex.quote(str(failed[0].log))}", "the log of the import")
    else:
        suggest("after the cause is corrected", "images import", cluster=cluster)
    raise typer.Exit(EXIT_FAILED)


def _wait(imports: Sequence[api.Import], cluster: str) -> dict[str, str]:
    """Return the errors by image name when all imports have ended. Ctrl-C leaves the jobs running."""
    last = ""
    try:
        while True:
            progress = api.import_progress(imports)
            states = ", ".join(f"{name} {state}" for name, state in progress.states.items())
            line = "; ".join([*(f"note: {complaint}" for complaint in progress.complaints), *filter(None, [states])])
            if line and line != last:
                message(line)
            last = line
            if not progress.states:
                return progress.failures
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        message("no longer waiting; the imports continue")
        suggest("the imported images", "images list", cluster=cluster)
        raise


def _image_row(row: api.ImageFile) -> dict[str, object]:
    """Return a row of the table. The first twelve digits of a digest are in the file's name."""
    return {
        "image": row.image,
        "there": row.there,
        "bytes": row.bytes,
        "imported": row.imported,
        "by": row.user,
        "digest": row.digest and f"{row.digest_of}:{row.digest.removeprefix('sha256:')[:12]}",
        "location": row.source or row.value,
        "profile": row.location,
    }


@config.callback()
def _group() -> None:
    """Your settings, and where each one comes from."""


@config.command("show")
def show_config(context: typer.Context, json: option.Json = False, database: option.Database = None) -> None:
    """Print each setting with its origin: option, environment variable, file:line:column or default."""
    settings = api.config_rows(database)
    if json:
        context.obj.json.put(settings=settings)
        return
    texts = [as_row(row) | {"value": _setting_text(row.value)} for row in settings]
    table(texts, ["setting", "value", "origin"])
    cluster = next((row.value for row in settings if row.setting == "cluster"), None)
    suggest("each value of a cluster, with its origin", "clusters show", str(cluster or "local"), resolved=True)


def _setting_text(value: object) -> str | None:
    return ", ".join(value) if isinstance(value, tuple) else value if isinstance(value, str) else None
