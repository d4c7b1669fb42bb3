"""Candidates of a search: cases that train the same model with the same batch, with predicted time and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.megatron.memory import MemoryEstimate
from orchestrator.megatron.model import Layout, Training
from orchestrator.planning.plan import check_case
from orchestrator.planning.target import Target

OPEN_UNCERTAINTY = 0.5
"""Relative uncertainty of a time on CPU cores, of which only the pipeline bubble is predicted."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Case of a search. `iteration_ms` is predicted, with a relative `uncertainty`; on CPU cores it has no unit.

    `memory_bytes` is the closed form, None on CPU cores. `gpu_hours` is the cost of a complete job.
    """

    name: str
    case: Case
    iteration_ms: float
    uncertainty: float
    memory_bytes: float | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Case that is not run, and the reason; `memory` if it is too large."""

    case: Case
    reason: str
    memory: MemoryEstimate | None = None


def candidates(cases: Sequence[Case], target: Target) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the cases that the target can run, fastest prediction first, and the others with the reason.

    A case without a predicted time runs on CPU cores, or on GPUs whose peak is unknown.
    """
    chosen: list[Candidate] = []
    left_out: list[LeftOut] = []
    for case in cases:
        checked = check_case(case, target)
        if checked.refusals:
            left_out.append(LeftOut(case, "; ".join(checked.refusals)))
            continue
        cost = checked.cost
        assert cost is not None
        if cost.memory is not None and cost.usable_bytes is not None and cost.memory.total_bytes > cost.usable_bytes:
            needed, usable = cost.memory.total_bytes / 1e9, cost.usable_bytes / 1e9
            left_out.append(
                LeftOut(case, f"needs {needed:.1f} GB by the closed form, and {usable:.1f} GB are usable", cost.memory)
            )
            continue
        memory = cost.memory.total_bytes if cost.memory is not None else None
        if cost.duration is None:
            chosen.append(Candidate(case.name, case, 1 + case.layout.bubble(), OPEN_UNCERTAINTY, memory))
        else:
            time = cost.duration
            chosen.append(Candidate(case.name, case, time.iteration_ms, time.uncertainty, memory, cost.gpu_hours))
    return sorted(chosen, key=lambda one: one.iteration_ms), left_out


def distance(first: Case, second: Case) -> float:
    """Return the squared distance between two layouts: the steps of a factor of 2 between their sizes, squared.

    A different recomputation, sequence parallelism or offloading counts as two steps.
    """
    sizes = zip(_log_sizes(first.layout), _log_sizes(second.layout), strict=True)
    switches = zip(_switches(first.layout, first.training), _switches(second.layout, second.training), strict=True)
    return sum((one - other) ** 2 for one, other in sizes) + sum(4.0 for one, other in switches if one != other)


def _log_sizes(layout: Layout) -> tuple[float, ...]:
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
    return layout.sequence_parallel, training.recompute, training.offload


_WORK = {"none": 0.0, "selective": 1.0, "ours": 2.0}


def does_more_work(case: Case, other: Case) -> bool:
    """Return whether the case is the other one with more recomputation or offloading, which only save memory."""
    if case.layout != other.layout or case.training.recompute is None or other.training.recompute is None:
        return False
    return _work(other) < _work(case) if other.training.recompute in _WORK else False


def _work(case: Case) -> float:
    """Return the rank of recomputation and offloading. Full recomputation is compared with no offloading only."""
    return _WORK.get(str(case.training.recompute), 2.5) + (case.training.offload or 0.0)


VARIANTS = 3
"""Number of variants of a layout that a search keeps: the lightest one that fits, and two that replace it if it runs
out of memory."""
_LEAST_SAVING = 0.02


def without_idle_variants(chosen: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates without those that recompute or offload more than their layout needs.

    Of each layout remain the variant with the least work, and two further ones of which each saves at least 2 % memory.
    """
    kept: dict[Layout, list[Candidate]] = {}
    for one in sorted(chosen, key=lambda each: _work(each.case)):
        variants = kept.setdefault(one.case.layout, [])
        if not variants or (
            len(variants) < VARIANTS
            and one.memory_bytes is not None
            and one.memory_bytes <= (variants[-1].memory_bytes or math.inf) * (1 - _LEAST_SAVING)
        ):
            variants.append(one)
    names = {one.name for variants in kept.values() for one in variants}
    return [one for one in chosen if one.name in names]
