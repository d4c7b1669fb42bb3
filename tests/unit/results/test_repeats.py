"""Jobs that measure the same: their mean, how far it can be trusted, and when that is not far enough."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.reading.statistics import MOST_NOISE
from orchestrator.results.cases import T_975, CaseMetric, mean_metric
from orchestrator.results.evidence import number_of


def ms(value: float, spread: float | None = 0.0, count: int = 6) -> MeasuredMetric:
    return MeasuredMetric("iteration_ms", value, "ms", spread, count)


def students_t(t: float, degrees: int, steps: int = 2000) -> float:
    """The distribution function at t > 0, by Simpson's rule over the density."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    width = t / steps
    heights = [math.pow(1 + (n * width) ** 2 / degrees, -(degrees + 1) / 2) for n in range(steps + 1)]
    return 0.5 + scale * width / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]))


def test_the_quantiles_are_students() -> None:
    for degrees, quantile in enumerate(T_975[:30], 1):
        assert students_t(quantile - 0.0006, degrees) < 0.975 < students_t(quantile + 0.0006, degrees), degrees


def test_repeats_are_their_mean_with_the_interval_around_it() -> None:
    found = mean_metric([ms(100, 2.0), ms(104, 4.0), ms(102, 3.0)])
    # the deviation of 100, 102 and 104 is 2; 4.303 x 2 / sqrt(3)
    assert (found.value, found.repeats, found.count, found.spread) == (102, 3, 18, 3.0)
    assert (found.interval_low, found.interval_high) == pytest.approx((102 - 4.96868, 102 + 4.96868), abs=1e-4)


def test_one_job_alone_has_no_interval_and_is_as_noisy_as_its_iterations() -> None:
    found = mean_metric([ms(200, 8.0)])
    assert found == CaseMetric("iteration_ms", 200, "ms", 8.0, 6) and found.interval_low is None
    assert found.noise == pytest.approx(0.04) and found.too_noisy is None


@pytest.mark.parametrize(
    ("repeats", "why"),
    [
        ([ms(100, 12.0)], "spread 12 % of the median"),
        ([ms(100, 5.0)], None),
        ([ms(99, 20.0), ms(100, 20.0), ms(101, 20.0)], None),  # what repeats agree on is no noise
        ([ms(98), ms(102)], "95 % interval 25 % of the mean of 2 repeats either way"),
    ],
)
def test_a_number_says_why_it_is_too_noisy_to_be_compared(repeats: list[MeasuredMetric], why: str | None) -> None:
    assert mean_metric(repeats).too_noisy == why


def test_bytes_that_every_repeat_has_stay_those_bytes() -> None:
    found = mean_metric([MeasuredMetric("max_memory_allocated_bytes", 72762730496.0, "B")] * 3)
    assert (found.value, found.noise, found.spread, found.count) == (72762730496.0, 0.0, None, None)


@given(st.lists(st.floats(1.0, 1e6), min_size=2, max_size=40))
def test_the_interval_is_around_the_mean_and_every_end_of_a_number_is_positive(values: list[float]) -> None:
    found = mean_metric([ms(value) for value in values])
    assert found.interval_low is not None and found.interval_high is not None
    assert found.interval_low <= found.value <= found.interval_high
    assert found.value == pytest.approx(statistics.fmean(values))
    number = number_of(found, same_nodes=True)
    assert 0 < number.low <= number.value <= number.high
    assert (found.too_noisy is None) == (found.noise <= MOST_NOISE)
