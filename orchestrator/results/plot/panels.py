"""Panels of a picture: lines and points; colours, markers and hatches; their drawing; legend and text above."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.catalog.case import shown_value
from orchestrator.catalog.experiment import PublishedPoint, YAxis
from orchestrator.catalog.library import Entry
from orchestrator.ledger.tables import FAILED
from orchestrator.programs.program import BYTES, shown_bytes
from orchestrator.results.cases import Result, published_on

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer, ErrorbarContainer
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

SERIES = ("#0a396d", "#e49d00", "#057c5f", "#c46ba1", "#833d3d", "#86c9ef", "#755d00", "#e97c47")
"""Okabe and Ito's hues, each at a lightness (CIE L*) of its own: 24, 70, 46, 57, 35, 78, 41 and 64."""
SERIES_ON_DARK = ("#d7eaff", "#b37c00", "#2ccda6", "#dc80b8", "#ecc9a3", "#3377ad", "#c3a846", "#ffcee6")
"""Colours of the same lines on a dark page."""
INK = "#151617"
"""Colour of text, ticks and frames."""
BACKGROUND = "#fdfefe"
"""Colour of the inside of open markers."""
Dashes = Literal["-"] | tuple[float, tuple[float, ...]]
"""A solid line, or the offset and the lengths of dashes and gaps in points."""
_MARKERS = ("o", "s", "D", "^", "v", "P", "<", ">")
_DASHES: tuple[Dashes, ...] = ("-", (0, (5, 1.5)), (0, (3, 1, 1, 1)))

PARAMETERS: Any = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 8,
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.hspace": 0.0,
    "figure.constrained_layout.use": True,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # selectable text
    "svg.fonttype": "none",
    "svg.hashsalt": "repro",  # the same data gives the same file
    "text.color": INK,
    "text.parse_math": False,  # a name may contain a dollar sign
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True, slots=True)
class LineStyle:
    """Colour, marker and dashes of a line."""

    colour: str
    marker: str
    dashes: Dashes


def line_style(index: int) -> LineStyle:
    """Return the style of a line by its number; from the ninth line on, colours repeat with other dashes."""
    cycle, colour = divmod(index, len(SERIES))
    return LineStyle(SERIES[colour], _MARKERS[(colour + cycle) % len(_MARKERS)], _DASHES[cycle % len(_DASHES)])


@dataclass(frozen=True, slots=True)
class SourceStyle:
    """Drawing of a published number by its source: hatch of a bar, inner mark of a marker, tint."""

    hatch: str
    inner: str | None
    tinted: bool


HOW: dict[str, SourceStyle] = {
    "printed": SourceStyle("", None, True),
    "derived": SourceStyle("---", "_", False),
    "traced from the plot": SourceStyle("...", "+", False),
    "read off the plot": SourceStyle("xxx", "x", False),
}


@dataclass(frozen=True, slots=True)
class Inside:
    """Inside of a measured marker or bar: filled with the line's colour or open, and the hatch of a bar.

    A half marker is filled on its left side only.
    """

    filled: bool
    half: bool = False
    hatch: str = ""


MEASURED: dict[str, Inside] = {
    "measured": Inside(filled=True),
    "measured, partial": Inside(filled=False, hatch="..."),
    "measured, host-bound": Inside(filled=True, half=True, hatch="///"),
    "measured, too noisy to compare": Inside(filled=False),
}
"""Label of a measured number -> its inside, in the order of the legend."""

CONFIRMED: Dashes = "-"
UNCONFIRMED: Dashes = (0, (2, 1.2))


def outline(point: PublishedPoint) -> Dashes:
    """Return the outline of a published number."""
    return CONFIRMED if point.confirmed else UNCONFIRMED


@dataclass(frozen=True, slots=True)
class AxisMark:
    """Mark at the axis for a case without a number, or published without one; `ring` is its outline."""

    label: str
    marker: str
    filled: bool = False
    ring: Dashes | None = None


