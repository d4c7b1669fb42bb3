"""Command that writes and verifies bundles."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import __version__, api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.options import argument, confirm_overwrite, session_of
from orchestrator.cli.output import data, message, next_command, suggest
from orchestrator.errors import EXIT_FAILED, Problem, ReproError
from orchestrator.files import names_folder
from orchestrator.text import counted

What = Annotated[
    list[str],
    argument(
        "EXPERIMENTS|verify FILE",
        "Experiments or papers, or the word verify and the bundle to check.",
        completion.bundle_words,
    ),
]

app = typer.Typer(rich_markup_mode=None)


@app.command()
def bundle(
    context: typer.Context,
    what: What,
    *,
    scale: option.OnlyScale = None,
    cluster: option.OnlyCluster = None,
    workload: option.OnlyWorkload = None,
    arg: option.OnlyArguments = None,
    run: option.OnlyRun = None,
    without: option.Without = None,
    output: option.OutputPlace = None,
    force: option.Force = False,
    json: option.Json = False,
    database: option.Database = None,
) -> None:
    """Write everything a reviewer needs to one file per experiment, or verify such a file from its own logs."""
    selection: api.FigureFilter = {"cluster": cluster, "scale": scale, "workload": workload, "arg": arg, "run": run}
    selection["without"] = without
    if what[0] == "verify":
        if json:
            context.obj.json.command = "bundle verify"
        if len(what) != 2 or output or any(selection.values()) or force:
            raise ReproError(Problem("verify needs a file and no option", hint="repro bundle verify FILE.tar.zst"))
        verified = api.verify_bundle(Path(what[1]))
        if json:
            context.obj.json.put(checks=api.rows_of(api.BundleCheckRow, verified.checks))
        _print_verified(verified, Path(what[1]), not json)
        return
    for word in what:
        if word.endswith(".tar.zst"):
            raise ReproError(Problem("only verify reads a file", f"{word}:", "-o names the file to write"))
    session = session_of(context, database)
    is_one = len(what) == 1 and not api.is_paper(what[0])
    place, is_folder = Path(output or "."), names_folder(output)
    if not is_folder:
        if not is_one:
            raise ReproError(Problem("no such folder", f"{place}:", f"several bundles need a folder: -o {place}/"))
        api.require_bundle_name(place)
        confirm_overwrite([place], force)  # before the logs are read
    outcomes = api.outcomes(what, session=session, **selection)
    files = [place]
    if is_folder:
        place.mkdir(parents=True, exist_ok=True)
        files = [place / api.bundle_file(outcome) for outcome in outcomes]
        confirm_overwrite(files, force)
    written: list[api.Bundle] = []
    unproven: list[Problem] = []
    for outcome, file in zip(outcomes, files, strict=True):
        try:
            written.append(api.bundle(outcome, file, session=session))
        except api.UnprovenBundle as error:
            unproven += error.problems
    if json:
        context.obj.json.put(
            files=[row for each in written for row in api.written_files("bundle", each.file)],
            missing=[missing for each in written for missing in each.contents.missing],
            left_out=[attempt for each in written for attempt in each.contents.left_out],
        )
    for each in written:
        if not json:
            data(str(each.file))
        _print_contents(each)
    if unproven:
        raise api.UnprovenBundle(*unproven)
    suggest("the check that a reviewer runs", "bundle verify", str(files[0]))
    if any(missing.is_fault for each in written for missing in each.contents.missing):
        raise typer.Exit(EXIT_FAILED)


def _print_contents(written: api.Bundle) -> None:
    """Print what a bundle contains and what is missing in it."""
    file, contents = written.file, written.contents
    for missing in contents.missing:
        message(f"{'missing' if missing.is_fault else 'note'}: {missing.place}: {missing.why}")
    if not contents.verified:
        message(f"note: {api.NOTHING_VERIFIED}")
    if contents.under_way:
        message(f"note: {counted(contents.under_way, 'open attempt')}: the bundle is marked as not final")
    size = f"{file.stat().st_size / 1e3:,.0f} kB"
    message(f"{counted(contents.attempts, 'attempt')}, {counted(contents.files, 'file')}, {size}")


def _print_verified(verified: api.Verified, file: Path, with_checks: bool) -> None:
    """Print the checks and their sum; exit code 1 if one found a difference."""
    for check in verified.checks if with_checks else ():
        differences = counted(len(check.differences), "difference") if check.differences else "no difference"
        data(f"{check.name:<8}  {check.what}{f': {differences}' if check.is_proven or check.differences else ''}")
        for difference in check.differences:
            data(f"{'':<8}  {difference}")
        for note in check.notes:
            data(f"{'':<8}  note: {note}")
    if verified.holds:
        message(f"the bundle is consistent with its checksums and logs: {verified.proven} follow from the logs")
        for check in verified.checks:
            if check.unchecked is not None:
                instead = "; read results/ instead" if check.name == "pages" else ""
                message(f"note: not checked: {check.unchecked}{instead}")
        message("note: the author is not checked; ssh-keygen -Y verify checks a signature")
    elif verified.made_by != __version__:
        message(f"note: made by repro {verified.made_by}, read by {__version__}, which may count differently")
    if not verified.holds:
        raise typer.Exit(EXIT_FAILED)
    next_command(f"tar -xf {shlex.quote(str(file))}", "unpack report.html, results and logs")
