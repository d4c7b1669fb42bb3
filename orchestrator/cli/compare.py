"""Command that compares measured with published numbers, or two sets of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli.job_table import suggest_why
from orchestrator.cli.options import CaseSelection, Database, Json, ResultAttempt, Wide, session_of
from orchestrator.cli.output import (
    MOST_LINES,
    WIDE_HINT,
    filled_columns,
    message,
    print_shortened,
    table,
)
from orchestrator.cli.suggestion import suggest
from orchestrator.errors import EXIT_FAILED, Problem, ReproError, did_you_mean
from orchestrator.paths import find_folders, short_name
from orchestrator.text import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from orchestrator.cli.documents import CompareDocument
    from orchestrator.cli.json_rows import ChangedCase, ComparedNumber

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[EXPERIMENT] [A B]",
        help="Default: the one submitted last. A and B are each a cluster, a date (2026-11-20), a commit or a run.",
        autocompletion=completion.experiments,
    ),
]
_EFFICIENCY = ("percent_of_peak", "percent_of_peak_computed", "mfu_percent", "aggregate_pflops")
_IMPORTANT = ("case", "metric", "measured", "published", "ratio", "within", "allowed", "not_judged")
_ONLY_IF_DIFFERENT = ("experiment", "scale")

app = typer.Typer(rich_markup_mode=None)


@app.command()
@api.with_keywords(CaseSelection)
def compare(
    context: typer.Context,
    arguments: Arguments = None,
    *,
    attempt: ResultAttempt = None,
    wide: Wide = False,
    json: Json = False,
    database: Database = None,
    **options: Unpack[CaseSelection],
) -> None:
    """Compare measured with published numbers, or two clusters, dates, commits or runs A and B."""
    experiment, sides = _parse(arguments or [])
    session = session_of(context, database)
    if sides is None:
        published = api.compare(experiment, attempt=attempt, session=session, **options)
        if json:
            numbers = [_reference_json(row, published) for row in published.rows]
            document: CompareDocument = {"numbers": numbers, "sides": [], "cases": []}
            context.obj.json.put(document)
        _print_published(context, published, not json, wide)
    elif attempt is not None or options.get("arg") or options.get("run"):
        what = "--attempt, --arg and --run: not with A and B"
        raise ReproError(Problem(what, hint="repro compare EXPERIMENT --attempt 1"))
    else:
        runs = api.compare_runs(
            *sides,
            experiment,
            scale=options.get("scale"),
            cluster=options.get("cluster"),
            workload=options.get("workload"),
            where=options.get("where"),
            without=options.get("without"),
            session=session,
        )
        if json:
            changes: CompareDocument = {
                "numbers": [],
                "sides": [runs.a, runs.b],
                "cases": [_diff_json(case) for case in runs.cases],
            }
            context.obj.json.put(changes)
        _print_runs(context, runs, not json)


def _parse(arguments: Sequence[str]) -> tuple[str | None, tuple[str, str] | None]:
    """Return the experiment, if there is one, and the two sides, if there are any."""
    match arguments:
        case []:
            return None, None
        case [experiment]:
            _require_experiment(experiment)
            return experiment, None
        case [a, b] if not _is_experiment(a):
            return None, (a, b)
        case [experiment, a, b]:
            _require_experiment(experiment)
            return experiment, (a, b)
    what = f"{' '.join(arguments)}: neither one experiment nor two sides"
    raise ReproError(Problem(what, hint="repro compare EXPERIMENT, or repro compare [EXPERIMENT] A B"))


def _is_experiment(name: str) -> bool:
    return bool(api.names_meant(api.experiment_names(find_folders()), name))


def _require_experiment(name: str) -> None:
    if not _is_experiment(name):
        near = did_you_mean(name, map(short_name, api.experiment_names(find_folders())))
        raise ReproError(
            Problem("no such experiment", f"{name}:", near or "to compare two runs, use repro compare [EXPERIMENT] A B")
        )


def _print_published(context: typer.Context, comparison: api.PublishedComparison, with_table: bool, wide: bool) -> None:
    outcome, rows = comparison.outcome, comparison.rows
    if with_table:
        message(f"{outcome.entry.short_name} at scale {outcome.scale} on {outcome.cluster}")  # a note names the program
        shown = [_reference_row(row, comparison) for row in rows if row.measured is not None]
        table(shown, filled_columns(shown), wide=wide, important=_IMPORTANT, hint=WIDE_HINT)
        _print_summary(comparison)
    failures = comparison.failures
    if failures:
        suggest_why(context, failures[0])
    else:
        suggest(context, "the claims of the paper about these numbers", "claims", outcome.entry.short_name)
    if comparison.failed:
        raise typer.Exit(EXIT_FAILED)


def _print_summary(comparison: api.PublishedComparison) -> None:
    """Print how rates are computed, how many numbers are within tolerance, and what is missing."""
    rows, results = comparison.rows, comparison.results.values()
    measured = [result for result in results if result.metric("iteration_ms")]
    if measured:
        equations = " or ".join(dict.fromkeys(api.equation(result.case) for result in measured))
        message(f"TFLOP/s, percent of peak and PFLOP/s of all GPUs by {equations}, from the time of an iteration")
        if any(result.metric("percent_of_peak_computed") for result in measured):
            message("percent_of_peak_computed: only the products that the program computes")
        if any(result.metric("mfu_percent") for result in measured):
            message("mfu_percent: 6 FLOPs per matrix weight and token, and causal attention; no recomputation")
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


def _missing(rows: Sequence[api.ReferenceRow]) -> dict[str, list[str]]:
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


def _reference_row(row: api.ReferenceRow, comparison: api.PublishedComparison) -> dict[str, object]:
    result, point = comparison.results[row.case], row.published
    return {
        "case": row.case,
        "metric": row.metric,
        "measured": row.measured,
        "spread": row.spread,
        "published": point.value if point else None,
        "ratio": row.ratio,
        "allowed": _tolerance(row) if row.within is not None else None,
        "within": {True: "yes", False: "no", None: None}[row.within],
        **{name: result.value(name) for name in _EFFICIENCY if name != row.metric},
        "how": point and f"{point.origin} ({point.source})",
        "not_judged": row.because,
        "newer": result.newer_text,
        "reused": comparison.reused.get(row.case),
    }


def _reference_json(row: api.ReferenceRow, comparison: api.PublishedComparison) -> ComparedNumber:
    outcome, result = comparison.outcome, comparison.results[row.case]
    metric, point = result.metric(row.metric), row.published
    return {
        "experiment": outcome.entry.name,
        "scale": outcome.scale,
        "cluster": outcome.cluster,
        "case": row.case,
        "metric": row.metric,
        "measured": row.measured,
        "spread": row.spread,
        "ratio": row.ratio,
        "tolerance": row.tolerance,
        "tolerance_from": row.tolerance_from,
        "within": row.within,
        "missing": row.missing,
        "because": row.because,
        "published": point.value if point else None,
        "published_how": point.how if point else None,
        "published_confirmed": point.confirmed if point else None,
        "published_error": point.error if point else None,
        "published_source": point.source if point else None,
        "published_gpu": point.gpu if point else None,
        "interval_low": metric.interval_low if metric else None,
        "interval_high": metric.interval_high if metric else None,
        "repeats": metric.repeats if metric else None,
        "gpu": result.gpu,
        "execution": " and ".join(result.modes) or None,
        "host_wait_percent": result.value("host_wait_percent"),
        "host_bound": result.is_host_bound,
        "job": result.row.job_id if result.row else None,
        "attempt": result.row.number if result.row else None,
        "newer": result.newer_text,
        "measured_for": result.measured_for,
        "reused": comparison.reused.get(row.case),
        "percent_of_peak": result.value("percent_of_peak"),
        "percent_of_peak_computed": result.value("percent_of_peak_computed"),
        "mfu_percent": result.value("mfu_percent"),
        "aggregate_pflops": result.value("aggregate_pflops"),
        "flops": api.equation(result.case),
    }


def _tolerance(row: api.ReferenceRow) -> str:
    return f"±{100 * (row.tolerance or 0.0):.3g} % ({row.tolerance_from})"


def _print_runs(context: typer.Context, comparison: api.RunComparison, with_table: bool) -> None:
    cases, regressions = comparison.cases, comparison.regressions
    if with_table:
        message(f"A is {comparison.a}, B is {comparison.b}; ratio is B over A")
        rows = [_diff_row(case) for case in cases]
        same = [name for name in _ONLY_IF_DIFFERENT if len({row[name] for row in rows}) == 1]
        table(rows, [name for name in filled_columns(rows) if name not in same])
        _print_changes(cases)
    job = (regressions or [case for case in cases if case.job_b])[0].job_b
    purpose = "its attempts and events" if regressions else "the attempts of the first job"
    suggest(context, purpose, "history", str(job))
    if regressions:
        raise typer.Exit(EXIT_FAILED)


def _print_changes(cases: Sequence[api.CaseDiff]) -> None:
    for change in ("regression", "now fails"):
        changed = [case for case in cases if case.change == change]
        print_shortened([f"{change}: {_name(case)}: {_change_text(case)}" for case in changed], "add --json")
    changes = [case.change for case in cases]
    counts = ", ".join(f"{changes.count(change)} {change}" for change in dict.fromkeys(changes))
    message(f"{counted(len(cases), 'case')}: {counts}")


def _change_text(case: api.CaseDiff) -> str | None:
    if not case.ratio:
        return case.because
    return f"{case.metric} is {case.ratio:.3g} of A, noise {_percent(case.noise)} ({case.noise_from})"


def _name(case: api.CaseDiff) -> str:
    return f"{short_name(case.experiment)} {case.scale} {case.case}"


def _diff_row(case: api.CaseDiff) -> dict[str, object]:
    return {
        "experiment": short_name(case.experiment),
        "scale": case.scale,
        "case": case.case,
        "metric": case.metric,
        "a": case.a.value if case.a else None,
        "b": case.b.value if case.b else None,
        "ratio": case.ratio,
        "noise": _percent(case.noise),
        "change": case.change,
        "because": case.because,
    }


def _diff_json(case: api.CaseDiff) -> ChangedCase:
    return {
        "experiment": case.experiment,
        "scale": case.scale,
        "case": case.case,
        "workload": case.workload,
        "metric": case.metric,
        "a": case.a.value if case.a else None,
        "a_spread": case.a.spread if case.a else None,
        "a_repeats": case.a.repeats if case.a else None,
        "a_job": case.job_a,
        "b": case.b.value if case.b else None,
        "b_spread": case.b.spread if case.b else None,
        "b_repeats": case.b.repeats if case.b else None,
        "b_job": case.job_b,
        "ratio": case.ratio,
        "noise": case.noise,
        "noise_from": case.noise_from,
        "change": case.change,
        "because": case.because,
    }


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2g} %"
