"""Verdicts of claims: statements of the paper, judged by measured numbers at each scale that supports them."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from orchestrator.catalog.case import alike
from orchestrator.catalog.claims import (
    Claim,
    ClaimFields,
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
from orchestrator.catalog.expand import scale_fields
from orchestrator.catalog.experiment import PAPER
from orchestrator.catalog.library import Entry
from orchestrator.job_spec import Value
from orchestrator.programs.axes import MetricDefinition, Settings
from orchestrator.programs.plug_ins import called
from orchestrator.results.cases import Result, published_on
from orchestrator.results.evidence import (
    ClaimFinding,
    Evidence,
    Margin,
    NotJudged,
    Number,
    Part,
    PartsVerdict,
    assigned,
    decide,
    in_order,
    largest,
    may_be_missing,
    measured,
    metric_of,
    published_part,
    shown_number,
    unique,
    verified,
)
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
        beside = (others or {}).get(claim.other_experiment or "", ())
        cases, cases_beside = (tuple(one for one in every if one.has(claim.where)) for every in (results, beside))
        metric = claim.metric or entry.experiment.plot.y.metric
        definition = entry.metrics.get(metric) or MetricDefinition(metric, "", "a metric that the program lacks")
        evidence = Evidence(entry, scale, cases, definition, gpus_per_node, cases_beside, (*results, *beside))
        verdicts.append(_judge(claim, evidence))
    return verdicts


def _judge(claim: Claim, evidence: Evidence) -> ClaimVerdict:
    """Return the verdict of a claim by the evidence of its cases."""
    if evidence.scale not in claim.judged_at:
        return ClaimVerdict(claim, "not judged", f"at scale {evidence.scale}: {claim.why_not_at(evidence.scale)}")
    cases, used = evidence.results, tuple(_used(claim, evidence))
    try:
        if not cases:
            raise NotJudged(f"no case has {assigned(claim.where)}")
        _require_metrics(claim, evidence)
        own = cases[0].instead_of
        if own is not None and claim.is_of_program:
            raise NotJudged(f"it is about {own}, and {cases[0].case.program} ran")
        changed = next((result.case for result in cases if result.case.argument_changes), None)
        if changed is not None and claim.is_of_arguments:
            raise NotJudged(f"it is about the published arguments: {changed.name} has others, by --arg or --no-arg")
        _require_gpus(claim, evidence)
        finding = called(claim.judge, "judge", ClaimFinding, claim, evidence)
    except NotJudged as reason:
        return ClaimVerdict(claim, "not judged", str(reason), used, reason.margin)
    because = finding.because
    if not finding.holds and claim.not_met_by_source:
        because += f"; the source does not reach it either: {claim.not_met_by_source}"
    partial = [f"{one.case.name} at {one.partial}" for one in _compared(claim, evidence) if one.partial]
    because += f"; partial: {', '.join(partial)}" if partial else ""
    return ClaimVerdict(claim, "holds" if finding.holds else "fails", because, used, finding.margin)


def _require_metrics(claim: ClaimFields, evidence: Evidence) -> None:
    """Raise NotJudged if a program lacks a metric of the claim, or if two programs have it in another unit."""
    metrics = evidence.entry.metrics
    for name in claim.metrics_of(evidence.metric.name):
        if name not in metrics:
            raise NotJudged(f"{name}: {evidence.results[0].case.program} has no such metric")
        other = claim.other_experiment
        beside = evidence.entry.others[other].metrics.get(name) if other is not None else metrics[name]
        if beside is None:
            raise NotJudged(f"{name}: the program of {other} has no such metric")
        texts = [f"in {one.unit or 'no unit'}, {one.better} is better" for one in (metrics[name], beside)]
        if texts[0] != texts[1]:
            raise NotJudged(f"{name} is {texts[0]}, and {texts[1]} in {other}")


def _require_gpus(claim: ClaimFields, evidence: Evidence) -> None:
    """Raise NotJudged if the claim is about times or rates of GPUs, and CPU processes took their place.

    The processes of an experiment whose own device is `cpu` take no GPU's place: its claims are about CPU cores.
    """
    on_cpu = any(result.case.device == "cpu" for result in evidence.results)
    is_of_gpus = evidence.entry.experiment.device != "cpu"
    metrics = [evidence.entry.metrics[name] for name in claim.metrics_of(evidence.metric.name)]
    if on_cpu and is_of_gpus and any(metric.is_rate for metric in metrics):
        raise NotJudged("the speed of processes on CPU cores does not show the speed of GPUs")


def _used(claim: ClaimFields, evidence: Evidence) -> Iterator[Used]:
    for result in _compared(claim, evidence):
        for name in claim.metrics_of(evidence.metric.name):
            metric = result.metric(name)
            if metric is not None and result.row is not None:
                case = result.case
                yield Used(case.experiment, case.name, result.row.job_id, name, metric.value, metric.spread)


def _compared(claim: ClaimFields, evidence: Evidence) -> list[Result]:
    if not isinstance(claim, PairFields) or claim.compares != "pairs":
        return list(evidence.results)
    if claim.experiment is None:
        return [result for result in evidence.results if result.has(claim.of) or result.has(claim.over)]
    of = [result for result in evidence.results if result.has(claim.of)]
    return [*of, *(result for result in evidence.beside if result.has(claim.over))]


def judge_peak(claim: PeakClaim, evidence: Evidence) -> ClaimFinding:
    """Judge whether a case with the claimed values is at least as fast as all others of its line."""
    node = evidence.gpus_per_node
    claimed = {axis: node if value == "gpus_per_node" else value for axis, value in claim.at.items()}
    parts: list[Part] = []
    peaks: dict[int, str] = {}
    for name, results in evidence.series().items():
        is_claimed = [claimed.items() <= result.case.settings.items() for result in results]
        if len(set(is_claimed)) < 2:
            raise NotJudged(f"{name} has no case {'without' if is_claimed[0] else 'with'} {assigned(claimed)}")
        speeds = evidence.speeds(results)
        best, other = (
            largest([speed for at, speed in zip(is_claimed, speeds, strict=True) if at is side])
            for side in (True, False)
        )
        fastest = max(zip(results, speeds, strict=True), key=lambda pair: pair[1].value)[0]
        peaks[id(results)] = f"{name} peaks at {fastest.case.name}"
        shown = f"{assigned(claimed)} over the best other case at {name}"
        parts.append(Part(shown, results, evidence.metric, best / other, least=1.0))
    decision = decide(parts)
    return decision.because("; ".join(peaks[id(part.results)] for part in decision.parts))


def judge_spread(claim: SpreadClaim, evidence: Evidence) -> ClaimFinding:
    """Judge whether the best case of some line is as much faster than its worst one as claimed."""
    needed = claim.at_least * (1 - claim.tolerance)
    parts: list[Part] = []
    for name, results in evidence.series().items():
        speeds = evidence.speeds(results)
        ratios = [one / other for one in speeds for other in speeds if one is not other]
        if not ratios:
            raise NotJudged(f"{name} has one case")
        parts.append(Part(f"best over worst at {name}", results, evidence.metric, largest(ratios), least=needed))
    decision = decide(parts, one_is_enough=True)
    ratio = f"best over worst is {decision.part.number.value:.3f} at {decision.part.name.rpartition(' at ')[2]}"
    return decision.because(f"{ratio}; at least {needed:.4g} asked")


def judge_gain(claim: GainClaim, evidence: Evidence) -> ClaimFinding:
    """Judge whether the metric grows along an axis, at the largest value of another one."""
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
    ratio = f"{decision.part.number.value:.3f} times the rate of {low}"
    return decision.because(f"at {claim.where_largest}={most}, {high} runs at {ratio}")


def judge_trend(claim: TrendClaim, evidence: Evidence) -> ClaimFinding:
    """Judge a trend. A step may go the wrong way by the tolerance, the last value must be beyond the first one."""

    def shown(result: Result) -> str:
        number = evidence.metric.with_unit(shown_number(metric_of(result, evidence.metric.name).value))
        return f"{number} at {claim.along}={result.case.value(claim.along)}"

    def part(name: str, before: Result, after: Result, tolerance: float) -> Part:
        first, last = evidence.numbers([before, after])
        least, most = (1 - tolerance, math.inf) if claim.direction == "rises" else (-math.inf, 1 + tolerance)
        step = f"{name}: {shown(before)}, then {shown(after)}"
        return Part(step, [before, after], evidence.metric, last / first, least, most, strict=True)

    lines = evidence.lines_along(claim.along)
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
    return decision.because("; ".join(wrong or ends))


def judge_published(claim: PublishedClaim, evidence: Evidence) -> ClaimFinding:
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
    if (missing := next(_missing_rows(claim, evidence), None)) is not None:
        raise NotJudged(f"the output has no row of {missing}, which has a published number")
    names = {result.case.name for result in verified(unique(result for result, _ in points))}
    metrics = evidence.entry.metrics
    parts = [
        published_part(result, point, metric, evidence.numbers([result], metric)[0], claim.tolerance)
        for result, point in points
        if result.case.name in names
        for metric in [metrics[point.metric]]
    ]
    decision = decide(parts)
    farthest = max(
        decision.parts,
        key=lambda part: (part.holds is False, abs(2 * part.number.value / (part.least + part.most) - 1)),
    )
    because = f"the farthest of {len(decision.parts)}: {farthest.name}; {100 * claim.tolerance:.4g} % allowed"
    return ClaimFinding(decision.holds, because, farthest.margin)


def _missing_rows(claim: PublishedClaim, evidence: Evidence) -> Iterator[str]:
    """Yield the settings of published numbers that belong to a row of a measured output, and have none."""
    chosen = claim.where
    for point in evidence.entry.experiment.published if evidence.scale == PAPER else ():
        where = point.where
        contradicts = (where | chosen) != (chosen | where)
        if contradicts or not point.confirmed or point.metric not in claim.metrics:
            continue
        of_job = [
            result
            for result in evidence.results
            if result.row_key and result.case.has({a: v for a, v in where.items() if a not in dict(result.row_key)})
        ]
        if of_job and not any(result.has(point.where) for result in of_job):
            yield assigned(where)


def judge_outcome(claim: OutcomeClaim, evidence: Evidence) -> ClaimFinding:
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


PairClaim = RatioClaim | ClosesClaim | LossCurveClaim


@dataclass(frozen=True, slots=True)
class Pair:
    """Pair of cases. `shared` are the values of both on the other axes of the figure."""

    of: Result
    over: Result
    shared: dict[str, Value | None]

    def measured(self, evidence: Evidence) -> Number:
        """Return the ratio with its uncertainty."""
        of, over = evidence.numbers([self.of, self.over])
        return of / over


def judge_ratio(claim: RatioClaim, evidence: Evidence) -> ClaimFinding:
    """Judge whether the ratio of each pair is within the bounds of the claim."""
    if claim.pick == "best":
        part = _best_to_best(claim, evidence)
        count = sum(map(len, _sides(claim, evidence)))
        return _found(claim, decide([part]), [part], " best to best" if count > 2 else "")
    least, most = _bounds(claim)
    pairs = sorted(_measured_pairs(claim, evidence), key=lambda pair: pair.measured(evidence).value)
    every = [_part(claim, evidence, pair, least, most) for pair in pairs]
    if claim.pick == "each" or len(pairs) == 1:
        decision = decide(every)
        return _found(claim, decision, decision.parts, "")
    decision = _picked(claim, evidence, pairs)
    alike = [part for part in every if part.name in {one.name for one in decision.parts}]
    chosen = alike[-1] if claim.pick == "largest" else alike[0]
    return _found(claim, decision, [chosen], f", the {claim.pick} of {len(alike)}")


def _best_to_best(claim: RatioClaim, evidence: Evidence) -> Part:
    """Return the comparison of the fastest case of each side with the other."""
    metric, (least, most) = evidence.metric, _bounds(claim)
    sides = _sides(claim, evidence)
    verified(unique(result for side in sides for result in side))
    sides = tuple(measured(side, metric.name) for side in sides)
    both = unique(result for side in sides for result in side)
    numbers = dict(zip(map(id, both), evidence.speeds(both), strict=True))
    of, over = (largest([numbers[id(result)] for result in side]) for side in sides)
    ratio = over / of if metric.better == "lower" else of / over
    return Part(_ratio_name(claim), both, metric, ratio, least, most)


def _picked(claim: RatioClaim, evidence: Evidence, pairs: Sequence[Pair]) -> PartsVerdict:
    """Return the decision about the largest or the smallest ratio.

    One pair must reach the bound on its side: `at_least` of the largest, `at_most` of the smallest. The other bound is
    that of every pair.
    """
    least, most = _bounds(claim)
    reached, kept = ((least, math.inf), (-math.inf, most))
    if claim.pick == "smallest":
        reached, kept = kept, reached
    decisions: list[PartsVerdict] = []
    undecided: NotJudged | None = None
    for bounds, one_is_enough in ((reached, True), (kept, False)):
        if any(map(math.isfinite, bounds)):
            parts = [_part(claim, evidence, pair, *bounds) for pair in pairs]
            try:
                decisions.append(decide(parts, one_is_enough=one_is_enough))
            except NotJudged as reason:
                undecided = reason
    if undecided is not None and all(decision.holds for decision in decisions):
        raise undecided
    return min(decisions, key=lambda decision: (decision.holds, decision.part.percent))


def _part(claim: RatioClaim, evidence: Evidence, pair: Pair, least: float, most: float) -> Part:
    return Part(
        f"{_ratio_name(claim)}{_place(pair.shared)}",
        [pair.of, pair.over],
        evidence.metric,
        pair.measured(evidence),
        least,
        most,
    )


def _bounds(claim: RatioClaim) -> tuple[float, float]:
    """Return the smallest and the largest ratio that the claim allows with its tolerance."""
    least = -math.inf if claim.at_least is None else claim.at_least * (1 - claim.tolerance)
    most = math.inf if claim.at_most is None else claim.at_most * (1 + claim.tolerance)
    return least, most


def _found(claim: RatioClaim, decision: PartsVerdict, shown: Sequence[Part], choice: str) -> ClaimFinding:
    """Return the verdict with the lowest and the highest ratio of the parts, which are in this order."""
    name, (least, most) = _ratio_name(claim), _bounds(claim)
    asked = [f"at least {least:.3f}"] if claim.at_least is not None else []
    asked += [f"at most {most:.3f}"] if claim.at_most is not None else []
    ends = dict.fromkeys(f"{part.number.value:.3f}{part.name.removeprefix(name)}" for part in (shown[0], shown[-1]))
    because = f"{name} is {' to '.join(ends)}{choice}; {' and '.join(asked)} asked"
    return decision.because(because)


def _ratio_name(claim: RatioClaim) -> str:
    return f"{assigned(claim.of)} over {_over_name(claim)}"


def judge_closes(claim: ClosesClaim, evidence: Evidence) -> ClaimFinding:
    """Judge whether a gap closes; a gap is the distance of a ratio from 1."""
    groups: dict[str, list[Pair]] = {}
    for pair in _measured_pairs(claim, evidence):
        others = {axis: value for axis, value in pair.shared.items() if axis != claim.along}
        groups.setdefault(assigned(others), []).append(pair)
    parts: list[Part] = []
    for name, pairs in groups.items():
        ordered = in_order(claim.along, [pair.of for pair in pairs])
        first, last = (next(pair for pair in pairs if pair.of is end) for end in (ordered[0], ordered[-1]))
        if first.of.case.value(claim.along) != last.of.case.value(claim.along):
            gaps = [pair.measured(evidence).distance_from(1.0) for pair in (first, last)]
            ends = (pair.of.case.value(claim.along) for pair in (first, last))
            texts = [f"{100 * gap.value:.1f} % at {claim.along}={end}" for gap, end in zip(gaps, ends, strict=True)]
            text = " and ".join(texts)
            shown = f"{name}: gap {text}" if name else f"gap {text}"
            ratio = gaps[1] / gaps[0]
            parts.append(Part(shown, _both([first, last]), evidence.metric, ratio, most=1.0, strict=True))
    if not parts:
        raise NotJudged(f"no two of its pairs differ in {claim.along}")
    decision = decide(parts)
    return decision.because("; ".join(part.name for part in decision.parts))


def judge_loss_curves(claim: LossCurveClaim, evidence: Evidence) -> ClaimFinding:
    """Judge whether losses agree. Both curves must fall: equal losses of models that do not learn prove nothing."""
    farthest, at, pairs = -1.0, "", _pairs(claim, evidence)
    verified(_both(pairs))
    for pair in pairs:
        if not (pair.of.losses and pair.over.losses):
            raise NotJudged("losses were not read")
        of, over = _smoothed(pair.of.losses, claim.smoothed_over), _smoothed(pair.over.losses, claim.smoothed_over)
        shared = sorted(iteration for iteration in of.keys() & over.keys() if iteration >= claim.from_iteration)
        if not shared:
            raise NotJudged(f"no iteration from {claim.from_iteration} on has a loss in both")
        for side, smoothed in ((pair.of, of), (pair.over, over)):
            (start, first), last = side.losses[0], smoothed[shared[-1]]
            if last >= first:
                losses = f"{first:.4g} at iteration {start}, {last:.4g} at {shared[-1]}"
                return ClaimFinding(False, f"the loss of {side.case.name} does not fall: {losses}")
        for iteration in shared:
            off = abs(of[iteration] - over[iteration]) / over[iteration] if over[iteration] else math.inf
            if off > farthest:
                farthest, at = off, f"iteration {iteration}{_place(pair.shared)}"
    because = f"losses differ by at most {100 * farthest:.2f} %, at {at}; {100 * claim.tolerance:.4g} % allowed"
    part = Part("difference", [], evidence.metric, Number(farthest, farthest, farthest), most=claim.tolerance)
    return ClaimFinding(farthest <= claim.tolerance, because, part.margin)


def _smoothed(losses: Sequence[tuple[int, float]], over: int) -> dict[int, float]:
    """Return the mean of the last `over` iterations (fewer at the start) at each logged iteration."""
    iterations, values = [iteration for iteration, _ in losses], [loss for _, loss in losses]
    return {
        last: statistics.fmean(values[bisect_right(iterations, last - over) : position + 1])
        for position, last in enumerate(iterations)
    }


def _measured_pairs(claim: PairClaim, evidence: Evidence) -> list[Pair]:
    pairs = _pairs(claim, evidence)
    measured(_both(pairs), evidence.metric.name)
    return pairs


def _both(pairs: Sequence[Pair]) -> list[Result]:
    return unique(side for pair in pairs for side in (pair.of, pair.over))


def _pairs(claim: PairClaim, evidence: Evidence) -> list[Pair]:
    """Return all pairs except those in which a case runs out of memory as published."""
    of, over = _sides(claim, evidence)
    keys = dict.fromkeys(axis for result in of for axis, _ in result.row_key if axis not in claim.compared)
    axes = [*_paired_by(evidence, claim.compared), *keys] if len(of) > 1 or len(over) > 1 else []
    pairs = [
        Pair(first, second, _values(first, axes))
        for first in of
        for second in over
        if first is not second and _is_pair(claim, first, second, axes)
    ]
    if not pairs:
        raise NotJudged(f"no two cases differ in nothing but {assigned(claim.of)} and {_over_name(claim)}")
    complete = [pair for pair in pairs if not (may_be_missing(pair.of) or may_be_missing(pair.over))]
    if not complete:
        raise NotJudged("a case of every pair runs out of memory as published")
    return complete


def _is_pair(claim: PairClaim, of: Result, over: Result, axes: Sequence[str]) -> bool:
    """Return whether the cases differ only in the settings of the claim.

    Cases of one experiment share what its file sets for all cases. Cases of two experiments are compared in full.
    """
    if claim.experiment is not None:
        return alike(of.case, over.case, claim.compared)
    return _values(of, axes) == _values(over, axes)


def _sides(claim: PairClaim, evidence: Evidence) -> tuple[list[Result], ...]:
    """Return the cases `of` and `over`, these from the other experiment if the claim names one."""
    of = _of_side(evidence, evidence.entry, evidence.results, claim.of)
    if claim.experiment is None:
        return of, _of_side(evidence, evidence.entry, evidence.results, claim.over)
    if not any(result.row is not None and result.has(claim.over) for result in evidence.beside):
        raise NotJudged(f"{_over_name(claim)} has no job at scale {evidence.scale} on this cluster")
    return of, _of_side(evidence, evidence.entry.others[claim.experiment], evidence.beside, claim.over)


def _over_name(claim: PairClaim) -> str:
    """Return `scatter_gather=false`, or `scatter_gather=false of figure-18` for another experiment."""
    return assigned(claim.over) + (f" of {claim.experiment}" if claim.experiment else "")


def _of_side(evidence: Evidence, entry: Entry, results: Sequence[Result], side: Settings) -> list[Result]:
    cases = [result for result in results if result.has(side)]
    if not cases:
        why = evidence.reference_only(entry, side)
        raise NotJudged(f"{assigned(side)} is for reference only: {why}" if why else f"no case has {assigned(side)}")
    return cases


def _paired_by(evidence: Evidence, compared: set[str]) -> list[str]:
    """Return the axes on which the two cases of a pair must agree: those that the file sets and no rule derives.

    If the claim selects rows by name or label, the settings of the rows may differ.
    """
    fields = scale_fields(evidence.entry, evidence.scale)
    if fields.cases is None:
        given = list(fields.matrix or ())
    elif compared & {"case", "label"}:
        given = list(evidence.entry.experiment.named_by)
    else:
        hidden = next((result.case.without_influence for result in evidence.results), frozenset())
        varied = dict.fromkeys(axis for row in fields.cases for axis in row.settings)
        given = [axis for axis in varied if axis not in hidden]
    return [axis for axis in given if axis not in compared]


def _values(result: Result, axes: Sequence[str]) -> dict[str, Value | None]:
    return {axis: result.case.settings.get(axis) for axis in axes}


def _place(shared: dict[str, Value | None]) -> str:
    return f" at {assigned(shared)}" if shared else ""
