"""Statistics of samples, and the progress of a running job."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.ledger.measurements import MeasuredMetric

TAIL_BYTES = 64 * 1024
"""Bytes at a log's end that show the progress: some 200 iteration lines, or several among many ranks' warnings."""

ENOUGH_SAMPLES = 10
"""Number of samples with which a job at its time limit has a result, if its output is not complete."""


def sample_that_counts(name: str, unit: str, take: str, values: Sequence[float]) -> MeasuredMetric:
    """Return the `largest`, `smallest` or `last` sample, or the `median` with half the interquartile range."""
    if take == "median":
        return MeasuredMetric(name, statistics.median(values), unit, _half_iqr(values), len(values))
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


def _half_iqr(values: Sequence[float]) -> float:
    """Return half the interquartile range; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2
