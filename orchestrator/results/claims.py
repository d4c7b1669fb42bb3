"""What the paper says about its figure, held against what was measured. Shape is judged at every scale that has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.catalog.claims import Claim, GainClaim, PeakClaim, SpreadClaim
from orchestrator.catalog.library import Entry
from orchestrator.results.compare import Result, lines

_SMALLER_IS_BETTER = frozenset({"iteration_ms"})

Verdict = Literal["holds", "fails", "not judged"]


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    claim: Claim
    verdict: Verdict
    because: str


def judge_claims(entry: Entry, scale: str, found: Sequence[Result], gpus_per_node: int) -> list[ClaimVerdict]:
    """One verdict per claim; a claim over cases that are not all verified is not judged."""
    return [_judge(entry, claim, scale, found, gpus_per_node) for claim in entry.experiment.claims]


def _judge(entry: Entry, claim: Claim, scale: str, found: Sequence[Result], gpus_per_node: int) -> ClaimVerdict:
    if scale not in claim.judged_at:
        why = claim.not_judged_because or f"it is judged at {', '.join(claim.judged_at)}"
        return ClaimVerdict(claim, "not judged", f"at scale {scale}: {why}")
    missing = sum(not result.is_verified for result in found)
    if missing:
        return ClaimVerdict(claim, "not judged", f"{missing} of {len(found)} cases not verified")
    metric = entry.experiment.axes.y.metric
    if isinstance(claim, PeakClaim):
        return _judge_peak(claim, _series(entry, found), metric, gpus_per_node)
    if isinstance(claim, SpreadClaim):
        return _judge_spread(claim, _series(entry, found), metric)
    return _judge_gain(claim, found, metric)


def _judge_peak(claim: PeakClaim, series: dict[str, list[Result]], metric: str, gpus_per_node: int) -> ClaimVerdict:
    wanted = {axis: gpus_per_node if value == "gpus_per_node" else value for axis, value in claim.at.given().items()}
    peaks = {name: max(results, key=lambda result: _speed(result, metric)) for name, results in series.items()}
    right = [name for name, best in peaks.items() if all(best.case.value(axis) == v for axis, v in wanted.items())]
    said = "; ".join(f"{name} peaks at {best.case.name}" for name, best in peaks.items())
    return ClaimVerdict(claim, "holds" if len(right) == len(peaks) else "fails", said)


def _judge_spread(claim: SpreadClaim, series: dict[str, list[Result]], metric: str) -> ClaimVerdict:
    ratios: dict[str, float] = {}
    for name, results in series.items():
        values = [_speed(result, metric) for result in results]
        ratios[name] = max(values) / min(values)
    largest = max(ratios, key=lambda name: ratios[name])
    needed = claim.at_least * (1 - claim.tolerance)
    said = f"best over worst is {ratios[largest]:.2f} at {largest}, at least {needed:.2f} asked"
    return ClaimVerdict(claim, "holds" if ratios[largest] >= needed else "fails", said)


def _judge_gain(claim: GainClaim, found: Sequence[Result], metric: str) -> ClaimVerdict:
    deepest = max(result.case.value(claim.where_largest) for result in found)
    there = [result for result in found if result.case.value(claim.where_largest) == deepest]
    ordered = sorted(there, key=lambda result: result.case.value(claim.along))
    first, last = ordered[0], ordered[-1]
    ratio = _speed(last, metric) / _speed(first, metric)
    said = (
        f"at {claim.where_largest}={deepest}, {claim.along}={last.case.value(claim.along)} runs at "
        f"{ratio:.2f} times the rate of {claim.along}={first.case.value(claim.along)}"
    )
    return ClaimVerdict(claim, "holds" if ratio > 1 else "fails", said)


def _series(entry: Entry, found: Sequence[Result]) -> dict[str, list[Result]]:
    series = entry.experiment.axes.series
    named = lines(entry, found).items()
    return {f"{series.of}={value}" if series else "the figure": results for value, results in named}


def _speed(result: Result, metric: str) -> float:
    """The case's speed: larger is better, whatever the figure's y axis shows."""
    value = result.value(metric)
    assert value is not None, "claims are judged only over verified cases"
    return 1 / value if metric in _SMALLER_IS_BETTER else value
