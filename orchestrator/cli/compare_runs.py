"""`repro compare A B`: two clusters, dates, commits or runs beside one another, and what is slower than it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.catalog.case import parse_where
from orchestrator.catalog.library import find_experiment, full_name
from orchestrator.cli.output import as_json, filled_columns, next_command, say, table
from orchestrator.cli.selection import matches
from orchestrator.errors import EXIT_FAILED, Problem, ReproError
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.measurements import metrics_of
from orchestrator.ledger.reports import run_summaries
from orchestrator.paths import Folders, short_name
from orchestrator.results.regression import CaseDiff, Side, compare_sides, rows_of_side, side_meant
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.ledger.database import Ledger
    from orchestrator.ledger.rows import JobRow

_ONLY_WHERE_THEY_DIFFER = ("experiment", "scale", "metric")


@dataclass(frozen=True, slots=True)
class Asked:
    """What of the ledger is to be compared; None means all of it."""

    folders: Folders
    ledger: Ledger
    experiment: str | None
    scale: str | None
    where: str | None
    cluster: str | None
    workload: str | None

    def rows(self) -> list[JobRow]:
        wanted = parse_where(self.where)
        name = full_name(self.folders, self.experiment) if self.experiment else None
        return [
            row
            for row in job_rows(self.ledger, experiment=name)
            if self.scale in (None, row.scale)
            and self.cluster in (None, row.cluster)
            and self.workload in (None, row.workload)
            and matches(row, wanted)
        ]


def compare_two(asked: Asked, words: tuple[str, str], json: bool) -> None:
    """Print a row for each case of either side; exit code 1 where one is slower beyond noise, or fails now."""
    rows, runs = asked.rows(), run_summaries(asked.ledger)
    codes = {row.code for row in rows}
    a, b = (side_meant(word, runs, codes) for word in words)
    if a == b:
        raise ReproError(Problem(f"{words[0]} and {words[1]}: both are {a}", hint="give two that differ"))
    sides = [rows_of_side(asked.ledger, side, rows, runs) for side in (a, b)]
    for one, other, position in ((a, b, 1), (b, a, 0)):
        if one.kind == "cluster" and other.kind in ("date", "commit"):  # that cluster then, not all of them
            sides[position] = [row for row in sides[position] if row.cluster == one.name]
    by_cluster = not {a.kind, b.kind} & {"cluster", "run"}
    metrics = metrics_of(asked.ledger, [row.attempt_id for side in sides for row in side])
    found = compare_sides(sides[0], sides[1], metrics, _metric_of(asked.folders), by_cluster)
    if not any(one.job_a and one.job_b for one in found):
        raise ReproError(Problem(f"{a} and {b} share no case{_of(asked)}", hint="repro status shows what was run"))
    if json:
        as_json({"a": _named(a), "b": _named(b), "cases": [_plain(one) for one in found], "regressions": _worse(found)})
    else:
        say(f"A is {a}, B is {b}; ratio is B over A")
        table(*_table(found))
        _print_end(found)
    worse = [one for one in found if one.change in ("regression", "now fails")]
    job = (worse or [one for one in found if one.job_b])[0].job_b
    next_command(f"repro history {job}", "everything that became of it" if worse else "what became of the first")
    if worse:
        raise typer.Exit(EXIT_FAILED)


def _of(asked: Asked) -> str:
    given = [asked.experiment, asked.scale, asked.where, asked.cluster, asked.workload]
    return f" of {', '.join(filter(None, given))}" if any(given) else ""


def _metric_of(folders: Folders) -> Callable[[str], str]:
    @cache
    def metric_of(experiment: str) -> str:
        """What the experiment is about; the time where its file is gone, or has a fault."""
        try:
            return find_experiment(folders, experiment).experiment.axes.y.metric
        except ReproError:
            return "iteration_ms"

    return metric_of


def _print_end(found: Sequence[CaseDiff]) -> None:
    for change in ("regression", "now fails"):
        for one in found:
            if one.change == change:
                how = (
                    f"{one.metric} is {one.ratio:.3g} of what it was, noise {_percent(one.noise)}"
                    if one.ratio
                    else one.because
                )
                say(f"{change}: {_called(one)}: {how}")
    counts = {change: sum(one.change == change for one in found) for change in dict.fromkeys(o.change for o in found)}
    said = ", ".join(f"{count} {change}" for change, count in counts.items())
    say(f"{counted(len(found), 'case')}: {said}")


def _worse(found: Sequence[CaseDiff]) -> list[str]:
    return [_called(one) for one in found if one.change in ("regression", "now fails")]


def _called(one: CaseDiff) -> str:
    return f"{short_name(one.experiment)} {one.scale} {one.case}"


def _table(found: Sequence[CaseDiff]) -> tuple[list[dict[str, Any]], list[str]]:
    rows = [
        {
            "experiment": short_name(one.experiment),
            "scale": one.scale,
            "case": one.case,
            "metric": one.metric,
            "a": one.a.value if one.a else None,
            "b": one.b.value if one.b else None,
            "ratio": one.ratio,
            "noise": _percent(one.noise),
            "change": one.change,
            "because": one.because,
        }
        for one in found
    ]
    columns = [
        name
        for name in filled_columns(rows)
        if name not in _ONLY_WHERE_THEY_DIFFER or name == "metric" or len({row[name] for row in rows}) > 1
    ]
    return rows, columns


def _plain(one: CaseDiff) -> dict[str, Any]:
    sides: dict[str, Any] = {}
    for name, metric, job in (("a", one.a, one.job_a), ("b", one.b, one.job_b)):
        sides[name] = metric.value if metric else None
        sides[f"{name}_spread"] = metric.spread if metric else None
        sides[f"{name}_repeats"] = metric.repeats if metric else None
        sides[f"{name}_job"] = job
    return {
        "experiment": one.experiment,
        "scale": one.scale,
        "case": one.case,
        "workload": one.workload,
        "metric": one.metric,
        **sides,
        "ratio": one.ratio,
        "noise": one.noise,
        "change": one.change,
        "because": one.because,
    }


def _named(side: Side) -> dict[str, str]:
    return {"kind": side.kind, "name": side.name}


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2g} %"
