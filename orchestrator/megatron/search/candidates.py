"""Candidates of a search: cases that train the same model with the same batch, in which order, and when to stop.

Model of the order: the logarithm of measured over predicted time is a Gaussian process. Its prior deviation is that of
the printed uncertainty, taken as a 90 % interval. A part of the error is common to all layouts of a search, for example
because the GPUs are slower than assumed. The rest is similar in similar layouts. So a measurement corrects all other
predictions, those of similar layouts most.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import Problem, ReproError
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.memory import MemoryEstimate
from orchestrator.megatron.model import Layout, Training
from orchestrator.megatron.predictions import memory_of, run_s, time_of, usable_bytes
from orchestrator.planning.batch_plan import read_budget
from orchestrator.planning.target import Target, refusals

OPEN_UNCERTAINTY = 0.5
"""Relative uncertainty of a time on CPU cores, of which only the pipeline bubble is predicted."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Case of a search. `iteration_ms` is predicted, with a relative `uncertainty`.

    `memory_bytes` is the closed form, None on CPU cores. `gpu_hours` is the cost of a complete job. `gpu_ms` is the
    predicted time without waits for the host, 0 on CPU cores.
    """

    name: str
    case: TrainingCase
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

    case: TrainingCase
    reason: Reason
    memory: MemoryEstimate | None = None


def _fitting(case: TrainingCase, target: Target) -> Candidate | LeftOut:
    """Check a case against the rules of its program and the memory of the target.

    The time of the candidate is only that of the pipeline bubble, without a unit.
    """
    reasons = refusals(case, target)
    if reasons:
        return LeftOut(case, Reason(reasons[0], "; ".join(reasons[1:]) or None))
    candidate = Candidate(case.name, case, 1 + case.layout.bubble(), OPEN_UNCERTAINTY)
    if case.device == "cpu":
        return candidate
    memory, usable = memory_of(case, target), usable_bytes(case, target)
    if usable is not None and memory.total_bytes > usable:
        needed = f"needs {memory.total_bytes / 1e9:.1f} GB, and {usable / 1e9:.1f} GB are usable"
        return LeftOut(case, Reason(TOO_LARGE, needed), memory)
    return replace(candidate, memory_bytes=memory.total_bytes)


def _timed(one: Candidate, target: Target) -> Candidate:
    """Return the candidate with its predicted time, if it runs on GPUs whose peak is known."""
    time = time_of(one.case, target) if one.case.device == "gpu" else None
    if time is None:
        return one
    hours = one.case.gpus * run_s(one.case.training, time.iteration_ms, one.case.program) / 3600
    return replace(
        one, iteration_ms=time.iteration_ms, uncertainty=time.uncertainty, gpu_hours=hours, gpu_ms=time.gpu_ms
    )


def candidates(cases: Iterable[TrainingCase], target: Target) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the cases that the target can run, fastest prediction first, and the others with the reason."""
    checked = [_fitting(case, target) for case in cases]
    chosen = [_timed(one, target) for one in checked if isinstance(one, Candidate)]
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


def layout_candidates(cases: Iterable[TrainingCase], target: Target) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the layouts that the target can run, fastest prediction first, and the cases that are left out.

    Of each layout remain the variant with the least recomputation and offloading that fits, and two further ones of
    which each saves at least 2 % memory. Other variants are not checked, because they do more work for nothing.
    """
    layouts: dict[Layout, list[TrainingCase]] = {}
    for case in cases:
        layouts.setdefault(case.layout, []).append(case)
    chosen: list[Candidate] = []
    left_out: list[LeftOut] = []
    for variants in layouts.values():
        kept: list[Candidate] = []
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


def _saves_memory(one: Candidate, other: Candidate) -> bool:
    if one.memory_bytes is None or other.memory_bytes is None:
        return False
    return one.memory_bytes <= other.memory_bytes * (1 - _LEAST_SAVING)


def distance(first: TrainingCase, second: TrainingCase) -> float:
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


def does_more_work(case: TrainingCase, other: TrainingCase) -> bool:
    """Return whether the case is the other one with more recomputation or offloading, which only save memory."""
    if case.layout != other.layout or case.training.recompute is None or other.training.recompute is None:
        return False
    return _work(other) < _work(case) if other.training.recompute in _WORK else False


def _work(case: TrainingCase) -> float:
    """Return the rank of recomputation and offloading. Full recomputation is compared with no offloading only."""
    return _WORK.get(str(case.training.recompute), 2.5) + (case.training.offload or 0.0)


LENGTH_STEPS = 1.0
"""Length of the correlation between the errors of two predictions, in steps of a factor of 2 between their layouts.

