"""Fits of the time model's constants to published and measured times.

Rows 1, 3, 5, ... of most sets of `benchmarks.measured_times.rows` are fitted, in the order of their files and of the
rows in each file: the constants of the papers to SC21 table 1, ATC'24 figure 9 and three batch sizes of SC21's figures
12 and 18; with them, those of `pretrain` to its times on one, two and four H200, its share of H100 to figures 13 and
15 on four H100, those of the host and of H100 to the tutorials without core-tp-pp, and that of Megatron-LM's own layers
to two of three times. No other time is fitted. Host-bound times of `pretrain` are only shown.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.measured_times import (
    ATC24,
    H100_QUAD,
    H200,
    H200_QUAD,
    LOCAL_LAYERS,
    SC21,
    Row,
    rows,
    schedules,
    tutorials,
)
from orchestrator.megatron.time_constants import Constants

START = Constants(0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 1.0, 0.7, 0.7, 0.7, 7.0, 5.0, 0.8, 9.0, 0.15, 0.7, 9.0, 0.7, 7.0)
OF_PRETRAIN = ("gh100_gemm_share", "overlap_cost", "accumulated_share", "step_ms")
OF_TUTORIALS = (
    "host_layer_ms",
    "host_step_ms",
    "host_router_ms",
    "host_expert_ms",
    "h100_gemm_share",
    "host_stage_ms",
)
OF_H100, OF_LOCAL_LAYERS = ("pretrain_h100_gemm_share",), ("host_local_ms",)
_OTHERS = (*OF_PRETRAIN, *OF_TUTORIALS, *OF_H100, *OF_LOCAL_LAYERS)
OF_PAPERS = tuple(field.name for field in dataclasses.fields(Constants) if field.name not in _OTHERS)


def fit() -> Constants:
    """Return the papers' constants, fitted first, and with them those of `pretrain`, tutorials and local layers."""
    sets = rows()
    papers = refit([sets[SC21], sets[ATC24], schedules()], OF_PAPERS, START)
    own = refit([sets[H200], sets[H200_QUAD]], OF_PRETRAIN, papers)
    own = refit([sets[H100_QUAD]], OF_H100, own)
    return refit([sets[LOCAL_LAYERS]], OF_LOCAL_LAYERS, refit([tutorials()], OF_TUTORIALS, own))


def refit(
    sets: Sequence[Sequence[Row]], names: Sequence[str], start: Constants, smallest_gain: float = 1e-10
) -> Constants:
    """Return the least squares of the fitted rows' relative errors. Every set has the same weight.

    The search ends when the sums of squares of its points differ by less than `smallest_gain`.
    """
    scale = [getattr(start, name) for name in names]
    halves = [half for half in ([row for row in rows if row.fitted] for rows in sets) if half]

    def constants(point: Sequence[float]) -> Constants:
        return replace(start, **{name: x * size for name, x, size in zip(names, point, scale, strict=True)})

    def loss(point: Sequence[float]) -> float:
        if min(point) <= 0:
            return float("inf")
        return sum(statistics.fmean(row.error(constants(point)) ** 2 for row in fitted) for fitted in halves)

    return constants(nelder_mead(loss, [1.0] * len(names), smallest_gain))


def nelder_mead(loss: Callable[[Sequence[float]], float], start: list[float], smallest_gain: float) -> list[float]:
    """Minimize by the simplex search of Nelder and Mead (1965)."""
    corners = [start] + [[x * (1.1 if i == j else 1) for j, x in enumerate(start)] for i in range(len(start))]
    points = sorted((loss(corner), corner) for corner in corners)
    for _ in range(600):
        worst_loss, worst = points[-1]
        if worst_loss - points[0][0] < smallest_gain:
            break
        middle = [statistics.fmean(axis) for axis in zip(*(corner for _, corner in points[:-1]), strict=True)]

        away = [m - w for m, w in zip(middle, worst, strict=True)]
        reflected, expanded, contracted = (
            [m + share * a for m, a in zip(middle, away, strict=True)] for share in (1, 2, -0.5)
        )
        new = (loss(reflected), reflected)
        if new[0] < points[0][0]:
            new = min(new, (loss(expanded), expanded))
        elif new[0] >= points[-2][0]:
            new = min(new, (loss(contracted), contracted))
        if new[0] < worst_loss:
            points[-1] = new
        else:
            best = points[0][1]
            shrunk = [[(x + b) / 2 for x, b in zip(corner, best, strict=True)] for _, corner in points[1:]]
            points = [points[0], *((loss(corner), corner) for corner in shrunk)]
        points.sort()
    return points[0][1]
