"""Content of a picture before it is drawn: panels, lines, points, ticks and axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.catalog.case import shown_value
from orchestrator.catalog.experiment import Axes, PublishedPoint, YAxis
from orchestrator.catalog.library import Entry
from orchestrator.ledger.tables import FAILED
from orchestrator.results.cases import NOT_RATES, Result, published_on, results_by_series
from orchestrator.results.plot import style
from orchestrator.results.plot.style import LineStyle


@dataclass(frozen=True, slots=True)
class CasePoint:
    """A case in a panel: its position, the measured number with its error bar, and the published number.

    `marks` are keys of `style.AXIS_MARKS`: the reasons why it has no number. `kind` is a key of `style.MEASURED`.
    """

    at: float
    value: float | None
    low: float
    high: float
    published: PublishedPoint | None
    marks: tuple[str, ...]
    kind: str = "measured"


@dataclass(frozen=True, slots=True)
class SeriesLine:
    """Cases with one value on the series axis, from left to right; `joined` if a line between them has a meaning."""

    name: str
    style: LineStyle
    points: tuple[CasePoint, ...]
    joined: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """All cases with one of their metrics."""

    y: YAxis
    lines: tuple[SeriesLine, ...]

    @property
    def points(self) -> Iterator[CasePoint]:
        """Yield the points of all lines."""
        return (spot for line in self.lines for spot in line.points)

    @property
    def values(self) -> list[float]:
        """Return all numbers in the panel."""
        measured = [spot.value for spot in self.points if spot.value is not None]
        return measured + [spot.published.value for spot in self.points if spot.published]


def panels(
    entry: Entry, results: Sequence[Result], position_of: Callable[[Result], float], by_number: bool
) -> list[Panel]:
    """Return the panel of the figure's own metric, and further panels that have numbers."""
    axes = entry.experiment.axes
    named = named_lines(entry, results)
    every = [
        Panel(y, tuple(_line(entry, y, i, one, position_of, by_number) for i, one in enumerate(named.items())))
        for y in (axes.y, *axes.also)
    ]
    return [every[0], *(panel for panel in every[1:] if panel.values)]


