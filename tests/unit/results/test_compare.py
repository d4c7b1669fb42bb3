"""Which of a case's jobs stands for it in the figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.job_spec import JobSpec
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.rows import JobRow
from orchestrator.results.cases import Result, case_results
from tests.recorded_jobs import job_row
from tests.unit.catalog.entries import figure_13

Row = tuple[str, float, dict[str, object]]


def job_that_counts(folder: Path, *rows: Row) -> str:
    """The id of the job that stands for the first case, of rows (id, ms, what is otherwise)."""
    entry = figure_13()
    case = expand(entry, "cpu")[0]
    folder.mkdir(exist_ok=True)
    base = replace(job_row(folder), case_name=case.name, scale="cpu")
    made: list[JobRow] = [
        replace(base, job_id=name, attempt_id=number, **otherwise)  # type: ignore[arg-type]
        for number, (name, _, otherwise) in enumerate(rows, 1)
    ]
    metrics = {
        number: {"iteration_ms": MeasuredMetric("iteration_ms", ms, "ms", 1.0, 6)}
        for number, (_, ms, _) in enumerate(rows, 1)
    }
    found = case_results(entry, [case], made, metrics)[0].row
    assert found is not None
    return found.job_id


@pytest.mark.parametrize(
    ("times", "expected"),
    [((30.0, 10.0, 20.0), "3"), ((10.0, 20.0), "1"), ((40.0, 10.0, 20.0, 30.0), "3"), ((10.0,), "1")],
)
def test_of_repeats_the_one_in_the_middle_stands_for_the_case(
    times: tuple[float, ...], expected: str, tmp_path: Path
) -> None:
    rows: list[Row] = [(str(number), ms, {"repeat": number}) for number, ms in enumerate(times, 1)]
    assert job_that_counts(tmp_path, *rows) == expected


def test_a_repeat_that_failed_does_not_count_beside_one_that_did_not(tmp_path: Path) -> None:
    assert job_that_counts(tmp_path, ("1", 10.0, {}), ("2", 5.0, {"repeat": 2, "verdict": "failed"})) == "1"
    assert job_that_counts(tmp_path / "b", ("1", 1.0, {"verdict": "failed"}), ("2", 1.0, {"verdict": "failed"})) == "2"


@pytest.mark.parametrize("otherwise", [{"code": "newer"}, {"image": "newer"}, {"spec": JobSpec(gpu="newer")}])
def test_what_ran_something_else_is_no_repeat_and_the_last_counts(otherwise: dict[str, object], tmp_path: Path) -> None:
    rows: tuple[Row, ...] = (("old", 10.0, {}), ("older", 11.0, {}), ("new", 99.0, otherwise))
    assert job_that_counts(tmp_path, *rows) == "new"
    failed: tuple[Row, ...] = (("old", 10.0, {}), ("new", 99.0, {**otherwise, "verdict": "failed"}))
    assert job_that_counts(tmp_path / "failed", *failed) == "new"


def result_of(folder: Path, *metrics: dict[str, MeasuredMetric]) -> Result:
    """Figure 13's first case with so many repeats."""
    entry = figure_13()
    case = expand(entry, "cpu")[0]
    base = replace(job_row(folder), case_name=case.name, scale="cpu")
    rows = [replace(base, job_id=f"j{n}", attempt_id=n, repeat=n) for n in range(1, len(metrics) + 1)]
    return case_results(entry, [case], rows, dict(enumerate(metrics, 1)))[0]


def timed(ms: float, **others: float) -> dict[str, MeasuredMetric]:
    found = {"iteration_ms": MeasuredMetric("iteration_ms", ms, "ms", 0.01 * ms, 6)}
    return found | {name: MeasuredMetric(name, value, "") for name, value in others.items()}


def test_the_numbers_of_a_case_are_those_of_all_its_repeats(tmp_path: Path) -> None:
    result = result_of(tmp_path, timed(104, tokens_per_s=10), timed(100, tokens_per_s=12), timed(102, tokens_per_s=14))
    assert [row.job_id for row in result.rows] == ["j2", "j3", "j1"] and result.row == result.rows[1]
    found = result.metric("iteration_ms")
    assert found is not None and (found.value, found.repeats) == (102, 3)
    assert result.value("tokens_per_s") == 12
    assert result.noise is None


def test_repeats_that_failed_are_named_beside_those_that_count(tmp_path: Path) -> None:
    entry = figure_13()
    case = expand(entry, "cpu")[0]
    base = replace(job_row(tmp_path), case_name=case.name, scale="cpu")
    rows = [
        replace(base, job_id="good", attempt_id=1),
        replace(base, job_id="bad", attempt_id=2, repeat=2, verdict="failed"),
        replace(base, job_id="older", attempt_id=3, verdict="failed", code="older"),
    ]
    for order in (rows[::-1], [rows[2], rows[0], rows[1]]):
        (result,) = case_results(entry, [case], order, {1: timed(100)})
        assert result.row is not None and result.row.job_id == "good"
        assert [row.job_id for row in result.failed] == ["bad"]
    (alone,) = case_results(entry, [case], rows[1:2], {})
    assert alone.failed == () and alone.row == rows[1]  # told once


def test_times_that_scatter_are_said_to(tmp_path: Path) -> None:
    noisy = {"iteration_ms": MeasuredMetric("iteration_ms", 100.0, "ms", 12.0, 6)}
    assert result_of(tmp_path, noisy).noise == "spread 12 % of the median"


def test_a_rate_above_the_gpus_peak_is_no_result_and_says_why(tmp_path: Path) -> None:
    result = result_of(tmp_path, timed(100, percent_of_peak=40), timed(1, percent_of_peak=4000))
    assert result.is_verified and result.metric("iteration_ms") is None and result.value("percent_of_peak") is None
    assert result.flag == "j2 would run at 4000 % of the GPU's peak"
    (tmp_path / "at").mkdir()
    at_peak = result_of(tmp_path / "at", timed(100, percent_of_peak=100))
    assert at_peak.flag is None and at_peak.value("iteration_ms") == 100
