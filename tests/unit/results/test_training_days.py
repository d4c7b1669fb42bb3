"""Training days by SC21's equation 4, and table 2, which has cases without jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.results.cases import case_results, mean_metric
from orchestrator.results.claims import judge_claims
from orchestrator.results.outcome import FigureOutcome
from tests.recorded_jobs import measured_results
from tests.unit.catalog.entries import shipped

A100 = "A100-SXM4-80GB"


@pytest.mark.parametrize(("share", "verdict"), [(1.0, "holds"), (0.92, "holds"), (0.88, "fails")])
def test_training_days_come_from_the_measured_rate(tmp_path: Path, share: float, verdict: str) -> None:
    entry = shipped("training-time")
    rates = {"case=GPT-3": 140.0 * share, "case=1T": 163.0 * share}
    results = measured_results(tmp_path, entry, "paper", rates, gpu=A100, repeats=3)
    days = [result.value("training_days") for result in results]
    assert days == [pytest.approx(33.834 / share, abs=0.001), pytest.approx(83.880 / share, abs=0.001)]
    (judged,) = judge_claims(entry, "paper", results, 8)
    assert judged.verdict == verdict and "training_days" in judged.because


def test_the_interval_of_the_days_is_that_of_the_rate_the_other_way_round() -> None:
    case = expand(shipped("training-time"))[0]
    repeats = [MeasuredMetric("tflops_per_gpu", rate, "TFLOP/s", 1.4, 5) for rate in (138.0, 140.0, 142.0)]
    days = case.record.with_derived(case, {"tflops_per_gpu": mean_metric(repeats)})["training_days"]
    assert days.interval_low is not None and days.interval_high is not None
    assert days.interval_low < days.value < days.interval_high and days.value == pytest.approx(33.834, abs=0.01)
    assert days.spread == pytest.approx(0.01 * days.value) and days.unit == "days"


def test_a_case_without_tokens_has_no_training_days(tmp_path: Path) -> None:
    results = measured_results(tmp_path, shipped("table-1"), "paper", {"case=1T": 163.0}, gpu=A100)
    assert results[-1].value("training_days") is None


def test_ptd_is_judged_alone_because_zero_3_has_no_jobs(tmp_path: Path) -> None:
    entry = shipped("table-2")
    cases = {case.name: case for case in expand(entry)}
    printed = {name: case.published[1].value for name, case in cases.items() if not case.reference_only}
    results = [one for one in measured_results(tmp_path, entry, "paper", printed, gpu=A100) if one.row is not None]
    verdicts = {verdict.claim.id: verdict for verdict in judge_claims(entry, "paper", results, 8)}
    assert verdicts.pop("ptd-as-printed").verdict == "holds"
    assert {verdict.verdict for verdict in verdicts.values()} == {"not judged"}
    assert verdicts["ptd-ahead-at-175b"].because == (
        "case=zero3-175b is for reference only: neither a script for ZeRO-3 nor its code is published"
    )
    rows = [result.row for result in results if result.row is not None]
    without_job = case_results(entry, [case for case in cases.values() if case.reference_only], rows, {})
    figure = FigureOutcome(entry, "paper", "selene", results, (), without_job)
    assert [result.case.name for result in figure.drawn("gpus=384")] == [
        "case=ptd-175b,gpus=384",
        "case=zero3-175b,gpus=384",
    ]
    assert len(figure.drawn()) == 12 and {one.published is not None for one in figure.drawn()} == {True}
