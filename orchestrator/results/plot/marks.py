"""Marks of a picture: markers, bars, error bars, and the legend that explains them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.results.plot import style
from orchestrator.results.plot.panels import CasePoint, Panel, SeriesLine

MARKER, PUBLISHED_MARKER, INNER_MARKER, AXIS_MARKER, RING = 5.5, 9.0, 4.0, 5.5, 9.5
"""Sizes, in points."""
TINT = 0.28
_GROUP, _WIDEST = 0.84, 0.42
"""Shares of the distance between two ticks: what all bars of a case fill, and one bar at most."""
_LOWEST, _ABOVE = 0.03, 0.05
"""Where marks stand above the axis, as shares of its height: the first, and each further one above it."""


def draw_lines(axes: Any, panel: Panel) -> None:
    """Draw a marker per case, joined by a line if it has a meaning, and published numbers as open markers."""
    for line in panel.lines:
        _published_markers(axes, line)
        if line.joined:
            values = [math.nan if spot.value is None else spot.value for spot in line.points]
            at = [spot.at for spot in line.points]
            axes.plot(at, values, linestyle=line.style.dashes, linewidth=1.5, color=line.style.colour, zorder=3)
        _error_bars(axes, [(spot.at, spot) for spot in line.points], line.style.colour)
        for kind, inside in style.MEASURED.items():
            shown = [spot for spot in line.points if spot.value is not None and spot.kind == kind]
            measured_marker(axes, [spot.at for spot in shown], [spot.value for spot in shown], line.style, inside)
    _axis_marks(axes, ((spot.at, spot, line) for line in panel.lines for spot in line.points))


def draw_bars(axes: Any, panel: Panel) -> None:
    """Draw the bars of each case side by side: measured, then published."""
    bars = list(_bars(panel))
    for bar in bars:
        if bar.published is not None:
            published_bar(axes, bar.at, bar.published.value, bar.width, bar.published, bar.line.style)
        elif bar.spot.value is not None:
            measured_bar(axes, bar.at, bar.spot.value, bar.width, bar.line.style, style.MEASURED[bar.spot.kind])
            _error_bars(axes, [(bar.at, bar.spot)], style.INK)
    _axis_marks(axes, ((bar.at, bar.spot, bar.line) for bar in bars if bar.published is None))


def measured_marker(
    axes: Any, at: Sequence[float], values: Sequence[Any], line_style: style.LineStyle, inside: style.Inside
) -> None:
    """Draw markers of measured numbers."""
    kind = {"linestyle": "none", "marker": line_style.marker, "markersize": MARKER, "markeredgewidth": 1.4}
    axes.plot(
        at, values, markeredgecolor=line_style.colour, zorder=5, **marker_inside(inside, line_style.colour), **kind
    )


def marker_inside(inside: style.Inside, colour: str) -> dict[str, Any]:
    """Return how matplotlib fills such a marker."""
    if inside.half:
        return {"fillstyle": "left", "markerfacecolor": colour, "markerfacecoloralt": style.BACKGROUND}
    return {"markerfacecolor": colour if inside.filled else style.BACKGROUND}


def bar_inside(inside: style.Inside, colour: str) -> dict[str, Any]:
    """Return how matplotlib fills such a bar."""
    is_open = inside.hatch or not inside.filled
    return {"facecolor": style.BACKGROUND if is_open else colour, "hatch": inside.hatch, "edgecolor": colour}


def published_marker(axes: Any, at: float, point: PublishedPoint, line_style: style.LineStyle) -> None:
    """Draw a marker in the shape of the line; outline and inside show the source of the number."""
    how = style.HOW[point.how]
    axes.scatter(
        [at],
        [point.value],
        s=PUBLISHED_MARKER**2,
        marker=line_style.marker,
        facecolors=[(line_style.colour, TINT)] if how.tinted else "none",
        edgecolors=line_style.colour,
        linewidths=1.1,
        linestyles=[style.outline(point)],
        zorder=2.5,
    )
    if how.inner:
        inner = {"markersize": INNER_MARKER, "markeredgewidth": 1.0, "zorder": 2.6}
        axes.plot([at], [point.value], linestyle="none", marker=how.inner, color=line_style.colour, **inner)


def measured_bar(
    axes: Any, at: float, value: float, width: float, line_style: style.LineStyle, inside: style.Inside
) -> None:
    """Draw the bar of a measured number."""
    axes.bar(at, value, width, linewidth=1.4, zorder=3, **bar_inside(inside, line_style.colour))


def published_bar(
    axes: Any, at: float, value: float, width: float, point: PublishedPoint, line_style: style.LineStyle
) -> None:
    """Draw an open or tinted bar; the hatch shows the source of the number."""
    how = style.HOW[point.how]
    inside = (line_style.colour, TINT) if how.tinted else "none"
    edge = {"edgecolor": line_style.colour, "linewidth": 1.1, "linestyle": style.outline(point)}
    axes.bar(at, value, width, facecolor=inside, hatch=how.hatch, zorder=2.5, **edge)


def axis_mark(axes: Any, at: float, height: float, mark: style.AxisMark, colour: str, transform: Any) -> None:
    """Draw a mark at the axis."""
    faint = 1.0 if mark.label in style.OOM else 0.65
    kind = {"linestyle": "none", "transform": transform, "zorder": 6, "clip_on": False}
    inside = colour if mark.filled else style.BACKGROUND
    edge = 0.9 if mark.filled else 1.1
    size = {"markersize": AXIS_MARKER, "markeredgewidth": edge}
    axes.plot([at], [height], marker=mark.marker, mfc=inside, mec=colour, alpha=faint, **size, **kind)
    if mark.ring:
        ring = {"s": RING**2, "facecolors": "none", "edgecolors": colour, "linewidths": 0.9, "linestyles": [mark.ring]}
        axes.scatter([at], [height], transform=transform, zorder=6, clip_on=False, **ring)


def _published_markers(axes: Any, line: SeriesLine) -> None:
    for spot in line.points:
        if spot.published is not None:
            published_marker(axes, spot.at, spot.published, line.style)
    if line.joined:
        values = [spot.published.value if spot.published else math.nan for spot in line.points]
        at = [spot.at for spot in line.points]
        axes.plot(at, values, linestyle=":", linewidth=1.0, color=line.style.colour, zorder=2.4)


def _error_bars(axes: Any, placed: Sequence[tuple[float, CasePoint]], colour: str) -> None:
    measured = [(at, spot.value, spot) for at, spot in placed if spot.value is not None]
    if measured:
        below = [max(value - spot.low, 0.0) for _, value, spot in measured]
        above = [max(spot.high - value, 0.0) for _, value, spot in measured]
        at, values = [at for at, _, _ in measured], [value for _, value, _ in measured]
        axes.errorbar(at, values, yerr=[below, above], fmt="none", ecolor=colour, elinewidth=1.1, capsize=3, zorder=4)


def _axis_marks(axes: Any, placed: Iterator[tuple[float, CasePoint, SeriesLine]]) -> None:
    """Draw each mark once per position and line; marks at one position are stacked."""
    marks = dict.fromkeys((at, label, line.style.colour) for at, spot, line in placed for label in spot.marks)
    groups: Counter[float] = Counter()
    for at, label, colour in marks:
        height = _LOWEST + _ABOVE * groups[at]
        axis_mark(axes, at, height, style.AXIS_MARKS[label], colour, axes.get_xaxis_transform())
        groups[at] += 1


@dataclass(frozen=True, slots=True)
class _Bar:
    at: float
    width: float
    spot: CasePoint
    line: SeriesLine
    published: PublishedPoint | None


def _bars(panel: Panel) -> Iterator[_Bar]:
    """Yield every bar with its position."""
    measured = any(spot.value is not None for spot in panel.points)
    published = any(spot.published for spot in panel.points)
    groups: dict[float, list[tuple[CasePoint, SeriesLine, PublishedPoint | None]]] = {}
    for line in panel.lines:
        for spot in line.points:
            group = groups.setdefault(spot.at, [])
            if measured or not published or spot.marks:
                group.append((spot, line, None))
            if published and spot.published:
                group.append((spot, line, spot.published))
    width = min(_GROUP / max(map(len, groups.values())), _WIDEST)
    for at, group in groups.items():
        for i, (spot, line, point) in enumerate(group):
            yield _Bar(at + width * (i - (len(group) - 1) / 2), width, spot, line, point)


_LETTER, _HANDLE, _TEXT_LINE = 0.062, 0.5, 0.18
"""Inches."""
_MOST_COLUMNS = 4

LegendEntry = tuple[Any, str]
"""What is shown, and its label."""


def legend(figure: Any, panels: Sequence[Panel], bars: bool, error_bars: str, width: float) -> float:
    """Add the legend below the panels; return its height in inches."""
    from matplotlib.legend_handler import HandlerTuple

    entries = [*_lines(panels[0].lines, bars), *_kinds(panels, bars, error_bars), *_marks(panels)]
    longest = max(len(label) for _, label in entries)
    columns = max(1, min(_MOST_COLUMNS, len(entries), int((width - 0.2) / (_LETTER * longest + _HANDLE))))
    figure.legend(
        [handle for handle, _ in entries],
        [label for _, label in entries],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        labelspacing=0.6,
        fontsize=8,
        handler_map={tuple: HandlerTuple(ndivide=1)},
    )
    return _TEXT_LINE * -(-len(entries) // columns) + 0.15


def _lines(lines: Sequence[SeriesLine], bars: bool) -> list[LegendEntry]:
    if len(lines) == 1:
        return []
    return [(_bar(line.style.colour) if bars else _line(line), line.name) for line in lines]


def _kinds(panels: Sequence[Panel], bars: bool, error_bars: str) -> list[LegendEntry]:
    """Return the entries of measured numbers, by how far they can be compared, and of published ones, by source."""
    lines = panels[0].lines
    marker, colour = (lines[0].style.marker, lines[0].style.colour) if len(lines) == 1 else ("o", style.INK)
    points = [spot for panel in panels for spot in panel.points]
    entries: list[LegendEntry] = []
    for label, inside in style.MEASURED.items():
        if any(spot.value is not None and spot.kind == label for spot in points):
            entries.append((_measured(inside, marker, colour, bars), label))
    if error_bars:
        entries.append((_error_bar(style.INK if bars else colour), error_bars))
    published = [spot.published for spot in points if spot.published]
    for how in style.HOW:
        for confirmed in (True, False):
            some = next((point for point in published if point.how == how and point.confirmed == confirmed), None)
            if some is not None:
                label = f"published, {how}{'' if confirmed else ', unconfirmed'}"
                entries.append((_published(some, marker, colour, bars), label))
    return entries


def _marks(panels: Sequence[Panel]) -> list[LegendEntry]:
    present = {label for panel in panels for spot in panel.points for label in spot.marks}
    handles: list[LegendEntry] = []
    for mark in style.AXIS_MARKS.values():
        if mark.label in present:
            inside = style.INK if mark.filled else style.BACKGROUND
            handle = _marker(mark.marker, style.INK, inside, AXIS_MARKER, 1.0)
            ring = _ring("o", style.INK, "none", RING, mark.ring) if mark.ring else None
            handles.append(((handle, ring) if ring else handle, mark.label))
    return handles


def _line(line: SeriesLine) -> Any:
    from matplotlib.lines import Line2D

    dashes: Any = line.style.dashes if line.joined else "none"
    return Line2D([], [], color=line.style.colour, marker=line.style.marker, markersize=MARKER, linestyle=dashes)


def _marker(marker: str, colour: str, inside: Any, size: float, edge: float) -> Any:
    from matplotlib.lines import Line2D

    options = {"markerfacecolor": inside, "markeredgecolor": colour, "markersize": size, "markeredgewidth": edge}
    return Line2D([], [], linestyle="none", marker=marker, **options)


def _measured(inside: style.Inside, marker: str, colour: str, bars: bool) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if bars:
        options = bar_inside(inside, colour)
        return Patch(linewidth=1.1, **options | {"hatch": 2 * inside.hatch})
    kind: Any = {"linestyle": "none", "marker": marker, "markersize": MARKER, "markeredgewidth": 1.4}
    return Line2D([], [], markeredgecolor=colour, **marker_inside(inside, colour), **kind)


def _bar(colour: str, inside: Any = None, hatch: str = "", dashes: Any = "-") -> Any:
    from matplotlib.patches import Patch

    inside = colour if inside is None else inside
    return Patch(facecolor=inside, edgecolor=colour, hatch=2 * hatch, linestyle=dashes, linewidth=1.1)


def _error_bar(colour: str) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.path import Path

    ends = [(-0.5, 1), (0.5, 1), (0, 1), (0, -1), (-0.5, -1), (0.5, -1)]
    shape = Path(ends, [Path.MOVETO, Path.LINETO] * 3)
    return Line2D([], [], linestyle="none", marker=shape, color=colour, markersize=11, markeredgewidth=1.1)


def _published(point: PublishedPoint, marker: str, colour: str, bars: bool) -> Any:
    how = style.HOW[point.how]
    inside = (colour, TINT) if how.tinted else "none"
    if bars:
        return _bar(colour, inside, how.hatch, style.outline(point))
    ring = _ring(marker, colour, inside, PUBLISHED_MARKER, style.outline(point))
    return (ring, _marker(how.inner, colour, colour, INNER_MARKER, 1.0)) if how.inner else ring


def _ring(marker: str, colour: str, inside: Any, size: float, dashes: Any) -> Any:
    """Return a marker with a dashed outline, which matplotlib's lines do not support."""
    from matplotlib.collections import PathCollection
    from matplotlib.markers import MarkerStyle
    from matplotlib.transforms import IdentityTransform

    shape = MarkerStyle(marker)
    path = shape.get_path().transformed(shape.get_transform())
    options = {"edgecolors": colour, "linewidths": 1.1, "linestyles": [dashes]}
    ring = PathCollection([path], sizes=[size**2], facecolors=inside if inside == "none" else [inside], **options)
    ring.set_transform(IdentityTransform())  # points, not data
    return ring
