"""Tests of the table of cases at the end of a run: why a case has no number or no comparable one."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.json_jobs import case_rows
from orchestrator.results.outcome import FigureOutcome
from tests.recorded_jobs import measured_results
from tests.unit.catalog.entries import figure_13

BOUND, QUICK, FAILED = "pp=1,tp=4,gbs=4", "pp=2,tp=2,gbs=4", "pp=4,tp=1,gbs=4"


def test_the_row_of_a_host_bound_case_has_the_reason(tmp_path: Path) -> None:
    rates, waits = {BOUND: 1.0, QUICK: 1.0, FAILED: 1.0}, {BOUND: 31.0, QUICK: 4.0, FAILED: 31.0}
    modes = dict.fromkeys(rates, "eager")
    found = measured_results(tmp_path, figure_13(), "cpu", rates, failed=(FAILED,), waits=waits, modes=modes)
    rows = {row["case"]: row for row in case_rows(FigureOutcome(figure_13(), "cpu", "here", found, []))}
    assert rows[BOUND]["why"] == "host-bound: its GPUs waited 31 % of the time for the host"
    assert (rows[QUICK]["why"], rows[FAILED]["why"]) == (None, 'exit 1, "oom"')
    shown = [rows[case] for case in (BOUND, QUICK, FAILED)]
    assert [(row["execution"], row["host_wait_percent"], row["host_bound"]) for row in shown] == [
        ("eager", 31.0, True),
        ("eager", 4.0, False),
        ("eager", None, None),
    ]
