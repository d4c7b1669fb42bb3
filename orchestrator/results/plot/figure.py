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
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.catalog.case import shown_value
from orchestrator.catalog.experiment import PAPER, SEARCHES
from orchestrator.catalog.library import Entry
from orchestrator.catalog.plot_axes import Axes as FigureAxes
from orchestrator.catalog.published import PublishedPoint
from orchestrator.errors import Problem, ReproError
from orchestrator.files import written_whole
from orchestrator.results.cases import Result
from orchestrator.results.plot import search
from orchestrator.results.plot.marks import draw_bars, draw_lines, legend
from orchestrator.results.plot.panels import BACKGROUND, INK, PARAMETERS, SERIES, SERIES_ON_DARK, Panel, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ONE_PANEL, _EACH_PANEL, _LINE_ABOVE, _OTHER = 2.9, 2.2, 0.17, 0.6
"""Heights in inches: a single panel, one of several panels, a line of text above them, and the margins."""


def drawn(entry: Entry, scale: str, cluster: str, results: Sequence[Result]) -> Figure:
    """Return the matplotlib figure. It must be saved within the same `matplotlib_as_shipped`."""
    from matplotlib.figure import Figure

    axes_of = entry.experiment.axes
    if entry.name.startswith(f"{SEARCHES}/"):
        return search.drawn(wrapped(heading(entry), search.WIDTH, bold=True), cluster, results)
    bars = axes_of.marks == "bars"
    position_of = positions_of(axes_of, results)
    shown = panels(entry, results, position_of, position_of.by_number)
    under = ticks(position_of, results)
    figure = Figure(figsize=(under.width, 1.0))
    all_axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, shown, strict=True):
        axes.set_axisbelow(True)
        axes.grid(axis="y", linewidth=0.5, alpha=0.35)
        (draw_bars if bars else draw_lines)(axes, panel)
        set_x(axes, position_of, under, sorted({position_of(result) for result in results}))
        set_y(axes, panel, as_published=scale == PAPER)
        axes.label_outer()
    all_axes[-1].set_xlabel(axes_of.x.label)
    above = wrapped(heading(entry), under.width, bold=True)
    below = subheading(entry, scale, cluster, results, shown, under.width)
    figure.suptitle("\n".join(above), x=0.01, ha="left", fontsize=10, fontweight="bold")
    all_axes[0].set_title("\n".join(below), loc="left", fontsize=8)
    legend_inches = legend(figure, shown, bars, error_bars(results, axes_of.y.metric), under.width)
    panel_inches = _ONE_PANEL if len(shown) == 1 else _EACH_PANEL * len(shown)
    text_inches = _LINE_ABOVE * (len(above) + len(below))
    figure.set_size_inches(under.width, panel_inches + legend_inches + text_inches + _OTHER)
    return figure


def require_matplotlib() -> None:
    """Raise ReproError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ReproError(Problem("drawing needs matplotlib", hint="pip install '.[plot]'")) from None


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
_DOTS_PER_INCH = 200


def plot(entry: Entry, scale: str, cluster: str, results: Sequence[Result], file: Path) -> None:
    """Draw verified results and published numbers into `file`. Its ending is the format."""
    ending = known_format(file)
    with matplotlib_as_shipped():
        figure = drawn(entry, scale, cluster, results)
        with written_whole(file) as part:
            figure.savefig(part, format=ending, dpi=_DOTS_PER_INCH, metadata=_NO_DATE[ending])


def picture(entry: Entry, scale: str, cluster: str, results: Sequence[Result], prefix: str = "plot") -> str:
    """Return the picture as an <svg> element for a page; no case needs to be verified.

    Every id begins with `prefix`, so that a page can have several pictures. The background and the text have the
    colours of the page; on a dark page (by its `color-scheme`) the lines are lighter.
    """
    text = io.StringIO()
    with matplotlib_as_shipped():
        figure = drawn(entry, scale, cluster, results)
        figure.savefig(text, format="svg", metadata=_NO_DATE["svg"], transparent=True)
    return for_page(text.getvalue(), prefix, f"{heading(entry)}, scale {scale} on {cluster}")


def known_format(file: Path) -> str:
    """Return the format, which is the ending of the file's name; ReproError for an unknown format."""
    ending = file.suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise ReproError(Problem("unknown picture format", f"{file}:", f"end the name in .{', .'.join(FORMATS)}"))
    return ending


_IDS = re.compile(r'(\bid="|url\(#|href="#)')
_DARK_PAPER = "#16181b"


def for_page(svg: str, prefix: str, about: str) -> str:
    """Return the <svg> element alone, with `about` as its text for screen readers.

    The style sheet of matplotlib applies to every element of a page, so it is limited to this one.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = _IDS.sub(rf"\g<1>{prefix}-", body)
    body = re.sub(r"<style type=\"text/css\">\*", f'<style type="text/css">#{prefix} *', body)
    body = body.replace(INK, "currentColor").replace(BACKGROUND, "var(--plot-paper)")
    for number, colour in enumerate(SERIES, 1):
        body = body.replace(colour, f"var(--plot-{number})")
    opening = f'<svg id="{prefix}" role="img" aria-label="{html.escape(about, quote=True)}"'
    return body.replace("<svg", opening, 1).replace("<defs>", f"{_colours(prefix)}\n <defs>", 1)


def _colours(prefix: str) -> str:
    """Return the light colours, and for browsers that support it those of the page's `color-scheme`."""
    names = [("--plot-paper", "#ffffff", _DARK_PAPER)]
    names += [
        (f"--plot-{number}", light, dark)
        for number, (light, dark) in enumerate(zip(SERIES, SERIES_ON_DARK, strict=True), 1)
    ]
    light_only = "; ".join(f"{name}: {colour}" for name, colour, _ in names)
    both = "; ".join(f"{name}: light-dark({light}, {dark})" for name, light, dark in names)
    if_supported = f"@supports (color: light-dark(#fff, #000)) {{ #{prefix} {{ {both} }} }}"
    return f" <style>#{prefix} {{ {light_only} }} {if_supported}</style>"


