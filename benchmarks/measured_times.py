"""Published and measured times of an iteration, for the benchmark and the tests of the time model.

Every set of times has a fixed order: that of its files by name, then that of the rows in each file. The sets of
`rows` are those that constants are fitted to, with the measurements of `pretrain`. `published` has the other times of
the catalogue.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from orchestrator.catalog.library import Entry, find_experiment, read_experiment
from orchestrator.clusters.machine import Machine
from orchestrator.config.model import Hardware
from orchestrator.megatron.case import TrainingCase, published_time
from orchestrator.megatron.model import Layout, ModelShape, Training, flops_per_iteration, padded_vocabulary
from orchestrator.megatron.programs.flags import flag_arguments
from orchestrator.megatron.programs.megatron_core import OWN_LAYERS
from orchestrator.megatron.time_constants import FITTED, Constants
from orchestrator.megatron.time_model import Duration, predict
from orchestrator.paths import find_folders
from tests.cases import expand

CHECKOUT = Path(__file__).resolve().parents[1]
SC21, ATC24 = "SC21 table 1", "ATC'24 figure 9"
H200, H200_QUAD = "pretrain on one and two H200", "pretrain on four H200"
H100, H100_LATER, H100_QUAD = "pretrain on one H100", "later on one and two H100", "pretrain on four H100"
LOCAL_LAYERS, HOST_BOUND = "Megatron-LM's own layers on H100", "host-bound on four H200"
H200_LATER, H200_QUAD_LATER = "later on two H200", "later on four H200"
H200_AGAIN = "cases of the fit, measured again"
H100_QUAD_LATER, H100_QUAD_AGAIN = "later on four H100", "cases of the fit on four H100, measured again"
_RESULTS = CHECKOUT / "experiments" / "results"
LATER_TABLES = {
    1: (_RESULTS / "one-gpu" / "h200",),
    2: (_RESULTS / "h200",),
    4: tuple(_RESULTS / "h200-quad" / machine for machine in ("first", "second", "third", "fourth")),
}
"""Folders with tables of `pretrain` that are newer than its constants, by the number of H200 of the machine."""
TIMES = CHECKOUT / "benchmarks"


@dataclass(frozen=True, slots=True)
class Row:
    """A published or measured time. Rows 1, 3, 5, ... of a set are `fitted`, in some sets none (see `rows`).

    `shown` is the published value on the y axis of the figure, and `shown_error` its error. `shown_is_time` if the axis
    is a time; on all other axes more is faster.
    """

    name: str
    fitted: bool
    model: ModelShape
    layout: Layout
    training: Training
    hardware: Hardware
    program: str
    actual_ms: float
    shown: float = 0.0
    shown_error: float = 0.0
    shown_is_time: bool = True
    arguments: tuple[str, ...] = ()
    site: str | None = None

    def predicted(self, constants: Constants) -> Duration:
        case = (self.model, self.layout, self.training, self.hardware, self.program, self.arguments)
        duration = predict(*case, self.site, constants)
        assert duration is not None
        return duration

    @property
    def job(self) -> tuple[ModelShape, Layout, Training]:
        """Return what a job trains, whatever its number of iterations. Figures share jobs under different names."""
        return self.model, self.layout, replace(self.training, iterations=0)

    def error(self, constants: Constants) -> float:
        """Return the signed relative error."""
        return self.predicted(constants).iteration_ms / self.actual_ms - 1

    def predicted_shown(self, constants: Constants) -> float:
        """Return the prediction of the value on the y axis of the figure."""
        ratio = self.predicted(constants).iteration_ms / self.actual_ms
        return self.shown * (ratio if self.shown_is_time else 1 / ratio)

    @property
    def is_inside(self) -> bool:
        """Return whether the time is within the uncertainty that `repro plan` prints around its prediction."""
        predicted = self.predicted(FITTED)
        return abs(self.actual_ms - predicted.iteration_ms) <= predicted.uncertainty * predicted.iteration_ms


@cache
def rows() -> dict[str, list[Row]]:
    """Return all sets in their order, host-bound rows among them."""
    return {
        SC21: table_1(),
        ATC24: figure_9(),
        H200: pretrain_on_h200(quad=False),
        H200_QUAD: pretrain_on_h200(quad=True),
        H200_LATER: [row for gpus in (1, 2) for row in measured_later(gpus, of_the_fit=False)],
        H200_QUAD_LATER: measured_later(4, of_the_fit=False),
        H200_AGAIN: [row for gpus in LATER_TABLES for row in measured_later(gpus, of_the_fit=True)],
        H100: [time.row(_h100(1)) for time in _of_times("h100_times.yaml", "judged", "single")],
        H100_LATER: [
            *(time.row(_h100(1)) for time in _of_tables((_RESULTS / "one-gpu" / "h100",))),
            *(time.row(_h100(2)) for time in _of_times("h100_times.yaml", "peers")),
        ],
        H100_QUAD: pretrain_on_four_h100(),
        H100_QUAD_LATER: measured_later_on_four_h100(of_the_fit=False),
        H100_QUAD_AGAIN: measured_later_on_four_h100(of_the_fit=True),
        LOCAL_LAYERS: local_layers(),
        HOST_BOUND: host_bound(),
    }


def schedules() -> list[Row]:
    """Return figure 12, and figure 18 without the jobs of figure 12. Batches 12, 36 and 60 are fitted."""
    every = published("sc21/figure-12", "sc21/figure-18")
    own = [row for row in every if row.name.startswith("figure-12") or not row.training.scatter_gather]
    return [replace(row, fitted=row.layout.global_batch_size in (12, 36, 60)) for row in own]


def tutorials() -> list[Row]:
    """Return the times of the tutorials in the order of their files and rows, without core-tp-pp.

    Rows 1, 3, 5, ... are fitted.
    """
    every = published(*(f"tutorials/{name}" for name in TUTORIALS if name != NOT_FITTED))
    return [replace(row, fitted=index % 2 == 0) for index, row in enumerate(every)]


NOT_FITTED = "core-tp-pp"
"""Table of the tutorials to which no constant is fitted: it tests the time of the host for virtual stages."""
TUTORIALS = (
    "core-cp",
    "core-dp",
    "core-ep",
    "core-pp",
    "core-sp",
    "core-tp-pp",
    "core-tp-strong",
    "core-tp-weak",
    "tutorial-cp",
)


def published(*experiments: str) -> list[Row]:
    """Return the cases of experiments that have a published time on the machine of their paper, none of them fitted."""
    all_rows = []
    for name in experiments:
        entry = find_experiment(find_folders(), name)
        assert entry.paper.machine is not None
        for case in expand(entry):
            row = None if case.reference_only else _published_row(entry, case, entry.paper.machine)
            if row is not None:
                all_rows.append(row)
    return all_rows


_PRINTED_ERROR = 0.01
"""Relative error of a printed value: it is rounded, and comes from one run."""


def _published_row(entry: Entry, case: TrainingCase, machine: Hardware) -> Row | None:
    found = published_time(case, machine.gpu)
    if found is None:
        return None
    point, actual_ms = found
    points = {point.metric: point for point in case.published if point.gpu is None or point.gpu in (machine.gpu or "")}
    shown = points.get(entry.experiment.plot.y.metric, point)
    return Row(
        name=f"{entry.short_name} {case.name}",
        fitted=False,
        model=case.model,
        layout=case.layout,
        training=case.training,
        hardware=machine,
        program=case.program,
        actual_ms=actual_ms,
        shown=shown.value,
        shown_error=_PRINTED_ERROR * shown.value if shown.error is None else shown.error,
        shown_is_time=shown.metric == "iteration_ms",
        arguments=case.arguments,
        site=entry.paper_folder,
    )


def table_1() -> list[Row]:
    """Return the rows of Table 1: times of the paper's FLOPs (vocabulary of 51,200) at the printed aggregate rate."""
    entry = find_experiment(find_folders(), "sc21/table-1")
    times = []
    for i, case in enumerate(expand(entry)):
        flops = flops_per_iteration(case.model, case.layout.global_batch_size, recompute_all=True)
        actual_ms = flops / (_published(case, "aggregate_pflops") * 1e15) * 1e3
        times.append(_row(i, entry, case, 50257, actual_ms))
    return times


