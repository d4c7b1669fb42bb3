"""Evidence for a claim: its numbers with their uncertainty, the parts that decide, and the margin of the verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.catalog.case import shown_value
from orchestrator.catalog.expand import expand
from orchestrator.catalog.experiment import FROM_PLOTS, PublishedPoint
from orchestrator.catalog.library import Entry
from orchestrator.job_spec import Value
from orchestrator.ledger.rows import JobRow
from orchestrator.paths import short_name
from orchestrator.programs.axes import MetricDefinition, Settings
from orchestrator.results.cases import CaseMetric, Result, t_975
from orchestrator.text import counted

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
        ends = ((self.value, other.value), (self.low, other.high), (self.high, other.low))
        value, low, high = (one / by if by else math.inf if one else 1.0 for one, by in ends)
        return Number(value, low, high, _larger(self.uncertainty, other.uncertainty))

    def distance_from(self, value: float) -> Number:
        """Return the distance from a value, which is 0 at one end if the value is within the uncertainty."""
        ends = sorted((abs(self.low - value), abs(self.high - value)))
        low = 0.0 if self.low <= value <= self.high else ends[0]
        return Number(abs(self.value - value), low, ends[1], self.uncertainty)


def largest(numbers: Sequence[Number]) -> Number:
    """Return the largest of numbers that vary independently."""
    value, low, high = (max(ends) for ends in zip(*((one.value, one.low, one.high) for one in numbers), strict=True))
    return Number(value, low, high, _larger(*(number.uncertainty for number in numbers)))


def number_of(
    metric: CaseMetric, same_nodes: bool, spread: Uncertainty | None = None, least: float | None = None
) -> Number:
    """Return a measured number with its uncertainty. Both ends are positive, at the same ratio from the number.

    `same_nodes` is whether all jobs that it is compared with ran on the nodes of its own jobs. `spread` is that of
    `job_spread` for the same `same_nodes`. `least` is the least uncertainty of the metric.
    """
    uncertainty = uncertainty_of(metric, same_nodes, spread, least)
    factor = 1 + uncertainty.relative
    return Number(metric.value, metric.value / factor, metric.value * factor, uncertainty)


def uncertainty_of(
    metric: CaseMetric, same_nodes: bool, spread: Uncertainty | None = None, least: float | None = None
) -> Uncertainty:
    """Return the relative uncertainty of a measured number; see `number_of` for the arguments.

    It is that of the number's own repeats, else the measured spread of other repeats, else our choice.
    """
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
    groups: list[list[float]] = []  # repeats of one case on the same nodes, or all of a case that ran on different ones
    for metric in metrics:
        by_nodes: dict[str | None, list[float]] = {}
        for nodes, value in metric.jobs:
            by_nodes.setdefault(nodes, []).append(value)
        if same_nodes:
            groups += (values for nodes, values in by_nodes.items() if nodes is not None and len(values) > 1)
        elif len(by_nodes) > 1:
            groups.append([value for values in by_nodes.values() for value in values])
    means = [(values, mean) for values in groups if (mean := statistics.fmean(values))]
    degrees = sum(len(values) - 1 for values, _ in means)
    if degrees < LEAST_DEGREES:
        return None
    squares = sum(sum((value / mean - 1) ** 2 for value in values) for values, mean in means)
    where = "the same" if same_nodes else "different"
    return Uncertainty(t_975(degrees) * math.sqrt(squares / degrees), f"spread of repeats on {where} nodes")


def on_same_nodes(jobs_of_cases: Sequence[Sequence[JobRow]]) -> bool:
    """Return whether the jobs of all these cases are known to have run on the same nodes; True for one case or job."""
    nodes = {(row.cluster, row.nodes) for rows in jobs_of_cases for row in rows}
    is_one = len(jobs_of_cases) == 1 or len({row.attempt_id for rows in jobs_of_cases for row in rows}) == 1
    return is_one or (len(nodes) == 1 and all(names for _, names in nodes))


def _larger(*uncertainties: Uncertainty) -> Uncertainty:
    return max(uncertainties, key=lambda uncertainty: uncertainty.relative)


@dataclass(frozen=True, slots=True)
class Margin:
    """Distance of a claim's number from the bound that decides, and the ends of the number's uncertainty.

    `percent` is a share of the bound. It is positive if the number satisfies the bound, else negative. `uncertainty` is
    the largest one of a measured number, with its origin.
    """

    number: float
    low: float
    high: float
    bound: float
    percent: float
    uncertainty: str

    def __str__(self) -> str:
        percent, verb = abs(self.percent), "misses" if self.percent < 0 else "stays below"
        shown = f"{percent:.2g} %" if percent < 99.5 else f"{percent:.0f} %"
        distance = f"{'exceeds' if self.number >= self.bound else verb} {self.bound:.4g} by {shown}"
        return f"{distance}: {self.interval}; {self.uncertainty}"

    @property
    def interval(self) -> str:
        """Return the number with its uncertainty: `1.135 ± 0.045`, or `0.24 (0.1 to 0.44)` if the ends differ."""
        below, above = self.number - self.low, self.high - self.number
        if max(below, above) > 1.2 * min(below, above):
            return f"{self.number:.4g} ({self.low:.2g} to {self.high:.2g})"
        return f"{self.number:.4g} ± {(below + above) / 2:.2g}" if above else f"{self.number:.4g}"


@dataclass(frozen=True, slots=True)
class ClaimFinding:
    """Verdict of a claim, its reason, and the distance from the bound, if the claim has one."""

    holds: bool
    because: str
    margin: Margin | None = None


class NotJudged(Exception):
    """Reason why a claim cannot be judged now, with the distance from the bound if noise is the reason."""

    def __init__(self, reason: str, margin: Margin | None = None) -> None:
        super().__init__(reason)
        self.margin = margin


_MOST_NAMED = 3
"""Most cases that a reason names. It counts further cases."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Cases of a claim, run or not, and the metric that the claim compares.

    `beside` are the cases of the other experiment, if the claim compares with one. `repeated` are all cases of the
    experiments, whose repeats show how much jobs differ.
    """

    entry: Entry
    scale: str
    results: tuple[Result, ...]
    metric: MetricDefinition
    gpus_per_node: int
    beside: tuple[Result, ...] = ()
    repeated: tuple[Result, ...] = ()

    def numbers(self, results: Sequence[Result], metric: MetricDefinition | None = None) -> list[Number]:
        """Return the numbers of cases that are compared with each other; NotJudged if one is missing."""
        return numbers_of(results, metric or self.metric, self.repeated)

    def speeds(self, results: Sequence[Result]) -> list[Number]:
        """Return numbers that are larger for faster cases, whatever the metric."""
        numbers = self.numbers(results)
        return [Number(1, 1, 1, EXACT) / one for one in numbers] if self.metric.better == "lower" else numbers

    def source_gpus(self) -> list[str]:
        """Return the GPUs that the source names."""
        machine, published_as = self.entry.paper.machine, self.entry.experiment.published_as
        sources = (machine, published_as, *self.entry.experiment.published)
        return list(dict.fromkeys(source.gpu for source in sources if source is not None and source.gpu))

    def reference_only(self, entry: Entry, side: Settings) -> str | None:
        """Return why the cases of an experiment with these settings have no job; None if there is no such case."""
        cases = expand(entry, self.scale)
        reasons = (case.reference_only for case in cases if side.items() <= case.settings.items())
        return next(filter(None, reasons), None)

    def measured(self) -> list[Result]:
        """Return all cases with their number; NotJudged if one is missing."""
        return measured(self.results, self.metric.name)

    def series(self) -> dict[str, list[Result]]:
        """Return the lines of the figure by name, as in `gbs=32`; NotJudged if a case has no number."""
        series = self.entry.experiment.plot.series
        return _grouped([series.of] if series else [], self.measured())

    def lines_along(self, axis: str) -> dict[str, list[Result]]:
        """Return lines of at least two measured cases with different values on an axis, in the order of the axis."""
        results = self.measured()
        _require(axis, results)
        axes = self.entry.experiment.plot
        series = [axes.series.of] if axes.series and axes.series.of != axis else []
        grouped = _grouped(series, results)
        if any(len({result.case.value(axis) for result in line}) < len(line) for line in grouped.values()):
            grouped = _grouped([*series, *(name for name in axes.x.of if name != axis)], results)
        return {name: in_order(axis, line) for name, line in grouped.items() if len(line) > 1}


def numbers_of(results: Sequence[Result], metric: MetricDefinition, repeated: Sequence[Result]) -> list[Number]:
    """Return the numbers of cases that are compared with each other; `repeated` are all cases that may have repeats.

    Repeats of other rows of an output do not count. NotJudged if the numbers have two units, or one is negative.
    """
    numbers = [metric_of(result, metric.name) for result in results]
    units = dict.fromkeys(number.unit for number in numbers)
    if len(units) > 1:
        raise NotJudged(f"it compares {metric.name} in {' and '.join(unit or 'no unit' for unit in units)}")
    negative = next((result.case.name for result, one in zip(results, numbers, strict=True) if one.value < 0), None)
    if negative is not None:
        raise NotJudged(f"{metric.name} of {negative} is negative, and ratios need positive numbers")
    same_nodes = on_same_nodes([result.rows for result in results])
    alike = [result.metric(metric.name) for result in repeated if any(result.row_key == one.row_key for one in results)]
    spread = job_spread(filter(None, alike), same_nodes)
    return [number_of(number, same_nodes, spread, metric.least_uncertainty) for number in numbers]


def measured(results: Sequence[Result], metric: str) -> list[Result]:
    """Return the cases that have this metric; NotJudged if one is missing."""
    needed = verified(results)
    for result in needed:
        metric_of(result, metric)
    return needed


def verified(results: Sequence[Result]) -> list[Result]:
    """Return the cases if all are measured; those that the source reports as out of memory may be missing."""
    needed = [result for result in results if not may_be_missing(result)]
    missing = sum(not result.is_measured for result in needed)
    if missing:
        raise NotJudged(f"{missing} of {counted(len(needed), 'case')} not verified")
    if not needed:
        raise NotJudged("all of its cases run out of memory as published")
    return needed


def unlike(results: Sequence[Result], metric: MetricDefinition) -> str | None:
    """Return why these cases cannot be compared by this metric, or None.

    A host-bound case has the rate of its host, not of its layout; memory does not depend on the wait. CUDA graphs need
    memory of their own, so execution modes must be the same for memory too. An unknown mode can be compared with any
    mode of another program; within one program it comes from a version that does not print the mode, and the mode may
    differ.
    """
    host_bound = [result for result in results if result.is_host_bound] if metric.is_rate else []
    if len(host_bound) == 1:
        return f"{host_bound[0].case.name} is host-bound ({host_bound[0].host_bound})"
    if host_bound:
        percents = [result.value("host_wait_percent") or 0.0 for result in host_bound]
        ends = " to ".join(dict.fromkeys(f"{percent:.3g}" for percent in (min(percents), max(percents))))
        return f"{_named(host_bound)} are host-bound (their GPUs waited {ends} % of the time for the host)"
    by_mode: dict[str, list[Result]] = {}
    programs = {result.case.program for result in results if result.modes}
    for result in sorted(results, key=lambda result: not result.modes):
        for mode in result.modes or (["an unknown mode"] if result.case.program in programs else []):
            by_mode.setdefault(mode, []).append(result)
    if len(by_mode) < 2:
        return None
    first, second, *_ = (f"{mode} ({_named(results)})" for mode, results in by_mode.items())
    return f"it compares {first} with {second}"


def unique(results: Iterable[Result]) -> list[Result]:
    """Return each case once."""
    return list({(result.case.experiment, result.case.name): result for result in results}.values())


def may_be_missing(result: Result) -> bool:
    """Return whether the source reports that the case runs out of memory."""
    return result.expects_oom and not result.is_measured


def metric_of(result: Result, metric: str) -> CaseMetric:
    """Return the measured metric; NotJudged if there is none or if it cannot be right."""
    found = result.metric(metric)
    if found is None:
        raise NotJudged(result.flag or f"{metric} was not measured")
    return found


def in_order(axis: str, results: Sequence[Result]) -> list[Result]:
    """Return the cases in the order of their value on the axis; text values keep the order of the file."""
    _require(axis, results)
    if any(isinstance(result.case.value(axis), str) for result in results):
        return list(results)
    return sorted(results, key=lambda result: result.case.number(axis))


def assigned(settings: Mapping[str, Value | None] | Mapping[str, Value]) -> str:
    """Return settings as typed: `recompute=full,gbs=32`."""
    return ",".join(f"{axis}={'none' if value is None else shown_value(value)}" for axis, value in settings.items())


def shown_number(value: float) -> str:
    """Return a number for people: bytes exactly, rates with four digits."""
    return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.4g}"


def _named(results: Sequence[Result]) -> str:
    """Return the names of the cases: `pp=2,tp=2,gbs=32; pp=4,tp=1,gbs=32 and 2 more`."""
    several = len({result.case.experiment for result in results}) > 1
    names = [f"{short_name(result.case.experiment)} " * several + result.case.name for result in results]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return "; ".join(names[:_MOST_NAMED]) + more


def _grouped(axes: Sequence[str], results: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        shared = {axis: result.case.settings.get(axis) for axis in axes}
        groups.setdefault(assigned(shared) or "the figure", []).append(result)
    return groups


def _require(axis: str, results: Sequence[Result]) -> None:
    for result in results:
        if axis not in result.case.settings:
            raise NotJudged(f"{result.case.name} has no {axis}")


@dataclass(frozen=True, slots=True)
class Part:
    """One comparison of a claim: a number that must be from `least` to `most`.

    With `strict` it must not be equal to them. `results` are the cases that it compares by `metric`. `open_because` is
    a reason other than noise why the comparison can stay open.
    """

    name: str
    results: Sequence[Result]
    metric: MetricDefinition
    number: Number
    least: float = -math.inf
    most: float = math.inf
    strict: bool = False
    open_because: str | None = None

    @property
    def holds(self) -> bool | None:
        """Return whether both ends of the number are within the bounds; None if one is within and the other not."""
        low, high = self.number.low, self.number.high
        if self._is_within(low) and self._is_within(high):
            return True
        beyond = high < self.least or low > self.most or (self.strict and (high <= self.least or low >= self.most))
        return False if beyond else None

    @property
    def margin(self) -> Margin | None:
        """Return the distance from the nearest bound; None if it has no relative size."""
        number = self.number
        bounds = [(self.least, 1), (self.most, -1)]
        percents = [(100 * sign * (number.value / bound - 1), bound) for bound, sign in bounds if 0 < bound < math.inf]
        if not percents or not all(map(math.isfinite, (number.value, number.low, number.high))):
            return None
        (percent, bound), origin = min(percents), number.uncertainty
        each = f"± {100 * origin.relative:.2g} % for each number, " if origin.relative else ""
        return Margin(number.value, number.low, number.high, bound, percent, f"{each}{origin.origin}")

    @property
    def percent(self) -> float:
        """Return the distance from the nearest bound as a share of the bound; 0 if it has no relative size."""
        return self.margin.percent if self.margin is not None else 0.0

    @property
    def asked(self) -> str:
        """Return the bounds: `at least 1.1 and at most 1.2`."""
        least, most = ("above", "below") if self.strict else ("at least", "at most")
        bounds = [f"{least} {self.least:.4g}"] if math.isfinite(self.least) else []
        bounds += [f"{most} {self.most:.4g}"] if math.isfinite(self.most) else []
        return " and ".join(bounds)

    def _is_within(self, value: float) -> bool:
        below = value < self.most or self.most == math.inf  # a ratio to zero is infinite
        return self.least < value and below if self.strict else self.least <= value <= self.most


def published_part(
    result: Result, point: PublishedPoint, metric: MetricDefinition, number: Number, tolerance: float
) -> Part:
    """Return the comparison of a measured number with a published one, whose error is added to the uncertainty."""
    error = (point.error or 0.0) if point.error is not None or point.how not in FROM_PLOTS else math.inf
    deviation = f"{100 * (number.value - point.value) / point.value:+.2f} %"
    values = f"{shown_number(number.value)} against {metric.with_unit(shown_number(point.value))}"
    name = f"{point.metric} {values} at {result.case.name}, "
    allowed = tolerance * point.value
    part = Part(name + deviation, [result], metric, number, point.value - allowed, point.value + allowed)
    if part.holds is not None:  # the error, not noise, can leave it open
        part = replace(part, open_because=f"{part.name}; {100 * tolerance:.4g} % allowed, and {point.doubt}")
    return replace(part, number=replace(number, low=number.low - error, high=number.high + error))


@dataclass(frozen=True, slots=True)
class PartsVerdict:
    """Verdict of a claim by the parts that can be compared; `part` is the part that decides."""

    holds: bool
    parts: Sequence[Part]
    part: Part

    def because(self, reason: str) -> ClaimFinding:
        """Return the verdict with a reason and the margin of the part that decides."""
        return ClaimFinding(self.holds, reason, self.part.margin)


def decide(parts: Sequence[Part], *, one_is_enough: bool = False) -> PartsVerdict:
    """Return whether all parts hold, or one of them with `one_is_enough`.

    Raise NotJudged if a part that compares unlike cases, or whose number is within noise, could change the verdict.
    """
    reasons = [unlike(part.results, part.metric) for part in parts]
    alike = [part for part, reason in zip(parts, reasons, strict=True) if reason is None]
    deciding = [part for part in alike if part.holds is one_is_enough]
    nearest = max if one_is_enough else min
    if deciding:  # one part that holds is enough, or one that fails
        part = nearest(deciding, key=lambda part: part.percent)
        return PartsVerdict(one_is_enough, alike, part)
    first = next(filter(None, reasons), None)
    if first is not None:
        raise NotJudged(first)
    unsure = [part for part in alike if part.holds is None]
    if unsure:
        part = nearest(unsure, key=lambda part: part.percent)
        interval = part.margin.interval if part.margin is not None else f"{part.number.value:.4g}"
        noise = f"within noise ({interval}, {part.asked} asked): {part.name}"
        raise NotJudged(part.open_because or noise, part.margin)
    return PartsVerdict(not one_is_enough, alike, nearest(alike, key=lambda part: part.percent))
