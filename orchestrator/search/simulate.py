"""Simulation of a search against known times, without any job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.search.candidates import Candidate
from orchestrator.search.policy import decide

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
    def cases(self) -> list[SimulatedCase]:
        """Return the measured cases in their order."""
        return [SimulatedCase(case, time, time / self.best_ms - 1) for case, time in self.measured_ms.items()]

    @property
    def found(self) -> str:
        """Return the fastest measured case."""
        return min(self.measured_ms, key=lambda name: self.measured_ms[name])


def simulate(candidates: Sequence[Candidate], known_ms: Mapping[str, float], order: Order | None = None) -> Simulated:
    """Run a search whose measurements are the known times of all candidates. The default order is that of `decide`."""
    next_case = order or first_of_policy
    measured: dict[str, float] = {}
    while len(measured) < len(candidates):
        name = next_case(candidates, measured)
        if name is None:
            break
        measured[name] = known_ms[name]
    best = min((one.name for one in candidates), key=lambda name: known_ms[name])
    return Simulated(measured, len(candidates), best, known_ms[best])


def first_of_policy(candidates: Sequence[Candidate], measured_ms: Mapping[str, float]) -> str | None:
    """Return the case that the search would measure next."""
    order = decide(candidates, measured_ms).order
    return order[0].candidate.name if order else None
