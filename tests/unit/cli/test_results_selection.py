"""Tests of the run whose results commands show: a stray submission hides no result."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.ledger.database import Ledger
from tests.recorded_jobs import CRASHED, START, Outcome, new_ledger, record_results
from tests.unit.catalog.entries import figure_13
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

GOOD = {f"pp={pp},tp={4 // pp},gbs={gbs}": gbs / 4 + 4.0 / pp for pp in (1, 2, 4) for gbs in (4, 16)}
CASE = "pp=4,tp=1,gbs=4"
CHANGES = ("--arg=--seed=3",)


def ended(failure: str, state: str) -> dict[str, Any]:
    return {"state": state, "phase": "ended", "verdict": "failed", "failure": failure, "verdict_reason": failure}


STRAY = {
    "refused": ended("refused", "NEVER_SUBMITTED"),
    "cancelled": ended("cancelled", "CANCELLED"),
    "stopped": ended("stopped", "CANCELLED"),
    "waiting": {"state": "PENDING", "phase": "waiting", "verdict": None},
}
PARTIAL: dict[str, Any] = {
    "state": "TIMEOUT",
    "phase": "ended",
    "verdict": "partial",
    "verdict_reason": "reached its time limit",
}


@pytest.fixture
def ledger(repro: Caller) -> Ledger:
    ledger = new_ledger(repro.site.folder)
    record_results(ledger, figure_13(), "cpu", GOOD)
    return ledger


def later(ledger: Ledger, outcome: Outcome | dict[str, Any] | float, day: int = 1, **options: Any) -> str:
    """Record a later run of one case."""
    shown = Outcome(columns=outcome) if isinstance(outcome, dict) else outcome
    return record_results(ledger, figure_13(), "cpu", {CASE: shown}, at=START + timedelta(days=day), **options)


def cases(repro: Caller, *words: str) -> dict[str, Any]:
    document = json.loads(repro("collect", "figure-13", "--json", *words).stdout)
    return {row["case"]: row for row in document["cases"]}


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A case of a complete figure is submitted with other arguments, settings or code, at another scale or on "
    "another cluster, and is refused, cancelled, stopped or waits",
    promise="The commands show the complete figure, and name the later run.",
)
@pytest.mark.parametrize("stray", STRAY)
@pytest.mark.parametrize(
    "options", [{"changes": CHANGES}, {"code": "feedc0de"}, {"cluster": "eos"}], ids=["arguments", "code", "cluster"]
)
def test_a_stray_submission_hides_no_result(
    repro: Caller, ledger: Ledger, tmp_path: Path, stray: str, options: dict[str, Any]
) -> None:
    before, claims = cases(repro), repro("claims", "figure-13").stdout
    run = later(ledger, STRAY[stray], **options)
    now = cases(repro)
    assert [row["verdict"] for row in now.values()] == ["verified"] * 6
    assert {name: row["job"] for name, row in now.items()} == {name: row["job"] for name, row in before.items()}
    assert repro("claims", "figure-13").stdout == claims
    done = repro("report", "-o", str(tmp_path / "report"))
    assert done.returncode == 0 and "All 6 cases are verified" in (tmp_path / "report" / "index.html").read_text()
    notes = repro("collect", "figure-13", "--json").stderr
    assert run in notes if "code" not in options else f"{CASE} (" in notes


def test_a_bundle_has_the_shown_figure_and_verifies(repro: Caller, ledger: Ledger, tmp_path: Path) -> None:
    later(ledger, STRAY["refused"], changes=CHANGES)
    for words, changed in ((), False), (("--arg=--seed=3",), True):
        file = tmp_path / f"{changed}.tar.zst"
        written = repro("bundle", "figure-13", "-o", str(file), *words)
        assert ("no case is verified" in written.stderr) is changed
    # There are no logs, so that the check finds no verified case in any bundle; it judges the same jobs.
    verified = repro("bundle", "verify", str(file))
    assert "no case is verified" in verified.stdout and "other cases" not in verified.stdout


def test_published_arguments_come_first_then_the_latest_measured_run(repro: Caller, ledger: Ledger) -> None:
    run = later(ledger, 7.0, changes=CHANGES)
    assert cases(repro)[CASE]["tflops_per_gpu"] == GOOD[CASE]
    assert cases(repro, "--arg=--seed=3")[CASE]["tflops_per_gpu"] == 7.0
    assert cases(repro, "--run", run)[CASE]["tflops_per_gpu"] == 7.0
    later(ledger, 8.0, day=2)
    assert cases(repro)[CASE]["tflops_per_gpu"] == 8.0
    assert repro("collect", "figure-13", "--arg=--seed=4").complaints == [
        "repro: figure-13 with --arg --seed=4 was never submitted. Hint: repro submit figure-13 --cluster local"
    ]


def test_changed_arguments_are_shown_if_only_they_have_results(repro: Caller) -> None:
    ledger = new_ledger(repro.site.folder)
    later(ledger, 7.0, changes=CHANGES)
    later(ledger, CRASHED, day=2)
    assert cases(repro)[CASE]["tflops_per_gpu"] == 7.0


def test_a_failure_of_new_code_is_not_hidden_by_an_old_result(repro: Caller, ledger: Ledger) -> None:
    later(ledger, CRASHED, code="feedc0de")
    assert cases(repro)[CASE]["verdict"] == "failed"
    assert repro("claims", "figure-13").returncode == 1


def test_status_names_the_changed_arguments_so_that_no_two_rows_look_alike(repro: Caller, ledger: Ledger) -> None:
    later(ledger, STRAY["refused"], changes=CHANGES)
    done = repro("status", "figure-13")
    assert f"{CASE} --arg --seed=3 " in done.stdout
    assert "figure-13 cpu selene [##########] 6/6 verified" in done.stderr
    assert "figure-13 cpu selene --arg --seed=3 [..........] 0/1 verified, 1 failed (1 refused)" in done.stderr


def test_a_partial_case_counts_and_is_marked_everywhere(repro: Caller, ledger: Ledger, tmp_path: Path) -> None:
    later(ledger, Outcome(7.0, columns=PARTIAL | {"iteration": 6}), day=2, code="feedc0de")
    for command in ("claims", "compare", "wait"):
        assert repro(command, "figure-13").returncode == 0, command
    row = cases(repro)[CASE]
    assert row["verdict"] == "partial" and row["iteration_ms"] is not None
    table = repro("collect", "figure-13", "--export", "md")
    assert "| partial, " in table.stdout, table.stderr
    assert "6/7 verified, 1 partial" in repro("status", "figure-13").stderr
    assert repro("report", "-o", str(tmp_path / "r")).returncode == 0
    page = (tmp_path / "r" / "index.html").read_text()
    assert "5 of 6 cases are verified, 1 is partial" in page and "partial, 6/8" in page