def figure_9() -> list[Row]:
    entry = find_experiment(find_folders(), "atc24/atc-figure-9")
    times = []
    for i, case in enumerate(expand(entry)):
        tokens = case.layout.global_batch_size * case.model.seq
        times.append(_row(i, entry, case, 32005, tokens / _published(case, "tokens_per_s") * 1e3))
    return times


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured time of a case."""

    name: str
    model: ModelShape
    layout: Layout
    training: Training
    actual_ms: float

    def row(self, machine: Hardware, fitted: bool = False) -> Row:
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
    """Return the times at scale `quad` on four H200, or the others on one and two. Rows 1, 3, 5, ... are fitted.

    Host-bound times are left out.
    """
    times = _of_times("h200_quad_times.yaml", "gpu_bound", "quad") if quad else _of_times("h200_times.yaml")
    machine = _machine("NVIDIA H200", 4 if quad else 2)
    return [time.row(machine, fitted=index % 2 == 0) for index, time in enumerate(times)]


def measured_later(gpus: int, *, of_the_fit: bool) -> list[Row]:
    """Return the times of `LATER_TABLES` whose cases are also rows of `pretrain_on_h200`, or the others."""
    before = {row.job for quad in (False, True) for row in pretrain_on_h200(quad=quad)}
    machine = _machine("NVIDIA H200", gpus)
    later = [time.row(machine, fitted=False) for time in _of_tables(LATER_TABLES[gpus])]
    return [row for row in later if (row.job in before) is of_the_fit]


def pretrain_on_four_h100() -> list[Row]:
    """Return the times of the first machine with four H100, all of them fitted."""
    return [time.row(_h100(4), fitted=True) for time in _of_tables((_RESULTS / "h100-quad" / "first",))]


def measured_later_on_four_h100(*, of_the_fit: bool) -> list[Row]:
    """Return the times of SC21's figures on the second machine whose cases the first one ran too, or the others.

    CARAML's are left out: the host limits all but one of them.
    """
    before = {row.job for row in pretrain_on_four_h100()}
    times = _of_tables((_RESULTS / "h100-quad" / "second",))
    later = [time.row(_h100(4)) for time in times if time.name.startswith("figure-")]
    return [row for row in later if (row.job in before) is of_the_fit]


def local_layers() -> list[Row]:
    """Return the times of Megatron-LM without transformer-engine. Rows 1, 3, 5, ... are fitted."""
    program, arguments = "megatron-2026", tuple(flag_arguments(OWN_LAYERS))
    times = _of_times("h100_times.yaml", "local_layers")
    rows = [time.row(_h100(2), fitted=index % 2 == 0) for index, time in enumerate(times)]
    return [replace(row, program=program, arguments=arguments) for row in rows]


def _h100(gpus: int) -> Hardware:
    return _machine("NVIDIA H100 80GB HBM3", gpus)


def host_bound() -> list[Row]:
    machine = _machine("NVIDIA H200", 4)
    return [time.row(machine, fitted=False) for time in _of_times("h200_quad_times.yaml", "host_bound", "quad")]


def _machine(gpu: str, gpus: int) -> Hardware:
    """Return what nvidia-smi gives of a machine; its NVLink comes from the planner's table of GPUs."""
    return Machine(cpus=16, gpus=gpus, gpu=gpu, gpu_memory_gb=150).hardware()


