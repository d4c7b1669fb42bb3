"""Jobs that measure the same together: their mean, how far it can be trusted, and when that is not far enough."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import FAILED, VERIFIED

MOST_NOISE = 0.05
"""A number that is uncertain by more than this share of itself is too noisy to be compared. Ours: it is the smallest
tolerance that a published rate is judged with, and of a number that scatters by more nobody can say that it is 5 % off.
"""

# The 0.975 quantiles of Student's t for 1 to 30 degrees of freedom: NIST/SEMATECH e-Handbook of Statistical Methods,
# table 1.3.6.7.2.
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class CaseMetric(MeasuredMetric):
    """A number of a case. Of one job it is the job's; of `repeats` their mean, with its 95 % confidence interval.

    `spread` is then the mean of the repeats' own, and `count` how many samples they have together.
    """

    interval_low: float | None = None
    interval_high: float | None = None
    repeats: int = 1

    @property
    def noise(self) -> float:
        """Its uncertainty as a share of itself: half the interval; of a single job the spread."""
        if not self.value:
            return 0.0
        if self.interval_low is not None and self.interval_high is not None:
            return (self.interval_high - self.interval_low) / 2 / abs(self.value)
        return (self.spread or 0.0) / abs(self.value)

    def moved(self, way: Literal[-1, 1]) -> CaseMetric:
        """The same at the lower or the upper end of what is uncertain; never 0, and as far in either ratio."""
        return replace(self, value=self.value * (1 + self.noise) ** way)

    @property
    def too_noisy(self) -> str | None:
        """Why it cannot be compared: `spread 12 % of the median`; None where it can."""
        if self.noise <= MOST_NOISE:
            return None
        if self.repeats > 1:
            return f"95 % interval {100 * self.noise:.2g} % of the mean of {self.repeats} repeats either way"
        return f"spread {100 * self.noise:.2g} % of the median"


@dataclass(frozen=True, slots=True)
class Together:
    """What stands for a case: of its jobs the last one and its repeats.

    `rows` are those that the numbers stand on, the fastest first, `row` the one in the middle; without a number both
    are the last job. `failed` are the repeats beside them that failed. `noise` and `flag` are those of
    `compare.Result`.
    """

    row: JobRow
    rows: tuple[JobRow, ...]
    metrics: dict[str, CaseMetric]
    failed: tuple[JobRow, ...] = ()
    noise: str | None = None
    flag: str | None = None


def together(rows: Sequence[JobRow], metrics: Mapping[int, Mapping[str, MeasuredMetric]]) -> Together:
    """Of jobs of one case, the one asked for last at the end; `metrics` are by attempt.

    Jobs that ran the same code with the same configuration and image are repeats; those that are not verified do not
    count beside those that are.
    """
    last = rows[-1]
    same = (last.spec, last.code, last.image, last.image_digest)
    alike = [row for row in rows if (row.spec, row.code, row.image, row.image_digest) == same]
    measured = [row for row in alike if row.verdict == VERIFIED and "iteration_ms" in metrics.get(row.attempt_id, {})]
    if not measured:
        own = metrics.get(last.attempt_id, {})
        return Together(last, (last,), {name: combined([metric]) for name, metric in own.items()})
    measured.sort(key=lambda row: metrics[row.attempt_id]["iteration_ms"].value)
    by_job = [metrics[row.attempt_id] for row in measured]
    middle = (len(measured) - 1) // 2
    found = {name: combined([one[name] for one in by_job if name in one]) for name in by_job[middle]}
    failed = tuple(row for row in alike if row.verdict == FAILED)
    noise, flag = found["iteration_ms"].too_noisy, _flag(measured, by_job)
    return Together(measured[middle], tuple(measured), found, failed, noise, flag)


def combined(repeats: Sequence[MeasuredMetric]) -> CaseMetric:
    """The same number of several jobs: the mean of their medians, and Student's t interval around it."""
    first = repeats[0]
    if len(repeats) == 1:
        return CaseMetric(first.name, first.value, first.unit, first.spread, first.count)
    values = [one.value for one in repeats]
    mean, half = statistics.fmean(values), _half_interval(values)
    spreads = [one.spread for one in repeats if one.spread is not None]
    counts = [one.count for one in repeats if one.count is not None]
    return CaseMetric(
        name=first.name,
        value=mean,
        unit=first.unit,
        spread=statistics.fmean(spreads) if spreads else None,
        count=sum(counts) if counts else None,
        interval_low=mean - half,
        interval_high=mean + half,
        repeats=len(values),
    )


def _half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of their mean; of more than 31 a little wide, with the last quantile."""
    quantile = T_975[min(len(values) - 1, len(T_975)) - 1]
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def _flag(rows: Sequence[JobRow], by_job: Sequence[Mapping[str, MeasuredMetric]]) -> str | None:
    """Why the numbers can be none: no GPU is faster than its peak, so the times in the log are not what they say."""
    for row, metrics in zip(rows, by_job, strict=True):
        share = metrics.get("percent_of_peak")
        if share is not None and share.value > 100:
            return f"{row.job_id} would run at {share.value:.4g} % of the GPU's peak"
    return None