AXIS_MARKS = (
    OOM_BOTH := AxisMark("out of memory as published", "X", filled=True, ring=CONFIRMED),
    OOM_BOTH_UNCONFIRMED := AxisMark("out of memory as published, unconfirmed", "X", filled=True, ring=UNCONFIRMED),
    OOM_PUBLISHED := AxisMark("out of memory (published)", "X", ring=CONFIRMED),
    OOM_PUBLISHED_UNCONFIRMED := AxisMark("out of memory (published, unconfirmed)", "X", ring=UNCONFIRMED),
    OOM_MEASURED := AxisMark("out of memory (measured)", "X", filled=True),
    FLAGGED := AxisMark("flagged, no number", "*"),
    FAILED_HERE := AxisMark("failed", "x", filled=True),
    UNDER_WAY := AxisMark("under way", ">"),
    NO_NUMBER := AxisMark("ran, without this number", "_", filled=True),
    NOT_RUN := AxisMark("not run", "|", filled=True),
)
"""Marks in the order of the legend."""


@dataclass(frozen=True, slots=True)
class CasePoint:
    """A case in a panel: its position, the measured number with its error bar, and the published number.

    `marks` are the reasons why it has no number. `kind` is a key of `MEASURED`.
    """

    at: float
    value: float | None
    low: float
    high: float
    published: PublishedPoint | None
    marks: tuple[AxisMark, ...]
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
        return (point for line in self.lines for point in line.points)

    @property
    def values(self) -> list[float]:
        """Return all numbers in the panel."""
        measured = [point.value for point in self.points if point.value is not None]
        return measured + [point.published.value for point in self.points if point.published]


def panels(
    entry: Entry, results: Sequence[Result], position_of: Callable[[Result], float], by_number: bool
) -> list[Panel]:
    """Return the panel of the figure's own metric, and further panels that have numbers."""
    axes = entry.experiment.plot
    named = named_lines(entry, results).items()
    drawn: list[Panel] = []
    for y in (axes.y, *axes.also):
        lines = []
        for index, (name, line) in enumerate(named):
            points = [_case_point(entry, y.metric, result, position_of(result)) for result in line]
            joined = by_number and axes.marks == "lines" and len({point.at for point in points}) == len(points)
            points.sort(key=lambda point: point.at)
            lines.append(SeriesLine(name, line_style(index), tuple(points), joined))
        panel = Panel(y, tuple(lines))
        if not drawn or panel.values:
            drawn.append(panel)
    return drawn