def _of_tables(folders: Sequence[Path]) -> Iterator[Measured]:
    """Yield the cases of the exported tables that have a time and whose GPUs did not wait for the host.

    A job that figures or machines share counts once, at the first figure of the first machine.
    """
    counted: set[tuple[ModelShape, Layout, Training]] = set()
    for path in [path for folder in folders for path in sorted(folder.glob("*.csv"))]:
        with path.open(newline="") as file:
            table = list(csv.DictReader(file))
        entry = _entry(table[0]["experiment"])
        cases = {case.name: case for case in expand(entry, table[0]["scale"])}
        for row in table:
            case = cases[row["case"]]
            job = (case.model, case.layout, case.training)
            if row["iteration_ms"] and row["host_bound"] != "true" and job not in counted:
                counted.add(job)
                yield _measured(entry, case, float(row["iteration_ms"]))


def _of_times(file: str, part: str = "measured", scale: str = "pair") -> Iterator[Measured]:
    """Yield the rows of a part of a file of times: in ms, or as TFLOP/s per GPU by SC21 eq. 3."""
    document: Any = yaml.safe_load((TIMES / file).read_text())
    for row in document[part]:
        if "part" in row:
            yield _of_part(row)
            continue
        entry = _entry(row["experiment"])
        case = next(case for case in expand(entry, row.get("scale", scale)) if case.name == row["case"])
        yield _measured(entry, case, row["ms"] if "ms" in row else _ms_of_rate(case, row["tflops_per_gpu"]))


def _of_part(row: dict[str, Any]) -> Measured:
    """Return the time of a case of benchmarks/pretrain_parts.py, or with pipeline stages of benchmarks/peers.py."""
    of_peers = "pp" in row
    model = ModelShape(row["layers"], row["hidden"], row["heads"], 2048, 51200)
    is_split = row["tp"] > 1 and not of_peers
    layout = Layout(row["gpus"], row["tp"], row.get("pp", 1), row["mbs"], row["gbs"], sequence_parallel=is_split)
    training = Training("bf16", recompute=row["recompute"], dropout=0.0)
    return Measured(f"{'peers' if of_peers else 'pretrain_parts'} {row['part']}", model, layout, training, row["ms"])


def _measured(entry: Entry, case: TrainingCase, actual_ms: float) -> Measured:
    return Measured(f"{entry.short_name} {case.name}", case.model, case.layout, case.training, actual_ms)


def _ms_of_rate(case: TrainingCase, tflops_per_gpu: float) -> float:
    flops = flops_per_iteration(case.model, case.layout.global_batch_size, case.training.recompute == "full")
    return float(flops / case.layout.gpus / (tflops_per_gpu * 1e9))


@cache
def _entry(experiment: str) -> Entry:
    own = CHECKOUT / "tests" / "gpu" / f"{experiment}.yaml"
    return read_experiment(experiment, own) if own.is_file() else find_experiment(find_folders(), experiment)


def _row(index: int, entry: Entry, case: TrainingCase, tokenizer: int, actual_ms: float) -> Row:
    """Return the row of a case with the padded vocabulary of the program's tokenizer."""
    assert entry.paper.machine is not None
    model = replace(case.model, vocab=padded_vocabulary(tokenizer, case.layout.tensor_parallel))
    machine = entry.paper.machine
    odd = index % 2 == 0
    return Row(
        case.name, odd, model, case.layout, case.training, machine, case.program, actual_ms, site=entry.paper_folder
    )


def _published(case: TrainingCase, metric: str) -> float:
    return next(point.value for point in case.published if point.metric == metric)
