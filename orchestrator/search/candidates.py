"""Candidates of a search: cases that train the same model with the same batch, with predicted time and memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.megatron.memory import MemoryEstimate
from orchestrator.megatron.model import Layout, Training
from orchestrator.planning.plan import memory_of, run_s, time_of, usable_bytes
from orchestrator.planning.target import Target, case_context, refusals

OPEN_UNCERTAINTY = 0.5
"""Relative uncertainty of a time on CPU cores, of which only the pipeline bubble is predicted."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Case of a search. `iteration_ms` is predicted, with a relative `uncertainty`.

    `memory_bytes` is the closed form, None on CPU cores. `gpu_hours` is the cost of a complete job. `gpu_ms` is the
    predicted time without waits for the host, 0 on CPU cores.
    """

    name: str
    case: Case
    iteration_ms: float
    uncertainty: float
    memory_bytes: float | None = None
    gpu_hours: float | None = None
    gpu_ms: float = 0.0

    @property
    def has_unit(self) -> bool:
        """Return whether predicted times are in milliseconds. If not, only their ratios are meaningful."""
        return self.gpu_hours is not None


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason why a case is not run. Cases with the same `kind` are counted together; `detail` is that of one case."""

    kind: str
    detail: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else self.kind


TOO_LARGE = "does not fit into the memory by the closed form"
HEAVIER = "recomputes or offloads more than its layout needs"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Case that is not run, and the reason; `memory` if it is too large."""

    case: Case
    reason: Reason
    memory: MemoryEstimate | None = None


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Case that the target can run. `memory_bytes` is None on CPU cores."""

    case: Case
    memory_bytes: float | None


def _fitting(case: Case, target: Target) -> _Fitting | LeftOut:
    """Check a case against the rules of its program and the memory of the target."""
    reasons = refusals(case, target, case_context(case, target))
    if reasons:
        return LeftOut(case, Reason(reasons[0], "; ".join(reasons[1:]) or None))
    if case.device == "cpu":
        return _Fitting(case, None)
    memory, usable = memory_of(case, target), usable_bytes(case, target)
    if usable is not None and memory.total_bytes > usable:
        needed = f"needs {memory.total_bytes / 1e9:.1f} GB, and {usable / 1e9:.1f} GB are usable"
        return LeftOut(case, Reason(TOO_LARGE, needed), memory)
    return _Fitting(case, memory.total_bytes)


def _timed(fitting: _Fitting, target: Target) -> Candidate:
    """Return the candidate with its predicted time.

    A case on CPU cores, or on GPUs whose peak is unknown, has only that of the pipeline bubble, without a unit.
    """
    case, layout = fitting.case, fitting.case.layout
    time = None
    if case.device == "gpu":
        time = time_of(case, target)
    if time is None:
        return Candidate(case.name, case, 1 + layout.bubble(), OPEN_UNCERTAINTY, fitting.memory_bytes)
    hours = layout.gpus * run_s(case.training, time.iteration_ms, case.workload) / 3600
    return Candidate(
        case.name, case, time.iteration_ms, time.uncertainty, fitting.memory_bytes, hours, gpu_ms=time.gpu_ms
    )


def candidates(cases: Iterable[Case], target: Target) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the cases that the target can run, fastest prediction first, and the others with the reason."""
    checked = [_fitting(case, target) for case in cases]
    chosen = [_timed(one, target) for one in checked if isinstance(one, _Fitting)]
    return _fastest_first(chosen), [one for one in checked if isinstance(one, LeftOut)]


def _fastest_first(chosen: list[Candidate]) -> list[Candidate]:
    return sorted(chosen, key=lambda one: rank(one, one.iteration_ms))


def rank(one: Candidate, iteration_ms: float) -> tuple[float, float]:
    """Return the sort key of a candidate with this predicted time: the fastest one is first.

    Of two equal times, rounded to four digits, the one with less time on the GPU is first. Both wait for the host,
    whose time is the same for many layouts and the least certain part of the model.
    """
    return float(f"{iteration_ms:.4g}"), one.gpu_ms


VARIANTS = 3
"""Number of variants of a layout that a search keeps: the lightest one that fits, and two that replace it if it runs
out of memory."""
_LEAST_SAVING = 0.02


def layout_candidates(cases: Iterable[Case], target: Target) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the layouts that the target can run, fastest prediction first, and the cases that are left out.

    Of each layout remain the variant with the least recomputation and offloading that fits, and two further ones of
    which each saves at least 2 % memory. Other variants are not checked, because they do more work for nothing.
    """
    layouts: dict[Layout, list[Case]] = {}
    for case in cases:
        layouts.setdefault(case.layout, []).append(case)
    chosen: list[Candidate] = []
    left_out: list[LeftOut] = []
    for variants in layouts.values():
        kept: list[_Fitting] = []
        for case in sorted(variants, key=_work):
            fitting = _fitting(case, target) if len(kept) < VARIANTS else None
            if isinstance(fitting, LeftOut):
                left_out.append(fitting)
            elif fitting is not None and (not kept or _saves_memory(fitting, kept[-1])):
                kept.append(fitting)
            else:
                left_out.append(LeftOut(case, Reason(HEAVIER)))
        chosen += [_timed(one, target) for one in kept]
    return _fastest_first(chosen), left_out


def _saves_memory(one: _Fitting, other: _Fitting) -> bool:
    if one.memory_bytes is None or other.memory_bytes is None:
        return False
    return one.memory_bytes <= other.memory_bytes * (1 - _LEAST_SAVING)


def distance(first: Case, second: Case) -> float:
    """Return the squared distance between two layouts: the steps of a factor of 2 between their sizes, squared.

    A different recomputation, sequence parallelism, offloading or kind of context-parallel communication counts as two.
    """
    sizes = zip(log_sizes(first.layout), log_sizes(second.layout), strict=True)
    switches = zip(_switches(first.layout, first.training), _switches(second.layout, second.training), strict=True)
    return sum((one - other) ** 2 for one, other in sizes) + sum(4.0 for one, other in switches if one != other)


def log_sizes(layout: Layout) -> tuple[float, ...]:
    """Return the parallel sizes and the microbatch size of a layout in steps of a factor of 2."""
    sizes = (
        layout.tensor_parallel,
        layout.pipeline_parallel,
        layout.context_parallel,
        layout.expert_parallel,
        layout.virtual_stages,
        layout.micro_batch_size,
    )
    return tuple(math.log2(size) for size in sizes)


def _switches(layout: Layout, training: Training) -> tuple[object, ...]:
    return layout.sequence_parallel, training.recompute, training.offload, training.cp_comm


_WORK = {"none": 0.0, "selective": 1.0, "ours": 2.0}


def does_more_work(case: Case, other: Case) -> bool:
    """Return whether the case is the other one with more recomputation or offloading, which only save memory."""
    if case.layout != other.layout or case.training.recompute is None or other.training.recompute is None:
        return False
    return _work(other) < _work(case) if other.training.recompute in _WORK else False


def _work(case: Case) -> float:
    """Return the rank of recomputation and offloading. Full recomputation is compared with no offloading only."""
    return _WORK.get(str(case.training.recompute), 2.5) + (case.training.offload or 0.0)
