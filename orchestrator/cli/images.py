"""Commands for the images of a cluster: list them, import them from their registry into shared files."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from typing import Annotated, Any, Optional

import typer

from orchestrator import api
from orchestrator.cli.options import Json, OnCluster
from orchestrator.cli.output import as_json, data, filled_columns, message, next_command, table
from orchestrator.errors import EXIT_FAILED
from orchestrator.paths import find_folders
from orchestrator.text import counted

ImageNames = Annotated[
    Optional[list[str]],  # noqa: UP045  typer evaluates it, on Python 3.10 too
    typer.Argument(help="Names of the profile's images. Default: all that come from a registry."),
]
Again = Annotated[bool, typer.Option("--again", help="Import existing files again.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all imports have ended, then print the results.")]

POLL_S = 5.0

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Images of a registry as files that jobs share.")


@app.command("list")
def list_images(cluster: OnCluster, json: Json = False) -> None:
    """List the images: file, presence, and who imported it."""
    profile = api.find_cluster(find_folders(), cluster)
    rows = api.image_rows(profile)
    if json:
        as_json([dataclasses.asdict(row) for row in rows])
    elif rows:
        shown = [_row(row) for row in rows]
        table(shown, filled_columns(shown))
    else:
        message(f"{profile.name} defines no images")
    missing = [row for row in rows if row.there in ("no", "on the nodes") and api.imported_file(profile, row.name)]
    if missing:
        next_command(f"repro images import --cluster {shlex.quote(cluster)}", "import the images of the registry")
    else:
        next_command(f"repro submit figure-13 --cluster {shlex.quote(cluster)} --dry-run", "the jobs to submit")


@app.command("import")
def import_images(cluster: OnCluster, names: ImageNames = None, again: Again = False, wait: Wait = False) -> None:
    """Import images from their registry, one job for each."""
    folders = find_folders()
    profile = api.find_cluster(folders, cluster)
    wanted = api.wanted_images(profile, names or [], again)
    for name in wanted.already:
        message(f"{name}: imported already; --again imports it again")
    is_local = bool(wanted.to_import) and profile.profile.site.offline_nodes
    if is_local:
        message(f"compute nodes of {profile.name} reach no registry: this machine imports")
    imports: list[api.Import] = []
    for started in api.import_images(profile, folders, wanted.to_import):
        imports.append(started)
        data(f"{started.name}  {started.job_id or 'here'}  {started.file}")
    if imports and not is_local:
        message(f"{counted(len(imports), 'import')} submitted")
    if imports and (is_local or wait):
        _print_results(imports, cluster)
    next_command(f"repro images list --cluster {shlex.quote(cluster)}", "the imported images")


def _print_results(imports: Sequence[api.Import], cluster: str) -> None:
    """Wait for the imports and print the results; exit code 1 if one failed."""
    failures = _wait(imports, cluster)
    for each in imports:
        message(f"{each.name}: {failures.get(each.name, 'imported')}")
    failed = [each for each in imports if each.name in failures]
    if not failed:
        return
    if failed[0].job_id is not None:
        next_command(f"cat {shlex.quote(str(failed[0].log))}", "the log of the import")
    else:
        next_command(f"repro images import --cluster {shlex.quote(cluster)}", "after the cause is corrected")
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
        next_command(f"repro images list --cluster {shlex.quote(cluster)}", "the imported images")
        raise


def _row(row: api.ImageRow) -> dict[str, Any]:
    """Return a row of the table. The first twelve digits of a digest are in the file's name."""
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
