"""Limits of measured numbers: too noisy to be compared, or host-bound."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.ledger.measurements import MeasuredMetric

MOST_NOISE = 0.05
"""Relative uncertainty above which a number is too noisy to be compared. This is our choice: it is the smallest
tolerance for a published rate, and a difference of 5 % cannot be seen in noisier numbers.
"""


def relative_spread(metric: MeasuredMetric) -> float:
    """Return the spread of a single job over its value."""
    return (metric.spread or 0.0) / abs(metric.value) if metric.value else 0.0


def noise_of_job(metric: MeasuredMetric) -> str | None:
    """Return why the number of a single job is too noisy: `spread 12 % of the median`; None if it is not."""
    noise = relative_spread(metric)
    return None if noise <= MOST_NOISE else f"spread {100 * noise:.2g} % of the median"


HOST_BOUND_PERCENT = 10.0
"""A case is host-bound if its GPUs wait for the host for more than this share of the iteration time. Ours, measured
nowhere: twice the 5 % below which a rate counts as quiet (`MOST_NOISE`)."""


def is_host_bound(metrics: Mapping[str, MeasuredMetric]) -> bool | None:
    """Return whether the GPUs waited too long for the host; None where the wait was not measured."""
    wait = metrics.get("host_wait_percent")
    return None if wait is None else wait.value > HOST_BOUND_PERCENT


def host_bound_reason(metrics: Mapping[str, MeasuredMetric]) -> str | None:
    """Return why a case is host-bound: `its GPUs waited 31 % of the time for the host`; None where it is not."""
    if not is_host_bound(metrics):
        return None
    return f"its GPUs waited {metrics['host_wait_percent'].value:.3g} % of the time for the host"
