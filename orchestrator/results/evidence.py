"""Evidence for a claim: its cases, their numbers, and whether all of them can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from orchestrator.catalog.axes import Settings
from orchestrator.catalog.case import shown_value
from orchestrator.catalog.library import Entry
from orchestrator.job_spec import Value
from orchestrator.results.cases import NOT_RATES, Result, results_by_series

SMALLER_IS_BETTER = frozenset({"iteration_ms", "max_memory_allocated_bytes", "gpu_memory_used_gb", "training_days"})

_MOST_NAMED = 3
"""Cases that a reason names; of more it gives the number."""

T = TypeVar("T")

Finding = tuple[bool, str]
"""Whether a claim holds, and what was seen."""


class NotJudged(Exception):
    """Reason why a claim cannot be judged now."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Cases of a claim, run or not, and the metric that the claim compares."""

    entry: Entry
    scale: str
    found: tuple[Result, ...]
    metric: str
    gpus_per_node: int

    def within_noise(self, metrics: Sequence[str]) -> Iterator[Evidence]:
        """Yield the evidence at both ends of the noise: each noisy case at one end, all others at the other end."""
        noisy = [result.case.name for result in self.found if noise_of(result, metrics)]
        ends: tuple[Literal[-1, 1], ...] = (-1, 1)
        for name in noisy:
            for way in ends:
                other: Literal[-1, 1] = 1 if way == -1 else -1
                found = [
                    _moved(one, metrics, way if one.case.name == name else other) if one.case.name in noisy else one
                    for one in self.found
                ]
                yield replace(self, found=tuple(found))

    def source_gpus(self) -> list[str]:
        """Return the GPUs that the source names."""
        machine, published_as = self.entry.paper.machine, self.entry.experiment.published_as
        named = [one.gpu for one in (machine, published_as, *self.entry.experiment.published) if one is not None]
        return list(dict.fromkeys(gpu for gpu in named if gpu))

    def measured(self) -> list[Result]:
        """Return all cases with their number; NotJudged if one is missing."""
        return measured(self.found, self.metric)

    def series(self, found: Sequence[Result]) -> dict[str, list[Result]]:
        """Return the lines of the figure by name, as in `gbs=32`."""
        series = self.entry.experiment.axes.series
        named = results_by_series(self.entry, found).items()
        return {assigned({series.of: value}) if series else "the figure": some for value, some in named}

    def lines_along(self, axis: str, found: Sequence[Result]) -> dict[str, list[Result]]:
        """Return lines of at least two cases with different values on an axis, in the order of the axis."""
        _require(axis, found)
        axes = self.entry.experiment.axes
        series = [axes.series.of] if axes.series and axes.series.of != axis else []
        grouped = _grouped(series, found)
        if any(len({result.case.value(axis) for result in line}) < len(line) for line in grouped.values()):
            grouped = _grouped([*series, *(name for name in axes.x.of if name != axis)], found)
        return {name: in_order(axis, line) for name, line in grouped.items() if len(line) > 1}


def measured(found: Sequence[Result], metric: str) -> list[Result]:
    """Return the cases that have this metric; NotJudged if one is missing."""
    needed = verified(found)
    for result in needed:
        value_of(result, metric)
    return needed


def verified(found: Sequence[Result]) -> list[Result]:
    """Return the cases if all are verified; those that the source reports as out of memory may be missing."""
    needed = [result for result in found if not may_be_missing(result)]
    missing = sum(not result.is_verified for result in needed)
    if missing:
        raise NotJudged(f"{missing} of {len(needed)} cases not verified")
    if not needed:
        raise NotJudged("all of its cases run out of memory as published")
    return needed


