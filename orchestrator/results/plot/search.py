"""Picture of a search: throughput over the hours that it used, and over memory with the Pareto front.

Throughput is in sequences per second: the FLOPs of SC21 eq. 3 count recomputation as work, so they do not compare
candidates with different recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from orchestrator.results.cases import Result
from orchestrator.results.plot.panels import DRAFT_INCHES, WIDTH, line_style, write_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = 2.1
"""Height of a panel in inches."""
_MEASURED, _BEST = line_style(0), line_style(1)


@dataclass(frozen=True, slots=True)
class Trial:
    """Measured candidate: its sequences per second, the hours of all jobs until its end, and its memory in GB."""

    name: str
    sequences_per_s: float
    hours: float
    memory_gb: float | None


def trials_of(results: Sequence[Result]) -> list[Trial]:
    """Return the measured candidates in the order in which their jobs ended."""
    rows = [(result.row, result) for result in results if result.row is not None and result.row.ended_at is not None]
    trials, hours = [], 0.0
    for row, result in sorted(rows, key=lambda pair: str(pair[0].ended_at)):
        hours += row.gpu_hours or 0.0
        rate, used = result.value("sequences_per_s"), result.value("max_memory_allocated_bytes")
        if rate is not None:
            trials.append(Trial(result.case.name, rate, hours, None if used is None else used / 1e9))
    return trials


def best_so_far(trials: Sequence[Trial]) -> list[float]:
    """Return, for each trial, the fastest rate until then."""
    return list(accumulate((trial.sequences_per_s for trial in trials), max))


def pareto_front(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials than which no other is faster with as little memory, least memory first."""
    front: list[Trial] = []
    for trial in sorted(trials, key=lambda each: (each.memory_gb or 0.0, -each.sequences_per_s)):
        if trial.memory_gb is not None and (not front or trial.sequences_per_s > front[-1].sequences_per_s):
            front.append(trial)
    return front


def drawn(title: str, above: Sequence[str], results: Sequence[Result]) -> Figure:
    """Return the matplotlib figure: two panels, or the first one only if no memory was measured."""
    from matplotlib.figure import Figure

    trials = trials_of(results)
    front = pareto_front(trials)
    figure = Figure(figsize=(WIDTH, DRAFT_INCHES))
    panels = figure.subplots(2 if front else 1, 1, squeeze=False)[:, 0]
    on_cpu = bool(results) and results[0].case.device == "cpu"
    _draw_hours(panels[0], trials, "Process-hours on CPU cores" if on_cpu else "GPU-hours")
    fastest = max(trials, key=lambda trial: trial.sequences_per_s, default=None)
    if front:
        _draw_memory(panels[1], trials, front)
    for axes in panels:
        axes.set_axisbelow(True)
        axes.grid(axis="y", linewidth=0.5, alpha=0.35)
        axes.set_ylim(0, 1.08 * max((trial.sequences_per_s for trial in trials), default=1.0))
        axes.set_ylabel("Sequences per second")
        axes.legend(fontsize=8, frameon=False, loc="lower right")
        axes.tick_params(labelsize=8)
    found = [f"fastest: {fastest.name}"] if fastest is not None else []
    write_above(figure, title, [*above, *found], _PANEL)
    return figure


def _draw_hours(axes: Axes, trials: Sequence[Trial], unit: str) -> None:
    hours = [trial.hours for trial in trials]
    axes.plot(hours, best_so_far(trials), drawstyle="steps-post", color=_BEST.colour, label="fastest so far")
    axes.plot(
        hours, [trial.sequences_per_s for trial in trials], "o", color=_MEASURED.colour, markersize=4, label="measured"
    )
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{unit} of the jobs shown")


def _draw_memory(axes: Axes, trials: Sequence[Trial], front: Sequence[Trial]) -> None:
    axes.plot(*_places(trials), "o", color=_MEASURED.colour, markersize=4, label="measured")
    axes.plot(
        *_places(front),
        drawstyle="steps-post",
        color=_BEST.colour,
        label="no candidate is faster\nwith as little memory",
    )
    axes.set_xlabel("Largest memory of a GPU (GB)")


def _places(trials: Sequence[Trial]) -> tuple[list[float], list[float]]:
    """Return memory and rate of the trials whose memory was measured."""
    pairs = [(trial.memory_gb, trial.sequences_per_s) for trial in trials if trial.memory_gb is not None]
    return [memory for memory, _ in pairs], [rate for _, rate in pairs]
