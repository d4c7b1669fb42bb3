"""Commands for results: collect, claims, plot, report, bundle."""

from __future__ import annotations

import enum
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import __version__, api
from orchestrator.cli import completion
from orchestrator.cli.job_table import print_claims
from orchestrator.cli.json_jobs import claim_rows, job_refs
from orchestrator.cli.options import (
    AnyExperiment,
    Database,
    Force,
    JobOptions,
    Json,
    MaybeExperiment,
    OutputFile,
    ResultAttempt,
    RunOptions,
    confirm_overwrite,
    session_of,
    workload_option,
)
from orchestrator.cli.output import data, message, next_command, print_shortened
from orchestrator.errors import EXIT_FAILED, Problem, ReproError
from orchestrator.paths import short_name
from orchestrator.text import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from orchestrator.cli.documents import (
        BundleDocument,
        BundleVerifyDocument,
        ClaimsDocument,
        CollectDocument,
        PlotDocument,
        ReportDocument,
    )
    from orchestrator.cli.json_site_rows import FileRow


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

Export = Annotated[Format | None, typer.Option("--export", help="Format. Default: from the ending of -o, else csv.")]
Iterations = Annotated[bool, typer.Option("--iterations", help="One row per logged iteration, of running jobs too.")]
Experiments = Annotated[
    list[str] | None,
    typer.Argument(help="Experiments. Default: all that were submitted.", autocompletion=completion.experiments),
]
OutputFolder = Annotated[Path, typer.Option("--output", "-o", help="Folder for index.html.")]
ForceFolder = Annotated[bool, typer.Option("--force", help="Write into a folder that has other files.")]
What = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT|verify", help="figure-13, or the word verify.", autocompletion=completion.experiments
    ),
]
BundleFile = Annotated[Path | None, typer.Argument(metavar="FILE", help="With verify: the bundle to check.")]
Key = Annotated[Path | None, typer.Option("--sign", metavar="KEY", help="Sign with this SSH key, into FILE.sig.")]
Signers = Annotated[
    Path | None,
    typer.Option(
        "--allowed-signers",
        metavar="FILE",
        help="With verify: require a signature of a signer in this file (man ssh-keygen).",
    ),
]
app = typer.Typer(rich_markup_mode=None)


@app.command()
@api.with_keywords(JobOptions)
def collect(
    context: typer.Context,
    experiment: MaybeExperiment = None,
    *,
    export: Export = None,
    output: OutputFile = None,
    iterations: Iterations = False,
    attempt: ResultAttempt = None,
    force: Force = False,
    json: Json = False,
    database: Database = None,
    **options: Unpack[JobOptions],
) -> None:
    """Read the logs and export one row for each case. The claims go to stderr."""
    file_format = _export_format(export, output)
    if iterations and file_format in _TABLES:
        hint = "use csv, json, jsonl or parquet"
        raise ReproError(Problem(f"--iterations: {file_format.value} is a table of cases", hint=hint))
    if file_format is Format.parquet:
        api.require_parquet()
        if output is None and sys.stdout.isatty() and not json:
            raise ReproError(Problem("parquet is binary and cannot go to a terminal", hint="add -o FILE.parquet"))
    if output is not None:
        confirm_overwrite(output, force)
    collected = api.collect(experiment, attempt=attempt, session=session_of(context, database), **options)
    pieces = collected.export(file_format.value, iterations=iterations)
    if output is not None:
        api.write_file(pieces, output)
        if not json:
            data(str(output))
    if json:
        document: CollectDocument = {
            "cases": [] if iterations else collected.rows,
            "iterations": list(collected.iterations()) if iterations else [],
            "claims": claim_rows(collected.outcome),
            "files": [] if output is None else _file_rows("export", output),
        }
        context.obj.json.put(document)
    elif output is None and sys.stdout.isatty():
        data(b"".join(pieces).decode().replace("\r\n", "\n").rstrip("\n"))
    elif output is None:
        sys.stdout.buffer.writelines(pieces)
        sys.stdout.buffer.flush()
    print_claims(collected.outcome, to_stdout=False)
    name = collected.outcome.entry.short_name
    next_command(f"repro plot {name}{workload_option(options.get('workload'))}", "the figure as a picture")
    if collected.outcome.failed:
        raise typer.Exit(EXIT_FAILED)


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
@api.with_keywords(RunOptions)
def claims(
    context: typer.Context,
    experiment: AnyExperiment = None,
    *,
    attempt: ResultAttempt = None,
    json: Json = False,
    database: Database = None,
    **options: Unpack[RunOptions],
) -> None:
    """Judge the claims of the paper: each holds, fails, or is not judged.

    Without a name, all submitted experiments are judged, each at its latest matching run.
    """
    judged = api.claims(experiment or (), attempt=attempt, session=session_of(context, database), **options)
    failures = [row for outcome in judged.outcomes for row in outcome.failures]
    if json:
        rows = [row for outcome in judged.outcomes for row in claim_rows(outcome)]
        document: ClaimsDocument = {"claims": rows, "failed_jobs": job_refs(failures)}
        context.obj.json.put(document)
    else:
        for outcome in judged.outcomes:
            data(_claims_title(outcome))
            print_claims(outcome, to_stdout=True, with_numbers=True)
    if judged.problems:
        raise ReproError(*judged.problems)
    print_shortened(
        [f"failed: {row.label} of {row.experiment} (job {row.job_id}): {row.verdict_reason}" for row in failures],
        f"repro status {short_name(failures[0].experiment)} --failed" if failures else "",
    )
    if failures:
        next_command(f"repro logs {failures[0].job_id}", f"why {failures[0].case_name} failed")
    else:
        first = next((outcome for outcome in judged.outcomes if outcome.failed), judged.outcomes[0])
        next_command(f"repro compare {first.entry.short_name}", "measured and published numbers")
    if judged.failed:
        raise typer.Exit(EXIT_FAILED)


