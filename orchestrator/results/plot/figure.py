"""Picture of a figure on the axes of the paper: PNG, SVG, PDF, or SVG for a page."""

from __future__ import annotations

import contextlib
import html
import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.catalog.experiment import PAPER, is_search
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.files import written_whole
from orchestrator.programs.plug_ins import called
from orchestrator.programs.program import BYTES, shown_bytes
from orchestrator.results.cases import Result
from orchestrator.results.plot.panels import (
    BACKGROUND,
    DRAFT_INCHES,
    INK,
    PARAMETERS,
    SERIES,
    WIDTH,
    Panel,
    draw_bars,
    draw_lines,
    legend,
    origins,
    panels,
    setup,
    value_text,
    write_above,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ONE_PANEL, _EACH_PANEL = 2.3, 1.6
"""Heights in inches: a single panel, and one of several panels."""
_LABEL_LETTER = 0.07
"""Width of a letter of a label in inches."""


def drawn(entry: Entry, scale: str, cluster: str, results: Sequence[Result], on_page: bool = False) -> Figure:
    """Return the matplotlib figure. It must be saved within the same `matplotlib_as_shipped`.

    A picture `on_page` has no title, scale and cluster, because the page has them.
    """
    from matplotlib.figure import Figure

    axes_of, device = entry.experiment.plot, results[0].case.device
    title = "" if on_page else entry.experiment.title
    above = [] if on_page else setup(entry, scale, cluster)
    if is_search(entry.name) and entry.record is not None and entry.record.search_picture is not None:
        return called(entry.record.search_picture, "picture of a search", Figure, title, above, results)
    bars = axes_of.marks == "bars"
    # Jobs without rows have no place on an axis of the rows.
    keys = {axis for result in results for axis, _ in result.row_key}.intersection(axes_of.x.of)
    results = [result for result in results if keys <= result.case.settings.keys()]
    position_of = positions_of(entry, results)
    shown = panels(entry, results, position_of, position_of.by_number)
    # Turned labels do not touch at this width.
    turned = _BESIDE_AXES + len(position_of.ticks) * position_of.lines * _TICK_LINE_POINTS / _POINTS
    width = min(max(WIDTH, turned), _WIDEST) if position_of.scale == "even" else WIDTH
    figure = Figure(figsize=(width, DRAFT_INCHES))
    all_axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    panel_inches = _ONE_PANEL if len(shown) == 1 else _EACH_PANEL
    for axes, panel in zip(all_axes, shown, strict=True):
        (draw_bars if bars else draw_lines)(axes, panel)
        set_x(axes, position_of, sorted({position_of(result) for result in results}))
        label = _axis_label(device, panel.y.label, panel_inches)
        set_y(axes, panel, entry.metrics[panel.y.metric].unit, as_published=scale == PAPER, label=label)
        axes.label_outer()
    all_axes[-1].set_xlabel(_axis_label(device, axes_of.x.label, width - 0.6))
    figure.align_ylabels(all_axes)
    legend(figure, shown, bars, error_bars(results, axes_of.y.metric))
    fit_ticks(figure, all_axes[-1], position_of)
    write_above(figure, title, [*above, origins(entry, results, shown)], panel_inches)
    return figure


def _axis_label(device: str, label: str, inches: float) -> str:
    """Return the label in lines that fit an axis of this length."""
    text, longest = label_on(device, label), int(inches / _LABEL_LETTER)
    folded = [textwrap.wrap(text, letters, break_long_words=False) for letters in range(1, longest + 1)]
    fewest = min(map(len, folded))
    return "\n".join(next(lines for lines in folded if len(lines) == fewest))  # they are about equally long


def error_bars(results: Sequence[Result], metric: str) -> str:
    """Return what the error bars span, for the legend; empty without error bars."""
    metrics = [measured for result in results if (measured := result.metric(metric)) is not None]
    several = any(measured.interval_low is not None for measured in metrics)
    single = any(measured.interval_low is None and measured.spread for measured in metrics)
    if several and single:
        return "95 % interval of repeats, else quartiles"
    if several:
        return "95 % confidence interval of the repeats"
    return "middle half of the iterations" if single else ""


def require_matplotlib() -> None:
    """Raise ReproError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ReproError(Problem("drawing needs matplotlib", hint="pip install '.[plot]'")) from None


def matplotlib_version() -> str | None:
    """Return the version of matplotlib; None if it is not installed."""
    try:
        return metadata.version("matplotlib")
    except metadata.PackageNotFoundError:
        return None


@contextlib.contextmanager
def matplotlib_as_shipped() -> Iterator[None]:
    """Use matplotlib's own settings, not those of this machine, and ignore its warnings about fonts."""
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(PARAMETERS)
        yield


FORMATS = ("png", "svg", "pdf")
_NO_DATE: Mapping[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata without a date, so that the same data gives the same bytes."""
_DOTS_PER_INCH = 250


def plot(entry: Entry, scale: str, cluster: str, results: Sequence[Result], file: Path) -> None:
    """Draw verified results and published numbers into `file`. Its ending is the format."""
    ending = known_format(file)
    with matplotlib_as_shipped():
        figure = drawn(entry, scale, cluster, results)
        with written_whole(file) as part:
            figure.savefig(part, format=ending, dpi=_DOTS_PER_INCH, metadata=_NO_DATE[ending])


def picture(entry: Entry, scale: str, cluster: str, results: Sequence[Result], prefix: str = "plot") -> str:
    """Return the picture as an <svg> element for a page; no case needs to be verified.

    Every id begins with `prefix`, so that a page can have several pictures. The background, the text and the lines have
    the colours of the page.
    """
    text = io.StringIO()
    with matplotlib_as_shipped():
        figure = drawn(entry, scale, cluster, results, on_page=True)
        figure.savefig(text, format="svg", metadata=_NO_DATE["svg"], transparent=True)
    about = f"{entry.source}: {entry.experiment.title}, scale {scale} on {cluster}"
    return for_page(text.getvalue(), prefix, about)


_IDS = re.compile(r'(\bid="|url\(#|href="#)')


def for_page(svg: str, prefix: str, about: str) -> str:
    """Return the <svg> element alone, with `about` as its text for screen readers.

    The style sheet of matplotlib applies to every element of a page, so it is limited to this one. The colours are
    variables of the page's style sheet.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = _IDS.sub(rf"\g<1>{prefix}-", body)
    body = re.sub(r"<style type=\"text/css\">\*", f'<style type="text/css">#{prefix} *', body)
    body = body.replace(INK, "currentColor").replace(BACKGROUND, "var(--card)")
    for number, colour in enumerate(SERIES, 1):
        body = body.replace(colour, f"var(--plot-{number})")
    opening = f'<svg id="{prefix}" role="img" aria-label="{html.escape(about, quote=True)}"'
    return body.replace("<svg", opening, 1)


def known_format(file: Path) -> str:
    """Return the format, which is the ending of the file's name; ReproError for an unknown format."""
    ending = file.suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise ReproError(Problem("unknown picture format", f"{file}:", f"end the name in .{', .'.join(FORMATS)}"))
    return ending


# ---- axes: positions of cases, ticks that do not touch, ranges, numbers as text ---------------------------------

_WIDEST, _BESIDE_AXES = 14.0, 0.85
"""Widths in inches: the widest picture, and its part beside the axes."""
_TICK_SIZE, _TICK_PAD = 8, 3.5
"""Size of a tick's label, and its distance from the tick, in points."""
_TICK_LINE_POINTS, _GAP_PIXELS = 11.2, 2
"""Height of a line of a tick's label, and half the smallest distance between two labels."""
_POINTS = 72
"""Points in an inch."""
_MARGIN = 0.05
_FEW, _MANY = 9, 60
_STEPS = 4


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of cases on the x axis: the index of the label, or the number on a numeric axis.

    With `by_number` the values are sorted as numbers; other values keep the order of the file. A tick has the label and
    the values of further axes below it, each in a line.
    """

    entry: Entry
    of: Sequence[str]
    scale: str
    labels: tuple[str, ...]
    ticks: tuple[str, ...]
    by_number: bool

    @property
    def lines(self) -> int:
        """Return the number of lines of the longest tick."""
        return 1 + max(tick.count("\n") for tick in self.ticks)

    def __call__(self, result: Result) -> float:
        """Return the position of a case."""
        if self.scale == "even":
            return self.labels.index(_label(self.entry, result, self.of))
        return result.case.number(self.of[0])


def positions_of(entry: Entry, results: Sequence[Result]) -> Positions:
    """Return the positions of the cases on the x axis."""
    axes = entry.experiment.plot
    x = axes.x
    numbers = all(type(result.case.settings.get(axis)) in (int, float) for result in results for axis in x.of)
    ordered = sorted(results, key=lambda result: [result.case.number(axis) for axis in x.of]) if numbers else results
    numeric = numbers and len(x.of) == 1 and axes.marks != "bars"
    numeric = numeric and (x.scale != "log2" or all(result.case.number(x.of[0]) > 0 for result in results))
    labels = tuple(dict.fromkeys(_label(entry, result, x.of) for result in ordered))
    shown_axes = [axis for axis in x.under if any(axis in result.case.settings for result in results)]
    under: dict[tuple[str, str], dict[str, None]] = {}
    for result in ordered:
        for axis in shown_axes:
            under.setdefault((_label(entry, result, x.of), axis), {})[value_text(entry, result, axis)] = None
    return Positions(
        entry=entry,
        of=x.of,
        scale=x.scale if numeric else "even",
        labels=labels,
        ticks=tuple("\n".join([label, *("/".join(under[label, axis]) for axis in shown_axes)]) for label in labels),
        by_number=numbers,
    )


def set_x(axes: Axes, position_of: Positions, cases: Sequence[float]) -> None:
    """Set scale, limits and a tick per case."""
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
    axes.set_xticks(cases, position_of.ticks)
    axes.tick_params(axis="x", labelsize=_TICK_SIZE, pad=_TICK_PAD)


def fit_ticks(figure: Figure, axes: Axes, position_of: Positions) -> None:
    """Change the labels of the x axis if they touch side by side.

    A numeric axis gets fewer ticks, at round numbers. On another axis every second label is lower. If these touch, too,
    all labels are turned.
    """
    lines, is_numeric, count = position_of.lines, position_of.scale != "even", len(position_of.ticks)
    if is_numeric and lines == 1 and (count > 2 * _FEW or _touch(figure, axes)):
        from matplotlib.ticker import LogLocator, MaxNLocator

        low, *_, high = axes.get_xticks()
        is_log2 = position_of.scale == "log2"
        locator = LogLocator(2, numticks=_FEW) if is_log2 else MaxNLocator(_FEW - 1, steps=[1, 2, 5, 10])
        numbers = [float(value) for value in locator.tick_values(low, high) if low <= value <= high]
        in_bytes = position_of.entry.axes[position_of.of[0]].unit == BYTES
        axes.set_xticks(numbers, [shown_bytes(number) if in_bytes else f"{number:g}" for number in numbers])
    elif count <= _MANY and _touch(figure, axes):
        for tick in axes.xaxis.get_major_ticks()[1::2]:
            tick.set_pad(_TICK_PAD + lines * _TICK_LINE_POINTS)
    if not is_numeric and (count > _MANY or _touch(figure, axes)):
        axes.tick_params(axis="x", pad=_TICK_PAD, labelrotation=90)


def _touch(figure: Figure, axes: Axes) -> bool:
    """Return whether a label of the x axis touches one of the next two."""
    figure.draw_without_rendering()
    boxes = [label.get_window_extent().padded(_GAP_PIXELS) for label in axes.get_xticklabels()]
    return any(box.overlaps(other) for number, box in enumerate(boxes) for other in boxes[number + 1 : number + 3])


def set_y(axes: Axes, panel: Panel, unit: str, as_published: bool, label: str) -> None:
    """Set label, limits and ticks of the y axis: the paper's range if all numbers are within it, else from 0."""
    y, values = panel.y, panel.values
    axes.set_ylabel(label)
    if not values:
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        return
    if y.scale == "log2" and max(values) > 0:
        low, high = min(value for value in values if value > 0), max(values)
        margin = max(2**0.5, (high / low) ** 0.05)
        axes.set_yscale("log", base=2)
        axes.minorticks_off()
        axes.set_ylim(low / margin, high * margin)
        ticks = log_numbers(low / margin, high * margin)
        axes.set_yticks(ticks, [number_text(value, unit) for value in ticks])
        return
    # An interval of two repeats may be very long and is cut off.
    ends = [min(point.high, 1.5 * point.value) for point in panel.points if point.value is not None]
    low, high = min(values), max([*values, *ends])
    bottom, top = y.range if as_published and y.range else (0.0, 0.0)
    axes.set_ylim(bottom if bottom <= low else 0.0, top if high <= top else 1.08 * high)
    if bottom <= low and high <= top:
        axes.set_yticks([bottom + (top - bottom) * step / _STEPS for step in range(_STEPS + 1)])
    axes.yaxis.set_major_formatter(lambda value, _: number_text(value, unit))


def number_text(value: float, unit: str) -> str:
    """Return the text of a tick; bytes in GB of 10^9, few bytes in kB. Numbers below 0.0001 are like 5×10⁻⁵."""
    if unit == BYTES:
        return f"{value / 1e3:g} kB" if 0 < value < 1e6 else f"{value / 1e9:g} GB"
    if 0 < abs(value) < 1e-4:
        digits, _, power = f"{value:.2e}".partition("e")
        return f"{float(digits):g}×10{str(int(power)).translate(_RAISED)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def label_on(device: str, label: str) -> str:
    """Return a label of an axis for a device. On CPU cores, each process replaces a GPU."""
    if device != "cpu":
        return label
    return re.sub(r"\bGPU(s?)\b", lambda match: "processes" if match[1] else "process", label)


_IN_DECADE = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0))


def log_numbers(low: float, high: float) -> list[float]:
    """Return about six round numbers of a logarithmic axis: `1, 2, 5, 10`, else only powers of ten, else more."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _IN_DECADE:
        numbers = [float(f"{step:g}e{decade}") for decade in decades for step in steps]
        within = [number for number in numbers if low <= number <= high]
        if len(within) > 3:
            break
    return within[:: -(-len(within) // _FEW) or 1]


def _label(entry: Entry, result: Result, of: Sequence[str]) -> str:
    values = ", ".join(value_text(entry, result, axis) for axis in of)
    return f"({values})" if len(of) > 1 else values
