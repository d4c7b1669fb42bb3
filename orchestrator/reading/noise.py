"""Noise of measured numbers: when they are too noisy to be compared."""

from __future__ import annotations

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
