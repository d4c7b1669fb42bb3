"""Commands for results: collect, claims, plot, report, bundle."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from orchestrator import __version__, api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.job_table import claim_counts, print_claims, print_outcome, suggest_why
from orchestrator.cli.options import argument, confirm_overwrite, session_of, value_option
from orchestrator.cli.output import data, message, next_command, print_shortened, suggest
from orchestrator.errors import EXIT_FAILED, Problem, ReproError
from orchestrator.fields import rows_of
from orchestrator.files import names_folder, require_place, written_files
from orchestrator.paths import short_name
from orchestrator.text import counted

Format = Literal["csv", "json", "jsonl", "parquet", "md", "latex"]
ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".md": "md",
    ".markdown": "md",
    ".tex": "latex",
}
"""Formats by the ending of a file."""
_TABLES = ("md", "latex")

Export = Annotated[
    Format | None, value_option("--export", "FORMAT", "Format. Default: by the extension of -o, else csv.")
]
Columns = Annotated[
    str | None,
    value_option("--columns", "COLUMNS", "main, all, or a,b,c. Default: main on a terminal, all in a file or a pipe."),
]
Iterations = Annotated[bool, typer.Option("--iterations", help="One row per logged iteration, of running jobs too.")]
Experiments = Annotated[
    list[str] | None,
    argument(
        "EXPERIMENT...", "Experiments or papers. Default: all that were submitted.", completion.experiments_and_papers
    ),
]
OutputFolder = Annotated[Path, typer.Option("--output", "-o", metavar="PATH", help="Folder for index.html.")]
ForceFolder = Annotated[bool, typer.Option("--force", help="Write into a folder that has other files.")]
Drawn = Annotated[
    list[str] | None,
    argument(
        "EXPERIMENT...", "Experiments or papers. Default: the one submitted last.", completion.experiments_and_papers
    ),
]
app = typer.Typer(rich_markup_mode=None)


@app.command()
def collect(
    context: typer.Context,
    experiment: option.MaybeExperiment = None,
    *,
    scale: option.OnlyScale = None,
    cluster: option.OnlyCluster = None,
    program: option.OnlyProgram = None,
    where: option.Where = None,
    arg: option.OnlyArguments = None,
    run: option.OnlyRun = None,
    without: option.Without = None,
    export: Export = None,
    output: option.OutputFile = None,
    columns: Columns = None,
    iterations: Iterations = False,
    attempt: option.ResultAttempt = None,
    force: option.Force = False,
) -> None:
    """Read the logs and export one row for each case.

    On a terminal, print the main columns and the claims, and write all columns to a file, which replaces an earlier
    one of the same figure. With -o, only write that file. Through a pipe, print the file itself.
    """
    selection = api.FigureFilter(cluster=cluster, scale=scale, program=program, arg=arg, run=run, without=without)
    selection["attempt"] = attempt
    file_format = _export_format(export, output)
    _require_columns(file_format, iterations, columns, context.obj.is_json)
    if file_format == "parquet":
        api.require_parquet()
    if output is not None:
        confirm_overwrite([output], force)
    session = session_of(context)
    collected = api.collect(experiment, session=session, where=where, **selection)
    shows_cases = _print_collected(context, collected, file_format, output, columns, iterations)
    if not shows_cases:
        message(_claims_title(collected.outcome))
    suggest("the figure as a picture", "plot", collected.outcome.entry.short_name, **selection, where=where)
    if collected.outcome.failed:
        raise typer.Exit(EXIT_FAILED)


def _print_collected(
    context: typer.Context,
    collected: api.Collected,
    file_format: Format,
    output: Path | None,
    columns: str | None,
    iterations: bool,
) -> bool:
    """Write or print the export; return whether the cases and claims were printed as on a terminal."""
    pieces = collected.export(file_format, iterations=iterations, columns=columns or "all")
    on_terminal = sys.stdout.isatty() and not context.obj.is_json
    shows_cases = on_terminal and output is None and file_format not in _TABLES and not iterations
    if output is None and on_terminal and file_format not in _TABLES:
        ending = f"{'-iterations' * iterations}.{file_format}"
        output = Path(collected.outcome.file_name(ending, collected.attempt))
        require_place(output)
    if output is not None:
        api.write_file(pieces, output)
    if shows_cases:
        chosen = [column.name for column in collected.columns(columns)] if columns not in (None, "main") else None
        print_outcome(collected.outcome, collected.cases, chosen)
        shape = f"{counted(len(collected.cases), 'row')}, {counted(len(collected.columns(columns or 'all')), 'column')}"
        data(f"\n{output}  ({shape})")
    elif output is not None:
        data(str(output))
    if context.obj.is_json:
        context.obj.json.put(
            cases=[] if iterations else collected.cases,
            iterations=list(collected.iterations()) if iterations else [],
            claims=collected.outcome.judged_claims,
            files=written_files("export", output),
        )
    elif output is None and on_terminal:
        data(b"".join(pieces).decode().rstrip("\n"))
    elif output is None:
        sys.stdout.buffer.writelines(pieces)
        sys.stdout.buffer.flush()
    return shows_cases


def _require_columns(file_format: Format, iterations: bool, columns: str | None, json: bool) -> None:
    """Raise ReproError for options that the format does not have."""
    is_table = file_format in _TABLES
    hint = "use csv, json, jsonl or parquet"
    problems = []
    if iterations and is_table:
        problems.append(Problem(f"--iterations: {file_format} is a table of cases", hint=hint))
    if columns is not None and is_table:
        problems.append(Problem(f"--columns: {file_format} is a table with its own columns", hint=hint))
    if columns is not None and json:
        problems.append(Problem("--columns: a JSON document has all columns", hint="--export json has chosen ones"))
    if problems:
        raise ReproError(*problems)


def _export_format(export: Format | None, output: Path | None) -> Format:
    """Return the format of --export or of the file's ending; ReproError if they differ or neither is known."""
    if output is None:
        return export or "csv"
    ending = ENDINGS.get(output.suffix.lower())
    if export is None and ending is None:
        hint = f"add --export with one of {', '.join(get_args(Format))}"
        raise ReproError(Problem("no export format has this ending", f"{output}:", hint))
    if export is not None and ending is not None and ending != export:
        what = f"the ending is of {ending}, but --export is {export}"
        raise ReproError(Problem(what, f"{output}:", "leave --export out, or change the ending"))
    return export or ending or "csv"


