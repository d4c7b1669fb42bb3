"""The legend of a picture: its lines, how each number is known, and what the marks at the axis mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.results.plot import style
from orchestrator.results.plot.marks import (
    AXIS_MARKER,
    INNER_MARKER,
    MARKER,
    PUBLISHED_MARKER,
    RING,
    TINT,
    bar_inside,
    marker_inside,
)
from orchestrator.results.plot.series import Line, Panel

_LETTER, _HANDLE, _TEXT_LINE = 0.062, 0.5, 0.18
"""Inches."""
_MOST_COLUMNS = 4

Entry_ = tuple[Any, str]
"""What is shown, and its words."""


def legend(figure: Any, panels: Sequence[Panel], bars: bool, error_bars: str, width: float) -> float:
    """Put it below everything; the inches that it takes."""
    from matplotlib.legend_handler import HandlerTuple

    entries = [*_lines(panels[0].lines, bars), *_kinds(panels, bars, error_bars), *_marks(panels)]
    longest = max(len(words) for _, words in entries)
    columns = max(1, min(_MOST_COLUMNS, len(entries), int((width - 0.2) / (_LETTER * longest + _HANDLE))))
    figure.legend(
        [handle for handle, _ in entries],
        [words for _, words in entries],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        labelspacing=0.6,
        fontsize=8,
        handler_map={tuple: HandlerTuple(ndivide=1)},
    )
    return _TEXT_LINE * -(-len(entries) // columns) + 0.15


def _lines(lines: Sequence[Line], bars: bool) -> list[Entry_]:
    if len(lines) == 1:
        return []
    return [(_bar(line.look.colour) if bars else _line(line), line.name) for line in lines]


def _kinds(panels: Sequence[Panel], bars: bool, error_bars: str) -> list[Entry_]:
    """Return the entries of measured numbers, by how far they can be compared, and of published ones, by source."""
    lines = panels[0].lines
    marker, colour = (lines[0].look.marker, lines[0].look.colour) if len(lines) == 1 else ("o", style.INK)
    spots = [spot for panel in panels for spot in panel.spots]
    found: list[Entry_] = []
    for words, inside in style.MEASURED.items():
        if any(spot.value is not None and spot.kind == words for spot in spots):
            found.append((_measured(inside, marker, colour, bars), words))
    if error_bars:
        found.append((_error_bar(style.INK if bars else colour), error_bars))
    points = [spot.published for spot in spots if spot.published]
    for how in style.HOW:
        for confirmed in (True, False):
            some = next((point for point in points if point.how == how and point.confirmed == confirmed), None)
            if some is not None:
                words = f"published, {how}{'' if confirmed else ', unconfirmed'}"
                found.append((_published(some, marker, colour, bars), words))
    return found


def _marks(panels: Sequence[Panel]) -> list[Entry_]:
    present = {words for panel in panels for spot in panel.spots for words in spot.marks}
    handles: list[Entry_] = []
    for mark in style.AXIS_MARKS.values():
        if mark.words in present:
            inside = style.INK if mark.filled else style.BACKGROUND
            handle = _marker(mark.marker, style.INK, inside, AXIS_MARKER, 1.0)
            ring = _ring("o", style.INK, "none", RING, mark.ring) if mark.ring else None
            handles.append(((handle, ring) if ring else handle, mark.words))
    return handles


def _line(line: Line) -> Any:
    from matplotlib.lines import Line2D

    dashes: Any = line.look.dashes if line.joined else "none"
    return Line2D([], [], color=line.look.colour, marker=line.look.marker, markersize=MARKER, linestyle=dashes)


def _marker(marker: str, colour: str, inside: Any, size: float, edge: float) -> Any:
    from matplotlib.lines import Line2D

    look = {"markerfacecolor": inside, "markeredgecolor": colour, "markersize": size, "markeredgewidth": edge}
    return Line2D([], [], linestyle="none", marker=marker, **look)


def _measured(inside: style.Inside, marker: str, colour: str, bars: bool) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if bars:
        look = bar_inside(inside, colour)
        return Patch(linewidth=1.1, **look | {"hatch": 2 * inside.hatch})
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
    """A marker whose outline may be dashed, which those of a line cannot be."""
    from matplotlib.collections import PathCollection
    from matplotlib.markers import MarkerStyle
    from matplotlib.transforms import IdentityTransform

    shape = MarkerStyle(marker)
    path = shape.get_path().transformed(shape.get_transform())
    look = {"edgecolors": colour, "linewidths": 1.1, "linestyles": [dashes]}
    ring = PathCollection([path], sizes=[size**2], facecolors=inside if inside == "none" else [inside], **look)
    ring.set_transform(IdentityTransform())  # points, not data
    return ring
