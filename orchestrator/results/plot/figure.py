"""Picture of a figure on the axes of the paper: PNG, SVG, PDF, or SVG for a page."""

from __future__ import annotations

import contextlib
import html
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.catalog.experiment import PAPER, PublishedPoint
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.files import written_whole
from orchestrator.results.cases import Result
from orchestrator.results.plot.marks import draw_bars, draw_lines, legend
from orchestrator.results.plot.panels import Panel, panels, positions_of, set_x, set_y, ticks
from orchestrator.results.plot.style import BACKGROUND, INK, PARAMETERS, SERIES, SERIES_ON_DARK

_ONE_PANEL, _EACH_PANEL, _LINE_ABOVE, _OTHER = 2.9, 2.2, 0.17, 0.6
"""Inches that a panel alone is high, one of several, a line of text above them, and what is around all."""


def drawn(entry: Entry, scale: str, cluster: str, results: Sequence[Result]) -> Any:
    """Return the matplotlib figure, to be saved within the same `matplotlib_as_shipped`."""
    from matplotlib.figure import Figure

    axes_of = entry.experiment.axes
    bars = axes_of.marks == "bars"
    position_of = positions_of(axes_of, results)
    shown = panels(entry, results, position_of, position_of.by_number)
    under = ticks(position_of, results)
    figure = Figure(figsize=(under.width, 1.0))
    every = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(every, shown, strict=True):
        axes.set_axisbelow(True)
        axes.grid(axis="y", linewidth=0.5, alpha=0.35)
        (draw_bars if bars else draw_lines)(axes, panel)
        set_x(axes, position_of, under, sorted({position_of(result) for result in results}))
        set_y(axes, panel, as_published=scale == PAPER)
        axes.label_outer()
    every[-1].set_xlabel(axes_of.x.label)
    above = wrapped(heading(entry), under.width, bold=True)
    below = subheading(entry, scale, cluster, results, shown, under.width)
    figure.suptitle("\n".join(above), x=0.01, ha="left", fontsize=10, fontweight="bold")
    every[0].set_title("\n".join(below), loc="left", fontsize=8)
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
_NO_DATE: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""The same data gives the same bytes."""
_DOTS_PER_INCH = 200


def plot(entry: Entry, scale: str, cluster: str, results: Sequence[Result], file: Path) -> None:
    """Draw verified results beside published numbers into `file`; its ending is the format."""
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
    """Return the format that the name of the file ends in; ReproError for an unknown one."""
    ending = file.suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise ReproError(Problem(f"{file}: no such picture format", hint=f"end it in .{', .'.join(FORMATS)}"))
    return ending


_IDS = re.compile(r'(\bid="|url\(#|href="#)')
_DARK_PAPER = "#16181b"


def for_page(svg: str, prefix: str, about: str) -> str:
    """Return the <svg> element alone, with `about` as its text for readers who do not see it.

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
    light = "; ".join(f"{name}: {colour}" for name, colour, _ in names)
    both = "; ".join(f"{name}: light-dark({one}, {other})" for name, one, other in names)
    choosing = f"@supports (color: light-dark(#fff, #000)) {{ #{prefix} {{ {both} }} }}"
    return f" <style>#{prefix} {{ {light} }} {choosing}</style>"


_LETTER, _BOLD_LETTER = 0.06, 0.085
"""Inches, of the lines below the first and of the first."""


def heading(entry: Entry) -> str:
    """Return `SC21 Figure 13: Pipeline- against tensor-parallel size ...`."""
    return f"{entry.paper.venue} {entry.experiment.figure}: {entry.experiment.title}"


def subheading(
    entry: Entry, scale: str, cluster: str, results: Sequence[Result], panels: Sequence[Panel], width: float
) -> list[str]:
    """Return scale and cluster, and the GPUs and programs of the numbers if they differ."""
    about = entry.experiment.scales[scale].about if scale in entry.experiment.scales else None
    where = f"scale {scale} on {cluster}{f': {about}' if about else ''}"
    return [*wrapped(where, width), *wrapped(origins(entry, results, panels), width)]


def origins(entry: Entry, results: Sequence[Result], panels: Sequence[Panel]) -> str:
    """Return `published: A100; measured: H200` if the GPUs differ, and likewise the programs."""
    points = [spot.published for panel in panels for spot in panel.points if spot.published]
    is_measured = any(spot.value is not None for panel in panels for spot in panel.points)
    own = next((result.instead_of for result in results if result.instead_of), None)
    ran = results[0].case.workload if own else None
    if not points:
        return f"measured with {ran} instead of {own}" if own and is_measured else ""
    whose, ours = _gpus(entry, points), results[0].gpu
    if not is_measured:
        return f"published: {_on(own, whose)}" if own or whose else ""
    if not own and _same(whose, ours):
        return ""
    return f"published: {_on(own, whose or 'unknown GPU')}; measured: {_on(ran, ours or 'unknown GPU')}"


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


def _same(published: str | None, measured: str | None) -> bool:
    return published is not None and measured is not None and (published in measured or measured in published)


def _on(program: str | None, gpu: str | None) -> str:
    return " on ".join(filter(None, (program, gpu)))


def wrapped(text: str, width: float, bold: bool = False) -> list[str]:
    """Return the text in lines that fit a picture of this width, in inches."""
    return textwrap.wrap(text, int((width - 0.1) / _BOLD_LETTER if bold else (width - 0.7) / _LETTER))
