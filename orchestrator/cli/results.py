"""Commands for results: collect, claims, plot, report."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli.job_table import claim_counts, print_claims, print_outcome, suggest_why
from orchestrator.cli.options import (
    CaseSelection,
    Database,
    FigureOptions,
    Force,
    Json,
    MaybeExperiment,
    OutputFile,
    OutputPlace,
    ResultAttempt,
    confirm_overwrite,
    session_of,
)
from orchestrator.cli.output import data, message, print_shortened
from orchestrator.cli.suggestion import suggest
from orchestrator.errors import EXIT_FAILED, Problem, ReproError
from orchestrator.files import names_folder
from orchestrator.paths import short_name
from orchestrator.text import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Format(str, enum.Enum):
    """Values of --export."""

    csv = "csv"
    json = "json"
    jsonl = "jsonl"
    parquet = "parquet"
    md = "md"
    latex = "latex"


ENDINGS = {
    **{f".{file_format.value}": file_format for file_format in Format if file_format is not Format.latex},
    ".tex": Format.latex,
    ".ndjson": Format.jsonl,
    ".markdown": Format.md,
}
"""Formats by the ending of a file."""
_TABLES = (Format.md, Format.latex)

Export = Annotated[Format | None, typer.Option("--export", help="Format. Default: by the extension of -o, else csv.")]
Columns = Annotated[
    str | None,
    typer.Option("--columns", help="main, all, or a,b,c. Default: main on a terminal, all in a file or a pipe."),
]
Iterations = Annotated[bool, typer.Option("--iterations", help="One row per logged iteration, of running jobs too.")]
Experiments = Annotated[
    list[str] | None,
    typer.Argument(
        help="Experiments or papers. Default: all that were submitted.",
        autocompletion=completion.experiments_and_papers,
    ),
]
OutputFolder = Annotated[Path, typer.Option("--output", "-o", help="Folder for index.html.")]
ForceFolder = Annotated[bool, typer.Option("--force", help="Write into a folder that has other files.")]
Drawn = Annotated[
    list[str] | None,
    typer.Argument(
        help="Experiments or papers. Default: the one submitted last.",
        autocompletion=completion.experiments_and_papers,
    ),
]
app = typer.Typer(rich_markup_mode=None)


@app.command()
@api.with_keywords(CaseSelection)
def collect(
    context: typer.Context,
    experiment: MaybeExperiment = None,
    *,
    export: Export = None,
    output: OutputFile = None,
    columns: Columns = None,
    iterations: Iterations = False,
    attempt: ResultAttempt = None,
    force: Force = False,
    json: Json = False,
    database: Database = None,
    **options: Unpack[CaseSelection],
) -> None:
    """Read the logs and export one row for each case.

    On a terminal, print the main columns and the claims, and write all columns to a file, which replaces an earlier
    one of the same figure. With -o, only write that file. Through a pipe, print the file itself.
    """
    file_format = _export_format(export, output)
    _require_columns(file_format, iterations, columns, json)
    if file_format is Format.parquet:
        api.require_parquet()
    if output is not None:
        confirm_overwrite([output], force)
    collected = api.collect(experiment, attempt=attempt, session=session_of(context, database), **options)
    pieces = collected.export(file_format.value, iterations=iterations, columns=columns or "all")
    on_terminal = sys.stdout.isatty() and not json
    shows_cases = on_terminal and output is None and file_format not in _TABLES and not iterations
    if output is None and on_terminal and file_format not in _TABLES:
        ending = f"{'-iterations' * iterations}.{file_format.value}"
        output = Path(collected.outcome.file_name(ending, attempt))
        api.require_place(output)
    if output is not None:
        api.write_file(pieces, output)
    if shows_cases:
        chosen = [column.name for column in collected.columns(columns)] if columns not in (None, "main") else None
        print_outcome(collected.outcome, collected.cases, chosen)
        shape = f"{counted(len(collected.cases), 'row')}, {counted(len(collected.columns(columns or 'all')), 'column')}"
        data(f"\n{output}  ({shape})")
    elif output is not None and not json:
        data(str(output))
    if json:
        context.obj.json.put(
            cases=[] if iterations else collected.cases,
            iterations=list(collected.iterations()) if iterations else [],
            claims=collected.outcome.judged_claims,
            files=api.written_files("export", output),
        )
    elif output is None and on_terminal:
        data(b"".join(pieces).decode().rstrip("\n"))
    elif output is None:
        sys.stdout.buffer.writelines(pieces)
        sys.stdout.buffer.flush()
    if not shows_cases:
        message(_claims_title(collected.outcome))
    suggest(context, "the figure as a picture", "plot", collected.outcome.entry.short_name)
    if collected.outcome.failed:
        raise typer.Exit(EXIT_FAILED)


def _require_columns(file_format: Format, iterations: bool, columns: str | None, json: bool) -> None:
    """Raise ReproError for options that the format does not have."""
    is_table = file_format in _TABLES
    hint = "use csv, json, jsonl or parquet"
    problems = []
    if iterations and is_table:
        problems.append(Problem(f"--iterations: {file_format.value} is a table of cases", hint=hint))
    if columns is not None and is_table:
        problems.append(Problem(f"--columns: {file_format.value} is a table with its own columns", hint=hint))
    if columns is not None and json:
        problems.append(Problem("--columns: a JSON document has all columns", hint="--export json has chosen ones"))
    if problems:
        raise ReproError(*problems)


def _export_format(export: Format | None, output: Path | None) -> Format:
    """Return the format of --export or of the file's ending; ReproError if they differ or neither is known."""
    if output is None:
        return export or Format.csv
    ending = ENDINGS.get(output.suffix.lower())
    if export is None and ending is None:
        hint = f"add --export with one of {', '.join(file_format.value for file_format in Format)}"
        raise ReproError(Problem("no export format has this ending", f"{output}:", hint))
    if export is not None and ending is not None and ending is not export:
        what = f"the ending is of {ending.value}, but --export is {export.value}"
        raise ReproError(Problem(what, f"{output}:", "leave --export out, or change the ending"))
    return export or ending or Format.csv


