"""Host-bound cases: GPUs that wait for the host."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.ledger.measurements import MeasuredMetric

HOST_BOUND_PERCENT = 10.0
"""A case is host-bound if its GPUs wait for the host for more than this share of the iteration time. Ours, measured
nowhere: twice the 5 % below which a rate counts as quiet (`reading.noise.MOST_NOISE`)."""


def host_wait_percent(metrics: Mapping[str, MeasuredMetric]) -> float | None:
    """Return the share of the iteration time for which a GPU waited for the host; None where it was not measured."""
    measured = metrics.get("host_wait_percent")
    return None if measured is None else measured.value


def is_host_bound(metrics: Mapping[str, MeasuredMetric]) -> bool | None:
    """Return whether the GPUs waited too long for the host; None where the wait was not measured."""
    percent = host_wait_percent(metrics)
    return None if percent is None else percent > HOST_BOUND_PERCENT


def host_bound_reason(metrics: Mapping[str, MeasuredMetric]) -> str | None:
    """Return why a case is host-bound: `its GPUs waited 31 % of the time for the host`; None where it is not."""
    if not is_host_bound(metrics):
        return None
    return f"its GPUs waited {host_wait_percent(metrics):.3g} % of the time for the host"
