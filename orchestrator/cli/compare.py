"""`repro compare`: what was measured beside what was published, or beside another measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from orchestrator.cli import completion
from orchestrator.cli.options import ClusterName, Database, Json, OnlyScale, OnlyWorkload, Where
from orchestrator.cli.output import as_json, filled_columns, next_command, say, table
from orchestrator.errors import EXIT_FAILED, Problem, ReproError, did_you_mean
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.paths import Folders
    from orchestrator.results.cases import Result
    from orchestrator.results.outcome import FigureOutcome
    from orchestrator.results.reference import ReferenceRow

Words = Annotated[
    Optional[list[str]],  # noqa: UP045  typer reads these at run time, on Python 3.10 too
    typer.Argument(
        metavar="EXPERIMENT A B",
        help="An experiment, else the latest; or two clusters, dates (2026-11-20), commits or runs A and B, of all "
        "experiments or of one that stands before them.",
        autocompletion=completion.experiments,
    ),
]

_EFFICIENCY = ("percent_of_peak", "percent_of_peak_computed", "mfu_percent", "aggregate_pflops")


def compare(
    words: Words = None,
    scale: OnlyScale = None,
    where: Where = None,
    cluster: ClusterName = None,
    workload: OnlyWorkload = None,
    json: Json = False,
    database: Database = None,
) -> None:
    """Measured numbers beside the published ones; or two clusters, dates, commits or runs beside one another."""
    from orchestrator.cli.compare_runs import Asked, compare_two
    from orchestrator.cli.outcome import ledger_now
    from orchestrator.cli.selection import require_known
    from orchestrator.paths import find_folders
    from orchestrator.results.outcome import read_outcome

    experiment, sides = _meant(find_folders(), words or [])
    folders, ledger = ledger_now(database)
    if sides is None:
        _with_published(read_outcome(ledger, folders, experiment, scale, cluster, workload), where, json)
        return
    require_known(workload)
    compare_two(Asked(folders, ledger, experiment, scale, where, cluster, workload), sides, json)


def _meant(folders: Folders, words: Sequence[str]) -> tuple[str | None, tuple[str, str] | None]:
    """The experiment, if one is given, and the two sides, if they are."""
    from orchestrator.catalog.library import experiment_names, names_meant

    names = experiment_names(folders)
    if words and (len(words) in (1, 3)) and not names_meant(names, words[0]):
        near = did_you_mean(words[0], [name.rpartition("/")[2] for name in names])
        hint = near or "two sides are two words, an experiment may stand before them"
        raise ReproError(Problem(f"{words[0]}: no such experiment", hint=hint))
    if len(words) > 3 or (len(words) == 2 and names_meant(names, words[0])):
        raise ReproError(
            Problem(
                f"{' '.join(words)}: neither an experiment alone nor two sides",
                hint="repro compare EXPERIMENT, or repro compare [EXPERIMENT] A B",
            )
        )
    sides = (words[-2], words[-1]) if len(words) > 1 else None
    return (words[0] if len(words) in (1, 3) else None), sides


def _with_published(now: FigureOutcome, where: str | None, json: bool) -> None:
    from orchestrator.results.reference import beside_published

    found = {result.case.name: result for result in now.having(where)}
    besides = beside_published(now.entry, list(found.values()))
    if json:
        cases = [_plain(one, found[one.case]) for one in besides]
        known = {"experiment": now.entry.name, "scale": now.scale, "cluster": now.cluster}
        as_json({**known, "cases": cases, "missing": _missing(besides)})
    else:
        say(f"{now.entry.short_name} at scale {now.scale} on {now.cluster}{f' with {now.program}' * bool(now.program)}")
        rows = [_shown(one, found[one.case]) for one in besides if one.measured is not None]
        table(rows, filled_columns(rows))
        _print_talk(besides, list(found.values()))
    failed = [row for row in now.failures if row.case_name in found]
    if failed:
        next_command(f"repro logs {failed[0].job_id}", f"why {failed[0].case_name} failed")
    else:
        next_command(f"repro claims {now.entry.short_name}", "what the paper says about these numbers")
    if failed or any(one.within is False for one in besides):
        raise typer.Exit(EXIT_FAILED)


def _print_talk(besides: Sequence[ReferenceRow], found: Sequence[Result]) -> None:
    """How the rates were computed, how many numbers came out, which cases are host-bound, and what is missing."""
    from orchestrator.results.reference import equation

    measured = [result for result in found if result.metric("iteration_ms")]
    if measured:
        by = " or ".join(dict.fromkeys(equation(result.case) for result in measured))
        say(f"TFLOP/s, percent of peak and PFLOP/s of all GPUs by {by}, from the time of an iteration")
        if any(result.metric("percent_of_peak_computed") for result in measured):
            say("percent_of_peak_computed: only the products that the program computes")
        if any(result.metric("mfu_percent") for result in measured):
            say("mfu_percent: 6 FLOPs per matrix weight and token, and causal attention; no recomputation")
    judged = [one for one in besides if one.within is not None]
    if judged:
        right = sum(one.within is True for one in judged)
        say(f"{right} of {counted(len(judged), 'judged number')} within tolerance")
    for one in judged:
        if not one.within:
            say(f"outside: {one.metric} at {one.case} is {one.ratio:.3g} of the published, {_allowed(one)} allowed")
    waited = [f"{result.case.name} ({result.host_bound})" for result in found if result.host_bound]
    if waited:
        say(f"host-bound: {counted(len(waited), 'case')}: {'; '.join(waited)}")
    for kind, cases in _missing(besides).items():
        say(f"{kind}: {counted(len(cases), 'case')}: {'; '.join(cases)}")


def _missing(besides: Sequence[ReferenceRow]) -> dict[str, list[str]]:
    """The cases by what is missing of them, each with the reason, or the metrics that it is about."""
    groups: dict[str, dict[str, dict[str, None]]] = {}
    for one in besides:
        if one.missing:
            whys = groups.setdefault(one.missing, {}).setdefault(one.case, {})
            why = one.metric if one.missing == "not measured" else one.because
            whys |= {why: None} if why else {}
    return {
        kind: [f"{case} ({', '.join(whys)})" if whys else case for case, whys in cases.items()]
        for kind, cases in groups.items()
    }


def _shown(one: ReferenceRow, result: Result) -> dict[str, Any]:
    """A row of the table; what is empty in all of them is no column."""
    point = one.published
    how = point and f"{point.how}{'' if point.confirmed else ', unconfirmed'} ({point.source})"
    return {
        "case": one.case,
        "metric": one.metric,
        "measured": one.measured,
        "spread": one.spread,
        "published": point.value if point else None,
        "ratio": one.ratio,
        "allowed": _allowed(one) if one.within is not None else None,
        "within": {True: "yes", False: "no", None: None}[one.within],
        **{name: result.value(name) for name in _EFFICIENCY if name != one.metric},
        "how": how,
        "not_judged": one.because,
    }


def _plain(one: ReferenceRow, result: Result) -> dict[str, Any]:
    from orchestrator.ledger.tables import field_values
    from orchestrator.results.reference import equation

    metric, point = result.metric(one.metric), one.published
    return {
        **field_values(one),
        "published": point.value if point else None,
        "published_how": point.how if point else None,
        "published_confirmed": point.confirmed if point else None,
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
        **{name: result.value(name) for name in _EFFICIENCY},
        "flops": equation(result.case),
    }


def _allowed(one: ReferenceRow) -> str:
    return f"±{100 * (one.tolerance or 0.0):.3g} % ({one.tolerance_from})"
