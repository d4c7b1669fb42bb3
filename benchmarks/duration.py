"""The planner's time model against the two papers that print how fast each of many layouts ran, and against `pretrain`.

    python benchmarks/duration.py

Every set of times has a fixed order: that of its files by name, then that of the rows in each file. Rows 1, 3, 5, ...
of a set are fitted, the others judged. Five constants of `orchestrator/planning/time_constants.py` are fitted to SC21
table 1 and ATC'24 figure 9, and with these four more to `pretrain` on one and two H200 and on four. Times of one H100
are judged and never fitted, and so are times that were measured after the constants were fixed. Host-bound times,
which are those of the host and not of the GPUs, are only shown.

Prints a line per set and exits with 1 where a goal is missed: a mean error of at most 8 % of the judged rows, at least
90 % of them inside the uncertainty that `repro plan` prints, no row of any set off by more than 15 %, and a fit that
gives the shipped constants again.
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry, find_experiment, read_experiment
from orchestrator.clusters.machine import Machine
from orchestrator.config.model import Hardware
from orchestrator.megatron.flops import flops_per_iteration
from orchestrator.megatron.layout import Layout
from orchestrator.megatron.model import ModelShape, padded_vocabulary
from orchestrator.megatron.training import Training
from orchestrator.paths import find_folders
from orchestrator.planning.time_constants import FITTED, Constants
from orchestrator.planning.time_model import Duration, predict_with

CHECKOUT = Path(__file__).resolve().parents[1]
MEAN_ERROR = 0.08
INSIDE = 0.9
LARGEST_ERROR = 0.15
REFIT = 0.01
"""The shipped constants are rounded; a new fit may differ by this share."""
START = Constants(0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, step_ms=7.0)
OF_PRETRAIN = ("gh100_gemm_share", "overlap_cost", "accumulated_share", "step_ms")
OF_PAPERS = tuple(field.name for field in dataclasses.fields(Constants) if field.name not in OF_PRETRAIN)
SC21, ATC24 = "SC21 table 1", "ATC'24 figure 9"
H200, H200_QUAD = "pretrain on one and two H200", "pretrain on four H200"
H100, HOST_BOUND = "pretrain on one H100", "host-bound on four H200"
H200_LATER = "predicted before they ran"
LATER_TABLES = ("figure-12.csv", "figure-13.csv")
"""Tables of two H200 that were measured after the constants were fixed."""
H200_TABLES = CHECKOUT / "experiments" / "results" / "h200"
TIMES = CHECKOUT / "benchmarks"


@dataclass(frozen=True, slots=True)
class Row:
    """A published or measured time. Rows 1, 3, 5, ... of a set are `fitted`; of some sets none is (see `rows`)."""

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

    @property
    def is_inside(self) -> bool:
        """Return whether the time lies inside the uncertainty that `repro plan` prints around its prediction."""
        predicted = self.predicted(FITTED)
        return abs(self.actual_ms - predicted.iteration_ms) <= predicted.uncertainty * predicted.iteration_ms


def rows() -> dict[str, list[Row]]:
    """Return all sets in their order, host-bound rows among them."""
    return {
        SC21: table_1(),
        ATC24: figure_9(),
        H200: pretrain_on_h200(quad=False),
        H200_QUAD: pretrain_on_h200(quad=True),
        H200_LATER: predicted_first(),
        H100: pretrain_on_h100(),
        HOST_BOUND: host_bound(),
    }


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


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured time of a case; `file` and `place` give its position in the order of its set."""

    file: str
    place: int
    name: str
    model: ModelShape
    layout: Layout
    training: Training
    actual_ms: float

    def row(self, machine: Hardware, fitted: bool) -> Row:
        return Row(
            self.name,
            fitted,
            self.model,
            self.layout,
            self.training,
            machine,
            program="pretrain",
            actual_ms=self.actual_ms,
        )


def pretrain_on_h200(*, quad: bool) -> list[Row]:
    """Return the times at scale `quad` on four H200, or the others on one and two. Host-bound ones are left out.

    They stand in the tables of experiments/results/h200, repeats counting once, and in the files of times here. A case
    of a table replaces the same case of a file of times, which an older version of the program ran.
    """
    tables = [one for one in _of_tables(quad) if one.file not in LATER_TABLES]
    known = {one.name for one in tables}
    typed = _of_times("h200_quad_times.yaml", "gpu_bound", "quad") if quad else _typed()
    found = [*tables, *(one for one in typed if one.name not in known)]
    machine = _machine("NVIDIA H200", 4 if quad else 2)
    in_order = sorted(found, key=lambda one: (one.file, one.place))
    return [one.row(machine, fitted=index % 2 == 0) for index, one in enumerate(in_order)]


def predicted_first() -> list[Row]:
    """Return the times of two H200 that were measured after the constants were fixed."""
    machine = _machine("NVIDIA H200", 2)
    later = sorted((one for one in _of_tables(quad=False) if one.file in LATER_TABLES), key=lambda one: one.place)
    return [one.row(machine, fitted=False) for one in sorted(later, key=lambda one: one.file)]


def pretrain_on_h100() -> list[Row]:
    machine = _machine("NVIDIA H100 80GB HBM3", 1)
    return [one.row(machine, fitted=False) for one in _of_times("h100_times.yaml", "judged", "single")]


