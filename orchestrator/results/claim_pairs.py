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
from orchestrator.results.cases import Result
from orchestrator.results.evidence import (
    Evidence,
    Finding,
    NotJudged,
    assigned,
    comparable,
    in_order,
    may_be_missing,
    measured,
    require_alike,
    speed,
    unique,
    unlike,
    value_of,
    verified,
)

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


def judge_ratio(claim: RatioClaim, evidence: Evidence) -> Finding:
    """Judge whether the ratio of each pair is within the bounds of the claim."""
    metric = evidence.metric
    if claim.pick == "best":
        sides = [_of(claim, evidence), _over(claim, evidence)]
        verified(unique(result for side in sides for result in side))
        sides = [measured(side, metric) for side in sides]
        require_alike(unique(result for side in sides for result in side), metric)
        of, over = (max(side, key=lambda result: speed(result, metric)) for side in sides)
        pair = Pair(of, over, {})
        low, high, choice = pair, pair, " best to best" if max(map(len, sides)) > 1 else ""
    else:
        pairs = sorted(_like_pairs(claim, evidence), key=lambda pair: pair.ratio(metric))
        low, high, choice = pairs[0], pairs[-1], ""
        if claim.pick != "each" and len(pairs) > 1:
            low = high = pairs[-1] if claim.pick == "largest" else pairs[0]
            choice = f", the {claim.pick} of {len(pairs)}"
    return _within(claim, low, high, choice, metric)


def _like_pairs(claim: RatioClaim, evidence: Evidence) -> list[Pair]:
    """Return the pairs whose cases can be compared; NotJudged if another pair could change the verdict."""
    least, most = _bounds(claim)
    one_is_enough = False
    if claim.pick == "largest":  # at_least applies to this pair only, at_most to every pair
        least, one_is_enough = (least, True) if claim.at_most is None else (-math.inf, False)
    elif claim.pick == "smallest":  # vice versa
        most, one_is_enough = (most, True) if claim.at_least is None else (math.inf, False)
    return comparable(
        _measured_pairs(claim, evidence),
        lambda pair: unlike([pair.of, pair.over], evidence.metric),
        lambda pair: least <= pair.ratio(evidence.metric) <= most,
        one_is_enough=one_is_enough,
    )


def _bounds(claim: RatioClaim) -> tuple[float, float]:
    """Return the smallest and the largest ratio that the claim allows with its tolerance."""
    least = -math.inf if claim.at_least is None else claim.at_least * (1 - claim.tolerance)
    most = math.inf if claim.at_most is None else claim.at_most * (1 + claim.tolerance)
    return least, most


def _within(claim: RatioClaim, low: Pair, high: Pair, choice: str, metric: str) -> Finding:
    """Return whether the ratios from `low` to `high` satisfy the claim with its tolerance."""
    least, most = _bounds(claim)
    asked = [f"at least {least:.3f}"] if claim.at_least is not None else []
    asked += [f"at most {most:.3f}"] if claim.at_most is not None else []
    ends = dict.fromkeys(f"{pair.ratio(metric):.3f}{_place(pair.shared)}" for pair in (low, high))
    ratio = f"{assigned(claim.of)} over {_over_name(claim)} is {' to '.join(ends)}{choice}"
    return Finding(least <= low.ratio(metric) and high.ratio(metric) <= most, f"{ratio}; {' and '.join(asked)} asked")


def judge_closes(claim: ClosesClaim, evidence: Evidence) -> Finding:
    """Judge whether a gap closes; a gap is the distance of a ratio from 1."""
    groups: dict[str, list[Pair]] = {}
    for pair in _measured_pairs(claim, evidence):
        others = {axis: value for axis, value in pair.shared.items() if axis != claim.along}
        groups.setdefault(assigned(others), []).append(pair)
    ends: dict[str, tuple[Pair, Pair]] = {}
    for name, pairs in groups.items():
        ordered = in_order(claim.along, [pair.of for pair in pairs])
        first, last = (next(pair for pair in pairs if pair.of is end) for end in (ordered[0], ordered[-1]))
        if first.of.case.value(claim.along) != last.of.case.value(claim.along):
            ends[name] = first, last
    if not ends:
        raise NotJudged(f"no two of its pairs differ in {claim.along}")

    def closes(name: str) -> bool:
        first, last = ends[name]
        return _gap(last, evidence.metric) < _gap(first, evidence.metric)

    names = comparable(list(ends), lambda name: unlike(_both(ends[name]), evidence.metric), closes)
    seen: list[str] = []
    for name in names:
        gaps = " and ".join(
            f"{100 * _gap(pair, evidence.metric):.1f} % at {claim.along}={pair.of.case.value(claim.along)}"
            for pair in ends[name]
        )
        seen.append(f"{name}: gap {gaps}" if name else f"gap {gaps}")
    return Finding(all(map(closes, names)), "; ".join(seen))


def _gap(pair: Pair, metric: str) -> float:
    return abs(pair.ratio(metric) - 1)


def judge_loss_curves(claim: LossCurveClaim, evidence: Evidence) -> Finding:
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
                return Finding(False, f"the loss of {side.case.name} does not fall: {losses}")
        for iteration in shared:
            off = abs(of[iteration] - over[iteration]) / over[iteration] if over[iteration] else math.inf
            if off > farthest:
                farthest, at = off, f"iteration {iteration}{_place(pair.shared)}"
    because = f"losses differ by at most {100 * farthest:.2f} %, at {at}; {100 * claim.tolerance:.4g} % allowed"
    return Finding(farthest <= claim.tolerance, because)


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
