"""Tests of docs/explanation/predictions.md: its tables are the output of the benchmark."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.left_out import judged
from benchmarks.measured_times import CHECKOUT, Row
from benchmarks.prediction_tables import (
    FORM,
    VALIDATION,
    DataSet,
    class_summary,
    class_table,
    data_sets,
    error_table,
    order_table,
)
from orchestrator.megatron.time_constants import FITTED, Basis

pytestmark = pytest.mark.slow

PAGE = (CHECKOUT / "docs" / "explanation" / "predictions.md").read_text()


@cache
def sets() -> list[DataSet]:
    return data_sets()


def published() -> list[Row]:
    return [row for one in sets() if one.is_published for row in one.rows]


def validation() -> list[Row]:
    return [row for one in sets() if one.use == VALIDATION for row in one.rows]


def test_page_has_the_printed_table_of_classes() -> None:
    assert class_table(judged()) in PAGE, "run python -m benchmarks.duration --write"


def test_page_has_the_printed_table_of_errors() -> None:
    assert error_table(sets()) in PAGE, "run python -m benchmarks.duration and copy its tables"


def test_page_has_the_printed_table_of_orders() -> None:
    assert order_table() in PAGE, "run python -m benchmarks.duration and copy its tables"


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/predictions.md"])
def test_sentences_have_the_error_of_each_class(page: str) -> None:
    words = " ".join((CHECKOUT / page).read_text().split())
    for basis in Basis:
        assert class_summary(basis, judged()) in words, basis


@pytest.mark.parametrize("basis", Basis)
def test_the_uncertainty_of_a_class_holds_for_times_that_were_not_used_for_it(basis: Basis) -> None:
    of_class = [time for time in judged() if time.basis is basis]
    least = 0.9 * len(of_class) if len(of_class) >= 10 else len(of_class)
    assert sum(time.is_inside for time in of_class) >= least > 0


@pytest.mark.parametrize("site", ["SC21", "ATC'24", "`pretrain` on H200", "`pretrain` on four H100"])
def test_the_smallest_uncertainty_holds_at_each_site_alone(site: str) -> None:
    of_site = [time for time in judged() if time.basis is Basis.MEASURED and time.source.startswith(site)]
    assert len(of_site) >= 10 and sum(time.is_inside for time in of_site) >= 0.9 * len(of_site)


def test_no_judged_time_is_predicted_with_constants_that_were_fitted_to_it() -> None:
    # Megatron-LM's own layers have one constant, which the time of one GPU does not depend on.
    fitted = [row for one in sets() for row in one.rows if row.fitted and row.program != "megatron-2026"]
    shipped = {(row.name, row.error(FITTED)) for row in fitted}
    with_its_own = [time for time in judged() if (time.name, time.error) in shipped]
    assert with_its_own == []


def test_data_sets_have_no_time_twice() -> None:
    times = [(row.name, row.actual_ms) for row in published()]
    assert len(times) == len(set(times)) >= 200


def test_most_published_times_are_inside_the_printed_uncertainty() -> None:
    assert sum(row.is_inside for row in published()) >= 0.9 * len(published())


def test_a_table_that_decided_the_form_of_the_model_is_no_validation() -> None:
    assert [one.use for one in sets() if one.title == "SC21 table 2"] == [FORM]


def test_validation_rows_are_not_fitted() -> None:
    assert len(validation()) >= 25 and not any(row.fitted for row in validation())


def test_the_error_of_the_exact_planner_is_on_one_page() -> None:
    planning = (CHECKOUT / "docs" / "explanation" / "planning.md").read_text()
    bullet = next(part for part in planning.split("\n* ") if part.startswith("**`--exact`**"))
    assert "performance.md#predicted-memory-and-time" in bullet and "within" not in bullet
