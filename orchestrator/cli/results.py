"""Commands for results: collect, compare, claims, plot, report, bundle."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer
from typing_extensions import Unpack

from orchestrator import __version__, api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.job_table import claim_counts, print_claims, print_outcome, suggest_why
from orchestrator.cli.options import (
    argument,
    command_session,
    confirm_overwrite,
    experiments_of,
    flag,
    value_option,
    with_options,
)
from orchestrator.cli.output import (
    MOST_LINES,
    as_row,
    console,
    data,
    filled_columns,
    message,
    next_command,
    print_shortened,
    put,
    suggest,
    table,
)
from orchestrator.errors import EXIT_FAILED, Problem, ReproError, did_you_mean, require_none
from orchestrator.fields import rows_of
from orchestrator.files import names_folder, require_place, written_files
from orchestrator.paths import find_folders, short_name
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

_IMPORTANT = ("case", "metric", "measured", "published", "ratio", "within", "allowed", "not_judged")
_DIFFERENCES = ("experiment", "scale", "case", "metric", "a", "b", "ratio", "noise", "change", "because")
Experiments = Annotated[
    list[str] | None,
    argument(
        "EXPERIMENT...", "Experiments or papers. Default: all that were submitted.", completion.experiments_and_papers
    ),
]
app = typer.Typer(rich_markup_mode=None)


@app.command()
@with_options(option.RESULTS)
def collect(
    experiment: option.MaybeExperiment = None,
    *,
    where: option.Where = None,
    export: Annotated[
        Format | None, value_option("FORMAT", "Format. Default: by the extension of -o, else csv.")
    ] = None,
    output: Annotated[Path | None, value_option("PATH", "Write to this file.", None, "--output", "-o")] = None,
    columns: Annotated[
        str | None,
        value_option("COLUMNS", "main, all, or a,b,c. Default: main on a terminal, all in a file or a pipe."),
    ] = None,
    iterations: Annotated[bool, flag("One row per logged iteration, of running jobs too.", "--iterations")] = False,
    force: option.Force = False,
    **selection: Unpack[api.FigureFilter],
) -> None:
    """Read the logs and export one row for each case.

    On a terminal, print the main columns and the claims, and write all columns to a file, which replaces an earlier
    one of the same figure. With -o, only write that file. Through a pipe, print the file itself.
    """
    file_format = _export_format(export, output)
    _require_columns(file_format, iterations, columns, console.is_json)
    if file_format == "parquet":
        api.require_parquet()
    if output is not None:
        confirm_overwrite([output], force)
    session = command_session()
    collected = api.collect(experiment, session=session, where=where, **selection)
    shows_cases = _print_collected(collected, file_format, output, columns, iterations)
    if not shows_cases:
        message(_claims_title(collected.outcome))
    suggest("the figure as a picture", "plot", collected.outcome.entry.short_name, **selection, where=where)
    if collected.outcome.failed:
        raise typer.Exit(EXIT_FAILED)


def _print_collected(
    collected: api.Collected, file_format: Format, output: Path | None, columns: str | None, iterations: bool
) -> bool:
    """Write or print the export; return whether the cases and claims were printed as on a terminal."""
    pieces = collected.export(file_format, iterations=iterations, columns=columns or "all")
    on_terminal = sys.stdout.isatty() and not console.is_json
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
    if console.is_json:
        put(
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
    require_none(problems)


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
@with_options(option.RESULTS)
def compare(
    arguments: Annotated[
        list[str] | None,
        argument(
            "[EXPERIMENT] [A B]",
            "Default: the one submitted last. A and B are each a cluster, a date (2026-11-20), a commit or a run.",
            completion.experiments,
        ),
    ] = None,
    *,
    where: option.Where = None,
    wide: option.Wide = False,
    **selection: Unpack[api.FigureFilter],
) -> None:
    """Compare measured with published numbers, or two clusters, dates, commits or runs A and B."""
    experiment, sides = _parse(arguments or [])
    session = command_session()
    if sides is None:
        published = api.compare(experiment, where=where, session=session, **selection)
        put(numbers=published.rows)
        _print_published(published, selection, wide)
        return
    if selection["attempt"] is not None or selection["arg"] or selection["run"]:
        what = "--attempt, --arg and --run: not with A and B"
        raise ReproError(Problem(what, hint="repro compare EXPERIMENT --attempt 1"))
    jobs: api.JobFilter = {"where": where, "cluster": selection["cluster"], "scale": selection["scale"]}
    jobs["program"] = selection["program"]
    compared = api.compare_runs(*sides, experiment, without=selection["without"], session=session, **jobs)
    put(sides=[compared.a, compared.b], cases=compared.cases)
    _print_runs(compared)


def _parse(arguments: Sequence[str]) -> tuple[str | None, tuple[str, str] | None]:
    """Return the experiment, if there is one, and the two sides, if there are any."""
    match arguments:
        case []:
            return None, None
        case [experiment]:
            _require_experiment(experiment)
            return experiment, None
        case [a, b] if not experiments_of([a]):
            return None, (a, b)
        case [experiment, a, b]:
            _require_experiment(experiment)
            return experiment, (a, b)
    what = f"{' '.join(arguments)}: neither one experiment nor two sides"
    raise ReproError(Problem(what, hint="repro compare EXPERIMENT, or repro compare [EXPERIMENT] A B"))


def _require_experiment(name: str) -> None:
    if not experiments_of([name]):
        near = did_you_mean(name, map(short_name, api.experiment_names(find_folders())))
        raise ReproError(
            Problem("no such experiment", f"{name}:", near or "to compare two runs, use repro compare [EXPERIMENT] A B")
        )


def _print_published(comparison: api.PublishedComparison, selection: api.FigureFilter, wide: bool) -> None:
    """Print the numbers and the next command; exit code 1 if a job failed or a number is outside its tolerance."""
    outcome = comparison.outcome
    message(f"{outcome.entry.short_name} at scale {outcome.scale} on {outcome.cluster}")  # a note names the program
    shown = [_number_row(row) for row in comparison.rows if row.measured is not None]
    table(shown, filled_columns(shown), wide=wide, important=_IMPORTANT)
    _print_summary(comparison)
    if comparison.failures:
        suggest_why(comparison.failures[0])
    else:
        purpose = "the claims of the paper about these numbers"
        suggest(purpose, "claims", outcome.entry.short_name, **selection)
    if comparison.failed:
        raise typer.Exit(EXIT_FAILED)


def _print_summary(comparison: api.PublishedComparison) -> None:
    """Print how rates are computed, how many numbers are within tolerance, and what is missing."""
    rows, results = comparison.rows, comparison.results.values()
    measured = [result for result in results if result.metric("tflops_per_gpu")]
    equations = dict.fromkeys(filter(None, (result.case.equation for result in measured)))
    if equations:
        by = " or ".join(equations)
        message(f"TFLOP/s, percent of peak and PFLOP/s of all GPUs by {by}, from the time of an iteration")
        for name in ("percent_of_peak_computed", "mfu_percent"):
            if any(result.metric(name) for result in measured):
                message(f"{name}: {comparison.outcome.entry.metrics[name].meaning}")
    judged = [row for row in rows if row.within is not None]
    if judged:
        within = sum(row.within is True for row in judged)
        message(f"{within} of {counted(len(judged), 'judged number')} within tolerance")
    name = comparison.outcome.entry.short_name
    print_shortened(
        [
            f"outside tolerance: {row.metric} of {row.case} is {row.ratio:.3g} of the published number, "
            f"{_tolerance(row)} allowed"
            for row in judged
            if not row.within
        ],
        f"repro compare {name} --json",
    )
    host_bound = [f"{result.case.name} ({result.host_bound})" for result in results if result.host_bound]
    if host_bound:
        message(f"host-bound: {counted(len(host_bound), 'case')}: {'; '.join(host_bound)}")
    for kind, cases in _missing(rows).items():
        more = f"; ... and {len(cases) - MOST_LINES} more: repro status {name}" if len(cases) > MOST_LINES else ""
        message(f"{kind}: {counted(len(cases), 'case')}: {'; '.join(cases[:MOST_LINES])}{more}")


def _missing(rows: Sequence[api.ComparedNumber]) -> dict[str, list[str]]:
    """Return the cases by what they lack, each with the reason or the metrics."""
    groups: dict[str, dict[str, dict[str, None]]] = {}
    for row in rows:
        if row.missing:
            reasons = groups.setdefault(row.missing, {}).setdefault(row.case, {})
            reason = row.metric if row.missing == "not measured" else row.because
            reasons |= {reason: None} if reason else {}
    return {
        kind: [f"{case} ({', '.join(reasons)})" if reasons else case for case, reasons in cases.items()]
        for kind, cases in groups.items()
    }


def _number_row(row: api.ComparedNumber) -> dict[str, object]:
    beside = {name: value for name, value in row.beside.items() if name not in (row.metric, "host_wait_percent")}
    return {
        **{name: row[name] for name in ("case", "metric", "measured", "spread", "published", "ratio")},
        "allowed": _tolerance(row) if row.within is not None else None,
        "within": {True: "yes", False: "no", None: None}[row.within],
        **beside,
        "how": row.point and f"{row.point.origin} ({row.point.source})",
        "not_judged": row.because,
        "newer": row.newer,
        "reused": row.reused,
    }


def _tolerance(row: api.ComparedNumber) -> str:
    return f"±{100 * (row.tolerance or 0.0):.3g} % ({row.tolerance_from})"


def _print_runs(comparison: api.RunComparison) -> None:
    cases, regressions = comparison.cases, comparison.regressions
    message(f"A is {comparison.a}, B is {comparison.b}; ratio is B over A")
    rows = [as_row(case) | {"experiment": short_name(case.experiment), "noise": _percent(case.noise)} for case in cases]
    table(rows, filled_columns(rows, _DIFFERENCES, ("experiment", "scale")))
    _print_changes(cases)
    job = (regressions or [case for case in cases if case.b_job])[0].b_job
    purpose = "its attempts and events" if regressions else "the attempts of the first job"
    suggest(purpose, "history", str(job))
    if regressions:
        raise typer.Exit(EXIT_FAILED)


def _print_changes(cases: Sequence[api.CaseDiff]) -> None:
    for change in ("regression", "now fails"):
        changed = [case for case in cases if case.change == change]
        names = [f"{short_name(case.experiment)} {case.scale} {case.case}" for case in changed]
        texts = [f"{change}: {name}: {_change_text(case)}" for name, case in zip(names, changed, strict=True)]
        print_shortened(texts, "add --json")
    changes = [case.change for case in cases]
    counts = ", ".join(f"{changes.count(change)} {change}" for change in dict.fromkeys(changes))
    message(f"{counted(len(cases), 'case')}: {counts}")


def _change_text(case: api.CaseDiff) -> str | None:
    if not case.ratio:
        return case.because
    return f"{case.metric} is {case.ratio:.3g} of A, noise {_percent(case.noise)} ({case.noise_from})"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2g} %"


@app.command()
@with_options(option.RESULTS)
def claims(experiments: Experiments = None, **selection: Unpack[api.FigureFilter]) -> None:
    """Judge the claims of the paper: each holds, fails, or is not judged.

    Without a name, all submitted experiments are judged, each at its latest matching run.
    """
    session = command_session()
    judged = api.claims(experiments or (), session=session, **selection)
    failures = [row for outcome in judged.outcomes for row in outcome.failures]
    rows = [row for outcome in judged.outcomes for row in outcome.judged_claims]
    put(claims=rows, failed_jobs=rows_of(api.JobRef, failures))
    for outcome in judged.outcomes:
        data(_claims_title(outcome))
        print_claims(outcome, with_numbers=True)
    require_none(judged.problems)
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
@with_options(option.RESULTS)
def plot(
    experiments: Annotated[
        list[str] | None,
        argument(
            "EXPERIMENT...",
            "Experiments or papers. Default: the one submitted last.",
            completion.experiments_and_papers,
        ),
    ] = None,
    *,
    where: option.Where = None,
    output: option.OutputPlace = None,
    force: option.Force = False,
    **selection: Unpack[api.FigureFilter],
) -> None:
    """Draw figures on the paper's axes as png, svg or pdf, and print the paths.

    Without -o, or with a folder, the earlier picture of the same figure is replaced.
    """
    session, names = command_session(), experiments or []
    if len(names) > 1 or any(map(api.is_paper, names)):
        plots = api.plot_all(names, output, session=session, where=where, **selection)
    else:
        if output is not None and not names_folder(output):
            api.require_plot_file(Path(output))
            confirm_overwrite([Path(output)], force)
        name = names[0] if names else None
        plots = [api.plot(name, output, session=session, where=where, **selection)]
    files = written_files("picture", *(plotted.file for plotted in plots))
    put(files=files, claims=[row for plotted in plots for row in plotted.outcome.judged_claims])
    for plotted in plots:
        data(str(plotted.file))
        message(_claims_title(plotted.outcome))
    first = plots[0].outcome.entry.short_name
    suggest("the verdicts with their numbers", "claims", first, **selection)


@app.command()
@with_options(option.ALL_RESULTS)
def report(
    experiments: Experiments = None,
    *,
    output: Annotated[Path, value_option("PATH", "Folder for index.html.", None, "--output", "-o")],
    force: Annotated[bool, flag("Write into a folder that has other files.", "--force")] = False,
    **selection: Unpack[api.FigureFilter],
) -> None:
    """Write one HTML page with outcomes, pictures and provenance."""
    session = command_session()
    page = api.report(output, experiments or (), force=force, session=session, **selection)
    claims = [row for outcome in page.outcomes for row in outcome.judged_claims]
    put(files=written_files("page", page.file), claims=claims)
    data(str(page.file))
    cases = counted(sum(len(outcome.results) for outcome in page.outcomes), "case")
    message(f"{counted(len(page.outcomes), 'experiment')}, {cases}; the page is one file and needs no other")
    failures = [row for outcome in page.outcomes for row in outcome.failures]
    if failures:
        suggest_why(failures[0])
    else:
        suggest("the same verdicts for a script", "claims", *(experiments or ()), **selection)


@app.command()
@with_options(option.ALL_RESULTS)
def bundle(
    what: Annotated[
        list[str],
        argument(
            "EXPERIMENTS|verify FILE",
            "Experiments or papers, or the word verify and the bundle to check.",
            completion.bundle_words,
        ),
    ],
    *,
    output: option.OutputPlace = None,
    force: option.Force = False,
    **selection: Unpack[api.FigureFilter],
) -> None:
    """Write everything a reviewer needs to one file per experiment, or verify such a file from its own logs."""
    if what[0] == "verify":
        if console.is_json:
            console.json.command = "bundle verify"
        if len(what) != 2 or output or any(selection.values()) or force:
            raise ReproError(Problem("verify needs a file and no option", hint="repro bundle verify FILE.tar.zst"))
        _verify(Path(what[1]))
        return
    for word in what:
        if word.endswith(".tar.zst"):
            raise ReproError(Problem("only verify reads a file", f"{word}:", "-o names the file to write"))
    session, place = command_session(), Path(output or ".")
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
    _write_bundles(outcomes, files, session)


def _write_bundles(outcomes: Sequence[api.FigureOutcome], files: Sequence[Path], session: api.Session) -> None:
    """Write a bundle of each outcome; exit code 1 if one does not verify or lacks a file."""
    written: list[api.Bundle] = []
    unproven: list[Problem] = []
    for outcome, file in zip(outcomes, files, strict=True):
        try:
            written.append(api.bundle(outcome, file, session=session))
        except api.UnprovenBundle as error:
            unproven += error.problems
    put(
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


def _verify(file: Path) -> None:
    """Print the checks of a bundle and their sum; exit code 1 if one found a difference."""
    verified = api.verify_bundle(file)
    put(checks=rows_of(api.BundleCheckRow, verified.checks))
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
