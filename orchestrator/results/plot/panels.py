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
from orchestrator.results.cases import NOT_RATES, Result, lines, published_on
from orchestrator.results.plot import style


@dataclass(frozen=True, slots=True)
class Spot:
    """A case: where it stands, what was measured with the ends of its error bar, what was published.

    `marks` are words of `style.AXIS_MARKS`: why it has no number, or that it is published to have none. `kind` is one
    of `style.MEASURED`.
    """

    at: float
    value: float | None
    low: float
    high: float
    published: PublishedPoint | None
    marks: tuple[str, ...]
    kind: str = "measured"


@dataclass(frozen=True, slots=True)
class Line:
    """The cases of one value on the series axis, from left to right; `joined` says whether a line between them means
    anything.
    """

    name: str
    look: style.LineStyle
    spots: tuple[Spot, ...]
    joined: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """The same cases by one of their numbers."""

    y: YAxis
    lines: tuple[Line, ...]

    @property
    def spots(self) -> Iterator[Spot]:
        return (spot for line in self.lines for spot in line.spots)

    @property
    def values(self) -> list[float]:
        """Every number in it."""
        measured = [spot.value for spot in self.spots if spot.value is not None]
        return measured + [spot.published.value for spot in self.spots if spot.published]


def panels(entry: Entry, found: Sequence[Result], place: Callable[[Result], float], by_number: bool) -> list[Panel]:
    """The figure's own panel, and those below it that have any number."""
    axes = entry.experiment.axes
    named = named_lines(entry, found)
    every = [
        Panel(y, tuple(_line(entry, y, i, one, place, by_number) for i, one in enumerate(named.items())))
        for y in (axes.y, *axes.also)
    ]
    return [every[0], *(panel for panel in every[1:] if panel.values)]


def named_lines(entry: Entry, found: Sequence[Result]) -> dict[str, list[Result]]:
    """The lines as the paper calls them, in its order; else by the value that they share, as the file has them."""
    series = entry.experiment.axes.series
    if series is None:
        return {entry.experiment.figure: list(found)}
    shown: dict[str, list[Result]] = {}
    for value, line in lines(entry, found).items():
        shown.setdefault("none" if value is None else shown_value(value), []).extend(line)
    in_order = [
        *(value for value in series.names if value in shown),
        *(value for value in shown if value not in series.names),
    ]
    return {series.names.get(value, f"{series.label} = {value}"): shown[value] for value in in_order}


def published_number(entry: Entry, result: Result, metric: str) -> PublishedPoint | None:
    """The source's number to draw beside what was measured: of this GPU where it has one, else of its own machine.

    A number of another GPU is drawn as well; the picture says whose it is.
    """
    machine = entry.paper.machine.gpu if entry.paper.machine else None
    nearest = [*published_on(result.case, result.gpu), *published_on(result.case, machine), *result.case.published]
    return next((point for point in nearest if point.metric == metric), None)


def _line(
    entry: Entry,
    y: YAxis,
    index: int,
    named: tuple[str, list[Result]],
    place: Callable[[Result], float],
    by_number: bool,
) -> Line:
    name, found = named
    spots = sorted((_spot(entry, y.metric, result, place(result)) for result in found), key=lambda spot: spot.at)
    once = len({spot.at for spot in spots}) == len(spots)
    joined = by_number and once and entry.experiment.axes.marks == "lines"
    return Line(name, style.look(index), tuple(spots), joined)


def _spot(entry: Entry, metric: str, result: Result, at: float) -> Spot:
    measured = result.metric(metric)
    published = published_number(entry, result, metric)
    marks = tuple(_marks(result, measured is not None))
    if measured is None:
        return Spot(at, None, math.nan, math.nan, published, marks)
    spread = measured.spread or 0.0
    low, high = measured.value - spread, measured.value + spread
    if measured.interval_low is not None and measured.interval_high is not None:
        low, high = measured.interval_low, measured.interval_high
    return Spot(at, measured.value, low, high, published, marks, _kind(result, metric))


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
    """`labels` at `positions`; `turned` where they would touch side by side. `width` is that of the whole picture."""

    positions: tuple[float, ...]
    labels: tuple[str, ...]
    width: float
    turned: bool


