"""Commands for a site: profiles, denied nodes, images, code and data of programs, and your settings."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from typing_extensions import Unpack

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.options import argument, command_session, flag, value_option, with_options
from orchestrator.cli.output import (
    as_row,
    as_yaml,
    console,
    data,
    filled_columns,
    message,
    next_command,
    put,
    suggest,
    table,
)
from orchestrator.errors import EXIT_FAILED, Problem, added_to, require_none
from orchestrator.fields import row_of
from orchestrator.files import written_files
from orchestrator.paths import find_folders
from orchestrator.text import counted

POLL_S = 5.0
"""Interval between two looks at imports that a command waits for."""

clusters = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Cluster profiles: the YAML files of sites.")
config = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Your settings, and where each one comes from.")
images = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Images of a registry as files that jobs share.")

Name = Annotated[str, argument("CLUSTER", "Name of a cluster, or path of its profile.", completion.clusters)]


@clusters.command("list")
def list_clusters() -> None:
    """List all profiles and their open values."""
    folders = find_folders()
    rows: list[api.ClusterRow] = []
    problems: list[Problem] = []
    for name in sorted(api.cluster_names(folders)):
        with added_to(problems):
            rows.append(row_of(api.ClusterRow, api.find_cluster(folders, name)))
    put(clusters=rows)
    if rows:
        columns = ["cluster", "about", "scheduler", "nodes", "gpus", "container", "open"]
        gpus = [f"{row.gpus_per_node} x {row.gpu}" if row.gpu else None for row in rows]
        table([as_row(row) | {"gpus": of, "open": len(row.open)} for row, of in zip(rows, gpus, strict=True)], columns)
    require_none(problems)
    if rows:
        suggest("a profile and its open values", "clusters show", rows[0].cluster)


@clusters.command()
def show(
    name: Name,
    resolved: Annotated[bool, flag("Show each value with its file and line.", "--resolved")] = False,
    settings: option.Settings = None,
) -> None:
    """Show a profile with all layers merged."""
    cluster = api.find_cluster(find_folders(), name, api.read_settings(settings or ()).of_profile)
    layered = cluster.layered
    values = [
        api.ProfileField(api.dotted(path), value, str(layered.location(path)))
        for path, value in api.leaves(layered.value)
    ]
    row = row_of(api.ClusterRow, cluster)
    put(clusters=[row], fields=values, profiles=[layered.value])
    if resolved:
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
@with_options({"scale": option.Scale, **option.SETTINGS})
def check(
    name: Name,
    *,
    experiment: Annotated[
        str | None,
        value_option(
            "EXPERIMENT",
            "Ask sbatch whether it accepts the smallest and the largest job of this experiment.",
            completion.experiments,
        ),
    ] = None,
    job: Annotated[bool, flag("Also run a job of one minute that checks a node.", "--job")] = False,
    **options: Unpack[api.CaseOptions],
) -> None:
    """Compare a profile with the live cluster.

    Checks names, limits, nodes, pyxis and paths; with --job also what a compute node sees.
    """
    scale, settings = options["scale"], options["settings"] or ()
    session = command_session()
    checked = api.check_cluster(
        session.folders,
        name,
        session.reporter.message,
        experiment=experiment,
        scale=scale,
        job=job,
        settings=api.read_settings(settings),
    )
    cluster, findings = checked.cluster, checked.findings
    put(checks=findings)
    columns = ["result", "place", "check", "found"]  # faults follow again, with location and hint
    table([as_row(finding) for finding in findings], columns)
    require_none(checked.problems)
    unchecked = [finding for finding in findings if finding.result == "not checked"]
    results = Counter(finding.result for finding in findings)
    others = "".join(f", {results[result]} {result}" for result in ("later", "unknown") if results[result])
    message(f"{cluster.name}: {counted(results['ok'], 'check')} passed{others}")
    on_nodes = sum(finding.place == "compute" for finding in unchecked)
    if cluster.is_slurm and not job:
        purpose = f"also the {counted(on_nodes, 'path')} of compute nodes" if on_nodes else "also a compute node"
        suggest(purpose, "clusters check", name, experiment=experiment, scale=scale, settings=settings, job=True)
    else:
        example = bool(cluster.unfilled)
        planned = {"cluster": name, "scale": scale, "settings": settings, "example": example}
        suggest("the jobs of an experiment", "submit", experiment or "figure-13", **planned, dry_run=True)


@clusters.command()
def new(
    name: Annotated[str, argument("CLUSTER", "Name of the new cluster.")],
    partition: Annotated[
        str | None, value_option("PARTITION", "Partition to describe. Default: the one with GPUs.")
    ] = None,
) -> None:
    """Write a profile from what Slurm reports on this login node."""
    file = api.new_cluster(find_folders(), name, partition, message)
    put(files=written_files("profile", file))
    data(str(file))
    suggest("what is right, wrong and open", "clusters check", name)


@clusters.command()
def schema() -> None:
    """Print the JSON Schema of profiles, for editors."""
    data(api.schema_text().rstrip("\n"))


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if not isinstance(value, (list, dict)) else ("[]" if isinstance(value, list) else "{}")


@images.command("list")
def list_images(cluster: option.OnCluster) -> None:
    """List the images: file, presence, and who imported it."""
    profile = api.find_cluster(find_folders(), cluster)
    rows = api.image_rows(profile)
    put(images=rows)
    if rows:
        shown = [_image_row(row) for row in rows]
        columns = ("image", "there", "bytes", "imported", "by", "digest", "location", "profile")
        table(shown, filled_columns(shown, columns))
    else:
        message(f"{profile.name} defines no images")
    missing = [row for row in rows if row.there in ("no", "on the nodes") and api.imported_file(profile, row.image)]
    if missing:
        suggest("import the images of the registry", "images import", cluster=cluster)
    else:
        suggest("the whole profile", "clusters check", cluster)


@images.command("import")
def import_images(
    cluster: option.OnCluster,
    names: Annotated[
        list[str] | None,
        argument(
            "IMAGE...", "Names of the profile's images. Default: all that come from a registry.", completion.images
        ),
    ] = None,
    again: Annotated[bool, flag("Import existing files again.", "--again")] = False,
    wait: Annotated[bool, flag("Wait until all imports have ended, then print the results.", "--wait")] = False,
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
        put(imports=_import_rows(imports, {}))
        data(f"{started.name}  {started.job_id or 'here'}  {started.file}")
    if imports and not is_local:
        message(f"{counted(len(imports), 'import')} submitted")
    if imports and (is_local or wait):
        failures = _wait(imports, cluster)
        put(imports=_import_rows(imports, failures))
        _print_results(imports, failures, cluster)
    suggest("the imported images", "images list", cluster=cluster)


def _import_rows(imports: Sequence[api.Import], failures: Mapping[str, str]) -> list[api.ImageImport]:
    return [row_of(api.ImageImport, one, error=failures.get(one.name)) for one in imports]


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
    digest = row.digest and f"{row.digest_of}:{row.digest.removeprefix('sha256:')[:12]}"
    places = {"location": row.source or row.value, "profile": row.location}
    return as_row(row) | {"by": row.user, "digest": digest, **places}


@config.callback()
def _group() -> None:
    """Your settings, and where each one comes from."""


@config.command("show")
def show_config() -> None:
    """Print each setting with its origin: option, environment variable, file:line:column or default."""
    settings = api.config_rows(console.database)
    if console.is_json:
        put(settings=settings)
        return
    values = [", ".join(row.value) if isinstance(row.value, tuple) else row.value for row in settings]
    rows = [as_row(row) | {"value": value} for row, value in zip(settings, values, strict=True)]
    table(rows, ["setting", "value", "origin"])
    cluster = next((row.value for row in settings if row.setting == "cluster"), None)
    suggest("each value of a cluster, with its origin", "clusters show", str(cluster or "local"), resolved=True)


nodes = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Nodes that your jobs may not use, one list per cluster."
)

Nodes = Annotated[list[str], typer.Argument(help="Nodes as Slurm writes them: n7 'n[1-4,7]'.", metavar="NODES")]


@nodes.command()
def deny(
    names: Nodes,
    *,
    because: Annotated[str, value_option("TEXT", "The reason, for later.")],
    until: Annotated[
        str | None, value_option("DATE", "Last day, 2026-12-31, or a time in UTC, 2026-12-31T18:00. Default: no end.")
    ] = None,
    cluster: option.OnCluster,
) -> None:
    """Exclude nodes from each submission from now on. Jobs that are already in Slurm's queue stay as they are."""
    denied = api.deny_nodes(names, because, cluster, until=until, session=command_session())
    put(nodes=denied.entries)
    first = denied.entries[0]
    listed = ", ".join(entry.node for entry in denied.entries)
    message(f"{first.cluster}: {counted(len(denied.entries), 'node')} {first.explanation}: {listed}")
    if not denied.was_checked:
        message(f"note: this machine does not see the Slurm of {first.cluster}, so the names were not checked")
    suggest("when they are repaired", "nodes allow", *names, cluster=first.cluster)