def named_lines(entry: Entry, results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results by line, with the names and the order of the paper, else those of the file."""
    series = entry.experiment.axes.series
    if series is None:
        return {entry.experiment.figure: list(results)}
    shown: dict[str, list[Result]] = {}
    for value, line in results_by_series(entry, results).items():
        shown.setdefault("none" if value is None else shown_value(value), []).extend(line)
    in_order = [
        *(value for value in series.names if value in shown),
        *(value for value in shown if value not in series.names),
    ]
    return {series.names.get(value, f"{series.label} = {value}"): shown[value] for value in in_order}


def published_number(entry: Entry, result: Result, metric: str) -> PublishedPoint | None:
    """Return the published number to draw: of this GPU, else of the source's machine, else of another GPU."""
    machine = entry.paper.machine.gpu if entry.paper.machine else None
    nearest = [*published_on(result.case, result.gpu), *published_on(result.case, machine), *result.case.published]
    return next((point for point in nearest if point.metric == metric), None)


def _line(
    entry: Entry,
    y: YAxis,
    index: int,
    named: tuple[str, list[Result]],
    position_of: Callable[[Result], float],
    by_number: bool,
) -> SeriesLine:
    name, results = named
    points = sorted(
        (_case_point(entry, y.metric, result, position_of(result)) for result in results), key=lambda spot: spot.at
    )
    once = len({spot.at for spot in points}) == len(points)
    joined = by_number and once and entry.experiment.axes.marks == "lines"
    return SeriesLine(name, style.line_style(index), tuple(points), joined)


def _case_point(entry: Entry, metric: str, result: Result, at: float) -> CasePoint:
    measured = result.metric(metric)
    published = published_number(entry, result, metric)
    marks = tuple(_marks(result, measured is not None))
    if measured is None:
        return CasePoint(at, None, math.nan, math.nan, published, marks)
    spread = measured.spread or 0.0
    low, high = measured.value - spread, measured.value + spread
    if measured.interval_low is not None and measured.interval_high is not None:
        low, high = measured.interval_low, measured.interval_high
    return CasePoint(at, measured.value, low, high, published, marks, _kind(result, metric))


def _kind(result: Result, metric: str) -> str:
    if result.host_bound and metric not in NOT_RATES:
        return "measured, host-bound"
    return "measured, too noisy to compare" if result.noise else "measured"


def _marks(result: Result, has_number: bool) -> Iterator[str]:
    ran_out = result.ran_out_of_memory
    if result.expects_oom:
        confirmed = result.case.expected is not None and result.case.expected.confirmed
        if ran_out:
            yield style.OOM_BOTH if confirmed else style.OOM_BOTH_UNCONFIRMED
        else:
            yield style.OOM_PUBLISHED if confirmed else style.OOM_PUBLISHED_UNCONFIRMED
    elif ran_out:
        yield style.OOM_MEASURED
    if has_number or ran_out:
        return
    if result.row is None:
        if not result.expects_oom:
            yield style.NOT_RUN
    elif result.row.verdict is None:
        yield style.UNDER_WAY
    elif result.row.verdict == FAILED:
        yield style.FAILED
    else:
        yield style.FLAGGED if result.flag else style.NO_NUMBER


WIDTH = 6.6
"""Inches, of a picture that needs no more."""
_WIDEST, _WIDEST_TURNED = 9.0, 14.0
_BESIDE_AXES = 1.0
_LETTER, _TEXT_LINE = 0.063, 0.14
"""Inches that a letter of a tick's label takes along the line, and a line of it across."""
_GAP = 0.05
_MARGIN = 0.05
_FEW = 9
_STEPS = 4


@dataclass(frozen=True, slots=True)
class Ticks:
    """Labels at positions; `turned` if they would touch side by side. `width` is that of the picture in inches."""

    positions: tuple[float, ...]
    labels: tuple[str, ...]
    width: float
    turned: bool


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of cases on the x axis: the index of the label, or the number on a numeric axis.

    Numbers are sorted, words keep the order of the file; `by_number` tells which. `under` are the values of further
    axes below each label.
    """

    of: Sequence[str]
    scale: str
    labels: tuple[str, ...]
    under: Mapping[str, tuple[str, ...]]
    by_number: bool

    def __call__(self, result: Result) -> float:
        """Return the position of a case."""
        if self.scale == "even":
            return self.labels.index(_label(result, self.of))
        return result.case.number(self.of[0])


def positions_of(axes: Axes, results: Sequence[Result]) -> Positions:
    """Return the positions of the cases on the x axis."""
    x = axes.x
    numbers = all(_is_number(result, axis) for result in results for axis in x.of)
    ordered = sorted(results, key=lambda result: [result.case.number(axis) for axis in x.of]) if numbers else results
    numeric = numbers and len(x.of) == 1 and axes.marks != "bars"
    numeric = numeric and (x.scale != "log2" or all(result.case.number(x.of[0]) > 0 for result in results))
    labels = tuple(dict.fromkeys(_label(result, x.of) for result in ordered))
    shown_axes = [axis for axis in x.under if any(axis in result.case.settings for result in results)]
    under: dict[tuple[str, str], dict[str, None]] = {}
    for result in ordered:
        for axis in shown_axes:
            under.setdefault((_label(result, x.of), axis), {})[_shown(result, axis)] = None
    return Positions(
        of=x.of,
        scale=x.scale if numeric else "even",
        labels=labels,
        under={label: tuple("/".join(under[label, axis]) for axis in shown_axes) for label in labels},
        by_number=numbers,
    )


def ticks(position_of: Positions, results: Sequence[Result]) -> Ticks:
    """Return a tick per case if they fit; a numeric axis may have fewer, at round numbers."""
    positions = tuple(sorted({position_of(result) for result in results}))
    labels = tuple("\n".join((label, *position_of.under[label])) for label in position_of.labels)
    if position_of.scale != "even" and not any(position_of.under.values()):
        shown = tuple(f"{at:g}" for at in positions)
        fits = _width(positions, shown, position_of.scale) <= WIDTH
        if not fits or len(positions) > 2 * _FEW:
            positions = _round_numbers(positions[0], positions[-1], position_of.scale)
            shown = tuple(f"{at:g}" for at in positions)
        return Ticks(positions, shown, WIDTH, turned=False)
    width = _width(positions, labels, position_of.scale)
    if width <= _WIDEST:
        return Ticks(positions, labels, max(WIDTH, width), turned=False)
    lines = 1 + max(label.count("\n") for label in labels)
    turned = _BESIDE_AXES + len(labels) * lines * _TEXT_LINE
    return Ticks(positions, labels, min(max(WIDTH, turned), _WIDEST_TURNED), turned=True)


def set_x(axes: Any, position_of: Positions, shown: Ticks, cases: Sequence[float]) -> None:
    """Set scale, limits and ticks of the x axis."""
    if position_of.scale == "log2":
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        margin = max(cases[-1] / cases[0], 2) ** _MARGIN
        axes.set_xlim(cases[0] / margin, cases[-1] * margin)
    elif position_of.scale == "linear":
        margin = (cases[-1] - cases[0]) * _MARGIN or 0.5
        axes.set_xlim(cases[0] - margin, cases[-1] + margin)
    else:
        axes.set_xlim(-0.5, len(position_of.labels) - 0.5)
    axes.set_xticks(shown.positions, shown.labels)
    axes.tick_params(axis="x", labelsize=7, labelrotation=90 if shown.turned else 0)


def set_y(axes: Any, panel: Panel, as_published: bool) -> None:
    """Set label, limits and ticks of the y axis: the paper's range if all numbers are within it, else from 0."""
    y, values = panel.y, panel.values
    axes.set_ylabel(y.label)
    if not values:
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        return
    if y.scale == "log2" and min(values) > 0:
        _set_log2(axes, min(values), max(values), y.metric)
        return
    low, high = min(values), max([*values, *_bar_ends(panel)])
    bottom, top = y.range if as_published and y.range else (0.0, 0.0)
    axes.set_ylim(bottom if bottom <= low else 0.0, top if high <= top else 1.08 * high)
    if bottom <= low and high <= top:
        axes.set_yticks([bottom + (top - bottom) * step / _STEPS for step in range(_STEPS + 1)])
    axes.yaxis.set_major_formatter(lambda value, _: number_text(value, y.metric))


def _bar_ends(panel: Panel) -> list[float]:
    """Return the upper ends of error bars; an interval of two repeats may be very long and is cut off."""
    return [min(spot.high, 1.5 * spot.value) for spot in panel.points if spot.value is not None]


def number_text(value: float, metric: str) -> str:
    """Return the text of a tick; bytes in GB of 10^9."""
    if metric.endswith("_bytes"):
        return f"{value / 1e9:g} GB"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _set_log2(axes: Any, low: float, high: float, metric: str) -> None:
    axes.set_yscale("log", base=2)
    axes.minorticks_off()
    bottom, top = low / 2**0.5, high * 2**0.5
    axes.set_ylim(bottom, top)
    at = _round_numbers(bottom, top, "log2")
    axes.set_yticks(at, [number_text(value, metric) for value in at])


def _round_numbers(low: float, high: float, scale: str) -> tuple[float, ...]:
    """Return at most nine round numbers: powers of two, else multiples of a power of two, else decimals."""
    if scale == "log2":
        powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        step = -(-len(powers) // _FEW) or 1
        return tuple(2.0**power for power in powers[::step])
    whole = float(low).is_integer() and float(high).is_integer()
    apart = 1.0 if whole else 10.0 ** math.floor(math.log10(high - low) - 1)
    while (high - low) / apart > _FEW:
        apart *= 2
    first = math.ceil(low / apart)
    return tuple(apart * i for i in range(first, math.floor(high / apart) + 1))


def _width(positions: Sequence[float], labels: Sequence[str], scale: str) -> float:
    """Return the width in inches at which no two labels touch."""
    at = [math.log2(value) for value in positions] if scale == "log2" else list(positions)
    span = (at[-1] - at[0]) * (1 + 2 * _MARGIN) if scale != "even" else float(len(labels))
    inches = [_LETTER * max(map(len, label.split("\n"))) for label in labels]
    pairs = zip(at, at[1:], inches, inches[1:], strict=False)
    return _BESIDE_AXES + max([((a + b) / 2 + _GAP) * span / (right - left) for left, right, a, b in pairs], default=0)


def _label(result: Result, of: Sequence[str]) -> str:
    values = ", ".join(_shown(result, axis) for axis in of)
    return f"({values})" if len(of) > 1 else values


def _shown(result: Result, axis: str) -> str:
    value = result.case.settings.get(axis)
    return "none" if value is None else shown_value(value)


def _is_number(result: Result, axis: str) -> bool:
    value = result.case.settings.get(axis)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