def named_lines(entry: Entry, results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results by line, with the names and the order of the paper, else those of the file."""
    series = entry.experiment.plot.series
    if series is None:
        return {entry.experiment.figure: list(results)}
    shown: dict[str, list[Result]] = {}
    for result in results:
        shown.setdefault(value_text(entry, result, series.of), []).append(result)
    in_order = dict.fromkeys([*(value for value in series.names if value in shown), *shown])
    return {series.names.get(value, f"{series.title} = {value}"): shown[value] for value in in_order}


def value_text(entry: Entry, result: Result, axis: str) -> str:
    """Return the value of a case on an axis as a picture has it: 1G for 2^30 bytes."""
    value = result.case.settings.get(axis)
    if value is None:
        return "none"
    if isinstance(value, str) or entry.axes[axis].unit != BYTES:
        return shown_value(value)
    return shown_bytes(value)


def published_number(entry: Entry, result: Result, metric: str) -> PublishedPoint | None:
    """Return the published number to draw: of this GPU, else of the source's machine, else of another GPU."""
    machine = entry.paper.machine.gpu if entry.paper.machine else None
    nearest = [*published_on(result.case, result.gpu), *published_on(result.case, machine), *result.case.published]
    return next((point for point in nearest if point.metric == metric), None)


def _case_point(entry: Entry, metric: str, result: Result, at: float) -> CasePoint:
    measured = result.metric(metric)
    published = published_number(entry, result, metric)
    marks = tuple(_marks_of(result, measured is not None))
    if measured is None:
        return CasePoint(at, None, math.nan, math.nan, published, marks)
    spread = measured.spread or 0.0
    low, high = measured.value - spread, measured.value + spread
    if measured.interval_low is not None and measured.interval_high is not None:
        low, high = measured.interval_low, measured.interval_high
    kind = "measured, partial" if result.partial else "measured"
    if result.host_bound and entry.metrics[metric].is_rate:
        kind = "measured, host-bound"
    elif result.noise:
        kind = "measured, too noisy to compare"
    return CasePoint(at, measured.value, low, high, published, marks, kind)


def _marks_of(result: Result, has_number: bool) -> Iterator[AxisMark]:
    ran_out, row = result.ran_out_of_memory, result.row
    if result.expects_oom:
        confirmed = result.case.expected is not None and result.case.expected.confirmed
        both, published = (OOM_BOTH, OOM_PUBLISHED) if confirmed else (OOM_BOTH_UNCONFIRMED, OOM_PUBLISHED_UNCONFIRMED)
        yield both if ran_out else published
    elif ran_out:
        yield OOM_MEASURED
    if has_number or ran_out or (row is None and result.expects_oom):
        return
    if row is None:
        yield NOT_RUN
    elif row.verdict is None:
        yield UNDER_WAY
    elif row.verdict == FAILED:
        yield FAILED_HERE
    else:
        yield FLAGGED if result.flag else NO_NUMBER


# ---- drawing --------------------------------------------------------------------------------------------------

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
    for at, width, point, line, published in bars:
        colour = line.style.colour
        if published is not None:
            _published_bar(axes, at, width, published, colour)
        elif point.value is not None:
            _measured_bar(axes, at, width, point.value, colour, MEASURED[point.kind])
            _error_bar(axes, at, point, BACKGROUND, 3.0)  # visible also on a bar in the colour of INK
            _error_bar(axes, at, point, INK)
    measured = any(point.value is not None for point in panel.points)
    _axis_marks(axes, ((at, point, line) for at, _, point, line, number in bars if number is None or not measured))


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


def _bars(panel: Panel) -> Iterator[tuple[float, float, CasePoint, SeriesLine, PublishedPoint | None]]:
    """Yield position and width of every bar. If nothing is measured, published bars are at their ticks."""
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
            yield at + width * (i - (len(group) - 1) / 2), width, point, line, number


_MOST_COLUMNS, _LEGEND_SHARE = 4, 0.97
"""Most columns of the legend, and the largest share of the picture's width that it takes."""


def legend(figure: Figure, panels: Sequence[Panel], bars: bool, error_bars: str) -> None:
    """Add the legend below the panels, with as many columns as fit."""
    from matplotlib.figure import Figure
    from matplotlib.legend_handler import HandlerTuple

    own = Figure().subplots()  # with the artists that the legend copies
    handles, labels = zip(*_entries(own, panels, bars, error_bars), strict=True)
    for columns in range(min(_MOST_COLUMNS, len(labels)), 0, -1):
        below = figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False, labelspacing=0.6, fontsize=8,
            handler_map={tuple: HandlerTuple(ndivide=1)},
        )  # fmt: skip
        if columns == 1 or below.get_window_extent().width <= _LEGEND_SHARE * figure.bbox.width:
            return
        below.remove()


def _entries(own: Axes, panels: Sequence[Panel], bars: bool, error_bars: str) -> Iterator[tuple[Any, str]]:
    """Yield the entries of the legend: lines, measured numbers, error bars, published numbers by source, and marks."""
    lines = panels[0].lines
    for line in lines if len(lines) > 1 else ():
        style, dashes = line.style, line.style.dashes if line.joined else "none"
        handle: Any = _measured_bar(own, 0, 1, 1, style.colour, MEASURED["measured"]) if bars else None
        copied = own.plot([0], [0], dashes, color=style.colour, marker=style.marker, markersize=MARKER)
        yield handle or tuple(copied), line.name
    style = lines[0].style if len(lines) == 1 else LineStyle(INK, "o", "-")
    points = [point for panel in panels for point in panel.points]
    for label, inside in MEASURED.items():
        if any(point.value is not None and point.kind == label for point in points):
            handle = _measured_bar(own, 0, 1, 1, style.colour, inside) if bars else None
            yield handle or tuple(_measured_markers(own, [0], [0], style, inside)), label
    if error_bars:
        yield _error_bar(own, 0, CasePoint(0, 0, -1, 1, None, ()), INK if bars else style.colour), error_bars
    published = [point.published for point in points if point.published]
    for how, confirmed in product(HOW, (True, False)):
        number = next((point for point in published if point.how == how and point.confirmed == confirmed), None)
        if number is not None:
            handle = _published_bar(own, 0, 1, number, style.colour) if bars else None
            label = f"published, {how}{'' if confirmed else ', unconfirmed'}"
            yield handle or _published_marker(own, 0, number, style), label
    present = {mark for point in points for mark in point.marks}
    yield from ((_axis_mark(own, 0, 0, mark, INK), mark.label) for mark in AXIS_MARKS if mark in present)


