"""Picture of a search: throughput over the hours of the jobs, and over memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from matplotlib.figure import Figure

from orchestrator.results.cases import Result
from orchestrator.results.plot.panels import DRAFT_INCHES, WIDTH, line_style, write_above

_SEARCH_PANEL = 2.1
"""Height of a panel in inches."""


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


def search_drawn(title: str, above: Sequence[str], results: Sequence[Result]) -> Figure:
    """Return the figure of a search: throughput over the hours used, and over memory with the Pareto front.

    The second panel is missing if no memory was measured. Throughput is in sequences per second: the FLOPs of SC21
    eq. 3 count recomputation as work, so they do not compare candidates with different recomputation.
    """
    trials = trials_of(results)
    rates, front = [trial.sequences_per_s for trial in trials], pareto_front(trials)
    figure = Figure(figsize=(WIDTH, DRAFT_INCHES))
    all_axes = figure.subplots(2 if front else 1, 1, squeeze=False)[:, 0]
    on_cpu = bool(results) and results[0].case.device == "cpu"
    hours = [trial.hours for trial in trials]
    unit = "Process-hours on CPU cores" if on_cpu else "GPU-hours"
    shown = [(hours, hours, best_so_far(trials), "fastest so far", f"{unit} of the jobs shown")]
    if front:
        of_all, of_front = ([trial.memory_gb or math.nan for trial in some] for some in (trials, front))
        label = "no candidate is faster\nwith as little memory"
        front_rates = [trial.sequences_per_s for trial in front]
        shown.append((of_all, of_front, front_rates, label, "Largest memory of a GPU (GB)"))
    for axes, (x, x_of_best, best, best_label, x_label) in zip(all_axes, shown, strict=True):
        axes.plot(x_of_best, best, drawstyle="steps-post", color=line_style(1).colour, label=best_label)
        axes.plot(x, rates, "o", color=line_style(0).colour, markersize=4, label="measured")
        axes.set_xlabel(x_label)
        axes.set_ylim(0, 1.08 * max(rates, default=1.0))
        axes.set_ylabel("Sequences per second")
        axes.legend(fontsize=8, frameon=False, loc="lower right")
        axes.tick_params(labelsize=8)
    all_axes[0].set_xlim(left=0)
    fastest = max(trials, key=lambda trial: trial.sequences_per_s, default=None)
    write_above(figure, title, [*above, *([f"fastest: {fastest.name}"] if fastest is not None else [])], _SEARCH_PANEL)
    return figure
