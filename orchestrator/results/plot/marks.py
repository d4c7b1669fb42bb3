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
    OOM,
    AxisMark,
    CasePoint,
    Dashes,
    Inside,
    LineStyle,
    Panel,
    SeriesLine,
    outline,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

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
        _published_markers(axes, line)
        if line.joined:
            values = [math.nan if point.value is None else point.value for point in line.points]
            at = [point.at for point in line.points]
            axes.plot(at, values, linestyle=line.style.dashes, linewidth=1.5, color=line.style.colour, zorder=3)
        _error_bars(axes, [(point.at, point) for point in line.points], line.style.colour)
        for kind, inside in MEASURED.items():
            shown = [(point.at, point.value) for point in line.points if point.value is not None and point.kind == kind]
            _measured_markers(axes, [at for at, _ in shown], [value for _, value in shown], line.style, inside)
    _axis_marks(axes, ((point.at, point, line) for line in panel.lines for point in line.points))


def draw_bars(axes: Axes, panel: Panel) -> None:
    """Draw the bars of each case side by side: measured, then published."""
    bars = list(_bars(panel))
    for bar in bars:
        if bar.published is not None:
            _published_bar(axes, bar, bar.published)
        elif bar.point.value is not None:
            colour, inside = bar.line.style.colour, MEASURED[bar.point.kind]
            axes.bar(
                bar.at, bar.point.value, bar.width, facecolor=_bar_face(inside, colour), hatch=inside.hatch,
                edgecolor=colour, linewidth=1.4, zorder=3,
            )  # fmt: skip
            _error_bars(axes, [(bar.at, bar.point)], BACKGROUND, 3.0)  # visible also on a bar in the colour of INK
            _error_bars(axes, [(bar.at, bar.point)], INK)
    measured = any(point.value is not None for point in panel.points)
    _axis_marks(axes, ((bar.at, bar.point, bar.line) for bar in bars if bar.published is None or not measured))


def _measured_markers(
    axes: Axes, at: Sequence[float], values: Sequence[float], style: LineStyle, inside: Inside
) -> None:
    axes.plot(
        at, values, linestyle="none", marker=style.marker, markersize=MARKER, markeredgewidth=1.4,
        markeredgecolor=style.colour, markerfacecolor=_marker_face(inside, style.colour),
        markerfacecoloralt=BACKGROUND, fillstyle="left" if inside.half else "full", zorder=5,
    )  # fmt: skip


def _marker_face(inside: Inside, colour: str) -> str:
    return colour if inside.half or inside.filled else BACKGROUND


def _bar_face(inside: Inside, colour: str) -> str:
    return BACKGROUND if inside.hatch or not inside.filled else colour


def _published_markers(axes: Axes, line: SeriesLine) -> None:
    for point in line.points:
        if point.published is not None:
            _published_marker(axes, point.at, point.published, line.style)
    if line.joined:
        values = [point.published.value if point.published else math.nan for point in line.points]
        at = [point.at for point in line.points]
        axes.plot(at, values, linestyle=":", linewidth=1.0, color=line.style.colour, zorder=2.4)


def _published_marker(axes: Axes, at: float, point: PublishedPoint, style: LineStyle) -> None:
    """Draw a marker in the shape of the line; outline and inside show the source of the number."""
    how = HOW[point.how]
    axes.scatter(
        [at], [point.value], s=PUBLISHED_MARKER**2, marker=style.marker,
        facecolors=[(style.colour, TINT)] if how.tinted else "none", edgecolors=style.colour, linewidths=1.1,
        linestyles=[outline(point)], zorder=2.5,
    )  # fmt: skip
    if how.inner:
        axes.plot(
            [at], [point.value], linestyle="none", marker=how.inner, markersize=INNER_MARKER, color=style.colour,
            markeredgewidth=1.0, zorder=2.6,
        )  # fmt: skip


def _published_bar(axes: Axes, bar: _Bar, point: PublishedPoint) -> None:
    """Draw an open or tinted bar; the hatch shows the source of the number."""
    how, colour = HOW[point.how], bar.line.style.colour
    axes.bar(
        bar.at, point.value, bar.width, facecolor=(colour, TINT) if how.tinted else "none", hatch=how.hatch,
        edgecolor=colour, linewidth=1.1, linestyle=outline(point), zorder=2.5,
    )  # fmt: skip


