"""Claims that compare two settings, in pairs of cases that differ in nothing else."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.catalog.axes import WITHOUT_INFLUENCE, Settings
from orchestrator.catalog.case import alike
from orchestrator.catalog.claims import ClosesClaim, LossCurveClaim, RatioClaim
from orchestrator.catalog.expand import scale_fields
from orchestrator.catalog.library import Entry
from orchestrator.job_spec import Value
from orchestrator.metrics import METRICS
from orchestrator.results.cases import Result
from orchestrator.results.evidence import (
    Evidence,
    assigned,
    in_order,
    may_be_missing,
    measured,
    unique,
    value_of,
    verified,
)
from orchestrator.results.margin import ClaimFinding, NotJudged
from orchestrator.results.parts import Part, PartsVerdict, decide
from orchestrator.results.uncertainty import Number, largest

PairClaim = RatioClaim | ClosesClaim | LossCurveClaim


@dataclass(frozen=True, slots=True)
class Pair:
    """Pair of cases. `shared` are the values of both on the other axes of the figure."""

    of: Result
    over: Result
    shared: dict[str, Value | None]

    def ratio(self, metric: str) -> float:
        """Return the ratio of their rates."""
        return value_of(self.of, metric) / value_of(self.over, metric)

    def measured(self, evidence: Evidence) -> Number:
        """Return the ratio with its uncertainty."""
        of, over = evidence.numbers([self.of, self.over])
        return of / over


def judge_ratio(claim: RatioClaim, evidence: Evidence) -> ClaimFinding:
    """Judge whether the ratio of each pair is within the bounds of the claim."""
    if claim.pick == "best":
        part = _best_to_best(claim, evidence)
        count = len(_of(claim, evidence)) + len(_over(claim, evidence))
        return _found(claim, decide([part]), [part], " best to best" if count > 2 else "")
    least, most = _bounds(claim)
    pairs = sorted(_measured_pairs(claim, evidence), key=lambda pair: pair.ratio(evidence.metric))
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
    sides = [_of(claim, evidence), _over(claim, evidence)]
    verified(unique(result for side in sides for result in side))
    sides = [measured(side, metric) for side in sides]
    both = unique(result for side in sides for result in side)
    numbers = dict(zip(map(id, both), evidence.speeds(both), strict=True))
    of, over = (largest([numbers[id(result)] for result in side]) for side in sides)
    ratio = over / of if METRICS[metric].better == "lower" else of / over
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
    return min(decisions, key=lambda decision: (decision.holds, decision.margin.percent if decision.margin else 0.0))


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
    return ClaimFinding(decision.holds, because, decision.margin)


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
            text = " and ".join(_gap_text(claim, pair, gap) for pair, gap in zip((first, last), gaps, strict=True))
            shown = f"{name}: gap {text}" if name else f"gap {text}"
            ratio = gaps[1] / gaps[0]
            parts.append(Part(shown, _both([first, last]), evidence.metric, ratio, most=1.0, strict=True))
    if not parts:
        raise NotJudged(f"no two of its pairs differ in {claim.along}")
    decision = decide(parts)
    return ClaimFinding(decision.holds, "; ".join(part.name for part in decision.parts), decision.margin)


def _gap_text(claim: ClosesClaim, pair: Pair, gap: Number) -> str:
    return f"{100 * gap.value:.1f} % at {claim.along}={pair.of.case.value(claim.along)}"


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
    measured(_both(pairs), evidence.metric)
    return pairs


def _both(pairs: Sequence[Pair]) -> list[Result]:
    return unique(side for pair in pairs for side in (pair.of, pair.over))


def _pairs(claim: PairClaim, evidence: Evidence) -> list[Pair]:
    """Return all pairs except those in which a case runs out of memory as published."""
    of, over = _of(claim, evidence), _over(claim, evidence)
    axes = _paired_by(evidence, claim.compared) if len(of) > 1 or len(over) > 1 else []
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


def _of(claim: PairClaim, evidence: Evidence) -> list[Result]:
    return _cases(evidence, evidence.entry, evidence.results, claim.of)


def _over(claim: PairClaim, evidence: Evidence) -> list[Result]:
    """Return the cases `over`, from the other experiment if the claim names one."""
    if claim.experiment is None:
        return _cases(evidence, evidence.entry, evidence.results, claim.over)
    if not any(result.row is not None and result.has(claim.over) for result in evidence.beside):
        raise NotJudged(f"{_over_name(claim)} has no job at scale {evidence.scale} on this cluster")
    return _cases(evidence, evidence.entry.others[claim.experiment], evidence.beside, claim.over)


def _over_name(claim: PairClaim) -> str:
    """Return `scatter_gather=false`, or `scatter_gather=false of figure-18` for another experiment."""
    return assigned(claim.over) + (f" of {claim.experiment}" if claim.experiment else "")


def _cases(evidence: Evidence, entry: Entry, results: Sequence[Result], side: Settings) -> list[Result]:
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
        varied = dict.fromkeys(axis for row in fields.cases for axis in row.given())
        given = [axis for axis in varied if axis not in WITHOUT_INFLUENCE]
    return [axis for axis in given if axis not in compared]


def _values(result: Result, axes: Sequence[str]) -> dict[str, Value | None]:
    return {axis: result.case.settings.get(axis) for axis in axes}


def _place(shared: dict[str, Value | None]) -> str:
    return f" at {assigned(shared)}" if shared else ""
