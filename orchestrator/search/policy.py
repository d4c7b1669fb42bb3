"""Order of a search: the next case to measure, given the measured ones, and when none can win any more.

Model: the logarithm of measured over predicted time is a Gaussian process. Its prior deviation is that of the printed
uncertainty, taken as a 90 % interval. A part of the error is common to all layouts of a search, for example because the
GPUs are slower than assumed. The rest is similar in similar layouts. So a measurement corrects all other predictions,
those of similar layouts most.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import Problem, ReproError
from orchestrator.megatron.model import Layout
from orchestrator.planning.batch_plan import read_budget
from orchestrator.search.candidates import HEAVIER, Candidate, Reason, distance, does_more_work, log_sizes, rank

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


Order = Callable[[Sequence[Candidate], Mapping[str, float]], str | None]
"""Function that names the next case to measure, given the measured times; None ends the search."""


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


def simulate(candidates: Sequence[Candidate], known_ms: Mapping[str, float], order: Order | None = None) -> Simulated:
    """Run a search whose measurements are the known times of all candidates. The default order is that of `decide`."""
    measured: dict[str, float] = {}
    while len(measured) < len(candidates):
        name = (order or _first_of_policy)(candidates, measured)
        if name is None:
            break
        measured[name] = known_ms[name]
    best = min((one.name for one in candidates), key=lambda name: known_ms[name])
    return Simulated(measured, len(candidates), best, known_ms[best])


def _first_of_policy(candidates: Sequence[Candidate], measured_ms: Mapping[str, float]) -> str | None:
    order = decide(candidates, measured_ms).order
    return order[0].candidate.name if order else None


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