@nodes.command("list")
def list_nodes(
    *,
    cluster: Annotated[str | None, value_option("CLUSTER", "Only nodes of this cluster.", completion.clusters)] = None,
    ended: Annotated[bool, flag("Also entries that have ended.", "--all")] = False,
) -> None:
    """List the denied nodes."""
    entries = api.list_denied_nodes(cluster=cluster, ended=ended, session=command_session())
    rows = [asdict(entry) for entry in entries]
    put(nodes=entries)
    if rows:
        table(rows, list(rows[0]))
    else:
        message("no node is denied")
        suggest("how to exclude a node from submissions", "nodes deny", "--help")
    if rows and not ended:
        first = entries[0]
        suggest("use the node again", "nodes allow", first.node, cluster=first.cluster)


@nodes.command()
def allow(names: Nodes, *, cluster: option.ClusterName = None) -> None:
    """Take nodes off the deny list."""
    entries = api.allow_nodes(names, cluster=cluster)
    put(nodes=entries)
    listed = ", ".join(entry.node for entry in entries)
    message(f"{entries[0].cluster}: {counted(len(entries), 'node')} allowed again: {listed}")
    suggest("the nodes that are denied", "nodes list")


programs = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Programs that cases run, with their code and data."
)

Program = Annotated[str, argument("PROGRAM", "Name of a program.", completion.programs)]


