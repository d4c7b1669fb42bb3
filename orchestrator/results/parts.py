"""Parts of a claim: numbers that must keep bounds. Each holds, fails, or is within noise; together they decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.catalog.experiment import FROM_PLOTS, PublishedPoint
from orchestrator.results.cases import Result
from orchestrator.results.evidence import shown_number, unlike
from orchestrator.results.margin import Margin, NotJudged
from orchestrator.results.uncertainty import Number


@dataclass(frozen=True, slots=True)
class Part:
    """One comparison of a claim: a number that must be from `least` to `most`.

    With `strict` it must not be equal to them. `results` are the cases that it compares by `metric`. `open_because` is
    a reason other than noise why the comparison can stay open.
    """

    name: str
    results: Sequence[Result]
    metric: str
    number: Number
    least: float = -math.inf
    most: float = math.inf
    strict: bool = False
    open_because: str | None = None

    @property
    def holds(self) -> bool | None:
        """Return whether both ends of the number are within the bounds; None if one is within and the other not."""
        ends = [self._is_within(end) for end in (self.number.low, self.number.high)]
        if all(ends):
            return True
        beyond = self.number.high < self.least or self.number.low > self.most
        at_bound = self.strict and (self.number.high <= self.least or self.number.low >= self.most)
        return False if beyond or at_bound else None

    @property
    def margin(self) -> Margin | None:
        """Return the distance from the nearest bound; None if it has no relative size."""
        number = self.number
        bounds = [(self.least, 1), (self.most, -1)]
        percents = [(100 * sign * (number.value / bound - 1), bound) for bound, sign in bounds if 0 < bound < math.inf]
        if not percents or not all(map(math.isfinite, (number.value, number.low, number.high))):
            return None
        percent, bound = min(percents)
        origin = number.uncertainty
        shown = (
            f"± {100 * origin.relative:.2g} % for each number, {origin.origin}" if origin.relative else origin.origin
        )
        return Margin(number.value, number.low, number.high, bound, percent, shown)

    @property
    def asked(self) -> str:
        """Return the bounds: `at least 1.1 and at most 1.2`."""
        least, most = ("above", "below") if self.strict else ("at least", "at most")
        bounds = [f"{least} {self.least:.4g}"] if math.isfinite(self.least) else []
        bounds += [f"{most} {self.most:.4g}"] if math.isfinite(self.most) else []
        return " and ".join(bounds)

    def _is_within(self, value: float) -> bool:
        return self.least < value < self.most if self.strict else self.least <= value <= self.most


def published_part(result: Result, point: PublishedPoint, number: Number, tolerance: float) -> Part:
    """Return the comparison of a measured number with a published one, whose error is added to the uncertainty."""
    error = (point.error or 0.0) if point.error is not None or point.how not in FROM_PLOTS else math.inf
    deviation = f"{100 * (number.value - point.value) / point.value:+.2f} %"
    name = f"{point.metric} {shown_number(number.value)} against {shown_number(point.value)} at {result.case.name}, "
    allowed = tolerance * point.value
    part = Part(name + deviation, [result], point.metric, number, point.value - allowed, point.value + allowed)
    if part.holds is not None:  # the error, not noise, can leave it open
        part = replace(part, open_because=f"{part.name}; {100 * tolerance:.4g} % allowed, and {point.doubt}")
    return replace(part, number=replace(number, low=number.low - error, high=number.high + error))


@dataclass(frozen=True, slots=True)
class PartsVerdict:
    """Verdict of a claim by the parts that can be compared; `part` is the part that decides."""

    holds: bool
    parts: Sequence[Part]
    part: Part

    @property
    def margin(self) -> Margin | None:
        """Return the margin of the part that decides."""
        return self.part.margin


def decide(parts: Sequence[Part], *, one_is_enough: bool = False) -> PartsVerdict:
    """Return whether all parts hold, or one of them with `one_is_enough`.

    Raise NotJudged if a part that compares unlike cases, or whose number is within noise, could change the verdict.
    """
    reasons = [unlike(part.results, part.metric) for part in parts]
    alike = [part for part, reason in zip(parts, reasons, strict=True) if reason is None]
    deciding = [part for part in alike if part.holds is one_is_enough]
    nearest = max if one_is_enough else min
    if deciding:  # one part that holds is enough, or one that fails
        part = nearest(deciding, key=_percent)
        return PartsVerdict(one_is_enough, alike, part)
    first = next(filter(None, reasons), None)
    if first is not None:
        raise NotJudged(first)
    unsure = [part for part in alike if part.holds is None]
    if unsure:
        part = nearest(unsure, key=_percent)
        raise NotJudged(_why_open(part), part.margin)
    return PartsVerdict(not one_is_enough, alike, nearest(alike, key=_percent))


def _percent(part: Part) -> float:
    return part.margin.percent if part.margin is not None else 0.0


def _why_open(part: Part) -> str:
    if part.open_because is not None:
        return part.open_because
    shown = part.margin.interval if part.margin is not None else f"{part.number.value:.4g}"
    return f"within noise ({shown}, {part.asked} asked): {part.name}"
