"""Marks of a picture: markers, bars, error bars, and the legend that explains them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.results.plot.panels import (
    AXIS_MARKS,
    BACKGROUND,
    HOW,
    INK,
    MEASURED,
    AxisMark,
    CasePoint,
    Inside,
    LineStyle,
    Panel,
    SeriesLine,
    outline,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer, ErrorbarContainer
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

MARKER, PUBLISHED_MARKER, INNER_MARKER, AXIS_MARKER, RING = 5.5, 9.0, 4.0, 5.5, 9.5
"""Sizes, in points."""
TINT = 0.28
_GROUP, _WIDEST = 0.84, 0.42
"""Widths as shares of the distance between two ticks: all bars of a case, and one bar at most."""
_LOWEST, _ABOVE = 0.03, 0.05
"""Heights of marks at the axis, as shares of its height: the first mark, and the distance to the next."""


def draw_lines(axes: Axes, panel: Panel) -> None:
    """Draw a marker per case, joined by a line if it has a meaning, and published numbers as open markers."""
    for line in panel.lines:
        at, style = [point.at for point in line.points], line.style
        for point in line.points:
            if point.published is not None:
                _published_marker(axes, point.at, point.published, style)
        if line.joined:
            published = [point.published.value if point.published else math.nan for point in line.points]
            measured = [math.nan if point.value is None else point.value for point in line.points]
            axes.plot(at, published, linestyle=":", linewidth=1.0, color=style.colour, zorder=2.4)
            axes.plot(at, measured, linestyle=style.dashes, linewidth=1.5, color=style.colour, zorder=3)
        for point in line.points:
            if point.value is not None:
                _error_bar(axes, point.at, point, style.colour)
        for kind, inside in MEASURED.items():
            shown = [(point.at, point.value) for point in line.points if point.value is not None and point.kind == kind]
            _measured_markers(axes, [at for at, _ in shown], [value for _, value in shown], style, inside)
    _axis_marks(axes, ((point.at, point, line) for line in panel.lines for point in line.points))


def draw_bars(axes: Axes, panel: Panel) -> None:
    """Draw the bars of each case side by side: measured, then published."""
    bars = list(_bars(panel))
    for bar in bars:
        colour = bar.line.style.colour
        if bar.published is not None:
            _published_bar(axes, bar.at, bar.width, bar.published, colour)
        elif bar.point.value is not None:
            _measured_bar(axes, bar.at, bar.width, bar.point.value, colour, MEASURED[bar.point.kind])
            _error_bar(axes, bar.at, bar.point, BACKGROUND, 3.0)  # visible also on a bar in the colour of INK
            _error_bar(axes, bar.at, bar.point, INK)
    measured = any(point.value is not None for point in panel.points)
    _axis_marks(axes, ((bar.at, bar.point, bar.line) for bar in bars if bar.published is None or not measured))


def _measured_markers(
    axes: Axes, at: Sequence[float], values: Sequence[float], style: LineStyle, inside: Inside
) -> list[Line2D]:
    return axes.plot(
        at, values, linestyle="none", marker=style.marker, markersize=MARKER, markeredgewidth=1.4,
        markeredgecolor=style.colour, markerfacecolor=style.colour if inside.half or inside.filled else BACKGROUND,
        markerfacecoloralt=BACKGROUND, fillstyle="left" if inside.half else "full", zorder=5,
    )  # fmt: skip


def _measured_bar(axes: Axes, at: float, width: float, value: float, colour: str, inside: Inside) -> BarContainer:
    face = BACKGROUND if inside.hatch or not inside.filled else colour
    return axes.bar(
        at, value, width, facecolor=face, hatch=inside.hatch, edgecolor=colour, linewidth=1.4, zorder=3
    )  # fmt: skip


def _published_marker(axes: Axes, at: float, point: PublishedPoint, style: LineStyle) -> tuple[Artist, ...]:
    """Draw a marker in the shape of the line; outline and inside show the source of the number."""
    how = HOW[point.how]
    ring = axes.scatter(
        [at], [point.value], s=PUBLISHED_MARKER**2, marker=style.marker,
        facecolors=[(style.colour, TINT)] if how.tinted else "none", edgecolors=style.colour, linewidths=1.1,
        linestyles=[outline(point)], zorder=2.5,
    )  # fmt: skip
    if not how.inner:
        return (ring,)
    inner = axes.plot(
        [at], [point.value], linestyle="none", marker=how.inner, markersize=INNER_MARKER, color=style.colour,
        markeredgewidth=1.0, zorder=2.6,
    )  # fmt: skip
    return (ring, *inner)


def _published_bar(axes: Axes, at: float, width: float, point: PublishedPoint, colour: str) -> BarContainer:
    """Draw an open or tinted bar; the hatch shows the source of the number."""
    how = HOW[point.how]
    return axes.bar(
        at, point.value, width, facecolor=(colour, TINT) if how.tinted else "none", hatch=how.hatch,
        edgecolor=colour, linewidth=1.1, linestyle=outline(point), zorder=2.5,
    )  # fmt: skip


def _error_bar(axes: Axes, at: float, point: CasePoint, colour: str, width: float = 1.1) -> ErrorbarContainer:
    value = point.value or 0.0
    ends = [[max(value - point.low, 0.0)], [max(point.high - value, 0.0)]]
    return axes.errorbar(
        [at], [value], yerr=ends, fmt="none", ecolor=colour, elinewidth=width, capthick=width, capsize=3, zorder=4
    )


def _axis_marks(axes: Axes, placed: Iterable[tuple[float, CasePoint, SeriesLine]]) -> None:
    """Draw each mark once per position and line; marks at one position are stacked."""
    marks = dict.fromkeys((at, mark, line.style.colour) for at, point, line in placed for mark in point.marks)
    stacked: Counter[float] = Counter()
    for at, mark, colour in marks:
        _axis_mark(axes, at, _LOWEST + _ABOVE * stacked[at], mark, colour)
        stacked[at] += 1


def _axis_mark(axes: Axes, at: float, height: float, mark: AxisMark, colour: str) -> tuple[Artist, ...]:
    transform = axes.get_xaxis_transform()
    drawn = axes.plot(
        [at], [height], linestyle="none", marker=mark.marker, markersize=AXIS_MARKER,
        markerfacecolor=colour if mark.filled else BACKGROUND, markeredgecolor=colour,
        markeredgewidth=0.9 if mark.filled else 1.1, alpha=1.0 if mark.marker == "X" else 0.65, transform=transform,
        zorder=6, clip_on=False,
    )  # fmt: skip
    if not mark.ring:
        return tuple(drawn)
    ring = axes.scatter(
        [at], [height], s=RING**2, facecolors=BACKGROUND, edgecolors=colour, linewidths=0.9,
        linestyles=[mark.ring], transform=transform, zorder=5.9, clip_on=False,
    )  # fmt: skip
    return (ring, *drawn)


@dataclass(frozen=True, slots=True)
class _Bar:
    at: float
    width: float
    point: CasePoint
    line: SeriesLine
    published: PublishedPoint | None


def _bars(panel: Panel) -> Iterator[_Bar]:
    """Yield every bar with its position. If nothing is measured, published bars are at their ticks."""
    measured = any(point.value is not None for point in panel.points)
    groups: dict[float, list[tuple[CasePoint, SeriesLine, PublishedPoint | None]]] = {}
    for line in panel.lines:
        for point in line.points:
            group = groups.setdefault(point.at, [])
            if measured or point.published is None:
                group.append((point, line, None))
            if point.published:
                group.append((point, line, point.published))
    width = min(_GROUP / max(map(len, groups.values())), _WIDEST)
    for at, group in groups.items():
        for i, (point, line, number) in enumerate(group):
            yield _Bar(at + width * (i - (len(group) - 1) / 2), width, point, line, number)


_MOST_COLUMNS, _LEGEND_SHARE = 4, 0.97
"""Most columns of the legend, and the largest share of the picture's width that it takes."""