@programs.command("list")
def list_programs() -> None:
    """List the programs and what each one needs."""
    rows = [needs.row for needs in api.program_needs()]
    put(programs=rows)
    cells = [as_row(row) | {"commit": (row.commit or "")[:12], "needs": ", ".join(row.needs)} for row in rows]
    table(cells, list(cells[0]))
    for problem in api.broken_plug_ins():
        message(f"note: {problem}")
    suggest("the source of each", "programs show", rows[0].program)


@programs.command("show")
def show_program(name: Program, cluster: option.ClusterName = None) -> None:
    """Show what a program needs, its sources, and what is there."""
    shown = api.show_program(name, cluster)
    rows, program = shown.needs, shown.row
    put(programs=[program], needs=rows)
    if rows:
        short = [_short(row) for row in rows]
        table(short, filled_columns(short, ("field", "what", "state", "path", "fetched", "version", "source")))
    message(f"{program.program}: {program.about}")
    for published_data in shown.published_data:
        message(f"data of the paper: {published_data}")
    states = {row.state for row in rows if row.required}
    if not rows:
        message("needs no code or data from elsewhere")
    elif cluster is None:
        suggest("what is there on this machine, or another cluster", "programs show", name, cluster="local")
    elif states == {"there"}:
        suggest("the profile and its paths", "clusters check", cluster)
    elif "not in the profile" in states:
        place = find_folders().home / "programs"  # jobs can read the home folder
        suggest("or another shared folder", "programs fetch", name, cluster=cluster, directory=place)
    else:
        suggest("fetch what is missing", "programs fetch", name, cluster=cluster)


@programs.command()
def fetch(
    name: Program,
    cluster: option.OnCluster,
    directory: Annotated[
        str | None,
        value_option("FOLDER", "Fetch into this folder. Default: the paths in the profile's programs: section."),
    ] = None,
    text: Annotated[
        str | None,
        value_option("FILE", "Make the data of this text, a .jsonl file with key text. Default: random tokens."),
    ] = None,
    python: Annotated[
        str | None,
        value_option("PATH", "With --text: a Python with the program's packages. Default: the one of repro."),
    ] = None,
    offline: Annotated[
        bool, flag("Print the script for a machine with internet. Fetches nothing.", "--offline")
    ] = False,
) -> None:
    """Fetch a program's code and data to the shared file system.

    It runs on this machine, the login node, and starts no job. Existing files and folders are checked and not changed.
    """
    planned = api.plan_fetch(name, cluster, directory=directory, text=text, python=python, offline=offline)
    if offline:
        put(commands=planned.script.splitlines())
        data(planned.script.rstrip("\n"))
        return
    if not planned.items:
        message(f"{planned.program.name} needs no code or data from elsewhere")
    else:
        message("fetching on this machine; no job is started")
    rows: list[api.FetchedFile] = []
    for fetched in planned.run(message):
        row = row_of(api.FetchedFile, fetched)
        rows.append(row)
        if row.how != "fetched":  # else the script has printed it
            message(f"{row.field}: {row.how}, {', '.join(map(str, row.files))}")
    put(fetched=rows, settings=planned.settings)
    if planned.settings:
        data(f"programs:\n  {planned.program.name}:")
        for setting in planned.settings:
            data(f"    {setting.field}: {as_yaml(setting.value)}")
        message(f"set these fields in {api.shown(planned.cluster.overlay)}")
    if planned.unmounted:
        message(f"jobs run in containers: add {' and '.join(planned.unmounted)} to container: mounts: of the profile")
    suggest("the profile and its paths", "clusters check", cluster)


def _short(row: api.NeedRow) -> dict[str, object]:
    """Return a row of the table: commit and checksum in one column, with their first digits."""
    digest = f"sha256:{row.sha256}"[:19] if row.sha256 else None
    what = row.what if row.required else f"{row.what}, optional"
    return as_row(row) | {"what": what, "version": digest or str(row.commit or "")[:12]}
