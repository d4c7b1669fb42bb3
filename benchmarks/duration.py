"""The planner's time model against the two papers that print how fast each of many layouts ran, and against `pretrain`.

    python benchmarks/duration.py

Fits five constants of `orchestrator/planning/calibration.py` to the odd rows of SC21 table 1 and ATC'24 figure 9, and
with these the sixth to the odd rows of `pretrain` on H200. Judges the constants that ship on the even rows: a mean
error of at most 8 % in each set, no row of any off by more than 15 %, and a fit that gives them again.
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry, find_experiment, read_experiment
from orchestrator.clusters.machine import Machine
from orchestrator.folders import find_folders
from orchestrator.megatron.flops import flops_per_iteration
from orchestrator.megatron.hardware import Hardware
from orchestrator.megatron.layout import Layout
from orchestrator.megatron.model import ModelShape, padded_vocabulary
from orchestrator.megatron.training import Training
from orchestrator.planning.calibration import FITTED, Constants
from orchestrator.planning.duration import Duration, predict_with

CHECKOUT = Path(__file__).resolve().parents[1]
MEAN_ERROR = 0.08
LARGEST_ERROR = 0.15
REFIT = 0.01
"""The shipped constants are rounded; a new fit may differ by this share."""
START = Constants(0.7, 0.7, 0.7, 0.7, 0.7, 0.7)
OF_H200 = ("h200_gemm_share",)
OF_PAPERS = tuple(field.name for field in dataclasses.fields(Constants) if field.name not in OF_H200)
H200 = "pretrain on H200"
H200_EXPERIMENTS = ("core-cp", "figure-16", "figure-17", "table-1", "over-the-edge")


@dataclass(frozen=True, slots=True)
class Row:
    """A published or measured time. Rows 1, 3, 5, ... of a set are `fitted`."""

    name: str
    fitted: bool
    model: ModelShape
    layout: Layout
    training: Training
    hardware: Hardware
    program: str
    actual_ms: float

    def predicted(self, constants: Constants) -> Duration:
        duration = predict_with(constants, self.model, self.layout, self.training, self.hardware, self.program)
        assert duration is not None
        return duration

    def error(self, constants: Constants) -> float:
        """Relative and signed."""
        return self.predicted(constants).iteration_ms / self.actual_ms - 1


def rows() -> dict[str, list[Row]]:
    """The papers' two sets in their own order, and that of `pretrain` ordered by source and name."""
    return {"SC21 table 1": table_1(), "ATC'24 figure 9": figure_9(), H200: pretrain_on_h200()}


def table_1() -> list[Row]:
    """The time is that of the paper's FLOPs, counted with its vocabulary of 51,200, at the printed aggregate rate."""
    entry = find_experiment(find_folders(), "sc21/table-1")
    found = []
    for i, case in enumerate(expand(entry)):
        flops = flops_per_iteration(case.model, case.layout.global_batch_size, recompute_all=True)
        actual_ms = flops / (_published(case, "aggregate_pflops") * 1e15) * 1e3
        found.append(_row(i, entry, case, 50257, actual_ms))
    return found


def figure_9() -> list[Row]:
    entry = find_experiment(find_folders(), "atc24/atc-figure-9")
    found = []
    for i, case in enumerate(expand(entry)):
        tokens = case.layout.global_batch_size * case.model.seq
        found.append(_row(i, entry, case, 32005, tokens / _published(case, "tokens_per_s") * 1e3))
    return found


def pretrain_on_h200() -> list[Row]:
    """The rows of experiments/results/h200, repeats counting once, and of h200_times.yaml.

    The hardware is what nvidia-smi tells of a machine with two; its NVLink is taken from the table of GPUs.
    """
    machine = Machine(cpus=16, gpus=2, gpu="NVIDIA H200", gpu_memory_gb=150).hardware().facts()
    found = {**_exported(), **_typed()}
    return [
        Row(f"{source} {name}", index % 2 == 0, *found[source, name][:3], machine, "pretrain", found[source, name][3])
        for index, (source, name) in enumerate(sorted(found))
    ]


Measured = tuple[ModelShape, Layout, Training, float]


def _exported() -> dict[tuple[str, str], Measured]:
    """By experiment and case. A case that did not end well has no time."""
    found = {}
    for name in H200_EXPERIMENTS:
        with (CHECKOUT / "experiments" / "results" / "h200" / f"{name}.csv").open(newline="") as file:
            times = {(row["scale"], row["case"]): row["iteration_ms"] for row in csv.DictReader(file)}
        entry = _entry(name)
        for scale in sorted({scale for scale, _ in times}):
            for case in expand(entry, scale):
                if text := times.get((scale, case.name)):
                    found[name, case.name] = (case.model, case.layout, case.training, float(text))
    return found