# ---- text above the panels ------------------------------------------------------------------------------------

WIDTH = 4.8
"""Width of most pictures in inches. Text of 8 points is then readable in a README and on a phone."""
DRAFT_INCHES = 12.0
"""Height of a picture until `write_above` sets it."""
_MARGIN, _LEFT = 0.06, 0.08
"""Distances of the text above the panels from each other and from the left, in inches."""


def setup(entry: Entry, scale: str, cluster: str) -> list[str]:
    """Return `SC21 Figure 13, scale pair on h200: 3.4 billion parameters on 2 GPUs`, in two lines."""
    name, about = f"{entry.source}, scale {scale} on {cluster}", entry.experiment.about_scale(scale)
    return [f"{name}:", about] if about else [name]


def origins(entry: Entry, results: Sequence[Result], panels: Sequence[Panel]) -> str:
    """Return `published: A100; measured: H200` if the GPUs differ, and likewise the programs."""

    def on(program: str | None, gpu: str | None) -> str:
        return " on ".join(filter(None, (program, gpu)))

    points = [point.published for panel in panels for point in panel.points if point.published]
    is_measured = any(point.value is not None for panel in panels for point in panel.points)
    own = next((result.instead_of for result in results if result.instead_of), None)
    ran = results[0].case.program if own else None
    if not points:
        return f"measured with {ran} instead of {own}" if own and is_measured else ""
    machine = entry.paper.machine.gpu if entry.paper.machine else None
    gpus = ", ".join(dict.fromkeys(gpu for point in points if (gpu := point.gpu or machine)))
    published_on = gpus or ("CPU cores" if entry.experiment.device == "cpu" else "")
    ran_on = results[0].gpu or ("CPU cores" if results[0].case.device == "cpu" else "")
    if not is_measured:
        return f"published: {on(own, published_on)}" if own or published_on else ""
    if not own and published_on and ran_on and (published_on in ran_on or ran_on in published_on):
        return ""
    return f"published: {on(own, published_on or 'unknown GPU')}; measured: {on(ran, ran_on or 'unknown GPU')}"


def write_above(figure: Figure, title: str, lines: Sequence[str], panel_inches: float) -> None:
    """Write the title and the lines below it above the panels, each of which gets this height in inches.

    The picture grows by what matplotlib's layout needs for ticks, labels and the legend.
    """
    width, draft = figure.get_size_inches()
    figure.draw_without_rendering()
    beside = draft - sum(axes.get_window_extent().height for axes in figure.axes) / figure.dpi
    parts = ((title, {"fontsize": 10, "fontweight": "bold"}), ("\n".join(filter(None, lines)), {"fontsize": 8}))
    texts = [
        figure.text(_LEFT / width, 0.5, together(text), {"va": "top", "wrap": True, **style})
        for text, style in parts
        if text
    ]
    heights = [text.get_window_extent().height / figure.dpi + _MARGIN for text in texts]
    below = beside + panel_inches * len(figure.axes)
    whole = below + sum(heights) + _MARGIN * bool(texts)
    figure.set_size_inches(width, whole)
    for number, text in enumerate(texts):
        text.set_y(1 - (_MARGIN + sum(heights[:number])) / whole)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(rect=(0, 0, 1, below / whole))  # type: ignore[call-arg]


_TOGETHER = re.compile(r"\([^()]{1,24}\)(?: = \([^()]{1,24}\))?|\d (?=[\w%])")
"""Text that stays in one line: `(t, p) = (8, 8)`, and a number with the next word."""


def together(text: str) -> str:
    """Return the text with no-break spaces where no line may end."""
    return _TOGETHER.sub(lambda part: part[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
