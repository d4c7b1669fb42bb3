"""What a picture shows, before anything is drawn: lines, and for each case its place, numbers and marks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.catalog.case import shown_value
from orchestrator.catalog.experiment import PublishedPoint, YAxis
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
    look: style.Poll
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
