"""Verdicts of claims: statements of the paper, judged by measured numbers at each scale that supports them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from orchestrator.catalog.published import PublishedPoint
from orchestrator.results.cases import NOT_RATES, Result, published_on
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
from orchestrator.text import counted

Verdict = Literal["holds", "fails", "not judged"]

JUDGING_RULES: int = 2
"""Version of the rules that judge claims. 1: numbers with a small spread count as exact. 2: every number has an
number has an uncertainty (`results.uncertainty`).
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
    """Verdict of a claim; `used` are the numbers behind it, or the available ones if it could not be judged."""

    claim: Claim
    verdict: Verdict
    because: str
    used: tuple[Used, ...] = ()


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
        beside = (others or {}).get(other, ()) if other else ()
        verdicts.append(_judge(entry, claim, scale, results, gpus_per_node, beside))
    return verdicts


def _judge(
    entry: Entry,
    claim: Claim,
    scale: str,
    results: Sequence[Result],
    gpus_per_node: int,
    beside: Sequence[Result],
) -> ClaimVerdict:
    if scale not in claim.judged_at:
        return ClaimVerdict(claim, "not judged", f"at scale {scale}: {claim.why_not_at(scale)}")
    cases = tuple(result for result in results if result.has(claim.where))
    metric = claim.metric or entry.experiment.axes.y.metric
    of_other = tuple(result for result in beside if result.has(claim.where))
    evidence = Evidence(entry, scale, cases, metric, gpus_per_node, of_other)
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
        finding = _finding(claim, evidence)
    except NotJudged as reason:
        return ClaimVerdict(claim, "not judged", str(reason), used)
    return ClaimVerdict(claim, "holds" if finding.holds else "fails", finding.because, used)


def _require_gpus(claim: Claim, evidence: Evidence) -> None:
    """Raise NotJudged if the claim is about times or rates of GPUs, and CPU processes took their place."""
    on_cpu = any(result.case.device == "cpu" for result in evidence.results)
    is_of_gpus = evidence.entry.experiment.device != "cpu"
    if on_cpu and is_of_gpus and not NOT_RATES.issuperset(_metrics(claim, evidence)):
        raise NotJudged("the speed of processes on CPU cores does not show the speed of GPUs")


def _finding(claim: Claim, evidence: Evidence) -> Finding:
    """Return the verdict if it is the same at both ends of the noise of all numbers; else raise NotJudged."""
    finding, metrics = _judged(claim, evidence), _metrics(claim, evidence)
    if any(_judged(claim, moved).holds != finding.holds for moved in evidence.within_noise(metrics)):
        noisiest = max(_cases(claim, evidence), key=lambda result: max(_noise(result, metrics)))
        raise NotJudged(f"too noisy: {noise_of(noisiest, metrics)} at {noisiest.case.name}")
    return finding


def _judged(claim: Claim, evidence: Evidence) -> Finding:
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


def _noise(result: Result, metrics: Sequence[str]) -> list[float]:
    return [metric.noise for name in metrics if (metric := result.metric(name)) is not None] or [0.0]


def _judge_peak(claim: PeakClaim, evidence: Evidence) -> Finding:
    node = evidence.gpus_per_node
    claimed = {axis: node if value == "gpus_per_node" else value for axis, value in claim.at.items()}
    series = evidence.series(evidence.measured())
    peaks = {name: max(results, key=lambda result: speed(result, evidence.metric)) for name, results in series.items()}

    def peaks_as_claimed(name: str) -> bool:
        return claimed.items() <= peaks[name].case.settings.items()

    names = comparable(list(peaks), lambda name: unlike(series[name], evidence.metric), peaks_as_claimed)
    because = "; ".join(f"{name} peaks at {peaks[name].case.name}" for name in names)
    return Finding(all(map(peaks_as_claimed, names)), because)


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
    because = f"best over worst is {ratios[largest]:.2f} at {largest}, at least {needed:.2f} asked"
    return Finding(ratios[largest] >= needed, because)


