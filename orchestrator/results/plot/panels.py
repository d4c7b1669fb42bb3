"""Content and style of a picture: panels, lines and points; colours, markers and hatches; the text above."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.catalog.case import shown_value
from orchestrator.catalog.experiment import PublishedPoint, YAxis
from orchestrator.catalog.library import Entry
from orchestrator.job_spec import Value
from orchestrator.ledger.tables import FAILED
from orchestrator.programs.program import BYTES, shown_bytes
from orchestrator.results.cases import Result, published_on, results_by_series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.hspace": 0.0,
    "figure.constrained_layout.use": True,
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
    axes = entry.experiment.axes
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
    series = entry.experiment.axes.series
    if series is None:
        return {entry.experiment.figure: list(results)}
    shown: dict[str, list[Result]] = {}
    for value, line in results_by_series(entry, results).items():
        shown.setdefault(value_text(entry, series.of, value), []).extend(line)
    in_order = [
        *(value for value in series.names if value in shown),
        *(value for value in shown if value not in series.names),
    ]
    return {series.names.get(value, f"{series.title} = {value}"): shown[value] for value in in_order}


def value_text(entry: Entry, axis: str, value: Value | None) -> str:
    """Return a value of an axis as a picture has it: 1G for 2^30 bytes."""
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
    marks = tuple(_marks(result, measured is not None))
    if measured is None:
        return CasePoint(at, None, math.nan, math.nan, published, marks)
    spread = measured.spread or 0.0
    low, high = measured.value - spread, measured.value + spread
    if measured.interval_low is not None and measured.interval_high is not None:
        low, high = measured.interval_low, measured.interval_high
    return CasePoint(at, measured.value, low, high, published, marks, _kind(result, entry.metrics[metric].is_rate))


def _kind(result: Result, is_rate: bool) -> str:
    if result.host_bound and is_rate:
        return "measured, host-bound"
    if result.noise:
        return "measured, too noisy to compare"
    return "measured, partial" if result.partial else "measured"


def _marks(result: Result, has_number: bool) -> Iterator[AxisMark]:
    ran_out = result.ran_out_of_memory
    if result.expects_oom:
        confirmed = result.case.expected is not None and result.case.expected.confirmed
        if ran_out:
            yield OOM_BOTH if confirmed else OOM_BOTH_UNCONFIRMED
        else:
            yield OOM_PUBLISHED if confirmed else OOM_PUBLISHED_UNCONFIRMED
    elif ran_out:
        yield OOM_MEASURED
    if has_number or ran_out:
        return
    if result.row is None:
        if not result.expects_oom:
            yield NOT_RUN
    elif result.row.verdict is None:
        yield UNDER_WAY
    elif result.row.verdict == FAILED:
        yield FAILED_HERE
    else:
        yield FLAGGED if result.flag else NO_NUMBER


# ---- text above the panels ------------------------------------------------------------------------------------

WIDTH = 4.8
"""Width of most pictures in inches. Text of 8 points is then readable in a README and on a phone."""
DRAFT_INCHES = 12.0
"""Height of a picture until `write_above` sets it."""
_MARGIN, _LEFT = 0.06, 0.08
"""Distances of the text above the panels from each other and from the left, in inches."""


def heading(entry: Entry) -> str:
    """Return `SC21 Figure 13: Pipeline- against tensor-parallel size`."""
    return f"{entry.source}: {entry.experiment.title}"


def setup(entry: Entry, scale: str, cluster: str) -> list[str]:
    """Return `SC21 Figure 13, scale pair on h200: 3.4 billion parameters on 2 GPUs`, in two lines."""
    name, about = f"{entry.source}, scale {scale} on {cluster}", entry.experiment.about_scale(scale)
    return [f"{name}:", about] if about else [name]


def origins(entry: Entry, results: Sequence[Result], panels: Sequence[Panel]) -> str:
    """Return `published: A100; measured: H200` if the GPUs differ, and likewise the programs."""
    points = [point.published for panel in panels for point in panel.points if point.published]
    is_measured = any(point.value is not None for panel in panels for point in panel.points)
    own = next((result.instead_of for result in results if result.instead_of), None)
    ran = results[0].case.program if own else None
    if not points:
        return f"measured with {ran} instead of {own}" if own and is_measured else ""
    published_on = _gpus(entry, points) or _without_gpu(entry.experiment.device)
    ran_on = results[0].gpu or _without_gpu(results[0].case.device)
    if not is_measured:
        return f"published: {_on(own, published_on)}" if own or published_on else ""
    if not own and _is_same_gpu(published_on, ran_on):
        return ""
    return f"published: {_on(own, published_on or 'unknown GPU')}; measured: {_on(ran, ran_on or 'unknown GPU')}"


def _without_gpu(device: str | None) -> str | None:
    return "CPU cores" if device == "cpu" else None


def _gpus(entry: Entry, points: Sequence[PublishedPoint]) -> str | None:
    """Return the GPUs of the published numbers; without a GPU of its own, a number has the paper's."""
    machine = entry.paper.machine.gpu if entry.paper.machine else None
    named = dict.fromkeys(point.gpu or machine for point in points)
    return ", ".join(filter(None, named)) or None


def _is_same_gpu(published: str | None, measured: str | None) -> bool:
    return published is not None and measured is not None and (published in measured or measured in published)


def _on(program: str | None, gpu: str | None) -> str:
    return " on ".join(filter(None, (program, gpu)))


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
