"""Predicted times compared with published and measured times: the tables of docs/explanation/predictions.md.

    python -m benchmarks.duration           # prints the two tables of the page
    python -m benchmarks.duration --write   # writes them into the page
    python -m benchmarks.duration --rows    # prints every time with its prediction
    python -m benchmarks.duration --fit     # fits the constants again; exit code 1 if they are not the shipped ones

Rows 1, 3, 5, ... of the sets of `benchmarks.measured_times.rows` are fitted, in the order of their files and of the
rows in each file. Constants of `orchestrator/planning/time_constants.py` are fitted to SC21 table 1, ATC'24 figure 9
and three batch sizes of SC21's figures 12 and 18. With them, those of `pretrain` are fitted to its times on one and two
H200 and on four, and those of the host and of H100 to the tutorials without core-tp-pp. No other time is fitted.
Host-bound times of `pretrain` are only shown.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.measured_times import (
    ATC24,
    CHECKOUT,
    H200,
    H200_QUAD,
    HOST_BOUND,
    SC21,
    Row,
    host_bound,
    rows,
    schedules,
    tutorials,
)
from benchmarks.prediction_tables import data_sets, error_table, order_table
from orchestrator.planning.time_constants import FITTED, Constants

PAGE = CHECKOUT / "docs" / "explanation" / "predictions.md"
BEGIN, END = "<!-- python -m benchmarks.duration -->", "<!-- end of benchmarks.duration -->"
REFIT = 0.01
"""The shipped constants are rounded; a new fit may differ by this share."""
START = Constants(0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 1.0, 0.7, 0.7, 0.7, 7.0, 5.0, 0.8, 9.0, 0.15, 0.7, 9.0)
OF_PRETRAIN = ("gh100_gemm_share", "overlap_cost", "accumulated_share", "step_ms")
OF_TUTORIALS = (
    "host_layer_ms",
    "host_step_ms",
    "host_router_ms",
    "host_expert_ms",
    "h100_gemm_share",
    "host_stage_ms",
)
OF_PAPERS = tuple(field.name for field in dataclasses.fields(Constants) if field.name not in OF_PRETRAIN + OF_TUTORIALS)


def fit() -> Constants:
    """Return the papers' constants, fitted first, and with them those of `pretrain` and those of the tutorials."""
    sets = rows()
    papers = _fit([sets[SC21], sets[ATC24], schedules()], OF_PAPERS, START)
    own = _fit([sets[H200], sets[H200_QUAD]], OF_PRETRAIN, papers)
    return _fit([tutorials()], OF_TUTORIALS, own)


def _fit(sets: Sequence[Sequence[Row]], names: Sequence[str], start: Constants) -> Constants:
    """Return the least squares of the fitted rows' relative errors. Every set has the same weight."""
    scale = [getattr(start, name) for name in names]
    halves = [[row for row in rows if row.fitted] for rows in sets]

    def constants(point: Sequence[float]) -> Constants:
        return replace(start, **{name: x * size for name, x, size in zip(names, point, scale, strict=True)})

    def loss(point: Sequence[float]) -> float:
        if min(point) <= 0:
            return float("inf")
        return sum(statistics.fmean(row.error(constants(point)) ** 2 for row in fitted) for fitted in halves)

    return constants(nelder_mead(loss, [1.0] * len(names)))


def nelder_mead(loss: Callable[[Sequence[float]], float], start: list[float], steps: int = 600) -> list[float]:
    """Minimize by the simplex search of Nelder and Mead (1965)."""
    corners = [start] + [[x * (1.1 if i == j else 1) for j, x in enumerate(start)] for i in range(len(start))]
    points = sorted((loss(corner), corner) for corner in corners)
    for _ in range(steps):
        worst_loss, worst = points[-1]
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare predicted times with published and measured times.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the tables into docs/explanation/predictions.md")
    what.add_argument("--rows", action="store_true", help="print every time with its prediction")
    what.add_argument("--fit", action="store_true", help="fit the constants again")
    options = parser.parse_args()
    if options.fit:
        return _print_fit()
    if options.rows:
        for one in data_sets():
            _print_rows(f"{one.title} ({one.use})", one.rows)
        _print_rows(f"{HOST_BOUND} (only shown)", host_bound())
        return 0
    tables = f"{error_table(data_sets())}\n\n{order_table()}"
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{rest.partition(END)[2]}")
    else:
        print(tables)
    return 0


def _print_fit() -> int:
    again = fit()
    print(f"{'constant':<26}{'shipped':>14}{'fitted again':>14}")
    differences = 0
    for field in dataclasses.fields(Constants):
        shipped, fitted_again = getattr(FITTED, field.name), getattr(again, field.name)
        print(f"  {field.name:<24}{shipped:>14.4g}{fitted_again:>14.4g}")
        differences += abs(fitted_again / shipped - 1) > REFIT
    return 1 if differences else 0


def _print_rows(title: str, part: Sequence[Row]) -> None:
    print(f"{title:<70}{'actual ms':>10}{'predicted ms':>14}{'+-':>6}{'error %':>9}")
    for row in part:
        predicted = row.predicted(FITTED)
        times = f"{row.actual_ms:>10.0f}{predicted.iteration_ms:>14.0f}{100 * predicted.uncertainty:>4.0f} %"
        print(f"  {row.name:<68}{times}{100 * row.error(FITTED):>9.1f}{'' if row.is_inside else '  outside'}")


if __name__ == "__main__":
    sys.exit(main())