def _error_bars(axes: Axes, placed: Sequence[tuple[float, CasePoint]], colour: str, width: float = 1.1) -> None:
    measured = [(at, point.value, point) for at, point in placed if point.value is not None]
    if measured:
        below = [max(value - point.low, 0.0) for _, value, point in measured]
        above = [max(point.high - value, 0.0) for _, value, point in measured]
        at, values = [at for at, _, _ in measured], [value for _, value, _ in measured]
        axes.errorbar(
            at, values, yerr=[below, above], fmt="none", ecolor=colour, elinewidth=width, capthick=width, capsize=3,
            zorder=4,
        )  # fmt: skip


def _axis_marks(axes: Axes, placed: Iterable[tuple[float, CasePoint, SeriesLine]]) -> None:
    """Draw each mark once per position and line; marks at one position are stacked."""
    marks = dict.fromkeys((at, label, line.style.colour) for at, point, line in placed for label in point.marks)
    stacked: Counter[float] = Counter()
    for at, label, colour in marks:
        _axis_mark(axes, at, _LOWEST + _ABOVE * stacked[at], AXIS_MARKS[label], colour)
        stacked[at] += 1


def _axis_mark(axes: Axes, at: float, height: float, mark: AxisMark, colour: str) -> None:
    transform = axes.get_xaxis_transform()
    axes.plot(
        [at], [height], linestyle="none", marker=mark.marker, markersize=AXIS_MARKER,
        markerfacecolor=colour if mark.filled else BACKGROUND, markeredgecolor=colour,
        markeredgewidth=0.9 if mark.filled else 1.1, alpha=1.0 if mark.label in OOM else 0.65, transform=transform,
        zorder=6, clip_on=False,
    )  # fmt: skip
    if mark.ring:
        axes.scatter(
            [at], [height], s=RING**2, facecolors=BACKGROUND, edgecolors=colour, linewidths=0.9,
            linestyles=[mark.ring], transform=transform, zorder=5.9, clip_on=False,
        )  # fmt: skip


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


_LETTER, _HANDLE, _TEXT_LINE = 0.056, 0.52, 0.18
"""Sizes in the legend, in inches."""
_MOST_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class _Entry:
    """Entry of the legend; several artists are drawn over each other."""

    artists: tuple[Artist, ...]
    label: str


