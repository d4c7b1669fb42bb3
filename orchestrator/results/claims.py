"""Verdicts of claims: statements of the paper, judged by measured numbers at each scale that supports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from orchestrator.catalog.claims import (
    Claim,
    ClosesClaim,
    GainClaim,
    LossCurveClaim,
    OutcomeClaim,
    PeakClaim,
    PublishedClaim,
    RatioClaim,
    SpreadClaim,
    TrendClaim,
)
from orchestrator.catalog.library import Entry
from orchestrator.results.cases import Result, published_on
from orchestrator.results.claim_pairs import judge_closes, judge_loss_curves, judge_ratio
from orchestrator.results.evidence import (
    Evidence,
    Finding,
    NotJudged,
    assigned,
    comparable,
    in_order,
    noise_of,
    require_alike,
    shown_number,
    speed,
    unique,
    unlike,
    value_of,
    verified,
)

Verdict = Literal["holds", "fails", "not judged"]


@dataclass(frozen=True, slots=True)
class Used:
    """A number behind a verdict: the mean of repeats, and the median job."""

    case: str
    job: str
    metric: str
    value: float
    spread: float | None


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """Verdict of a claim; `used` are the numbers behind it, or the available ones if it could not be judged."""

    claim: Claim
    verdict: Verdict
    because: str
    used: tuple[Used, ...] = ()


def judge_claims(entry: Entry, scale: str, found: Sequence[Result], gpus_per_node: int) -> list[ClaimVerdict]:
    """Return one verdict per claim.

    A claim is not judged if a case is not verified (cases that run out of memory as published may be missing), if noise
    could change the verdict, or if the verdict depends on a host-bound case or on different execution modes. If another
    program ran, claims about numbers and about out-of-memory are not judged; claims about shape are.
    """
    return [_judge(entry, claim, scale, found, gpus_per_node) for claim in entry.experiment.claims]


def _judge(entry: Entry, claim: Claim, scale: str, found: Sequence[Result], gpus_per_node: int) -> ClaimVerdict:
    if scale not in claim.judged_at:
        why = claim.not_judged_because or f"it is judged at {', '.join(claim.judged_at)}"
        return ClaimVerdict(claim, "not judged", f"at scale {scale}: {why}")
    about = tuple(result for result in found if result.has(claim.where))
    evidence = Evidence(entry, scale, about, claim.metric or entry.experiment.axes.y.metric, gpus_per_node)
    used = tuple(_used(claim, evidence))
    try:
        if not about:
            raise NotJudged(f"no case has {assigned(claim.where)}")
        own = about[0].instead_of
        if own is not None and isinstance(claim, (PublishedClaim, OutcomeClaim)):
            raise NotJudged(f"it is about {own}, and {about[0].case.workload} ran")
        holds, said = _finding(claim, evidence)
    except NotJudged as reason:
        return ClaimVerdict(claim, "not judged", str(reason), used)
    return ClaimVerdict(claim, "holds" if holds else "fails", said, used)


def _finding(claim: Claim, evidence: Evidence) -> Finding:
    """Return the verdict if it is the same at both ends of the noise of all numbers; else raise NotJudged."""
    judge = _JUDGES[type(claim)]
    holds, said = judge(claim, evidence)
    metrics = _metrics(claim, evidence)
    if any(judge(claim, moved)[0] != holds for moved in evidence.within_noise(metrics)):
        noisiest = max(_cases(claim, evidence), key=lambda result: max(_noise(result, metrics)))
        raise NotJudged(f"too noisy: {noise_of(noisiest, metrics)} at {noisiest.case.name}")
    return holds, said


def _used(claim: Claim, evidence: Evidence) -> Iterator[Used]:
    for result in _cases(claim, evidence):
        for name in _metrics(claim, evidence):
            metric = result.metric(name)
            if metric is not None and result.row is not None:
                yield Used(result.case.name, result.row.job_id, name, metric.value, metric.spread)


def _metrics(claim: Claim, evidence: Evidence) -> list[str]:
    """Return the metrics that the claim compares; none for claims about outcomes or losses."""
    if isinstance(claim, (OutcomeClaim, LossCurveClaim)):
        return []
    return list(claim.metrics) if isinstance(claim, PublishedClaim) else [evidence.metric]


def _cases(claim: Claim, evidence: Evidence) -> list[Result]:
    if isinstance(claim, (RatioClaim, ClosesClaim)):
        return [one for one in evidence.found if one.has(claim.of) or one.has(claim.over)]
    return list(evidence.found)


def _noise(result: Result, metrics: Sequence[str]) -> list[float]:
    return [metric.noise for name in metrics if (metric := result.metric(name)) is not None] or [0.0]


def _judge_peak(claim: PeakClaim, evidence: Evidence) -> Finding:
    node = evidence.gpus_per_node
    wanted = {axis: node if value == "gpus_per_node" else value for axis, value in claim.at.items()}
    series = evidence.series(evidence.measured())
    peaks = {name: max(results, key=lambda result: speed(result, evidence.metric)) for name, results in series.items()}

    def right(name: str) -> bool:
        return wanted.items() <= peaks[name].case.settings.items()

    names = comparable(list(peaks), lambda name: unlike(series[name], evidence.metric), right)
    return all(map(right, names)), "; ".join(f"{name} peaks at {peaks[name].case.name}" for name in names)


def _judge_spread(claim: SpreadClaim, evidence: Evidence) -> Finding:
    needed = claim.at_least * (1 - claim.tolerance)
    ratios: dict[str, float] = {}
    series = evidence.series(evidence.measured())
    for name, results in series.items():
        values = [speed(result, evidence.metric) for result in results]
        ratios[name] = max(values) / min(values)
    names = comparable(
        list(ratios),
        lambda name: unlike(series[name], evidence.metric),
        lambda name: ratios[name] >= needed,
        one_is_enough=True,
    )
    largest = max(names, key=lambda name: ratios[name])
    said = f"best over worst is {ratios[largest]:.2f} at {largest}, at least {needed:.2f} asked"
    return ratios[largest] >= needed, said


def _judge_gain(claim: GainClaim, evidence: Evidence) -> Finding:
    measured = evidence.measured()
    deepest = in_order(claim.where_largest, measured)[-1].case.value(claim.where_largest)
    there = [result for result in measured if result.case.value(claim.where_largest) == deepest]
    ordered = in_order(claim.along, there)
    first, last = ordered[0], ordered[-1]
    if first is last:
        raise NotJudged(f"no two of its cases differ in {claim.along}")
    require_alike([first, last], evidence.metric)
    ratio = speed(last, evidence.metric) / speed(first, evidence.metric)
    said = (
        f"at {claim.where_largest}={deepest}, {claim.along}={last.case.value(claim.along)} runs at "
        f"{ratio:.2f} times the rate of {claim.along}={first.case.value(claim.along)}"
    )
    return ratio > 1, said


def _judge_trend(claim: TrendClaim, evidence: Evidence) -> Finding:
    """Judge a trend; the tolerance is how far a step may go the wrong way, and without one a flat step is wrong."""

    def value(result: Result) -> float:
        return value_of(result, evidence.metric)

    def at(result: Result) -> str:
        return f"{shown_number(value(result))} at {claim.along}={result.case.value(claim.along)}"

    def right(before: Result, after: Result) -> bool:
        if claim.direction == "falls":
            return value(after) < value(before) * (1 + claim.tolerance)
        return value(after) > value(before) * (1 - claim.tolerance)

    named = evidence.lines_along(claim.along, evidence.measured())
    if not named:
        raise NotJudged(f"no two of its cases differ in {claim.along}")
    steps = comparable(
        [(name, before, after) for name, line in named.items() for before, after in pairwise(line)],
        lambda step: unlike(step[1:], evidence.metric),
        lambda step: right(*step[1:]),
    )
    wrong = [f"{name}: {at(before)}, then {at(after)}" for name, before, after in steps if not right(before, after)]
    said = [f"{name}: {at(line[0])} to {at(line[-1])}" for name, line in named.items()]
    return not wrong, "; ".join(wrong or said)


def _judge_published(claim: PublishedClaim, evidence: Evidence) -> Finding:
    """Judge numbers against confirmed published ones; unconfirmed numbers are drawn only."""
    points = [
        (result, point)
        for result in evidence.found
        for point in published_on(result.case, result.gpu)
        if point.metric in claim.metrics and point.confirmed
    ]
    if not points:
        raise NotJudged(f"none of its numbers was published for {evidence.found[0].gpu or 'a GPU without a name'}")
    there = {result.case.name for result in verified(unique(result for result, _ in points))}
    off = comparable(
        [
            (value_of(result, point.metric) - point.value, result, point)
            for result, point in points
            if result.case.name in there
        ],
        lambda one: unlike([one[1]], one[2].metric),
        lambda one: abs(one[0]) <= claim.tolerance * one[2].value,
    )
    farthest, result, point = max(off, key=lambda found: abs(found[0]) / found[2].value)
    measured, published = shown_number(value_of(result, point.metric)), shown_number(point.value)
    said = (
        f"the farthest of {len(off)}: {point.metric} {measured} against {published} at {result.case.name}, "
        f"{100 * farthest / point.value:+.2f} %; {100 * claim.tolerance:.4g} % allowed"
    )
    return abs(farthest) <= claim.tolerance * point.value, said


def _judge_outcome(claim: OutcomeClaim, evidence: Evidence) -> Finding:
    """Judge how cases end. If a case fits on another GPU, which may have more memory, the claim is not judged."""
    out_of_memory = [result.case.name for result in evidence.found if result.ran_out_of_memory]
    well = [result.case.name for result in evidence.found if result.is_verified]
    right, wrong = (well, out_of_memory) if claim.outcome == "ok" else (out_of_memory, well)
    if not wrong and len(right) < len(evidence.found):
        missing = len(evidence.found) - len(right)
        raise NotJudged(f"{missing} of {len(evidence.found)} cases neither verified nor out of memory")
    gpu, sources = evidence.found[0].gpu, evidence.source_gpus()
    if claim.outcome == "oom" and wrong and gpu and sources and not any(one in gpu for one in sources):
        raise NotJudged(f"it fits on {gpu}, and the source has {' and '.join(sources)}")
    seen = [f"out of memory: {'; '.join(out_of_memory)}"] if out_of_memory else []
    seen += [f"verified: {'; '.join(well)}"] if well else []
    return not wrong, ", ".join(seen)


# A judge takes its own kind of claim, which the key says and a type cannot.
_JUDGES: Mapping[type, Callable[[Any, Evidence], Finding]] = {
    PeakClaim: _judge_peak,
    SpreadClaim: _judge_spread,
    GainClaim: _judge_gain,
    TrendClaim: _judge_trend,
    RatioClaim: judge_ratio,
    ClosesClaim: judge_closes,
    PublishedClaim: _judge_published,
    OutcomeClaim: _judge_outcome,
    LossCurveClaim: judge_loss_curves,
}
