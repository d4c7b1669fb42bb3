"""The figure as a picture, on the paper's own axes. matplotlib is loaded here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.catalog.case import shown_value
from orchestrator.catalog.experiment import PAPER
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.results.compare import Result, lines
from orchestrator.results.export import written_whole

_MARKERS = "osD^v"
_MOST_UPRIGHT = 70
"""Letters that fit below the picture side by side; longer labels are turned."""
_MOST_TICKS = 12


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a case stands on the x axis: at its place among the labels, or at its number on a numeric axis.

    Numbers stand in their order, words in that of the file; `joined` says whether a line between two means anything.
    """

    of: Sequence[str]
    scale: str
    labels: Sequence[str]
    joined: bool

    def __call__(self, result: Result) -> float:
        if self.scale == "even":
            return self.labels.index(_x_label(result, self.of))
        return result.case.number(self.of[0])


def plot(entry: Entry, scale: str, cluster: str, found: Sequence[Result], file: Path) -> None:
    """Draw the verified results into `file`; its ending says the format (png, svg, pdf)."""
    pyplot = _pyplot(file)
    axes_of = entry.experiment.axes
    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), dpi=150)
    place = _place(entry, found)
    for index, (name, line) in enumerate(_lines(entry, found).items()):
        style = {"marker": _MARKERS[index % len(_MARKERS)], "color": f"C{index}"}
        ordered = sorted(line, key=place)
        _draw_measured(axes, ordered, axes_of.y.metric, place, {**style, "label": name})
        _draw_published(axes, ordered, place, {**style, "label": name})
        _draw_out_of_memory(axes, ordered, place, style["color"])
    _set_x(axes, place, found)
    axes.set_xlabel(axes_of.x.label)
    axes.set_ylabel(axes_of.y.label)
    if scale == PAPER and axes_of.y.range:
        axes.set_ylim(*axes_of.y.range)
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(f"{entry.paper.venue} {entry.experiment.figure}, scale {scale} on {cluster}", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    _legend(axes)
    about = entry.experiment.scales[scale].about if scale in entry.experiment.scales else None
    figure.text(0.01, 0.01, about or entry.experiment.title, fontsize=7, color="0.35")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    with written_whole(file) as part:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(part)
    pyplot.close(figure)


def _place(entry: Entry, found: Sequence[Result]) -> _Place:
    x = entry.experiment.axes.x
    numbers = all(_is_number(result, axis) for result in found for axis in x.of)
    ordered = sorted(found, key=lambda result: [result.case.number(axis) for axis in x.of]) if numbers else found
    labels = list(dict.fromkeys(_x_label(result, x.of) for result in ordered))
    return _Place(x.of, x.scale if numbers and len(x.of) == 1 else "even", labels, numbers)


def _set_x(axes: Any, place: _Place, found: Sequence[Result]) -> None:
    if place.scale == "even":
        axes.set_xticks(range(len(place.labels)), place.labels)
        axes.set_xlim(-0.4, len(place.labels) - 0.6)
        if sum(map(len, place.labels)) > _MOST_UPRIGHT:
            axes.tick_params(axis="x", labelrotation=90 if len(place.labels) > _MOST_TICKS else 20, labelsize=7)
        return
    at = sorted({place(result) for result in found})
    if place.scale == "log2" and at[0] > 0:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    if len(at) <= _MOST_TICKS:
        axes.set_xticks(at, [f"{value:g}" for value in at])


def _draw_measured(axes: Any, line: Sequence[Result], metric: str, place: _Place, style: dict[str, str]) -> None:
    known = [(result, found) for result in line if (found := result.metric(metric)) is not None]
    at, values = [place(result) for result, _ in known], [found.value for _, found in known]
    spreads = [found.spread or 0.0 for _, found in known]
    joined = place.joined and len(set(at)) == len(at)
    axes.errorbar(at, values, yerr=spreads, capsize=3, linestyle="-" if joined else "none", **style)


def _draw_published(axes: Any, line: Sequence[Result], place: _Place, style: dict[str, str]) -> None:
    published = [(place(result), result.published) for result in line if result.published]
    if not published:
        return
    how = sorted({point.how + ("" if point.confirmed else ", unconfirmed") for _, point in published})
    style = style | {"label": f"{style['label']}, paper ({'; '.join(how)})"}
    values = [point.value for _, point in published]
    axes.plot([x for x, _ in published], values, linestyle="none", mfc="none", ms=8, alpha=0.6, zorder=3, **style)


def _draw_out_of_memory(axes: Any, line: Sequence[Result], place: _Place, colour: str) -> None:
    """A cross at the bottom for every case that ran out of memory as the source says, or was not tried."""
    at = [place(result) for result in line if result.expects_oom and (result.row is None or result.ran_out_of_memory)]
    if at:
        bottom = axes.get_xaxis_transform()
        axes.plot(at, [0.03] * len(at), "x", color=colour, transform=bottom, label="OOM (published)")


def _legend(axes: Any) -> None:
    """One entry for a label, however many lines have it."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(reversed(labels), reversed(handles), strict=True))
    named = dict.fromkeys(labels)
    axes.legend([once[label] for label in named], list(named), fontsize=8 if len(named) <= 4 else 7)


def _lines(entry: Entry, found: Sequence[Result]) -> dict[str, list[Result]]:
    """The lines as the paper calls them, else by the value that they share."""
    series = entry.experiment.axes.series
    if series is None:
        return {entry.experiment.figure: list(found)}
    named: dict[str, list[Result]] = {}
    for value, line in lines(entry, found).items():
        shown = "none" if value is None else shown_value(value)
        named[series.names.get(shown, f"{series.label} = {shown}")] = line
    return named


def _x_label(result: Result, of: Sequence[str]) -> str:
    values = ", ".join(_shown(result, axis) for axis in of)
    return f"({values})" if len(of) > 1 else values


def _shown(result: Result, axis: str) -> str:
    value = result.case.settings.get(axis)
    return "none" if value is None else shown_value(value)


def _is_number(result: Result, axis: str) -> bool:
    value = result.case.settings.get(axis)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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
