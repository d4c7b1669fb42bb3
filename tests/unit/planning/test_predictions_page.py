"""Tests of docs/explanation/predictions.md: its tables are the output of the benchmark."""

from __future__ import annotations

import statistics
from functools import cache

import pytest

from benchmarks.measured_times import CHECKOUT, Row
from benchmarks.prediction_tables import VALIDATION, DataSet, data_sets, error_table, order_table
from orchestrator.planning.time_constants import CALIBRATED_UNCERTAINTY, FITTED
from orchestrator.workloads.base import COMPARED_ON

pytestmark = pytest.mark.slow

PAGE = (CHECKOUT / "docs" / "explanation" / "predictions.md").read_text()


@cache
def sets() -> list[DataSet]:
    return data_sets()


def published() -> list[Row]:
    return [row for one in sets() if one.is_published for row in one.rows]


def validation() -> list[Row]:
    return [row for one in sets() if one.use == VALIDATION for row in one.rows]


def test_page_has_the_printed_table_of_errors() -> None:
    assert error_table(sets()) in PAGE, "run python -m benchmarks.duration and copy its tables"


def test_page_has_the_printed_table_of_orders() -> None:
    assert order_table() in PAGE, "run python -m benchmarks.duration and copy its tables"


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/predictions.md", "docs/explanation/planning.md"])
def test_sentences_have_the_numbers_of_the_table(page: str) -> None:
    text = (CHECKOUT / page).read_text()
    mean = 100 * statistics.fmean(abs(row.error(FITTED)) for row in validation())
    inside = sum(row.is_inside for row in published())
    words = " ".join(text.split())
    assert f"with a mean error of {mean:.1f} %" in words
    assert f"Of all {len(published())} published times {inside} are inside" in words


def test_data_sets_have_no_time_twice() -> None:
    times = [(row.name, row.actual_ms) for row in published()]
    assert len(times) == len(set(times)) >= 200


def test_most_published_times_are_inside_the_printed_uncertainty() -> None:
    assert sum(row.is_inside for row in published()) >= 0.9 * len(published())
    for uncertainty in (CALIBRATED_UNCERTAINTY, COMPARED_ON["A100"], COMPARED_ON["H100"]):
        of_class = [row for row in published() if row.predicted(FITTED).uncertainty == uncertainty]
        assert len(of_class) >= 10 and sum(row.is_inside for row in of_class) >= 0.9 * len(of_class)


def test_validation_rows_are_not_fitted() -> None:
    assert len(validation()) >= 25 and not any(row.fitted for row in validation())
