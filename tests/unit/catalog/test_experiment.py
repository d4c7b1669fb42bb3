"""Published numbers: their errors, and what they can decide."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.catalog.experiment import PublishedPoint


def point(**fields: Any) -> PublishedPoint:
    given = {"where": {}, "metric": "tflops_per_gpu", "value": 100, "how": "printed", "confirmed": True, "source": "x"}
    return PublishedPoint.model_validate(given | fields)


@pytest.mark.parametrize("how", ["traced from the plot", "read off the plot"])
def test_a_plotted_number_without_its_error_decides_nothing(how: str) -> None:
    assert point(how=how).doubt == "its error is unknown"
    assert point(how=how, error=0.5, confirmed=False).origin == f"{how}, ±0.5, unconfirmed"


def test_a_printed_number_needs_no_error() -> None:
    assert (point().origin, point(error=1).origin) == ("printed", "printed, ±1")
