"""Verdicts of claims: statements of the paper, judged by measured numbers at each scale that supports them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from orchestrator.catalog.claims import (
    Claim,
    ClosesClaim,
    GainClaim,
    LossCurveClaim,
    OutcomeClaim,
    PairFields,
    PeakClaim,
    PublishedClaim,
    RatioClaim,
    SpreadClaim,
    TrendClaim,
)
from orchestrator.catalog.library import Entry
from orchestrator.metrics import METRICS
from orchestrator.results.cases import Result, published_on
from orchestrator.results.claim_pairs import judge_closes, judge_loss_curves, judge_ratio
from orchestrator.results.evidence import (
    Evidence,
    assigned,
    in_order,
    shown_number,
    unique,
    value_of,
    verified,
)
from orchestrator.results.margin import ClaimFinding, Margin, NotJudged
from orchestrator.results.parts import Part, decide, published_part
from orchestrator.results.uncertainty import largest
from orchestrator.text import counted

Verdict = Literal["holds", "fails", "not judged"]

JUDGING_RULES: int = 2
"""Version of the rules that judge claims. 1: numbers with a small spread count as exact. 2: every number has an
uncertainty.
"""


@dataclass(frozen=True, slots=True)
class Used:
    """Number behind a verdict: the mean of repeats, and the median job.

    `experiment` is the full name of the experiment that has the case.
    """

    experiment: str
    case: str
    job: str
    metric: str
    value: float
    spread: float | None


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """Verdict of a claim; `used` are the numbers behind it, or the available ones if it could not be judged.

    `margin` is the distance from the bound that decides: None without a number, as for an outcome.
    """

    claim: Claim
    verdict: Verdict
    because: str
    used: tuple[Used, ...] = ()
    margin: Margin | None = None


def judge_claims(
    entry: Entry,
    scale: str,
    results: Sequence[Result],
    gpus_per_node: int,
    others: Mapping[str, Sequence[Result]] | None = None,
) -> list[ClaimVerdict]:
    """Return one verdict per claim. `others` are the results of other experiments of the paper, by short name.

    A claim is not judged if a case is not verified (cases that run out of memory as published may be missing), if noise
    could change the verdict, or if the verdict depends on a host-bound case or on different execution modes. If another
    program ran, claims about numbers, losses and out-of-memory are not judged; claims about shape are. If processes on
    CPU cores took the place of GPUs, claims about times and rates are not judged.
    """
    verdicts: list[ClaimVerdict] = []
    for claim in entry.experiment.claims:
        other = claim.experiment if isinstance(claim, PairFields) else None
        beside = tuple((others or {}).get(other, ())) if other else ()
        metric = claim.metric or entry.experiment.axes.y.metric
        evidence = Evidence(entry, scale, tuple(results), metric, gpus_per_node, beside, (*results, *beside))
        verdicts.append(_judge(claim, evidence))
    return verdicts


def _judge(claim: Claim, evidence: Evidence) -> ClaimVerdict:
    """Return the verdict of a claim by the evidence of all cases."""
    if evidence.scale not in claim.judged_at:
        return ClaimVerdict(claim, "not judged", f"at scale {evidence.scale}: {claim.why_not_at(evidence.scale)}")
    cases, beside = (
        tuple(result for result in results if result.has(claim.where))
        for results in (evidence.results, evidence.beside)
    )
    evidence = replace(evidence, results=cases, beside=beside)
    used = tuple(_used(claim, evidence))
    try:
        if not cases:
            raise NotJudged(f"no case has {assigned(claim.where)}")
        own = cases[0].instead_of
        if own is not None and isinstance(claim, (PublishedClaim, OutcomeClaim, LossCurveClaim)):
            raise NotJudged(f"it is about {own}, and {cases[0].case.workload} ran")
        changed = next((result.case for result in cases if result.case.argument_changes), None)
        if changed is not None and isinstance(claim, (PublishedClaim, OutcomeClaim)):
            raise NotJudged(f"it is about the published arguments: {changed.name} has others, by --arg or --no-arg")
        _require_gpus(claim, evidence)
        finding = _judged(claim, evidence)
    except NotJudged as reason:
        return ClaimVerdict(claim, "not judged", str(reason), used, reason.margin)
    because = finding.because
    if not finding.holds and claim.not_met_by_source:
        because += f"; the source does not reach it either: {claim.not_met_by_source}"
    if partial := [f"{result.case.name} at {result.partial}" for result in _cases(claim, evidence) if result.partial]:
        because += f"; partial: {', '.join(partial)}"
    return ClaimVerdict(claim, "holds" if finding.holds else "fails", because, used, finding.margin)


def _require_gpus(claim: Claim, evidence: Evidence) -> None:
    """Raise NotJudged if the claim is about times or rates of GPUs, and CPU processes took their place."""
    on_cpu = any(result.case.device == "cpu" for result in evidence.results)
    is_of_gpus = evidence.entry.experiment.device != "cpu"
    if on_cpu and is_of_gpus and any(METRICS[name].is_rate for name in _metrics(claim, evidence)):
        raise NotJudged("the speed of processes on CPU cores does not show the speed of GPUs")


def _judged(claim: Claim, evidence: Evidence) -> ClaimFinding:
    """Judge a claim by the function of its kind."""
    match claim:
        case PeakClaim():
            return _judge_peak(claim, evidence)
        case SpreadClaim():
            return _judge_spread(claim, evidence)
        case GainClaim():
            return _judge_gain(claim, evidence)
        case TrendClaim():
            return _judge_trend(claim, evidence)
        case RatioClaim():
            return judge_ratio(claim, evidence)
        case ClosesClaim():
            return judge_closes(claim, evidence)
        case PublishedClaim():
            return _judge_published(claim, evidence)
        case OutcomeClaim():
            return _judge_outcome(claim, evidence)
        case LossCurveClaim():
            return judge_loss_curves(claim, evidence)


def _used(claim: Claim, evidence: Evidence) -> Iterator[Used]:
    for result in _cases(claim, evidence):
        for name in _metrics(claim, evidence):
            metric = result.metric(name)
            if metric is not None and result.row is not None:
                case = result.case
                yield Used(case.experiment, case.name, result.row.job_id, name, metric.value, metric.spread)


def _metrics(claim: Claim, evidence: Evidence) -> list[str]:
    """Return the metrics that the claim compares; none for claims about outcomes or losses."""
    if isinstance(claim, (OutcomeClaim, LossCurveClaim)):
        return []
    return list(claim.metrics) if isinstance(claim, PublishedClaim) else [evidence.metric]


def _cases(claim: Claim, evidence: Evidence) -> list[Result]:
    if not isinstance(claim, (RatioClaim, ClosesClaim)):
        return list(evidence.results)
    if claim.experiment is None:
        return [result for result in evidence.results if result.has(claim.of) or result.has(claim.over)]
    of = [result for result in evidence.results if result.has(claim.of)]
    return [*of, *(result for result in evidence.beside if result.has(claim.over))]


def _judge_peak(claim: PeakClaim, evidence: Evidence) -> ClaimFinding:
    """Judge whether a case with the claimed values is at least as fast as all others of its line."""
    node = evidence.gpus_per_node
    claimed = {axis: node if value == "gpus_per_node" else value for axis, value in claim.at.items()}
    parts: list[Part] = []
    for name, results in evidence.series(evidence.measured()).items():
        is_claimed = [claimed.items() <= result.case.settings.items() for result in results]
        if len(set(is_claimed)) < 2:
            raise NotJudged(f"{name} has no case {'without' if is_claimed[0] else 'with'} {assigned(claimed)}")
        speeds = list(zip(is_claimed, evidence.speeds(results), strict=True))
        best, other = (largest([speed for at, speed in speeds if at is side]) for side in (True, False))
        shown = f"{assigned(claimed)} over the best other case at {name}"
        parts.append(Part(shown, results, evidence.metric, best / other, least=1.0))
    decision = decide(parts)
    peaks = [(part, _fastest(part.results, evidence)) for part in decision.parts]
    because = "; ".join(f"{_line(part)} peaks at {peak.case.name}" for part, peak in peaks)
    return ClaimFinding(decision.holds, because, decision.margin)


def _line(part: Part) -> str:
    return part.name.rpartition(" at ")[2]


def _fastest(results: Sequence[Result], evidence: Evidence) -> Result:
    speeds = evidence.speeds(results)
    return max(zip(results, speeds, strict=True), key=lambda pair: pair[1].value)[0]


def _judge_spread(claim: SpreadClaim, evidence: Evidence) -> ClaimFinding:
    """Judge whether the best case of some line is as much faster than its worst one as claimed."""
    needed = claim.at_least * (1 - claim.tolerance)
    parts: list[Part] = []
    for name, results in evidence.series(evidence.measured()).items():
        speeds = evidence.speeds(results)
        ratios = [one / other for one in speeds for other in speeds if one is not other]
        if not ratios:
            raise NotJudged(f"{name} has one case")
        parts.append(Part(f"best over worst at {name}", results, evidence.metric, largest(ratios), least=needed))
    decision = decide(parts, one_is_enough=True)
    ratio = f"best over worst is {decision.part.number.value:.3f} at {_line(decision.part)}"
    return ClaimFinding(decision.holds, f"{ratio}; at least {needed:.4g} asked", decision.margin)


def _judge_gain(claim: GainClaim, evidence: Evidence) -> ClaimFinding:
    measured = evidence.measured()
    most = in_order(claim.where_largest, measured)[-1].case.value(claim.where_largest)
    at_most = [result for result in measured if result.case.value(claim.where_largest) == most]
    ordered = in_order(claim.along, at_most)
    first, last = ordered[0], ordered[-1]
    if first is last:
        raise NotJudged(f"no two of its cases differ in {claim.along}")
    slow, fast = evidence.speeds([first, last])
    low, high = (f"{claim.along}={result.case.value(claim.along)}" for result in (first, last))
    shown = f"the rate of {high} over that of {low} at {claim.where_largest}={most}"
    decision = decide([Part(shown, [first, last], evidence.metric, fast / slow, least=1.0, strict=True)])
    because = (
        f"at {claim.where_largest}={most}, {high} runs at {decision.part.number.value:.3f} times the rate of {low}"
    )
    return ClaimFinding(decision.holds, because, decision.margin)


def _judge_trend(claim: TrendClaim, evidence: Evidence) -> ClaimFinding:
    """Judge a trend. A step may go the wrong way by the tolerance, the last value must be beyond the first one."""

    def shown(result: Result) -> str:
        return f"{shown_number(value_of(result, evidence.metric))} at {claim.along}={result.case.value(claim.along)}"

    def part(name: str, before: Result, after: Result, tolerance: float) -> Part:
        first, last = evidence.numbers([before, after])
        least, most = (1 - tolerance, math.inf) if claim.direction == "rises" else (-math.inf, 1 + tolerance)
        step = f"{name}: {shown(before)}, then {shown(after)}"
        return Part(step, [before, after], evidence.metric, last / first, least, most, strict=True)

    lines = evidence.lines_along(claim.along, evidence.measured())
    if not lines:
        raise NotJudged(f"no two of its cases differ in {claim.along}")
    steps = [
        part(name, before, after, claim.tolerance) for name, line in lines.items() for before, after in pairwise(line)
    ]
    if claim.tolerance:
        steps += [part(name, line[0], line[-1], 0.0) for name, line in lines.items()]
    decision = decide(steps)
    wrong = [step.name for step in decision.parts if step.holds is False]
    ends = [f"{name}: {shown(line[0])} to {shown(line[-1])}" for name, line in lines.items()]
    return ClaimFinding(decision.holds, "; ".join(wrong or ends), decision.margin)


def _judge_published(claim: PublishedClaim, evidence: Evidence) -> ClaimFinding:
    """Judge numbers against confirmed published ones; unconfirmed numbers are drawn only."""
    sources = evidence.source_gpus()
    points = [
        (result, point)
        for result in evidence.results
        for point in published_on(result.case, result.gpu)
        if point.metric in claim.metrics and point.confirmed
        if point.gpu or not sources or any(source in (result.gpu or "") for source in sources)
    ]
    if not points:
        raise NotJudged(f"none of its numbers was published for {evidence.results[0].gpu or 'a GPU without a name'}")
    names = {result.case.name for result in verified(unique(result for result, _ in points))}
    parts = [
        published_part(result, point, evidence.numbers([result], point.metric)[0], claim.tolerance)
        for result, point in points
        if result.case.name in names
    ]
    decision = decide(parts)
    farthest = max(decision.parts, key=lambda part: (part.holds is False, abs(part.number.value / _middle(part) - 1)))
    because = f"the farthest of {len(decision.parts)}: {farthest.name}; {100 * claim.tolerance:.4g} % allowed"
    return ClaimFinding(decision.holds, because, farthest.margin)


def _middle(part: Part) -> float:
    return (part.least + part.most) / 2


def _judge_outcome(claim: OutcomeClaim, evidence: Evidence) -> ClaimFinding:
    """Judge how cases end. If a case fits on another GPU, which may have more memory, the claim is not judged."""
    results = evidence.results
    out_of_memory = [result.case.name for result in results if result.ran_out_of_memory]
    ok = [result.case.name for result in results if result.is_measured]
    right, wrong = (ok, out_of_memory) if claim.outcome == "ok" else (out_of_memory, ok)
    if not wrong and len(right) < len(results):
        missing = len(results) - len(right)
        raise NotJudged(f"{missing} of {counted(len(results), 'case')} neither verified nor out of memory")
    gpu, sources = results[0].gpu, evidence.source_gpus()
    if claim.outcome == "oom" and wrong and gpu and sources and not any(source in gpu for source in sources):
        raise NotJudged(f"it fits on {gpu}, and the source has {' and '.join(sources)}")
    seen = [f"out of memory: {'; '.join(out_of_memory)}"] if out_of_memory else []
    seen += [f"verified: {'; '.join(ok)}"] if ok else []
    return ClaimFinding(not wrong, ", ".join(seen))
