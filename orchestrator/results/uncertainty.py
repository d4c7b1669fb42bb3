"""Uncertainty of measured numbers: the same for claims, for published numbers and for comparisons of runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.ledger.rows import JobRow
from orchestrator.metrics import METRICS
from orchestrator.results.cases import CaseMetric, t_975

ONE_JOB = 0.02
"""Smallest relative uncertainty of a time or rate of a single job, compared on the same nodes. The iterations of one
job agree better with each other than with those of another job. This is our choice. The two smallest cases of SC21's
table 1 differed by 1.3 % and 1.8 % between two machines with H200s, and by at most 0.2 % between jobs on one."""

OTHER_NODES = 0.04
"""The same for numbers that are compared with those of other nodes. Two such numbers differ by up to 8 %: the average
variation between GPUs of one kind in one cluster (Sinha et al., Not All GPUs Are Created Equal, arXiv 2208.11035)."""

LEAST_DEGREES = 2
"""Fewest degrees of freedom of a measured spread: two differences between repeats."""


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Relative uncertainty of a number, and its origin: `95 % interval of 3 jobs`."""

    relative: float
    origin: str


EXACT = Uncertainty(0.0, "exact")


@dataclass(frozen=True, slots=True)
class Number:
    """Positive number with the ends of its uncertainty. A ratio has the ends of the worst case for both of its numbers.

    `uncertainty` is that of the least certain number that it is computed from.
    """

    value: float
    low: float
    high: float
    uncertainty: Uncertainty = EXACT

    def __truediv__(self, other: Number) -> Number:
        """Return the ratio of two numbers that vary independently."""
        return Number(
            _quotient(self.value, other.value),
            _quotient(self.low, other.high),
            _quotient(self.high, other.low),
            _larger(self.uncertainty, other.uncertainty),
        )

    def distance_from(self, value: float) -> Number:
        """Return the distance from a value, which is 0 at one end if the value is within the uncertainty."""
        ends = sorted((abs(self.low - value), abs(self.high - value)))
        low = 0.0 if self.low <= value <= self.high else ends[0]
        return Number(abs(self.value - value), low, ends[1], self.uncertainty)


def largest(numbers: Sequence[Number]) -> Number:
    """Return the largest of numbers that vary independently."""
    least_certain = max((number.uncertainty for number in numbers), key=lambda uncertainty: uncertainty.relative)
    value, low, high = (max(ends) for ends in zip(*((one.value, one.low, one.high) for one in numbers), strict=True))
    return Number(value, low, high, least_certain)


def number_of(metric: CaseMetric, same_nodes: bool, spread: Uncertainty | None = None) -> Number:
    """Return a measured number with its uncertainty. Both ends are positive, at the same ratio from the number.

    `same_nodes` is whether all jobs that it is compared with ran on the nodes of its own jobs. `spread` is that of
    `job_spread` for the same `same_nodes`.
    """
    uncertainty = uncertainty_of(metric, same_nodes, spread)
    factor = 1 + uncertainty.relative
    return Number(metric.value, metric.value / factor, metric.value * factor, uncertainty)


def uncertainty_of(metric: CaseMetric, same_nodes: bool, spread: Uncertainty | None = None) -> Uncertainty:
    """Return the relative uncertainty of a measured number; see `number_of` for the arguments.

    It is that of the number's own repeats, else the measured spread of other repeats, else our choice.
    """
    least = METRICS[metric.name].least_uncertainty
    own = Uncertainty(metric.noise, f"95 % interval of {metric.repeats} jobs")
    if metric.repeats == 1:
        own = Uncertainty(metric.noise, "spread within one job")
    elif same_nodes or len({nodes for nodes, _ in metric.jobs}) > 1:
        return own if least is None else _larger(own, Uncertainty(least, "memory of the whole GPU"))
    if least is not None:
        return _larger(Uncertainty(least, "memory of the whole GPU") if least else EXACT, own)
    where = "on the same nodes" if same_nodes else "on different nodes"
    assumed = Uncertainty(ONE_JOB if same_nodes else OTHER_NODES, f"assumed between jobs {where}")
    return _larger(spread or assumed, own)


def job_spread(metrics: Iterable[CaseMetric], same_nodes: bool) -> Uncertainty | None:
    """Return the 95 % uncertainty of one job from the repeats of all cases; None if too few ran.

    With `same_nodes` it is the spread of jobs on the same nodes, else that of jobs on different nodes.
    """
    squares, degrees = 0.0, 0
    for values in _repeats(metrics, same_nodes):
        mean = statistics.fmean(values)
        squares += sum((value / mean - 1) ** 2 for value in values)
        degrees += len(values) - 1
    if degrees < LEAST_DEGREES:
        return None
    where = "the same" if same_nodes else "different"
    return Uncertainty(t_975(degrees) * math.sqrt(squares / degrees), f"spread of repeats on {where} nodes")


def _repeats(metrics: Iterable[CaseMetric], same_nodes: bool) -> Iterable[list[float]]:
    """Yield groups of repeats of one case: those on the same nodes, or all of a case that ran on different ones."""
    for metric in metrics:
        by_nodes: dict[str | None, list[float]] = {}
        for nodes, value in metric.jobs:
            by_nodes.setdefault(nodes, []).append(value)
        if same_nodes:
            yield from (values for nodes, values in by_nodes.items() if nodes is not None and len(values) > 1)
        elif len(by_nodes) > 1:
            yield [value for values in by_nodes.values() for value in values]


def on_same_nodes(jobs_of_cases: Sequence[Sequence[JobRow]]) -> bool:
    """Return whether the jobs of all these cases are known to have run on the same nodes; True for one case."""
    nodes = {(row.cluster, row.nodes) for rows in jobs_of_cases for row in rows}
    return len(jobs_of_cases) == 1 or (len(nodes) == 1 and all(names for _, names in nodes))


def _larger(one: Uncertainty, other: Uncertainty) -> Uncertainty:
    return other if other.relative > one.relative else one


def _quotient(value: float, divisor: float) -> float:
    return value / divisor if divisor else math.inf