@app.command()
def claims(
    context: typer.Context,
    experiments: Experiments = None,
    *,
    scale: option.OnlyScale = None,
    cluster: option.OnlyCluster = None,
    program: option.OnlyProgram = None,
    arg: option.OnlyArguments = None,
    run: option.OnlyRun = None,
    without: option.Without = None,
    attempt: option.ResultAttempt = None,
) -> None:
    """Judge the claims of the paper: each holds, fails, or is not judged.

    Without a name, all submitted experiments are judged, each at its latest matching run.
    """
    selection = api.FigureFilter(cluster=cluster, scale=scale, program=program, arg=arg, run=run, without=without)
    selection["attempt"] = attempt
    session = session_of(context)
    judged = api.claims(experiments or (), session=session, **selection)
    failures = [row for outcome in judged.outcomes for row in outcome.failures]
    rows = [row for outcome in judged.outcomes for row in outcome.judged_claims]
    context.obj.json.put(claims=rows, failed_jobs=rows_of(api.JobRef, failures))
    for outcome in judged.outcomes:
        data(_claims_title(outcome))
        print_claims(outcome, with_numbers=True)
    if judged.problems:
        raise ReproError(*judged.problems)
    print_shortened(
        [f"failed: {row.label} of {row.experiment} (job {row.job_id}): {row.verdict_reason}" for row in failures],
        f"repro status {short_name(failures[0].experiment)} --failed" if failures else "",
    )
    if failures:
        suggest_why(failures[0])
    else:
        first = next((outcome for outcome in judged.outcomes if outcome.failed), judged.outcomes[0]).entry.short_name
        purpose = "measured and published numbers"
        suggest(purpose, "compare", first, **selection)
    if judged.failed:
        raise typer.Exit(EXIT_FAILED)


def _claims_title(outcome: api.FigureOutcome) -> str:
    """Return `figure-13 at scale cpu on here: 2 hold, 1 not judged`."""
    program = f" with {outcome.program}" if outcome.program else ""
    return f"{outcome.entry.short_name} at scale {outcome.scale} on {outcome.cluster}{program}: {claim_counts(outcome)}"


@app.command()
def plot(
    context: typer.Context,
    experiments: Drawn = None,
    *,
    scale: option.OnlyScale = None,
    cluster: option.OnlyCluster = None,
    program: option.OnlyProgram = None,
    where: option.Where = None,
    arg: option.OnlyArguments = None,
    run: option.OnlyRun = None,
    without: option.Without = None,
    output: option.OutputPlace = None,
    attempt: option.ResultAttempt = None,
    force: option.Force = False,
) -> None:
    """Draw figures on the paper's axes as png, svg or pdf, and print the paths.

    Without -o, or with a folder, the earlier picture of the same figure is replaced.
    """
    selection = api.FigureFilter(cluster=cluster, scale=scale, program=program, arg=arg, run=run, without=without)
    selection["attempt"] = attempt
    session, names = session_of(context), experiments or []
    if len(names) > 1 or any(map(api.is_paper, names)):
        plots = api.plot_all(names, output, session=session, where=where, **selection)
    else:
        if output is not None and not names_folder(output):
            api.require_plot_file(Path(output))
            confirm_overwrite([Path(output)], force)
        name = names[0] if names else None
        plots = [api.plot(name, output, session=session, where=where, **selection)]
    files = written_files("picture", *(plotted.file for plotted in plots))
    context.obj.json.put(files=files, claims=[row for plotted in plots for row in plotted.outcome.judged_claims])
    for plotted in plots:
        data(str(plotted.file))
        message(_claims_title(plotted.outcome))
    first = plots[0].outcome.entry.short_name
    suggest("the verdicts with their numbers", "claims", first, **selection)