Fitted to the semivariance of the errors of 150 published cases: 0.4, 0.6 and 0.9 of the variance at squared distances
of 1, 2 and 4 (the form gives 0.39, 0.63 and 0.86). The mean square of these errors, in prior deviations, is 0.95."""
COMMON_SHARE = 0.5
"""Share of the prior variance that is common to all layouts of a search.

An analysis of variance of the errors of 84 published cases in 22 lists (benchmarks/search.py, also its lists of two)
gives 0.78 of the prior variance between the lists and 0.76 within."""
UNKNOWN_SCALE = math.log(1e6)
"""Common deviation of predictions without a unit: the first measurement sets their scale."""
SLOPE = math.log(2) / 1.645
"""Deviation of the error of a prediction without a unit for each doubled size: at most twofold in a 90 % interval.

Such a prediction has only the pipeline bubble. The work for a microbatch and the cores that processes share are not in
it, and they change the time of all layouts with a size in the same direction."""
NOISE = 0.01
"""Relative deviation of two measurements of one case."""
INTERVAL = 1.645
"""Half width of a 90 % interval in deviations."""
OUT_OF_MEMORY = math.inf
"""Time of a case that ran out of memory."""
AS_LARGE = "needs at least the memory of a case that ran out of it"
SLOWER = "cannot be faster than the fastest case within its uncertainty"


@dataclass(frozen=True, slots=True)
class Corrected:
    """Prediction of a case after the measurements: its time, and the 90 % interval of it."""

    candidate: Candidate
    iteration_ms: float
    fastest_ms: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Next cases to measure, most promising first, and the cases that need not be measured, with the reason."""

    order: tuple[Corrected, ...]
    pruned: Mapping[str, Reason]


def decide(candidates: Sequence[Candidate], measured_ms: Mapping[str, float]) -> Decision:
    """Return the order of the cases that are not measured.

    `measured_ms` has the times per iteration by name; infinity is a case that ran out of memory. A case that needs
    more memory than one that ran out is pruned, and one that cannot be the fastest within its interval. So is a case
    with more recomputation or offloading than the same layout needs, until the lighter one has run out of memory.
    """
    left = [one for one in candidates if one.name not in measured_ms]
    pruned: dict[str, Reason] = {}
    lighter = _lighter_variants(candidates, measured_ms)
    ran_out = [one for one in candidates if measured_ms.get(one.name) == OUT_OF_MEMORY]
    for one in left:
        needed = -math.inf if one.memory_bytes is None else one.memory_bytes
        smaller = next((other for other in ran_out if other.memory_bytes and needed >= other.memory_bytes), None)
        if smaller is not None:
            pruned[one.name] = Reason(AS_LARGE, smaller.name)
        elif one.name in lighter:
            pruned[one.name] = Reason(HEAVIER, f"{lighter[one.name]} may fit")
    finite = {name: value for name, value in measured_ms.items() if value != OUT_OF_MEMORY}
    corrected = _corrected(candidates, finite, [one for one in left if one.name not in pruned])
    if finite:
        best = min(finite, key=lambda name: finite[name])
        slower = [each.candidate.name for each in corrected if each.fastest_ms >= finite[best]]
        pruned |= dict.fromkeys(slower, Reason(SLOWER, best))
    able = [each for each in corrected if each.candidate.name not in pruned]
    return Decision(tuple(sorted(able, key=lambda each: rank(each.candidate, each.iteration_ms))), pruned)


def _lighter_variants(candidates: Sequence[Candidate], measured_ms: Mapping[str, float]) -> dict[str, str]:
    """Return, for each case that does more work than the same layout needs, the name of a lighter variant."""
    variants: dict[Layout, list[Candidate]] = {}
    for one in candidates:
        if measured_ms.get(one.name) != OUT_OF_MEMORY:
            variants.setdefault(one.case.layout, []).append(one)
    return {
        one.name: other.name
        for group in variants.values()
        for one in group
        for other in group
        if does_more_work(one.case, other.case)
    }