@app.command()
@api.with_keywords(FigureOptions)
def claims(
    context: typer.Context,
    experiments: Experiments = None,
    *,
    attempt: ResultAttempt = None,
    json: Json = False,
    database: Database = None,
    **options: Unpack[FigureOptions],
) -> None:
    """Judge the claims of the paper: each holds, fails, or is not judged.

    Without a name, all submitted experiments are judged, each at its latest matching run.
    """
    judged = api.claims(experiments or (), attempt=attempt, session=session_of(context, database), **options)
    failures = [row for outcome in judged.outcomes for row in outcome.failures]
    if json:
        rows = [row for outcome in judged.outcomes for row in outcome.judged_claims]
        context.obj.json.put(claims=rows, failed_jobs=api.rows_of(api.JobRef, failures))
    else:
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
        suggest_why(context, failures[0])
    else:
        first = next((outcome for outcome in judged.outcomes if outcome.failed), judged.outcomes[0])
        suggest(context, "measured and published numbers", "compare", first.entry.short_name)
    if judged.failed:
        raise typer.Exit(EXIT_FAILED)


def _claims_title(outcome: api.FigureOutcome) -> str:
    """Return `figure-13 at scale cpu on here: 2 hold, 1 not judged`."""
    program = f" with {outcome.program}" if outcome.program else ""
    return f"{outcome.entry.short_name} at scale {outcome.scale} on {outcome.cluster}{program}: {claim_counts(outcome)}"


@app.command()
@api.with_keywords(CaseSelection)
def plot(
    context: typer.Context,
    experiments: Drawn = None,
    *,
    output: OutputPlace = None,
    attempt: ResultAttempt = None,
    force: Force = False,
    json: Json = False,
    database: Database = None,
    **options: Unpack[CaseSelection],
) -> None:
    """Draw figures on the paper's axes as png, svg or pdf, and print the paths.

    Without -o, or with a folder, the earlier picture of the same figure is replaced.
    """
    session, names = session_of(context, database), experiments or []
    if len(names) > 1 or any(map(api.is_paper, names)):
        plots = api.plot_all(names, output, attempt=attempt, session=session, **options)
    else:
        if output is not None and not names_folder(output):
            api.require_plot_file(Path(output))
            confirm_overwrite([Path(output)], force)
        plots = [api.plot(names[0] if names else None, output, attempt=attempt, session=session, **options)]
    if json:
        files = api.written_files("picture", *(plotted.file for plotted in plots))
        context.obj.json.put(files=files, claims=[row for plotted in plots for row in plotted.outcome.judged_claims])
    for plotted in plots:
        if not json:
            data(str(plotted.file))
        message(_claims_title(plotted.outcome))
    first = plots[0].outcome.entry.short_name
    suggest(context, "the verdicts with their numbers", "claims", first)


@app.command()
@api.with_keywords(FigureOptions)
def report(
    context: typer.Context,
    experiments: Experiments = None,
    *,
    output: OutputFolder,
    force: ForceFolder = False,
    json: Json = False,
    database: Database = None,
    **options: Unpack[FigureOptions],
) -> None:
    """Write one HTML page with outcomes, pictures and provenance."""
    page = api.report(output, experiments or (), force=force, session=session_of(context, database), **options)
    if json:
        claims = [row for outcome in page.outcomes for row in outcome.judged_claims]
        context.obj.json.put(files=api.written_files("page", page.file), claims=claims)
    else:
        data(str(page.file))
    cases = counted(sum(len(outcome.results) for outcome in page.outcomes), "case")
    message(f"{counted(len(page.outcomes), 'experiment')}, {cases}; the page is one file and needs no other")
    failures = [row for outcome in page.outcomes for row in outcome.failures]
    if failures:
        suggest_why(context, failures[0])
    else:
        suggest(context, "the same verdicts for a script", "claims", *(experiments or ()))
