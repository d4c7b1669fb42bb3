"""Evidence for a claim: its cases, their numbers, and whether all of them can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.catalog.axes import Settings
from orchestrator.catalog.case import shown_value
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.job_spec import Value
from orchestrator.metrics import METRICS
from orchestrator.paths import short_name
from orchestrator.results.cases import CaseMetric, Result, results_by_series
from orchestrator.results.margin import NotJudged
from orchestrator.results.uncertainty import EXACT, Number, job_spread, number_of, on_same_nodes
from orchestrator.text import counted

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
    metric: str
    gpus_per_node: int
    beside: tuple[Result, ...] = ()
    repeated: tuple[Result, ...] = ()

    def numbers(self, results: Sequence[Result], metric: str | None = None) -> list[Number]:
        """Return the numbers of cases that are compared with each other; NotJudged if one is missing."""
        return numbers_of(results, metric or self.metric, self.repeated)

    def speeds(self, results: Sequence[Result]) -> list[Number]:
        """Return numbers that are larger for faster cases, whatever the metric."""
        numbers = self.numbers(results)
        return [Number(1, 1, 1, EXACT) / one for one in numbers] if METRICS[self.metric].better == "lower" else numbers

    def source_gpus(self) -> list[str]:
        """Return the GPUs that the source names."""
        machine, published_as = self.entry.paper.machine, self.entry.experiment.published_as
        sources = (machine, published_as, *self.entry.experiment.published)
        return list(dict.fromkeys(source.gpu for source in sources if source is not None and source.gpu))

    def reference_only(self, entry: Entry, side: Settings) -> str | None:
        """Return why the cases of an experiment with these settings have no job; None if there is no such case."""
        cases = expand(entry, self.scale)
        reasons = (case.reference_only for case in cases if side.given().items() <= case.settings.items())
        return next(filter(None, reasons), None)

    def measured(self) -> list[Result]:
        """Return all cases with their number; NotJudged if one is missing."""
        return measured(self.results, self.metric)

    def series(self, results: Sequence[Result]) -> dict[str, list[Result]]:
        """Return the lines of the figure by name, as in `gbs=32`."""
        series = self.entry.experiment.axes.series
        lines = results_by_series(self.entry, results).items()
        return {assigned({series.of: value}) if series else "the figure": line for value, line in lines}

    def lines_along(self, axis: str, results: Sequence[Result]) -> dict[str, list[Result]]:
        """Return lines of at least two cases with different values on an axis, in the order of the axis."""
        _require(axis, results)
        axes = self.entry.experiment.axes
        series = [axes.series.of] if axes.series and axes.series.of != axis else []
        grouped = _grouped(series, results)
        if any(len({result.case.value(axis) for result in line}) < len(line) for line in grouped.values()):
            grouped = _grouped([*series, *(name for name in axes.x.of if name != axis)], results)
        return {name: in_order(axis, line) for name, line in grouped.items() if len(line) > 1}


def numbers_of(results: Sequence[Result], metric: str, repeated: Sequence[Result]) -> list[Number]:
    """Return the numbers of cases that are compared with each other; `repeated` are all cases that may have repeats."""
    same_nodes = on_same_nodes([result.rows for result in results])
    spread = job_spread(filter(None, (result.metric(metric) for result in repeated)), same_nodes)
    return [number_of(metric_of(result, metric), same_nodes, spread) for result in results]


def measured(results: Sequence[Result], metric: str) -> list[Result]:
    """Return the cases that have this metric; NotJudged if one is missing."""
    needed = verified(results)
    for result in needed:
        value_of(result, metric)
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


def unlike(results: Sequence[Result], metric: str) -> str | None:
    """Return why these cases cannot be compared by this metric, or None.

    A host-bound case has the rate of its host, not of its layout; memory does not depend on the wait. CUDA graphs need
    memory of their own, so execution modes must be the same for memory too. An unknown mode can be compared with any
    mode of another program; within one program it comes from a version that does not print the mode, and the mode may
    differ.
    """
    host_bound = [result for result in results if result.is_host_bound] if METRICS[metric].is_rate else []
    if len(host_bound) == 1:
        return f"{host_bound[0].case.name} is host-bound ({host_bound[0].host_bound})"
    if host_bound:
        percents = [result.value("host_wait_percent") or 0.0 for result in host_bound]
        ends = " to ".join(dict.fromkeys(f"{percent:.3g}" for percent in (min(percents), max(percents))))
        return f"{_named(host_bound)} are host-bound (their GPUs waited {ends} % of the time for the host)"
    by_mode: dict[str, list[Result]] = {}
    for result in results:
        for mode in result.modes:
            by_mode.setdefault(mode, []).append(result)
    programs = {result.case.workload for results in by_mode.values() for result in results}
    unknown = [result for result in results if not result.modes and result.case.workload in programs]
    if unknown:
        by_mode["an unknown mode"] = unknown
    if len(by_mode) < 2:
        return None
    first, second, *_ = (f"{mode} ({_named(results)})" for mode, results in by_mode.items())
    return f"it compares {first} with {second}"


def unique(results: Iterable[Result]) -> list[Result]:
    """Return each case once."""
    return list({_key(result): result for result in results}.values())


def _key(result: Result) -> tuple[str, str]:
    return result.case.experiment, result.case.name


def may_be_missing(result: Result) -> bool:
    """Return whether the source reports that the case runs out of memory."""
    return result.expects_oom and not result.is_measured


def metric_of(result: Result, metric: str) -> CaseMetric:
    """Return the measured metric; NotJudged if there is none or if it cannot be right."""
    found = result.metric(metric)
    if found is None:
        raise NotJudged(result.flag or f"{metric} was not measured")
    return found


def value_of(result: Result, metric: str) -> float:
    """Return the measured number; NotJudged if there is none or if it cannot be right."""
    return metric_of(result, metric).value


def in_order(axis: str, results: Sequence[Result]) -> list[Result]:
    """Return the cases in the order of their value on the axis; text values keep the order of the file."""
    _require(axis, results)
    if any(isinstance(result.case.value(axis), str) for result in results):
        return list(results)
    return sorted(results, key=lambda result: result.case.number(axis))


def assigned(settings: Mapping[str, Value | None] | Settings) -> str:
    """Return settings as typed: `recompute=full,gbs=32`."""
    given = settings.given() if isinstance(settings, Settings) else settings
    return ",".join(f"{axis}={'none' if value is None else shown_value(value)}" for axis, value in given.items())


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