def _corrected(
    candidates: Sequence[Candidate], measured_ms: Mapping[str, float], left: Sequence[Candidate]
) -> list[Corrected]:
    """Return the prediction of each case that is left, by the posterior of the Gaussian process."""
    known = [one for one in candidates if one.name in measured_ms]
    errors = [math.log(measured_ms[one.name] / one.iteration_ms) for one in known]
    factor = _cholesky([[_covariance(a, b) + (NOISE**2 if a is b else 0.0) for b in known] for a in known])
    weighted = _solve(factor, errors)
    result = []
    for one in left:
        column = _solve(factor, [_covariance(one, other) for other in known])
        mean = sum(a * b for a, b in zip(column, weighted, strict=True))
        variance = max(_covariance(one, one) - sum(a * a for a in column), 0.0)
        time = one.iteration_ms * math.exp(mean)
        result.append(Corrected(one, time, time * math.exp(-INTERVAL * math.sqrt(variance))))
    return result


def _covariance(first: Candidate, second: Candidate) -> float:
    deviation = [math.log1p(one.uncertainty) / INTERVAL for one in (first, second)]
    near = math.exp(-distance(first.case, second.case) / (2 * LENGTH_STEPS**2))
    if not first.has_unit:
        sizes = zip(log_sizes(first.case.layout), log_sizes(second.case.layout), strict=True)
        steps = math.fsum(one * other for one, other in sizes)
        return UNKNOWN_SCALE**2 + SLOPE**2 * steps + deviation[0] * deviation[1] * near
    return deviation[0] * deviation[1] * (COMMON_SHARE + (1 - COMMON_SHARE) * near)


def _cholesky(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the lower triangular factor of a positive definite matrix."""
    factor: list[list[float]] = []
    for i, row in enumerate(matrix):
        line: list[float] = []
        for j in range(i):
            line.append((row[j] - sum(line[k] * factor[j][k] for k in range(j))) / factor[j][j])
        line.append(math.sqrt(row[i] - sum(value * value for value in line)))
        factor.append(line)
    return factor


def _solve(factor: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return x with `factor x = right`, for a lower triangular factor."""
    x: list[float] = []
    for row, value in zip(factor, right, strict=True):
        x.append((value - sum(a * b for a, b in zip(row, x, strict=False))) / row[len(x)])
    return x


@dataclass(frozen=True, slots=True)
class SimulatedCase:
    """A case that a simulated search measured, with its known time.

    `over_fastest` is how much longer it takes than the fastest case of the list, as a share: 0 for that case.
    """

    case: str
    iteration_ms: float
    over_fastest: float


@dataclass(frozen=True, slots=True)
class Simulated:
    """Cases in the order in which a search measured them, with their times; infinity is out of memory.

    `of` is the number of candidates, `best` the fastest one of all.
    """

    measured_ms: Mapping[str, float]
    of: int
    best: str
    best_ms: float

    @property
    def found(self) -> str:
        """Return the fastest measured case."""
        return min(self.measured_ms, key=lambda name: self.measured_ms[name])

    @property
    def cases(self) -> list[SimulatedCase]:
        """Return the measured cases in their order."""
        return [SimulatedCase(case, time, time / self.best_ms - 1) for case, time in self.measured_ms.items()]


def simulate(candidates: Sequence[Candidate], known_ms: Mapping[str, float]) -> Simulated:
    """Run a search whose measurements are the known times of all candidates, in the order of `decide`."""
    measured: dict[str, float] = {}
    while order := decide(candidates, measured).order:
        name = order[0].candidate.name
        measured[name] = known_ms[name]
    best = min((one.name for one in candidates), key=lambda name: known_ms[name])
    return Simulated(measured, len(candidates), best, known_ms[best])


@dataclass(frozen=True, slots=True)
class Budget:
    """Limit of a search: GPU-hours, or seconds of all jobs one after another. None is no limit."""

    gpu_hours: float | None = None
    job_s: float | None = None

    def allows(self, hours: float, job_s: float) -> bool:
        """Return whether jobs with these sums are inside the limit."""
        return hours <= (self.gpu_hours or math.inf) and job_s <= (self.job_s or math.inf)


def read_search_budget(text: str | None) -> Budget:
    """Parse `6gpu-hours`, or the time of all jobs as `30m` or `0:30:00`; ReproError for any other text."""
    if text is None:
        return Budget()
    if match := re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?gpu-hours?", text):
        hours = float(match[1])
        if hours > 0:
            return Budget(gpu_hours=hours)
    try:
        return Budget(job_s=read_budget(text))
    except ReproError:
        hint = "for example 6gpu-hours, or the time of all jobs: 30m, 1h or 0:30:00"
        raise ReproError(Problem(f"--budget {text}: not a budget", hint=hint)) from None