def _entry(name: str) -> Entry:
    own = CHECKOUT / "tests" / "gpu" / "edge" / f"{name}.yaml"
    return read_experiment(f"edge/{name}", own) if own.is_file() else find_experiment(find_folders(), name)


def _typed() -> dict[tuple[str, str], Measured]:
    """What stands in h200_times.yaml."""
    document: Any = yaml.safe_load((CHECKOUT / "benchmarks" / "h200_times.yaml").read_text())
    found: dict[tuple[str, str], Measured] = {}
    for name, row in document["pretrain_parts"].items():
        model = ModelShape(row["layers"], row["hidden"], row["heads"], 2048, 51200)
        layout = Layout(row["gpus"], row["tp"], 1, row["mbs"], row["gbs"], sequence_parallel=row["tp"] > 1)
        training = Training("bf16", recompute=row["recompute"], dropout=0.0)
        found["pretrain_parts", name] = (model, layout, training, row["ms"])
    for case in expand(find_experiment(find_folders(), "figure-13"), "pair"):
        if row := document["figure-13"].get(case.name):
            all_again = case.training.recompute == "full"
            flops = flops_per_iteration(case.model, case.layout.global_batch_size, all_again)
            actual_ms = flops / case.layout.gpus / (row["tflops_per_gpu"] * 1e9)
            found["figure-13", case.name] = (case.model, case.layout, case.training, actual_ms)
    return found


def _row(index: int, entry: Entry, case: Case, tokenizer: int, actual_ms: float) -> Row:
    """The program trains with its tokenizer's vocabulary, padded."""
    assert entry.paper.machine is not None
    model = replace(case.model, vocab=padded_vocabulary(tokenizer, case.layout.tensor_parallel))
    machine = entry.paper.machine.facts()
    odd = index % 2 == 0
    return Row(case.name, odd, model, case.layout, case.training, machine, case.workload, actual_ms)


def _published(case: Case, metric: str) -> float:
    return next(point.value for point in case.published if point.metric == metric)


def fit(sets: dict[str, list[Row]]) -> Constants:
    """Those of the papers first, then with them those of H200."""
    papers = _fit([published for title, published in sets.items() if title != H200], OF_PAPERS, START)
    return _fit([sets[H200]], OF_H200, papers)


def _fit(sets: Sequence[Sequence[Row]], names: Sequence[str], start: Constants) -> Constants:
    """Least squares of the fitted rows' relative errors, every set weighing the same; other constants stay."""
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
    missed = sum([_judge(title, found) for title, found in sets.items()])
    again = fit(sets)
    print(f"{'constant':<26}{'shipped':>14}{'fitted again':>14}")
    for field in dataclasses.fields(Constants):
        shipped, fitted_again = getattr(FITTED, field.name), getattr(again, field.name)
        print(f"  {field.name:<24}{shipped:>14.4g}{fitted_again:>14.4g}")
        missed += abs(fitted_again / shipped - 1) > REFIT
    promised = f"within {100 * MEAN_ERROR:.0f} % on the judged rows, every row within {100 * LARGEST_ERROR:.0f} %"
    print(f"{promised}, constants as shipped: {'no' if missed else 'yes'}")
    return 1 if missed else 0


def _judge(title: str, found: Sequence[Row]) -> int:
    """Print a set with its errors; how many promises it breaks."""
    print(f"{title:<46}{'actual ms':>12}{'predicted ms':>14}{'error %':>9}")
    for row in found:
        predicted, error = row.predicted(FITTED).iteration_ms, 100 * row.error(FITTED)
        mark = "fitted" if row.fitted else "judged"
        print(f"  {row.name:<36}{mark:<8}{row.actual_ms:>12.0f}{predicted:>14.0f}{error:>9.1f}")
    missed = 0
    for fitted in (True, False):
        errors = [abs(row.error(FITTED)) for row in found if row.fitted is fitted]
        kind = "fitted" if fitted else "judged"
        mean = statistics.fmean(errors)
        print(f"  {kind} rows: mean error {100 * mean:.1f} %, largest {100 * max(errors):.1f} %")
        missed += (not fitted and mean > MEAN_ERROR) + (max(errors) > LARGEST_ERROR)
    return missed


if __name__ == "__main__":
    sys.exit(main())