def _claims_title(outcome: api.FigureOutcome) -> str:
    """Return `figure-13 at scale cpu on here: 2 hold, 1 not judged`."""
    count = Counter[str](verdict.verdict for verdict in outcome.claims)
    plurals = {"holds": "hold", "fails": "fail", "not judged": "not judged"}
    counts = [f"{count[verdict]} {plural}" for verdict, plural in plurals.items() if count[verdict]]
    program = f" with {outcome.program}" if outcome.program else ""
    figure = f"{outcome.entry.short_name} at scale {outcome.scale} on {outcome.cluster}{program}"
    return f"{figure}: {', '.join(counts) or 'no claims'}"


def _file_rows(kind: str, *files: Path | None) -> list[FileRow]:
    """Return the rows of the files that were written."""
    return [{"file": file, "kind": kind, "bytes": file.stat().st_size} for file in files if file is not None]


@app.command()
@api.with_keywords(JobOptions)
def plot(
    context: typer.Context,
    experiment: MaybeExperiment = None,
    *,
    output: OutputFile = None,
    attempt: ResultAttempt = None,
    force: Force = False,
    json: Json = False,
    database: Database = None,
    **options: Unpack[JobOptions],
) -> None:
    """Draw the figure on the paper's axes as png, svg or pdf, and print its path.

    Without -o, the earlier picture of the same figure is replaced.
    """
    if output is not None:
        api.require_plot_file(output)
        confirm_overwrite(output, force)
    plotted = api.plot(experiment, output, attempt=attempt, session=session_of(context, database), **options)
    if json:
        document: PlotDocument = {"files": _file_rows("picture", plotted.file), "claims": claim_rows(plotted.outcome)}
        context.obj.json.put(document)
    else:
        data(str(plotted.file))
    print_claims(plotted.outcome, to_stdout=False)
    next_command(f"repro collect --export csv{workload_option(options.get('workload'))}", "the numbers in it")


@app.command()
@api.with_keywords(RunOptions)
def report(
    context: typer.Context,
    experiments: Experiments = None,
    *,
    output: OutputFolder,
    force: ForceFolder = False,
    json: Json = False,
    database: Database = None,
    **options: Unpack[RunOptions],
) -> None:
    """Write one HTML page with outcomes, pictures and provenance."""
    page = api.report(output, experiments or (), force=force, session=session_of(context, database), **options)
    if json:
        claims = [row for outcome in page.outcomes for row in claim_rows(outcome)]
        document: ReportDocument = {"files": _file_rows("page", page.file), "claims": claims}
        context.obj.json.put(document)
    else:
        data(str(page.file))
    cases = counted(sum(len(outcome.results) for outcome in page.outcomes), "case")
    message(f"{counted(len(page.outcomes), 'experiment')}, {cases}; the page is one file and needs no other")
    failures = [row for outcome in page.outcomes for row in outcome.failures]
    if failures:
        next_command(f"repro logs {failures[0].job_id}", f"why {failures[0].label} failed")
    else:
        next_command(f"repro claims {page.outcomes[0].entry.short_name}", "the same verdicts for a script")


