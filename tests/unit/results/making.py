"""Results of figure 13 with made-up numbers, for what is computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry, find_experiment
from orchestrator.folders import Folders
from orchestrator.ledger.jobs import JobRow, job_rows
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.tables import ENDED, VERIFIED
from orchestrator.results.compare import Result, results
from tests.unit.ledger.making import new_ledger, record

CHECKOUT = Path(__file__).resolve().parents[3]


def figure_13() -> Entry:
    return find_experiment(Folders(CHECKOUT, CHECKOUT), "figure-13")


def a_row(folder: Path) -> JobRow:
    """One row of a real ledger, to be changed into others."""
    ledger = new_ledger(folder)
    record(ledger, "a")
    return replace(
        job_rows(ledger)[0], state="COMPLETED", phase=ENDED, verdict=VERIFIED, scheduler_id="7_0", nodes="n1"
    )


def measured(
    folder: Path, entry: Entry, scale: str, rates: Mapping[str, float], failed: tuple[str, ...] = ()
) -> list[Result]:
    """Every case of the scale; those in `rates` (by name) with that many TFLOP/s, those in `failed` failed."""
    base, cases = a_row(folder), expand(entry, scale)
    rows: list[JobRow] = []
    metrics: dict[int, dict[str, MeasuredMetric]] = {}
    for number, case in enumerate(cases, 1):
        if case.name in rates or case.name in failed:
            rows.append(_row(base, case, number, case.name in failed))
            metrics[number] = _metrics(rates.get(case.name, 1.0))
    return results(entry, cases, rows, metrics)


def _row(base: JobRow, case: Case, number: int, failed: bool) -> JobRow:
    row = replace(base, case_name=case.name, scale=case.scale, job_id=f"job{number}", attempt_id=number)
    return replace(row, state="FAILED", verdict="failed", verdict_reason='exit 1, "oom"') if failed else row


def _metrics(rate: float) -> dict[str, MeasuredMetric]:
    return {
        "tflops_per_gpu": MeasuredMetric("tflops_per_gpu", rate, "TFLOP/s", rate / 10, 5),
        "iteration_ms": MeasuredMetric("iteration_ms", 1000 / rate, "ms", 100 / rate, 5),
    }
