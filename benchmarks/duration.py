"""The planner's time model against the two papers that print how fast each of many layouts ran.

    python benchmarks/duration.py

Fits the five constants of `orchestrator/planning/calibration.py` to the odd rows of SC21 table 1 and ATC'24 figure 9,
and judges the constants that ship on the even ones: a mean error of at most 8 %, and a fit that gives them again.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry, find_experiment
from orchestrator.folders import find_folders
from orchestrator.megatron.flops import flops_per_iteration
from orchestrator.megatron.hardware import Hardware
from orchestrator.megatron.layout import Layout
from orchestrator.megatron.model import ModelShape, padded_vocabulary
from orchestrator.megatron.training import Training
from orchestrator.planning.calibration import FITTED, Constants
from orchestrator.planning.duration import Duration, predict_with

MEAN_ERROR = 0.08
REFIT = 0.01
"""The shipped constants are rounded; a new fit may differ by this share."""
START = Constants(0.7, 0.7, 0.7, 0.7, 0.7, 0.7)


@dataclass(frozen=True, slots=True)
class Row:
    """A published time. Rows 1, 3, 5, ... of a set are `fitted`."""

    name: str
    fitted: bool
    model: ModelShape
    layout: Layout
    training: Training
    hardware: Hardware
    program: str
    published_ms: float

    def predicted(self, constants: Constants) -> Duration:
        duration = predict_with(constants, self.model, self.layout, self.training, self.hardware, self.program)
        assert duration is not None
        return duration

    def error(self, constants: Constants) -> float:
        """Relative and signed."""
        return self.predicted(constants).iteration_ms / self.published_ms - 1


def rows() -> dict[str, list[Row]]:
    """Both sets in the order of their papers."""
    return {"SC21 table 1": table_1(), "ATC'24 figure 9": figure_9()}


def table_1() -> list[Row]:
    """The time is that of the paper's FLOPs, counted with its vocabulary of 51,200, at the printed aggregate rate."""
    entry = find_experiment(find_folders(), "sc21/table-1")
    found = []
    for i, case in enumerate(expand(entry)):
        flops = flops_per_iteration(case.model, case.layout.global_batch_size, recompute_all=True)
        published_ms = flops / (_published(case, "aggregate_pflops") * 1e15) * 1e3
        found.append(_row(i, entry, case, 50257, published_ms))
    return found


def figure_9() -> list[Row]:
    entry = find_experiment(find_folders(), "atc24/atc-figure-9")
    found = []
    for i, case in enumerate(expand(entry)):
        tokens = case.layout.global_batch_size * case.model.seq
        found.append(_row(i, entry, case, 32005, tokens / _published(case, "tokens_per_s") * 1e3))
    return found


def _row(index: int, entry: Entry, case: Case, tokenizer: int, published_ms: float) -> Row:
    """The program trains with its tokenizer's vocabulary, padded."""
    assert entry.paper.machine is not None
    model = replace(case.model, vocab=padded_vocabulary(tokenizer, case.layout.tensor_parallel))
    machine = entry.paper.machine.facts()
    odd = index % 2 == 0
    return Row(case.name, odd, model, case.layout, case.training, machine, case.workload, published_ms)


def _published(case: Case, metric: str) -> float:
    return next(point.value for point in case.published if point.metric == metric)


def fit(sets: Sequence[Sequence[Row]]) -> Constants:
    """Least squares of the relative errors, every set weighing the same."""
    scale = dataclasses.astuple(START)

    def constants(point: Sequence[float]) -> Constants:
        return Constants(*(factor * size for factor, size in zip(point, scale, strict=True)))

    def loss(point: Sequence[float]) -> float:
        if min(point) <= 0:
            return float("inf")
        return sum(statistics.fmean(row.error(constants(point)) ** 2 for row in fitted) for fitted in sets)

    return constants(nelder_mead(loss, [1.0] * len(scale)))


def nelder_mead(loss: Callable[[Sequence[float]], float], start: list[float], steps: int = 600) -> list[float]:
    """The simplex search of Nelder and Mead (1965)."""
    corners = [start] + [[x * (1.1 if i == j else 1) for j, x in enumerate(start)] for i in range(len(start))]
    found = sorted((loss(corner), corner) for corner in corners)
    for _ in range(steps):
        worst_loss, worst = found[-1]
        middle = [statistics.fmean(axis) for axis in zip(*(corner for _, corner in found[:-1]), strict=True)]

        away = [m - w for m, w in zip(middle, worst, strict=True)]
        reflected, expanded, contracted = (
            [m + share * a for m, a in zip(middle, away, strict=True)] for share in (1, 2, -0.5)
        )
        new = (loss(reflected), reflected)
        if new[0] < found[0][0]:
            new = min(new, (loss(expanded), expanded))
        elif new[0] >= found[-2][0]:
            new = min(new, (loss(contracted), contracted))
        if new[0] < worst_loss:
            found[-1] = new
        else:
            best = found[0][1]
            shrunk = [[(x + b) / 2 for x, b in zip(corner, best, strict=True)] for _, corner in found[1:]]
            found = [found[0], *((loss(corner), corner) for corner in shrunk)]
        found.sort()
    return found[0][1]


def main() -> int:
    sets = rows()
    missed = 0
    for title, published in sets.items():
        print(f"{title:<26}{'published ms':>14}{'predicted ms':>14}{'error %':>9}")
        for row in published:
            predicted = row.predicted(FITTED).iteration_ms
            mark = "fitted" if row.fitted else "judged"
            print(
                f"  {row.name:<16}{mark:<8}{row.published_ms:>14.0f}{predicted:>14.0f}{100 * row.error(FITTED):>9.1f}"
            )
        for fitted in (True, False):
            errors = [abs(row.error(FITTED)) for row in published if row.fitted is fitted]
            kind = "fitted" if fitted else "judged"
            mean = statistics.fmean(errors)
            print(f"  {kind} rows: mean error {100 * mean:.1f} %, largest {100 * max(errors):.1f} %")
            missed += not fitted and mean > MEAN_ERROR
    again = fit([[row for row in published if row.fitted] for published in sets.values()])
    print(f"{'constant':<26}{'shipped':>14}{'fitted again':>14}")
    for field in dataclasses.fields(Constants):
        shipped, fitted_again = getattr(FITTED, field.name), getattr(again, field.name)
        print(f"  {field.name:<24}{shipped:>14.4g}{fitted_again:>14.4g}")
        missed += abs(fitted_again / shipped - 1) > REFIT
    print(f"within {100 * MEAN_ERROR:.0f} % on the judged rows, constants as shipped: {'no' if missed else 'yes'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
