"""The whole drawing: panels above each other, what stands over them and the legend below. matplotlib is loaded here."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.catalog.experiment import PAPER
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.results.compare import Result
from orchestrator.results.plot import words
from orchestrator.results.plot.axes import places, set_x, set_y, ticks
from orchestrator.results.plot.legend import legend
from orchestrator.results.plot.marks import draw_bars, draw_lines
from orchestrator.results.plot.panels import panels
from orchestrator.results.plot.style import PARAMETERS

_ONE_PANEL, _EACH_PANEL, _LINE_ABOVE, _OTHER = 2.9, 2.2, 0.17, 0.6
"""Inches that a panel alone is high, one of several, a line of text above them, and what is around all."""


def drawn(entry: Entry, scale: str, cluster: str, found: Sequence[Result]) -> Any:
    """The matplotlib figure, to be saved within the same `matplotlib_as_shipped`."""
    from matplotlib.figure import Figure

    axes_of = entry.experiment.axes
    bars = axes_of.marks == "bars"
    place = places(axes_of, found)
    shown = panels(entry, found, place, place.by_number)
    under = ticks(place, found)
    figure = Figure(figsize=(under.width, 1.0))
    every = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(every, shown, strict=True):
        axes.set_axisbelow(True)
        axes.grid(axis="y", linewidth=0.5, alpha=0.35)
        (draw_bars if bars else draw_lines)(axes, panel)
        set_x(axes, place, under, sorted({place(result) for result in found}))
        set_y(axes, panel, as_published=scale == PAPER)
        axes.label_outer()
    every[-1].set_xlabel(axes_of.x.label)
    above = words.wrapped(words.heading(entry), under.width, bold=True)
    below = words.subheading(entry, scale, cluster, found, shown, under.width)
    figure.suptitle("\n".join(above), x=0.01, ha="left", fontsize=10, fontweight="bold")
    every[0].set_title("\n".join(below), loc="left", fontsize=8)
    legend_inches = legend(figure, shown, bars, words.error_bars(found, axes_of.y.metric), under.width)
    panel_inches = _ONE_PANEL if len(shown) == 1 else _EACH_PANEL * len(shown)
    text_inches = _LINE_ABOVE * (len(above) + len(below))
    figure.set_size_inches(under.width, panel_inches + legend_inches + text_inches + _OTHER)
    return figure


def require_matplotlib() -> None:
    """ReproError where it is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ReproError(Problem("drawing needs matplotlib", mend="pip install '.[plot]'")) from None


@contextlib.contextmanager
def matplotlib_as_shipped() -> Iterator[None]:
    """Whatever this machine's settings are; what matplotlib warns of (a letter its font lacks) is not the reader's."""
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(PARAMETERS)
        yield
