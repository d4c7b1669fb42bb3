"""`repro images`: a registry's images as files that jobs share; which are there, and bringing those that are not."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from orchestrator.cli.options import Json, OnCluster
from orchestrator.cli.output import as_json, data, filled_columns, next_command, say, table
from orchestrator.errors import EXIT_FAILED
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.launch.images import ImageRow, Import

ImageNames = Annotated[
    Optional[list[str]],  # noqa: UP045  typer reads these at run time, on Python 3.10 too
    typer.Argument(help="Names of the profile's images; else all that come from a registry."),
]
RerunPolicy = Annotated[bool, typer.Option("--again", help="Import anew what is there already.")]
Wait = Annotated[bool, typer.Option("--wait", help="Stay until every import has ended, then say how.")]

POLL_S = 5.0

app = typer.Typer(no_args_is_help=True, help="A registry's images as files that jobs share: see them, import them.")


@app.command("list")
def list_images(cluster: OnCluster, json: Json = False) -> None:
    """List a cluster's images: what jobs are given for each, whether it is there, and who imported it when."""
    from orchestrator.clusters.program import imported_file
    from orchestrator.clusters.resolve import find_cluster
    from orchestrator.launch.images import image_rows
    from orchestrator.paths import find_folders

    profile = find_cluster(find_folders(), cluster)
    rows = image_rows(profile)
    if json:
        as_json([dataclasses.asdict(row) for row in rows])
    elif rows:
        listed = [_listed(row) for row in rows]
        table(listed, filled_columns(listed))
    else:
        say(f"{profile.name} names no images")
    absent = [row for row in rows if row.there in ("no", "on the nodes") and imported_file(profile, row.name)]
    if absent:
        next_command(f"repro images import --cluster {shlex.quote(cluster)}", "bring what a registry has, once")
    else:
        next_command(f"repro submit figure-13 --cluster {shlex.quote(cluster)} --dry-run", "what would be submitted")


@app.command("import")
def import_images(cluster: OnCluster, names: ImageNames = None, again: RerunPolicy = False, wait: Wait = False) -> None:
    """Import images from their registry into the staging folder, each in a job of one task."""
    from orchestrator.clusters.resolve import find_cluster
    from orchestrator.launch import images
    from orchestrator.paths import find_folders

    folders = find_folders()
    profile = find_cluster(folders, cluster)
    wanted = images.wanted_images(profile, names or [], again)
    for name in wanted.already:
        say(f"{name}: already imported, --again imports anew")
    here = bool(wanted.to_import) and profile.profile.site.offline_nodes
    if here:
        say(f"compute nodes of {profile.name} reach no registry: this machine imports, and you wait for it")
    imports: list[Import] = []
    for one in images.import_images(profile, folders, wanted.to_import):
        imports.append(one)
        data(f"{one.name}  {one.job_id or 'here'}  {one.file}")
    if imports and not here:
        say(f"{counted(len(imports), 'import')} submitted")
    if imports and (here or wait):
        _say_how_they_ended(imports, cluster)
    next_command(f"repro images list --cluster {shlex.quote(cluster)}", "what is there")


def _say_how_they_ended(imports: Sequence[Import], cluster: str) -> None:
    """Wait until they have; exit 1 where one has failed."""
    failures = _wait(imports, cluster)
    for one in imports:
        said = failures.get(one.name)
        say(f"{one.name}: {said}" if said else f"{one.name}: imported")
    failed = [one for one in imports if one.name in failures]
    if not failed:
        return
    if failed[0].job_id is not None:
        next_command(f"cat {shlex.quote(str(failed[0].log))}", "all that it said")
    else:
        next_command(f"repro images import --cluster {shlex.quote(cluster)}", "again, once that is mended")
    raise typer.Exit(EXIT_FAILED)


def _wait(imports: Sequence[Import], cluster: str) -> dict[str, str]:
    """Return what went wrong, by name, when all have ended; Ctrl-C leaves the jobs running."""
    from orchestrator.launch.images import import_progress

    said = ""
    try:
        while True:
            progress = import_progress(imports)
            states = ", ".join(f"{name} {state}" for name, state in progress.states.items())
            words = "; ".join([*(f"note: {one}" for one in progress.complaints), *([states] if states else [])])
            if words and words != said:
                say(words)
            said = words
            if not progress.states:
                return progress.failures
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        say("no longer waiting; the imports go on")
        next_command(f"repro images list --cluster {shlex.quote(cluster)}", "whether they are there")
        raise


def _listed(row: ImageRow) -> dict[str, Any]:
    """For a table: a digest's first twelve digits are those in the file's name."""
    return {
        "image": row.name,
        "there": row.there,
        "bytes": row.bytes,
        "imported": row.imported,
        "by": row.user,
        "digest": row.digest and f"{row.digest_of}:{row.digest.removeprefix('sha256:')[:12]}",
        "location": row.location or row.says,
        "profile": row.where,
    }