def legend(figure: Figure, panels: Sequence[Panel], bars: bool, error_bars: str, width: float) -> float:
    """Add the legend below the panels; return its height in inches."""
    from matplotlib.legend_handler import HandlerTuple

    entries = [*_line_entries(panels[0].lines, bars), *_number_entries(panels, bars, error_bars)]
    entries += _mark_entries(panels)
    handles: list[Any] = [entry.artists if len(entry.artists) > 1 else entry.artists[0] for entry in entries]
    columns = _columns([len(entry.label) for entry in entries], width - 0.1)
    figure.legend(
        handles,
        [entry.label for entry in entries],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        labelspacing=0.6,
        fontsize=8,
        handler_map={tuple: HandlerTuple(ndivide=1)},
    )
    return _TEXT_LINE * -(-len(entries) // columns) + 0.15


def _columns(letters: Sequence[int], width: float) -> int:
    """Return the largest number of columns that fit the width; entries go down each column."""
    for columns in range(min(_MOST_COLUMNS, len(letters)), 1, -1):
        rows, longer = divmod(len(letters), columns)
        ends = [rows * column + min(column, longer) for column in range(columns + 1)]
        longest = [max(letters[start:end]) for start, end in itertools.pairwise(ends)]
        if sum(_LETTER * count + _HANDLE for count in longest) <= width:
            return columns
    return 1


def _line_entries(lines: Sequence[SeriesLine], bars: bool) -> list[_Entry]:
    if len(lines) == 1:
        return []
    if bars:
        return [_Entry((_patch(line.style.colour, line.style.colour),), line.name) for line in lines]
    return [_Entry((_line(line),), line.name) for line in lines]


def _number_entries(panels: Sequence[Panel], bars: bool, error_bars: str) -> list[_Entry]:
    """Return the entries of measured numbers, by how far they can be compared, and of published ones, by source."""
    lines = panels[0].lines
    marker, colour = (lines[0].style.marker, lines[0].style.colour) if len(lines) == 1 else ("o", INK)
    points = [point for panel in panels for point in panel.points]
    entries: list[_Entry] = []
    for label, inside in MEASURED.items():
        if any(point.value is not None and point.kind == label for point in points):
            entries.append(_Entry((_measured(inside, marker, colour, bars),), label))
    if error_bars:
        entries.append(_Entry((_error_bar(INK if bars else colour),), error_bars))
    published = [point.published for point in points if point.published]
    for how in HOW:
        for confirmed in (True, False):
            number = next((point for point in published if point.how == how and point.confirmed == confirmed), None)
            if number is not None:
                label = f"published, {how}{'' if confirmed else ', unconfirmed'}"
                entries.append(_Entry(_published(number, marker, colour, bars), label))
    return entries


def _mark_entries(panels: Sequence[Panel]) -> Iterator[_Entry]:
    present = {label for panel in panels for point in panel.points for label in point.marks}
    for mark in AXIS_MARKS.values():
        if mark.label in present:
            artist = _marker(mark.marker, INK, INK if mark.filled else BACKGROUND, AXIS_MARKER, 1.0)
            ring = (_ring("o", INK, "none", RING, mark.ring),) if mark.ring else ()
            yield _Entry((artist, *ring), mark.label)


def _line(line: SeriesLine) -> Line2D:
    from matplotlib.lines import Line2D

    dashes = line.style.dashes if line.joined else "none"
    return Line2D([], [], color=line.style.colour, marker=line.style.marker, markersize=MARKER, linestyle=dashes)


def _marker(marker: str, colour: str, face: str, size: float, edge: float, half: bool = False) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], linestyle="none", marker=marker, markersize=size, markeredgecolor=colour, markeredgewidth=edge,
        markerfacecolor=face, markerfacecoloralt=BACKGROUND, fillstyle="left" if half else "full",
    )  # fmt: skip


def _measured(inside: Inside, marker: str, colour: str, bars: bool) -> Artist:
    if bars:
        return _patch(colour, _bar_face(inside, colour), inside.hatch)
    return _marker(marker, colour, _marker_face(inside, colour), MARKER, 1.4, inside.half)


def _patch(colour: str, face: str | tuple[str, float], hatch: str = "", dashes: Dashes = "-") -> Patch:
    from matplotlib.patches import Patch

    return Patch(facecolor=face, edgecolor=colour, hatch=2 * hatch, linestyle=dashes, linewidth=1.1)


def _error_bar(colour: str) -> Line2D:
    from matplotlib.lines import Line2D
    from matplotlib.path import Path

    ends = [(-0.5, 1), (0.5, 1), (0, 1), (0, -1), (-0.5, -1), (0.5, -1)]
    shape = Path(ends, [Path.MOVETO, Path.LINETO] * 3)
    return Line2D([], [], linestyle="none", marker=shape, color=colour, markersize=11, markeredgewidth=1.1)


def _published(point: PublishedPoint, marker: str, colour: str, bars: bool) -> tuple[Artist, ...]:
    how = HOW[point.how]
    face = (colour, TINT) if how.tinted else "none"
    if bars:
        return (_patch(colour, face, how.hatch, outline(point)),)
    ring = _ring(marker, colour, face, PUBLISHED_MARKER, outline(point))
    return (ring, _marker(how.inner, colour, colour, INNER_MARKER, 1.0)) if how.inner else (ring,)


def _ring(marker: str, colour: str, face: str | tuple[str, float], size: float, dashes: Dashes) -> PathCollection:
    """Return a marker with a dashed outline, which matplotlib's lines do not support."""
    from matplotlib.collections import PathCollection
    from matplotlib.markers import MarkerStyle
    from matplotlib.transforms import IdentityTransform

    shape = MarkerStyle(marker)
    ring = PathCollection(
        [shape.get_path().transformed(shape.get_transform())], sizes=[size**2],
        facecolors=face if face == "none" else [face], edgecolors=colour, linewidths=1.1, linestyles=[dashes],
    )  # fmt: skip
    ring.set_transform(IdentityTransform())  # points, not data
    return ring
