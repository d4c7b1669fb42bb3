"""Statistics of samples, limits of measured numbers (noise, a wait for the host), and the progress of a running job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.ledger.measurements import MeasuredMetric

TAIL_BYTES = 64 * 1024
"""Bytes at a log's end that show the progress: some 200 iteration lines, or several among many ranks' warnings."""

ENOUGH_SAMPLES = 10
"""Number of samples with which a job at its time limit has a result, if its output is not complete."""


def sample_that_counts(name: str, unit: str, take: str, values: Sequence[float]) -> MeasuredMetric:
    """Return the `largest`, `smallest` or `last` sample, or the `median` with half the interquartile range."""
    if take == "median":
        import statistics  # not for `status`

        low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (0.0, 0.0, 0.0)
        return MeasuredMetric(name, statistics.median(values), unit, (high - low) / 2, len(values))
    value = {"largest": max, "smallest": min}[take](values) if take != "last" else values[-1]
    return MeasuredMetric(name, value, unit, None, len(values))


@dataclass(frozen=True, slots=True)
class RunningProgress:
    """Progress of a running job.

    `iteration_ms` is the median of the last few lines; None if the only line contains the start-up. `tflops_per_gpu` is
    computed from it as for a finished job; `left_s` is the time that the other iterations take at this pace.
    """

    iteration: int
    iteration_ms: float | None = None
    tflops_per_gpu: float | None = None
    left_s: float | None = None


def is_possible(metric: MeasuredMetric) -> bool:
    """Return whether a metric can have been measured: it is finite and not negative."""
    return all(math.isfinite(number) and number >= 0 for number in (metric.value, metric.spread or 0.0))


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
