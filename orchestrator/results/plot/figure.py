"""Picture of a figure on the axes of the paper: PNG, SVG, PDF, or SVG for a page."""

from __future__ import annotations

import contextlib
import html
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.catalog.experiment import PAPER, is_search
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.files import written_whole
from orchestrator.results.cases import Result
from orchestrator.results.plot import search
from orchestrator.results.plot.axes import WIDTH, label_on, positions_of, set_x, set_y, ticks
from orchestrator.results.plot.marks import draw_bars, draw_lines, legend
from orchestrator.results.plot.panels import (
    BACKGROUND,
    INK,
    PARAMETERS,
    SERIES,
    SERIES_ON_DARK,
    balanced,
    heading,
    origins,
    panels,
    setup,
    write_above,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ONE_PANEL, _EACH_PANEL, _OTHER = 2.4, 1.75, 0.35
"""Heights in inches: a single panel, one of several panels, and the label of the x axis."""
_LABEL_LETTER = 0.07
"""Width of a letter of a label in inches."""


def drawn(entry: Entry, scale: str, cluster: str, results: Sequence[Result], on_page: bool = False) -> Figure:
    """Return the matplotlib figure. It must be saved within the same `matplotlib_as_shipped`.

    A picture `on_page` has no title, scale and cluster, because the page has them.
    """
    from matplotlib.figure import Figure

    axes_of, device = entry.experiment.axes, results[0].case.device
    title = "" if on_page else entry.experiment.title
    if is_search(entry.name):
        return search.drawn(title, [] if on_page else setup(entry, scale, cluster, WIDTH), results)
    bars = axes_of.marks == "bars"
    position_of = positions_of(axes_of, results)
    shown = panels(entry, results, position_of, position_of.by_number)
    under = ticks(position_of, results)
    figure = Figure(figsize=(under.width, 1.0))
    all_axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    panel_inches = _ONE_PANEL if len(shown) == 1 else _EACH_PANEL
    for axes, panel in zip(all_axes, shown, strict=True):
        axes.set_axisbelow(True)
        axes.grid(axis="y", linewidth=0.5, alpha=0.35)
        (draw_bars if bars else draw_lines)(axes, panel)
        set_x(axes, position_of, under, sorted({position_of(result) for result in results}))
        label = "\n".join(balanced(label_on(device, panel.y.label), int(panel_inches / _LABEL_LETTER)))
        set_y(axes, panel, as_published=scale == PAPER, label=label)
        axes.label_outer()
    all_axes[-1].set_xlabel(
        "\n".join(balanced(label_on(device, axes_of.x.label), int((under.width - 0.6) / _LABEL_LETTER)))
    )
    figure.align_ylabels(all_axes)
    legend_inches = legend(figure, shown, bars, error_bars(results, axes_of.y.metric), under.width)
    height = panel_inches * len(shown) + under.height + legend_inches + _OTHER
    above = [] if on_page else setup(entry, scale, cluster, under.width)
    write_above(figure, title, [*above, origins(entry, results, shown)], under.width, height)
    return figure


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

    Every id begins with `prefix`, so that a page can have several pictures. The background and the text have the
    colours of the page; on a dark page (by its `color-scheme`) the lines are lighter.
    """
    text = io.StringIO()
    with matplotlib_as_shipped():
        figure = drawn(entry, scale, cluster, results, on_page=True)
        figure.savefig(text, format="svg", metadata=_NO_DATE["svg"], transparent=True)
    return for_page(text.getvalue(), prefix, f"{heading(entry)}, scale {scale} on {cluster}")


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


def known_format(file: Path) -> str:
    """Return the format, which is the ending of the file's name; ReproError for an unknown format."""
    ending = file.suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise ReproError(Problem("unknown picture format", f"{file}:", f"end the name in .{', .'.join(FORMATS)}"))
    return ending