def legend(figure: Figure, panels: Sequence[Panel], bars: bool, error_bars: str) -> None:
    """Add the legend below the panels, with as many columns as fit."""
    from matplotlib.figure import Figure
    from matplotlib.legend_handler import HandlerTuple

    own = Figure().subplots()  # with the artists that the legend copies
    entries = [*_line_entries(own, panels[0].lines, bars), *_number_entries(own, panels, bars, error_bars)]
    entries += _mark_entries(own, panels)
    handles, labels = [handle for handle, _ in entries], [label for _, label in entries]
    for columns in range(min(_MOST_COLUMNS, len(entries)), 0, -1):
        below = figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False, labelspacing=0.6, fontsize=8,
            handler_map={tuple: HandlerTuple(ndivide=1)},
        )  # fmt: skip
        if columns == 1 or below.get_window_extent().width <= _LEGEND_SHARE * figure.bbox.width:
            return
        below.remove()


def _line_entries(own: Axes, lines: Sequence[SeriesLine], bars: bool) -> Iterator[tuple[Any, str]]:
    for line in lines if len(lines) > 1 else ():
        style, dashes = line.style, line.style.dashes if line.joined else "none"
        if bars:
            yield _measured_bar(own, 0, 1, 1, style.colour, MEASURED["measured"]), line.name
        else:
            yield (
                tuple(own.plot([0], [0], dashes, color=style.colour, marker=style.marker, markersize=MARKER)),
                line.name,
            )


def _number_entries(own: Axes, panels: Sequence[Panel], bars: bool, error_bars: str) -> Iterator[tuple[Any, str]]:
    """Yield the entries of measured numbers, by how far they can be compared, and of published ones, by source."""
    lines = panels[0].lines
    style = lines[0].style if len(lines) == 1 else LineStyle(INK, "o", "-")
    points = [point for panel in panels for point in panel.points]
    for label, inside in MEASURED.items():
        if any(point.value is not None and point.kind == label for point in points):
            bar = _measured_bar(own, 0, 1, 1, style.colour, inside) if bars else None
            yield bar or tuple(_measured_markers(own, [0], [0], style, inside)), label
    if error_bars:
        yield _error_bar(own, 0, CasePoint(0, 0, -1, 1, None, ()), INK if bars else style.colour), error_bars
    published = [point.published for point in points if point.published]
    for how, confirmed in itertools.product(HOW, (True, False)):
        number = next((point for point in published if point.how == how and point.confirmed == confirmed), None)
        if number is not None:
            bar = _published_bar(own, 0, 1, number, style.colour) if bars else None
            yield (
                bar or _published_marker(own, 0, number, style),
                (f"published, {how}{'' if confirmed else ', unconfirmed'}"),
            )


def _mark_entries(own: Axes, panels: Sequence[Panel]) -> Iterator[tuple[Any, str]]:
    present = {mark for panel in panels for point in panel.points for mark in point.marks}
    for mark in AXIS_MARKS:
        if mark in present:
            yield _axis_mark(own, 0, 0, mark, INK), mark.label
