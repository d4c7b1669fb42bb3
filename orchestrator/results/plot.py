"""The figure as a picture, on the paper's own axes. matplotlib is loaded here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.catalog.experiment import PAPER
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.results.compare import Result, lines
from orchestrator.results.export import written_whole

_MARKERS = "osD^v"


def plot(entry: Entry, scale: str, cluster: str, found: Sequence[Result], file: Path) -> None:
    """Draw the verified results into `file`; its ending says the format (png, svg, pdf)."""
    pyplot = _pyplot(file)
    axes_of, metric = entry.experiment.axes, entry.experiment.axes.y.metric
    ticks = list(dict.fromkeys(_x_label(result, axes_of.x.of) for result in found))
    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), dpi=150)
    for index, (name, line) in enumerate(_lines(entry, found).items()):
        marker = _MARKERS[index % len(_MARKERS)]
        _draw_measured(axes, line, metric, ticks, axes_of.x.of, name, marker)
        _draw_published(axes, line, ticks, axes_of.x.of, name, marker, f"C{index}")
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlim(-0.4, len(ticks) - 0.6)
    axes.set_xlabel(axes_of.x.label)
    axes.set_ylabel(axes_of.y.label)
    if scale == PAPER and axes_of.y.range:
        axes.set_ylim(*axes_of.y.range)
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(f"{entry.paper.venue} {entry.experiment.figure}, scale {scale} on {cluster}", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8)
    about = entry.experiment.scales[scale].about if scale in entry.experiment.scales else None
    figure.text(0.01, 0.01, about or entry.experiment.title, fontsize=7, color="0.35")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    with written_whole(file) as part:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(part)
    pyplot.close(figure)


def _draw_measured(
    axes: Any, line: Sequence[Result], metric: str, ticks: list[str], of: Sequence[str], name: str, marker: str
) -> None:
    known = [result for result in line if result.value(metric) is not None]
    at = [ticks.index(_x_label(result, of)) for result in known]
    values = [result.value(metric) for result in known]
    spreads = [result.metrics[metric].spread or 0.0 for result in known]
    axes.errorbar(at, values, yerr=spreads, marker=marker, capsize=3, label=name)


def _draw_published(
    axes: Any, line: Sequence[Result], ticks: list[str], of: Sequence[str], name: str, marker: str, colour: str
) -> None:
    published = [(ticks.index(_x_label(result, of)), result.published) for result in line if result.published]
    if not published:
        return
    how = sorted({point.how + ("" if point.confirmed else ", unconfirmed") for _, point in published})
    label = f"{name}, paper ({'; '.join(how)})"
    values = [point.value for _, point in published]
    axes.plot([x for x, _ in published], values, marker, mfc="none", color=colour, alpha=0.6, label=label)


def _lines(entry: Entry, found: Sequence[Result]) -> dict[str, list[Result]]:
    series = entry.experiment.axes.series
    named = lines(entry, found).items()
    return {f"{series.label} = {value}" if series else entry.experiment.figure: results for value, results in named}


def _x_label(result: Result, of: Sequence[str]) -> str:
    values = ", ".join(str(result.case.value(axis)) for axis in of)
    return f"({values})" if len(of) > 1 else values


def _pyplot(file: Path) -> Any:
    try:
        import matplotlib
    except ImportError:
        mend = "pip install matplotlib"
        raise ReproError(Problem("drawing needs matplotlib", mend=mend)) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    known = ("png", "svg", "pdf")
    if file.suffix.lstrip(".") not in known:
        raise ReproError(Problem(f"{file}: no such picture format", mend=f"end it in .{', .'.join(known)}"))
    return pyplot