@app.command()
@api.with_keywords(RunOptions)
def bundle(
    context: typer.Context,
    what: What,
    file: BundleFile = None,
    *,
    output: OutputFile = None,
    sign: Key = None,
    allowed_signers: Signers = None,
    force: Force = False,
    json: Json = False,
    database: Database = None,
    **options: Unpack[RunOptions],
) -> None:
    """Write everything a reviewer needs to one file, or verify such a file from its own logs."""
    if what == "verify":
        if json:
            context.obj.json.command = "bundle verify"
        if file is None or output or any(options.values()) or sign or force:
            hint = "repro bundle verify FILE.tar.zst"
            raise ReproError(Problem("verify needs a file, and its only option is --allowed-signers", hint=hint))
        verified = api.verify_bundle(file, allowed_signers)
        if json:
            context.obj.json.put(_verify_document(verified))
        _print_verified(verified, file, allowed_signers, not json)
        return
    if file is not None:
        raise ReproError(Problem("only verify reads a file", f"{file}:", "-o names the file to write"))
    if allowed_signers is not None:
        raise ReproError(Problem("--allowed-signers: only for verify", hint="--sign KEY signs a bundle"))
    session = session_of(context, database)
    if sign is not None:
        api.require_key(sign)
    if output is not None:
        confirm_overwrite(output, force)  # before the logs are read
    outcome = api.outcome(what, session=session, **options)
    if output is None:
        output = api.bundle_file(outcome)
        confirm_overwrite(output, force)
    written = api.bundle(outcome, output, key=sign, session=session)
    if json:
        files = [*_file_rows("bundle", written.file), *_file_rows("signature", written.signature)]
        document: BundleDocument = {"files": files, "missing": written.contents.missing}
        context.obj.json.put(document)
    else:
        data(str(written.file))
    _print_contents(written)


def _print_contents(written: api.Bundle) -> None:
    """Print what a bundle contains and what is missing in it."""
    file, contents = written.file, written.contents
    if written.signature is not None:
        message(f"signature: {written.signature}")
    for missing in contents.missing:
        message(f"{'missing' if missing.is_fault else 'note'}: {missing.place}: {missing.why}")
    if contents.under_way:
        message(f"note: {counted(contents.under_way, 'open attempt')}: the bundle is marked as not final")
    size = f"{file.stat().st_size / 1e3:,.0f} kB"
    message(f"{counted(contents.attempts, 'attempt')}, {counted(contents.files, 'file')}, {size}")
    next_command(f"repro bundle verify {shlex.quote(str(file))}", "the check that a reviewer runs")
    if any(missing.is_fault for missing in contents.missing):
        raise typer.Exit(EXIT_FAILED)


def _verify_document(verified: api.BundleCheck) -> BundleVerifyDocument:
    signature = verified.signature
    return {
        "checks": [
            {"check": check.name, "what": check.what, "proven": check.is_proven, "differences": check.differences}
            for check in verified.checks.checks
        ],
        "signatures": [{"signer": signature.signer, "problem": signature.problem}] if signature else [],
    }


def _print_verified(verified: api.BundleCheck, file: Path, allowed_signers: Path | None, with_checks: bool) -> None:
    """Print the checks and their sum; exit code 1 if one found a difference."""
    if verified.signature is not None and with_checks:
        signer = verified.signature.signer
        data(f"signature {f'by {signer}: valid' if signer else verified.signature.problem}")
    checks = verified.checks
    for check in checks.checks if with_checks else ():
        differences = counted(len(check.differences), "difference") if check.differences else "no difference"
        data(f"{check.name:<8}  {check.what}{f': {differences}' if check.is_proven else ''}")
        for difference in check.differences:
            data(f"{'':<8}  {difference}")
    if checks.holds:
        derived = "numbers, claims, report and README" if checks.is_proven else "numbers and claims"
        message(f"the bundle is consistent with its checksums and logs: {derived} follow from the logs")
        if not checks.is_proven:
            message("note: report.html and README.txt are not checked; read results/ instead")
        if allowed_signers is None:
            message("note: the author is not checked; --allowed-signers FILE checks a signature")
    elif checks.made_by != __version__:
        message(f"note: made by repro {checks.made_by}, read by {__version__}, which may count differently")
    if not verified.holds:
        raise typer.Exit(EXIT_FAILED)
    next_command(f"tar -xf {shlex.quote(str(file))}", "unpack report.html, results and logs")