@app.command()
def report(
    context: typer.Context,
    experiments: Experiments = None,
    *,
    scale: option.OnlyScale = None,
    cluster: option.OnlyCluster = None,
    program: option.OnlyProgram = None,
    arg: option.OnlyArguments = None,
    run: option.OnlyRun = None,
    without: option.Without = None,
    output: OutputFolder,
    force: ForceFolder = False,
) -> None:
    """Write one HTML page with outcomes, pictures and provenance."""
    selection = api.FigureFilter(cluster=cluster, scale=scale, program=program, arg=arg, run=run, without=without)
    session = session_of(context)
    page = api.report(output, experiments or (), force=force, session=session, **selection)
    claims = [row for outcome in page.outcomes for row in outcome.judged_claims]
    context.obj.json.put(files=written_files("page", page.file), claims=claims)
    data(str(page.file))
    cases = counted(sum(len(outcome.results) for outcome in page.outcomes), "case")
    message(f"{counted(len(page.outcomes), 'experiment')}, {cases}; the page is one file and needs no other")
    failures = [row for outcome in page.outcomes for row in outcome.failures]
    if failures:
        suggest_why(failures[0])
    else:
        suggest("the same verdicts for a script", "claims", *(experiments or ()), **selection)


What = Annotated[
    list[str],
    argument(
        "EXPERIMENTS|verify FILE",
        "Experiments or papers, or the word verify and the bundle to check.",
        completion.bundle_words,
    ),
]


@app.command()
def bundle(
    context: typer.Context,
    what: What,
    *,
    scale: option.OnlyScale = None,
    cluster: option.OnlyCluster = None,
    program: option.OnlyProgram = None,
    arg: option.OnlyArguments = None,
    run: option.OnlyRun = None,
    without: option.Without = None,
    output: option.OutputPlace = None,
    force: option.Force = False,
) -> None:
    """Write everything a reviewer needs to one file per experiment, or verify such a file from its own logs."""
    selection = api.FigureFilter(cluster=cluster, scale=scale, program=program, arg=arg, run=run, without=without)
    if what[0] == "verify":
        if context.obj.is_json:
            context.obj.print_document("bundle verify")
        if len(what) != 2 or output or any(selection.values()) or force:
            raise ReproError(Problem("verify needs a file and no option", hint="repro bundle verify FILE.tar.zst"))
        _verify(context, Path(what[1]))
        return
    for word in what:
        if word.endswith(".tar.zst"):
            raise ReproError(Problem("only verify reads a file", f"{word}:", "-o names the file to write"))
    session, place = session_of(context), Path(output or ".")
    if not names_folder(output):
        if len(what) > 1 or api.is_paper(what[0]):
            raise ReproError(Problem("no such folder", f"{place}:", f"several bundles need a folder: -o {place}/"))
        api.require_bundle_name(place)
        confirm_overwrite([place], force)  # before the logs are read
    outcomes = api.outcomes(what, session=session, **selection)
    files = [place]
    if names_folder(output):
        place.mkdir(parents=True, exist_ok=True)
        files = [place / api.bundle_file(outcome) for outcome in outcomes]
        confirm_overwrite(files, force)
    _write_bundles(context, outcomes, files, session)


def _write_bundles(
    context: typer.Context, outcomes: Sequence[api.FigureOutcome], files: Sequence[Path], session: api.Session
) -> None:
    """Write a bundle of each outcome; exit code 1 if one does not verify or lacks a file."""
    written: list[api.Bundle] = []
    unproven: list[Problem] = []
    for outcome, file in zip(outcomes, files, strict=True):
        try:
            written.append(api.bundle(outcome, file, session=session))
        except api.UnprovenBundle as error:
            unproven += error.problems
    context.obj.json.put(
        files=[row for each in written for row in written_files("bundle", each.file)],
        missing=[missing for each in written for missing in each.contents.missing],
        left_out=[attempt for each in written for attempt in each.contents.left_out],
    )
    for each in written:
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


def _verify(context: typer.Context, file: Path) -> None:
    """Print the checks of a bundle and their sum; exit code 1 if one found a difference."""
    verified = api.verify_bundle(file)
    context.obj.json.put(checks=rows_of(api.BundleCheckRow, verified.checks))
    for check in verified.checks:
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
