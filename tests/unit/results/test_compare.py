"""Which of a case's jobs stands for it in the figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.ledger.jobs import JobRow
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.results.compare import results
from tests.unit.results.making import a_row, figure_13

Row = tuple[str, float, dict[str, object]]


def job_that_counts(folder: Path, *rows: Row) -> str:
    """The id of the job that stands for the first case, of rows (id, ms, what is otherwise)."""
    entry = figure_13()
    case = expand(entry, "cpu")[0]
    folder.mkdir(exist_ok=True)
    base = replace(a_row(folder), case_name=case.name, scale="cpu")
    made: list[JobRow] = [
        replace(base, job_id=name, attempt_id=number, **otherwise)  # type: ignore[arg-type]
        for number, (name, _, otherwise) in enumerate(rows, 1)
    ]
    metrics = {
        number: {"iteration_ms": MeasuredMetric("iteration_ms", ms, "ms", 1.0, 6)}
        for number, (_, ms, _) in enumerate(rows, 1)
    }
    found = results(entry, [case], made, metrics)[0].row
    assert found is not None
    return found.job_id


@pytest.mark.parametrize(
    ("times", "expected"),
    [((30.0, 10.0, 20.0), "3"), ((10.0, 20.0), "1"), ((40.0, 10.0, 20.0, 30.0), "3"), ((10.0,), "1")],
)
def test_of_repeats_the_one_in_the_middle_counts(times: tuple[float, ...], expected: str, tmp_path: Path) -> None:
    rows: list[Row] = [(str(number), ms, {"repeat": number}) for number, ms in enumerate(times, 1)]
    assert job_that_counts(tmp_path, *rows) == expected


def test_a_repeat_that_failed_does_not_count_beside_one_that_did_not(tmp_path: Path) -> None:
    assert job_that_counts(tmp_path, ("1", 10.0, {}), ("2", 5.0, {"repeat": 2, "verdict": "failed"})) == "1"
    assert job_that_counts(tmp_path / "b", ("1", 1.0, {"verdict": "failed"}), ("2", 1.0, {"verdict": "failed"})) == "2"


@pytest.mark.parametrize("otherwise", [{"code": "newer"}, {"image": "newer"}, {"configuration": {"newer": 1}}])
def test_what_ran_something_else_is_no_repeat_and_the_last_counts(otherwise: dict[str, object], tmp_path: Path) -> None:
    rows: tuple[Row, ...] = (("old", 10.0, {}), ("older", 11.0, {}), ("new", 99.0, otherwise))
    assert job_that_counts(tmp_path, *rows) == "new"
    failed: tuple[Row, ...] = (("old", 10.0, {}), ("new", 99.0, {**otherwise, "verdict": "failed"}))
    assert job_that_counts(tmp_path / "failed", *failed) == "new"