_LETTER, _BOLD_LETTER = 0.06, 0.085
"""Width of a letter in inches, in the subheading and in the heading."""


def heading(entry: Entry) -> str:
    """Return `SC21 Figure 13: Pipeline- against tensor-parallel size ...`."""
    return f"{entry.paper.venue} {entry.experiment.figure}: {entry.experiment.title}"


def subheading(
    entry: Entry, scale: str, cluster: str, results: Sequence[Result], panels: Sequence[Panel], width: float
) -> list[str]:
    """Return scale and cluster, and the GPUs and programs of the numbers if they differ."""
    about = entry.experiment.scales[scale].about if scale in entry.experiment.scales else None
    setup = f"scale {scale} on {cluster}{f': {about}' if about else ''}"
    return [*wrapped(setup, width), *wrapped(origins(entry, results, panels), width)]


def origins(entry: Entry, results: Sequence[Result], panels: Sequence[Panel]) -> str:
    """Return `published: A100; measured: H200` if the GPUs differ, and likewise the programs."""
    points = [point.published for panel in panels for point in panel.points if point.published]
    is_measured = any(point.value is not None for panel in panels for point in panel.points)
    own = next((result.instead_of for result in results if result.instead_of), None)
    ran = results[0].case.workload if own else None
    if not points:
        return f"measured with {ran} instead of {own}" if own and is_measured else ""
    published_gpus, gpu = _gpus(entry, points), results[0].gpu
    if not is_measured:
        return f"published: {_on(own, published_gpus)}" if own or published_gpus else ""
    if not own and _is_same_gpu(published_gpus, gpu):
        return ""
    return f"published: {_on(own, published_gpus or 'unknown GPU')}; measured: {_on(ran, gpu or 'unknown GPU')}"


def error_bars(results: Sequence[Result], metric: str) -> str:
    """Return what the error bars span, for the legend; empty without error bars."""
    metrics = [measured for result in results if (measured := result.metric(metric)) is not None]
    several = [measured for measured in metrics if measured.interval_low is not None]
    single = [measured for measured in metrics if measured.interval_low is None and measured.spread]
    if several and single:
        return "95 % interval of repeats, else quartiles"
    if several:
        return "95 % confidence interval of the repeats"
    return "middle half of the iterations" if single else ""


def _gpus(entry: Entry, points: Sequence[PublishedPoint]) -> str | None:
    """Return the GPUs of the published numbers; without a GPU of its own, a number has the paper's."""
    machine = entry.paper.machine.gpu if entry.paper.machine else None
    named = dict.fromkeys(point.gpu or machine for point in points)
    return ", ".join(filter(None, named)) or None


def _is_same_gpu(published: str | None, measured: str | None) -> bool:
    return published is not None and measured is not None and (published in measured or measured in published)


def _on(program: str | None, gpu: str | None) -> str:
    return " on ".join(filter(None, (program, gpu)))


def wrapped(text: str, width: float, bold: bool = False) -> list[str]:
    """Return the text in lines that fit a picture of this width, in inches."""
    return textwrap.wrap(text, int((width - 0.1) / _BOLD_LETTER if bold else (width - 0.7) / _LETTER))


WIDTH = 6.6
"""Width of most pictures, in inches."""
_WIDEST, _WIDEST_TURNED = 9.0, 14.0
_BESIDE_AXES = 1.0
_TICK_LETTER, _TICK_LINE = 0.063, 0.14
"""Size of a tick's label in inches: width of a letter, and height of a line."""
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

    With `by_number` the values are sorted as numbers; other values keep the order of the file. `under` are the values
    of further axes below each label.
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


def positions_of(axes: FigureAxes, results: Sequence[Result]) -> Positions:
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
    turned = _BESIDE_AXES + len(labels) * lines * _TICK_LINE
    return Ticks(positions, labels, min(max(WIDTH, turned), _WIDEST_TURNED), turned=True)


def set_x(axes: Axes, position_of: Positions, shown: Ticks, cases: Sequence[float]) -> None:
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


def set_y(axes: Axes, panel: Panel, as_published: bool) -> None:
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
    return [min(point.high, 1.5 * point.value) for point in panel.points if point.value is not None]


def number_text(value: float, metric: str) -> str:
    """Return the text of a tick; bytes in GB of 10^9."""
    if metric.endswith("_bytes"):
        return f"{value / 1e9:g} GB"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _set_log2(axes: Axes, low: float, high: float, metric: str) -> None:
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
    inches = [_TICK_LETTER * max(map(len, label.split("\n"))) for label in labels]
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