@dataclass(frozen=True, slots=True)
class Places:
    """Where a case stands on the x axis: at its place among the labels, or at its number on a numeric axis.

    Numbers stand in their order, words in that of the file; `by_number` says which. `under` each label stand the
    values of further axes, one below the other.
    """

    of: Sequence[str]
    scale: str
    labels: tuple[str, ...]
    under: Mapping[str, tuple[str, ...]]
    by_number: bool

    def __call__(self, result: Result) -> float:
        if self.scale == "even":
            return self.labels.index(_label(result, self.of))
        return result.case.number(self.of[0])


def places(axes: Axes, found: Sequence[Result]) -> Places:
    x = axes.x
    numbers = all(_is_number(result, axis) for result in found for axis in x.of)
    ordered = sorted(found, key=lambda result: [result.case.number(axis) for axis in x.of]) if numbers else found
    numeric = numbers and len(x.of) == 1 and axes.marks != "bars"
    numeric = numeric and (x.scale != "log2" or all(result.case.number(x.of[0]) > 0 for result in found))
    labels = tuple(dict.fromkeys(_label(result, x.of) for result in ordered))
    known = [axis for axis in x.under if any(axis in result.case.settings for result in found)]
    under: dict[tuple[str, str], dict[str, None]] = {}
    for result in ordered:
        for axis in known:
            under.setdefault((_label(result, x.of), axis), {})[_shown(result, axis)] = None
    return Places(
        of=x.of,
        scale=x.scale if numeric else "even",
        labels=labels,
        under={label: tuple("/".join(under[label, axis]) for axis in known) for label in labels},
        by_number=numbers,
    )


def ticks(place: Places, found: Sequence[Result]) -> Ticks:
    """A tick for every case where they fit; on a numeric axis fewer, at round numbers, where they do not."""
    positions = tuple(sorted({place(result) for result in found}))
    labels = tuple("\n".join((label, *place.under[label])) for label in place.labels)
    if place.scale != "even" and not any(place.under.values()):
        shown = tuple(f"{at:g}" for at in positions)
        fits = _width(positions, shown, place.scale) <= WIDTH
        if not fits or len(positions) > 2 * _FEW:
            positions = _round_numbers(positions[0], positions[-1], place.scale)
            shown = tuple(f"{at:g}" for at in positions)
        return Ticks(positions, shown, WIDTH, turned=False)
    width = _width(positions, labels, place.scale)
    if width <= _WIDEST:
        return Ticks(positions, labels, max(WIDTH, width), turned=False)
    lines = 1 + max(label.count("\n") for label in labels)
    turned = _BESIDE_AXES + len(labels) * lines * _TEXT_LINE
    return Ticks(positions, labels, min(max(WIDTH, turned), _WIDEST_TURNED), turned=True)


def set_x(axes: Any, place: Places, shown: Ticks, cases: Sequence[float]) -> None:
    if place.scale == "log2":
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        margin = max(cases[-1] / cases[0], 2) ** _MARGIN
        axes.set_xlim(cases[0] / margin, cases[-1] * margin)
    elif place.scale == "linear":
        margin = (cases[-1] - cases[0]) * _MARGIN or 0.5
        axes.set_xlim(cases[0] - margin, cases[-1] + margin)
    else:
        axes.set_xlim(-0.5, len(place.labels) - 0.5)
    axes.set_xticks(shown.positions, shown.labels)
    axes.tick_params(axis="x", labelsize=7, labelrotation=90 if shown.turned else 0)


def set_y(axes: Any, panel: Panel, as_published: bool) -> None:
    """The paper's range at its own scale, as far as the numbers are within it; else from 0."""
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
    """Where error bars end above; of two repeats the interval may be many times the number, and is cut off."""
    return [min(spot.high, 1.5 * spot.value) for spot in panel.spots if spot.value is not None]


def number_text(value: float, metric: str) -> str:
    """As it stands at a tick; bytes in 10^9 of them."""
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
    """At most nine: powers of two, multiples of a power of two where all is whole (GPUs come by it), else decimals."""
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
    """Inches that the picture needs for no two labels to touch."""
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