def _judge_gain(claim: GainClaim, evidence: Evidence) -> Finding:
    measured = evidence.measured()
    largest = in_order(claim.where_largest, measured)[-1].case.value(claim.where_largest)
    at_largest = [result for result in measured if result.case.value(claim.where_largest) == largest]
    ordered = in_order(claim.along, at_largest)
    first, last = ordered[0], ordered[-1]
    if first is last:
        raise NotJudged(f"no two of its cases differ in {claim.along}")
    require_alike([first, last], evidence.metric)
    ratio = speed(last, evidence.metric) / speed(first, evidence.metric)
    because = (
        f"at {claim.where_largest}={largest}, {claim.along}={last.case.value(claim.along)} runs at "
        f"{ratio:.2f} times the rate of {claim.along}={first.case.value(claim.along)}"
    )
    return Finding(ratio > 1, because)


def _judge_trend(claim: TrendClaim, evidence: Evidence) -> Finding:
    """Judge a trend. A step may go the wrong way by the tolerance; without a tolerance a flat step is wrong."""

    def value(result: Result) -> float:
        return value_of(result, evidence.metric)

    def shown(result: Result) -> str:
        return f"{shown_number(value(result))} at {claim.along}={result.case.value(claim.along)}"

    def follows(before: Result, after: Result) -> bool:
        if claim.direction == "falls":
            return value(after) < value(before) * (1 + claim.tolerance)
        return value(after) > value(before) * (1 - claim.tolerance)

    lines = evidence.lines_along(claim.along, evidence.measured())
    if not lines:
        raise NotJudged(f"no two of its cases differ in {claim.along}")
    steps = comparable(
        [(name, before, after) for name, line in lines.items() for before, after in pairwise(line)],
        lambda step: unlike(step[1:], evidence.metric),
        lambda step: follows(*step[1:]),
    )
    wrong = [
        f"{name}: {shown(before)}, then {shown(after)}" for name, before, after in steps if not follows(before, after)
    ]
    ends = [f"{name}: {shown(line[0])} to {shown(line[-1])}" for name, line in lines.items()]
    return Finding(not wrong, "; ".join(wrong or ends))


def _judge_published(claim: PublishedClaim, evidence: Evidence) -> Finding:
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

    def deviation(result: Result, point: PublishedPoint) -> float:
        return value_of(result, point.metric) - point.value

    def is_within(result: Result, point: PublishedPoint) -> bool | None:
        return point.agrees(value_of(result, point.metric), claim.tolerance)

    judged = comparable(
        [(result, point) for result, point in points if result.case.name in names],
        lambda pair: unlike([pair[0]], pair[1].metric),
        lambda pair: is_within(*pair) is True,
    )
    result, point = max(judged, key=lambda pair: (is_within(*pair) is False, abs(deviation(*pair)) / pair[1].value))
    measured, published = shown_number(value_of(result, point.metric)), shown_number(point.value)
    because = (
        f"the farthest of {len(judged)}: {point.metric} {measured} against {published} at {result.case.name}, "
        f"{100 * deviation(result, point) / point.value:+.2f} %; {100 * claim.tolerance:.4g} % allowed"
    )
    holds = is_within(result, point)
    if holds is None:
        raise NotJudged(f"{because}, and {point.doubt}")
    return Finding(holds, because)


def _judge_outcome(claim: OutcomeClaim, evidence: Evidence) -> Finding:
    """Judge how cases end. If a case fits on another GPU, which may have more memory, the claim is not judged."""
    results = evidence.results
    out_of_memory = [result.case.name for result in results if result.ran_out_of_memory]
    ok = [result.case.name for result in results if result.is_verified]
    right, wrong = (ok, out_of_memory) if claim.outcome == "ok" else (out_of_memory, ok)
    if not wrong and len(right) < len(results):
        missing = len(results) - len(right)
        raise NotJudged(f"{missing} of {counted(len(results), 'case')} neither verified nor out of memory")
    gpu, sources = results[0].gpu, evidence.source_gpus()
    if claim.outcome == "oom" and wrong and gpu and sources and not any(source in gpu for source in sources):
        raise NotJudged(f"it fits on {gpu}, and the source has {' and '.join(sources)}")
    seen = [f"out of memory: {'; '.join(out_of_memory)}"] if out_of_memory else []
    seen += [f"verified: {'; '.join(ok)}"] if ok else []
    return Finding(not wrong, ", ".join(seen))