def unlike(found: Sequence[Result], metric: str) -> str | None:
    """Return why these cases cannot be compared by this metric, or None.

    A host-bound case has the rate of its host, not of its layout; memory does not depend on the wait. CUDA graphs need
    memory of their own, so execution modes must be the same for memory too. An unknown mode can be compared with any
    mode of another program; within one program it comes from a version that does not print the mode, and the mode may
    differ.
    """
    waiting = [result for result in found if result.is_host_bound] if metric not in NOT_RATES else []
    if len(waiting) == 1:
        return f"{waiting[0].case.name} is host-bound ({waiting[0].host_bound})"
    if waiting:
        percents = [result.value("host_wait_percent") or 0.0 for result in waiting]
        ends = " to ".join(dict.fromkeys(f"{percent:.3g}" for percent in (min(percents), max(percents))))
        return f"{_named(waiting)} are host-bound (their GPUs waited {ends} % of the time for the host)"
    by_mode: dict[str, list[Result]] = {}
    for result in found:
        for mode in result.modes:
            by_mode.setdefault(mode, []).append(result)
    programs = {result.case.workload for results in by_mode.values() for result in results}
    unknown = [result for result in found if not result.modes and result.case.workload in programs]
    if unknown:
        by_mode["an unknown mode"] = unknown
    if len(by_mode) < 2:
        return None
    first, second, *_ = (f"{mode} ({_named(results)})" for mode, results in by_mode.items())
    return f"it compares {first} with {second}"


def require_alike(found: Sequence[Result], metric: str) -> None:
    """Raise NotJudged unless these cases can be compared by this metric."""
    reason = unlike(found, metric)
    if reason is not None:
        raise NotJudged(reason)


def comparable(
    parts: Sequence[T],
    why_not: Callable[[T], str | None],
    holds: Callable[[T], bool],
    *,
    one_is_enough: bool = False,
) -> list[T]:
    """Return the parts of a claim whose cases can be compared.

    All parts must hold, or one of them with `one_is_enough`. Raise NotJudged, with the first reason, if a part that
    cannot be compared could change the verdict.
    """
    reasons = [why_not(part) for part in parts]
    counting = [part for part, reason in zip(parts, reasons, strict=True) if reason is None]
    first = next(filter(None, reasons), None)
    if first is not None and not any(holds(part) is one_is_enough for part in counting):
        raise NotJudged(first)
    return counting


def unique(found: Iterable[Result]) -> list[Result]:
    """Return each case once."""
    return list({result.case.name: result for result in found}.values())


def may_be_missing(result: Result) -> bool:
    """Return whether the source reports that the case runs out of memory."""
    return result.expects_oom and not result.is_verified


def value_of(result: Result, metric: str) -> float:
    """Return the measured number; NotJudged if there is none or if it cannot be right."""
    value = result.value(metric)
    if value is None:
        raise NotJudged(result.flag or f"{metric} was not measured")
    return value


def noise_of(result: Result, metrics: Sequence[str]) -> str | None:
    """Return why the first noisy metric is too noisy, or None."""
    found = (result.metric(name) for name in metrics)
    return next((metric.too_noisy for metric in found if metric is not None and metric.too_noisy), None)


def speed(result: Result, metric: str) -> float:
    """Return a number that is larger for faster cases, whatever the metric."""
    value = value_of(result, metric)
    return 1 / value if metric in SMALLER_IS_BETTER else value


def in_order(axis: str, found: Sequence[Result]) -> list[Result]:
    """Return the cases in the order of their value on the axis; words stay in the order of the file."""
    _require(axis, found)
    if any(isinstance(result.case.value(axis), str) for result in found):
        return list(found)
    return sorted(found, key=lambda result: result.case.number(axis))


def assigned(settings: Mapping[str, Value | None] | Settings) -> str:
    """Return settings as typed: `recompute=full,gbs=32`."""
    given = settings.given() if isinstance(settings, Settings) else settings
    return ",".join(f"{axis}={'none' if value is None else shown_value(value)}" for axis, value in given.items())


def shown_number(value: float) -> str:
    """Return a number for people: bytes exactly, rates with four digits."""
    return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.4g}"


def _named(found: Sequence[Result]) -> str:
    """Return the names of the cases: `pp=2,tp=2,gbs=32; pp=4,tp=1,gbs=32 and 2 more`."""
    names = [result.case.name for result in found]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return "; ".join(names[:_MOST_NAMED]) + more


def _moved(result: Result, metrics: Sequence[str], way: Literal[-1, 1]) -> Result:
    over = {name: metric.moved(way) for name in metrics if (metric := result.metrics.get(name)) is not None}
    return replace(result, metrics={**result.metrics, **over})


def _grouped(axes: Sequence[str], found: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in found:
        shared = {axis: result.case.settings.get(axis) for axis in axes}
        groups.setdefault(assigned(shared) or "the figure", []).append(result)
    return groups


def _require(axis: str, found: Sequence[Result]) -> None:
    for result in found:
        if axis not in result.case.settings:
            raise NotJudged(f"{result.case.name} has no {axis}")
