"""Published numbers: their errors, and what they can decide."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.catalog.published import PublishedPoint


def point(**fields: Any) -> PublishedPoint:
    given = {"where": {}, "metric": "tflops_per_gpu", "value": 100, "how": "printed", "confirmed": True, "source": "x"}
    return PublishedPoint.model_validate(given | fields)


@pytest.mark.parametrize("how", ["traced from the plot", "read off the plot"])
def test_a_plotted_number_without_its_error_decides_nothing(how: str) -> None:
    assert (point(how=how).agrees(100, 0.1), point(how=how).doubt) == (None, "its error is unknown")
    assert point(how=how, error=0.5).agrees(100, 0.1) is True
    assert point(how=how, error=0.5, confirmed=False).origin == f"{how}, ±0.5, unconfirmed"


def test_a_printed_number_needs_no_error_and_decides_every_comparison() -> None:
    assert (point().origin, point(error=1).origin) == ("printed", "printed, ±1")
    assert [point().agrees(value, 0.1) for value in (90, 110, 110.1)] == [True, True, False]


@pytest.mark.parametrize(
    ("value", "agrees"), [(100, True), (108, True), (109, None), (111, None), (112, False), (89, None), (88, False)]
)
def test_the_error_of_a_number_leaves_comparisons_at_the_edge_open(value: float, agrees: bool | None) -> None:
    assert point(how="traced from the plot", error=1.5).agrees(value, 0.1) is agrees
