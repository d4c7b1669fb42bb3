"""Tests of docs/predictions.md: its tables are the output of the benchmark."""

from __future__ import annotations

from benchmarks.measured_times import CHECKOUT
from benchmarks.prediction_tables import data_sets, error_table, order_table

PAGE = (CHECKOUT / "docs" / "predictions.md").read_text()


def test_page_has_the_printed_table_of_errors() -> None:
    assert error_table(data_sets()) in PAGE, "run python -m benchmarks.duration and copy its tables"


def test_page_has_the_printed_table_of_orders() -> None:
    assert order_table() in PAGE, "run python -m benchmarks.duration and copy its tables"


def test_data_sets_have_no_case_twice() -> None:
    names = [row.name for one in data_sets() for row in one.rows if one.is_published]
    assert len(names) == len(set(names)) >= 210