def host_bound() -> list[Row]:
    machine = _machine("NVIDIA H200", 4)
    return [one.row(machine, fitted=False) for one in _of_times("h200_quad_times.yaml", "host_bound", "quad")]


def _machine(gpu: str, gpus: int) -> Hardware:
    """Return what nvidia-smi gives of a machine; its NVLink comes from the planner's table of GPUs."""
    return Machine(cpus=16, gpus=gpus, gpu=gpu, gpu_memory_gb=150).hardware()


def _of_tables(quad: bool) -> Iterator[Measured]:
    """Yield the cases of the exported tables that have a time and whose GPUs did not wait for the host."""
    for path in H200_TABLES.rglob("*.csv"):
        with path.open(newline="") as file:
            table = list(csv.DictReader(file))
        scale = table[0]["scale"]
        if (scale == "quad") is not quad:
            continue
        entry = _entry(table[0]["experiment"])
        cases = {case.name: case for case in expand(entry, scale)}
        for place, row in enumerate(table):
            if row["iteration_ms"] and row.get("host_bound") != "true":
                yield _measured(path.name, place, entry, cases[row["case"]], float(row["iteration_ms"]))


def _of_times(file: str, part: str, scale: str) -> Iterator[Measured]:
    """Yield the rows of a part of a file of times: in ms, or as TFLOP/s per GPU by SC21 eq. 3."""
    document: Any = yaml.safe_load((TIMES / file).read_text())
    for place, row in enumerate(document[part]):
        entry = _entry(row["experiment"])
        case = next(case for case in expand(entry, scale) if case.name == row["case"])
        actual_ms = row["ms"] if "ms" in row else _ms_of_rate(case, row["tflops_per_gpu"])
        yield _measured(file, place, entry, case, actual_ms)


def _measured(file: str, place: int, entry: Entry, case: Case, actual_ms: float) -> Measured:
    return Measured(file, place, f"{entry.short_name} {case.name}", case.model, case.layout, case.training, actual_ms)


def _ms_of_rate(case: Case, tflops_per_gpu: float) -> float:
    flops = flops_per_iteration(case.model, case.layout.global_batch_size, case.training.recompute == "full")
    return float(flops / case.layout.gpus / (tflops_per_gpu * 1e9))


def _entry(experiment: str) -> Entry:
    own = CHECKOUT / "tests" / "gpu" / f"{experiment}.yaml"
    return read_experiment(experiment, own) if own.is_file() else find_experiment(find_folders(), experiment)


def _typed() -> Iterator[Measured]:
    """Yield the rows of h200_times.yaml."""
    file = "h200_times.yaml"
    document: Any = yaml.safe_load((TIMES / file).read_text())
    for place, (name, row) in enumerate(document["pretrain_parts"].items()):
        model = ModelShape(row["layers"], row["hidden"], row["heads"], 2048, 51200)
        layout = Layout(row["gpus"], row["tp"], 1, row["mbs"], row["gbs"], sequence_parallel=row["tp"] > 1)
        training = Training("bf16", recompute=row["recompute"], dropout=0.0)
        yield Measured(file, place, f"pretrain_parts {name}", model, layout, training, row["ms"])
    yield from (
        replace(one, place=len(document["pretrain_parts"]) + one.place) for one in _of_times(file, "pair", "pair")
    )


def _row(index: int, entry: Entry, case: Case, tokenizer: int, actual_ms: float) -> Row:
    """The program trains with its tokenizer's vocabulary, padded."""
    assert entry.paper.machine is not None
    model = replace(case.model, vocab=padded_vocabulary(tokenizer, case.layout.tensor_parallel))
    machine = entry.paper.machine
    odd = index % 2 == 0
    return Row(case.name, odd, model, case.layout, case.training, machine, case.workload, actual_ms)


def _published(case: Case, metric: str) -> float:
    return next(point.value for point in case.published if point.metric == metric)


def fit(sets: dict[str, list[Row]]) -> Constants:
    """Return the papers' constants, fitted first, and with them those of `pretrain`."""
    papers = _fit([sets[SC21], sets[ATC24]], OF_PAPERS, START)
    return _fit([sets[H200], sets[H200_QUAD]], OF_PRETRAIN, papers)


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
    for title, found in sets.items():
        _print_rows(title, found)
    print(f"{'':<30}{'':<8}{'rows':>5}{'mean error':>12}{'largest':>9}{'inside the printed uncertainty':>32}")
    missed = sum([_judge(title, found) for title, found in sets.items()])
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


def _print_rows(title: str, found: Sequence[Row]) -> None:
    print(f"{title:<46}{'actual ms':>12}{'predicted ms':>14}{'+-':>6}{'error %':>9}")
    for row in found:
        predicted, error = row.predicted(FITTED), 100 * row.error(FITTED)
        mark = "shown" if title == HOST_BOUND else "fitted" if row.fitted else "judged"
        uncertainty = f"{100 * predicted.uncertainty:.0f} %"
        times = f"{row.actual_ms:>12.0f}{predicted.iteration_ms:>14.0f}{uncertainty:>6}{error:>9.1f}"
        print(f"  {row.name:<36}{mark:<8}{times}")


def _judge(title: str, found: Sequence[Row]) -> int:
    """Print a line for the fitted and one for the judged rows of a set; return how many goals it misses."""
    missed = 0
    for kind, part in (
        ("fitted", [row for row in found if row.fitted]),
        ("judged", [r for r in found if not r.fitted]),
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
