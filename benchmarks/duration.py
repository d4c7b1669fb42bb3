"""The time model compared with published times of SC21 and ATC'24, and with measured times of `pretrain`.

    python -m benchmarks.duration

Every set of times has a fixed order: that of its files by name, then that of the rows in each file. Rows 1, 3, 5, ...
of a set are fitted, the others are judged. Five constants of `orchestrator/planning/time_constants.py` are fitted to
SC21 table 1 and ATC'24 figure 9. With them, four more are fitted to `pretrain` on one and two H200 and on four. Times
of one H100, and times measured after the constants were fixed, are judged and never fitted. Host-bound times depend on
the host and not on the GPUs, so they are only shown.

Prints a line per set. The exit code is 1 if a goal is missed: a mean error of at most 8 % of the judged rows, at least
90 % of them inside the uncertainty that `repro plan` prints, no error above 15 %, and a fit that gives the shipped
constants.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.measured_times import ATC24, H200, H200_QUAD, HOST_BOUND, SC21, Row, rows
from orchestrator.planning.time_constants import FITTED, Constants

MEAN_ERROR = 0.08
INSIDE = 0.9
LARGEST_ERROR = 0.15
REFIT = 0.01
"""The shipped constants are rounded; a new fit may differ by this share."""
START = Constants(0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, step_ms=7.0)
OF_PRETRAIN = ("gh100_gemm_share", "overlap_cost", "accumulated_share", "step_ms")
OF_PAPERS = tuple(field.name for field in dataclasses.fields(Constants) if field.name not in OF_PRETRAIN)


def fit(sets: dict[str, list[Row]]) -> Constants:
    """Return the papers' constants, fitted first, and with them those of `pretrain`."""
    papers = _fit([sets[SC21], sets[ATC24]], OF_PAPERS, START)
    return _fit([sets[H200], sets[H200_QUAD]], OF_PRETRAIN, papers)


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
    sets = rows()
    for title, set_rows in sets.items():
        _print_rows(title, set_rows)
    print(f"{'':<30}{'':<8}{'rows':>5}{'mean error':>12}{'largest':>9}{'inside the printed uncertainty':>32}")
    missed = sum([_judge(title, set_rows) for title, set_rows in sets.items()])
    again = fit(sets)
    print(f"{'constant':<26}{'shipped':>14}{'fitted again':>14}")
    for field in dataclasses.fields(Constants):
        shipped, fitted_again = getattr(FITTED, field.name), getattr(again, field.name)
        print(f"  {field.name:<24}{shipped:>14.4g}{fitted_again:>14.4g}")
        missed += abs(fitted_again / shipped - 1) > REFIT
    goals = f"judged rows: mean error at most {100 * MEAN_ERROR:.0f} %, at least {100 * INSIDE:.0f} % inside; "
    goals += f"every row within {100 * LARGEST_ERROR:.0f} %; constants as shipped"
    print(f"{goals}: {'no' if missed else 'yes'}")
    return 1 if missed else 0


def _print_rows(title: str, set_rows: Sequence[Row]) -> None:
    print(f"{title:<46}{'actual ms':>12}{'predicted ms':>14}{'+-':>6}{'error %':>9}")
    for row in set_rows:
        predicted, error = row.predicted(FITTED), 100 * row.error(FITTED)
        mark = "shown" if title == HOST_BOUND else "fitted" if row.fitted else "judged"
        uncertainty = f"{100 * predicted.uncertainty:.0f} %"
        times = f"{row.actual_ms:>12.0f}{predicted.iteration_ms:>14.0f}{uncertainty:>6}{error:>9.1f}"
        print(f"  {row.name:<36}{mark:<8}{times}")


def _judge(title: str, set_rows: Sequence[Row]) -> int:
    """Print a line for the fitted and one for the judged rows of a set; return the number of missed goals."""
    missed = 0
    for kind, part in (
        ("fitted", [row for row in set_rows if row.fitted]),
        ("judged", [r for r in set_rows if not r.fitted]),
    ):
        if not part:
            continue
        errors = [abs(row.error(FITTED)) for row in part]
        mean, inside = statistics.fmean(errors), statistics.fmean(row.is_inside for row in part)
        mark = "shown" if title == HOST_BOUND else kind
        shares = f"{100 * mean:>10.1f} %{100 * max(errors):>7.1f} %{100 * inside:>30.0f} %"
        print(f"{title:<30}{mark:<8}{len(part):>5}{shares}")
        if title != HOST_BOUND:
            missed += max(errors) > LARGEST_ERROR
            missed += kind == "judged" and (mean > MEAN_ERROR or inside < INSIDE)
    return missed


if __name__ == "__main__":
    sys.exit(main())
