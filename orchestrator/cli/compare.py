"""Command that compares measured with published numbers, or two sets of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.job_table import suggest_why
from orchestrator.cli.options import argument, experiments_of, session_of
from orchestrator.cli.output import (
    MOST_LINES,
    WIDE_HINT,
    as_row,
    filled_columns,
    message,
    print_shortened,
    suggest,
    table,
)
from orchestrator.errors import EXIT_FAILED, Problem, ReproError, did_you_mean
from orchestrator.paths import find_folders, short_name
from orchestrator.text import counted

Arguments = Annotated[
    list[str] | None,
    argument(
        "[EXPERIMENT] [A B]",
        "Default: the one submitted last. A and B are each a cluster, a date (2026-11-20), a commit or a run.",
        completion.experiments,
    ),
]
_IMPORTANT = ("case", "metric", "measured", "published", "ratio", "within", "allowed", "not_judged")
_DIFFERENCES = ("experiment", "scale", "case", "metric", "a", "b", "ratio", "noise", "change", "because")
_ONLY_IF_DIFFERENT = ("experiment", "scale")

app = typer.Typer(rich_markup_mode=None)


@app.command()
def compare(
    context: typer.Context,
    arguments: Arguments = None,
    *,
    scale: option.OnlyScale = None,
    cluster: option.OnlyCluster = None,
    program: option.OnlyProgram = None,
    where: option.Where = None,
    arg: option.OnlyArguments = None,
    run: option.OnlyRun = None,
    without: option.Without = None,
    attempt: option.ResultAttempt = None,
    wide: option.Wide = False,
) -> None:
    """Compare measured with published numbers, or two clusters, dates, commits or runs A and B."""
    experiment, sides = _parse(arguments or [])
    runs: api.RunFilter = {"cluster": cluster, "scale": scale, "program": program}
    session = session_of(context)
    if sides is None:
        selection: api.FigureFilter = {**runs, "arg": arg, "run": run, "without": without, "attempt": attempt}
        published = api.compare(experiment, where=where, session=session, **selection)
        context.obj.json.put(numbers=published.rows)
        _print_published(published, selection, wide)
    elif attempt is not None or arg or run:
        what = "--attempt, --arg and --run: not with A and B"
        raise ReproError(Problem(what, hint="repro compare EXPERIMENT --attempt 1"))
    else:
        compared = api.compare_runs(*sides, experiment, where=where, without=without, session=session, **runs)
        context.obj.json.put(sides=[compared.a, compared.b], cases=compared.cases)
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
    table(shown, filled_columns(shown), wide=wide, important=_IMPORTANT, hint=WIDE_HINT)
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
    same = {name for name in _ONLY_IF_DIFFERENT if len({row[name] for row in rows}) == 1}
    table(rows, [name for name in filled_columns(rows, _DIFFERENCES) if name not in same])
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
