"""Measured numbers beside published ones: ratio, tolerance, and whether the number is within it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.catalog.case import Case
from orchestrator.catalog.claims import PublishedClaim
from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.catalog.library import Entry
from orchestrator.ledger.tables import ENDED, FAILED
from orchestrator.results.cases import NOT_RATES, Result, published_on

OUR_TOLERANCE = 0.1
"""What a measured number may be off where neither the source nor a claim of the experiment says it. Ours: the widest
that the shipped experiments allow a published rate, as these numbers come from other machines and software too."""

NOT_SUBMITTED, UNDER_WAY, FAILED_HERE = "not submitted", "under way", "failed"
AS_PUBLISHED, NOT_MEASURED, CANNOT_BE = "out of memory as published", "not measured", "cannot be right"
TOO_NOISY, NOT_PUBLISHED = "too noisy", "no published number"


@dataclass(frozen=True, slots=True)
class ReferenceRow:
    """A published number of a case, and the measured one.

    `ratio` is measured over published. `tolerance` is relative; `tolerance_from` is its origin. `within` is None if the
    number is not judged, and `because` is the reason. `missing` is the kind of number that is missing: measured,
    published, or quiet enough to be compared.
    """

    case: str
    metric: str
    measured: float | None
    spread: float | None
    published: PublishedPoint | None
    ratio: float | None
    tolerance: float | None
    tolerance_from: str | None
    within: bool | None
    missing: str | None = None
    because: str | None = None


def beside_published(entry: Entry, found: Sequence[Result]) -> list[ReferenceRow]:
    """Return a row per case and published number; one row for the figure's own metric if a case has none."""
    return [row for result in found for row in _rows(entry, result)]


def equation(case: Case) -> str:
    """Return the equation of the FLOPs behind the rates of a case, see `megatron.flops.flops_per_iteration`."""
    return "SC21 eq. 3" if case.training.recompute == "full" else "SC21's appendix, without recomputation"


def _rows(entry: Entry, result: Result) -> Iterator[ReferenceRow]:
    points = _points(result)
    if not points:
        own = _measured(result, entry.experiment.axes.y.metric)
        yield own if own.missing else replace(own, missing=NOT_PUBLISHED)
    for point in points:
        yield _beside(entry, result, point)


def _points(result: Result) -> list[PublishedPoint]:
    """Return the published number of each metric for this GPU or for any GPU, else those of other GPUs."""
    points: list[PublishedPoint] = []
    own = published_on(result.case, result.gpu)
    for metric in dict.fromkeys(point.metric for point in result.case.published):
        here = [point for point in own if point.metric == metric][:1]
        points += here or [point for point in result.case.published if point.metric == metric]
    return points


def _beside(entry: Entry, result: Result, point: PublishedPoint) -> ReferenceRow:
    row = replace(_measured(result, point.metric), published=point)
    metric = result.metric(point.metric)
    if metric is None:
        return row
    tolerance, whose = _tolerance(entry, result, point)
    row = replace(row, ratio=metric.value / point.value, tolerance=tolerance, tolerance_from=whose)
    reason = _not_comparable(result, point)
    if reason is not None:
        return replace(row, because=reason)
    within = _is_within(metric.value, point, tolerance)
    ends = [_is_within(metric.moved(way).value, point, tolerance) for way in (-1, 1)]
    if metric.too_noisy and ends != [within, within]:
        return replace(row, missing=TOO_NOISY, because=metric.too_noisy)
    return replace(row, within=within)


def _is_within(value: float, point: PublishedPoint, tolerance: float) -> bool:
    return abs(value - point.value) <= tolerance * point.value


def _tolerance(entry: Entry, result: Result, point: PublishedPoint) -> tuple[float, str]:
    """Return the tolerance of the experiment's claim about this number, else ours."""
    for claim in entry.experiment.claims:
        if isinstance(claim, PublishedClaim) and point.metric in claim.metrics and result.has(claim.where):
            return claim.tolerance, f"{claim.tolerance_is}, claim {claim.id}"
    return OUR_TOLERANCE, "ours, no claim is about it"


def _not_comparable(result: Result, point: PublishedPoint) -> str | None:
    """Return why the ratio is not judged, or None."""
    if not point.confirmed:
        return "nobody confirmed the number"
    if result.instead_of is not None:
        return f"published for {result.instead_of}, and {result.case.workload} ran"
    if point.gpu and point.gpu not in (result.gpu or ""):
        return f"published for {point.gpu}, measured on {result.gpu or 'a GPU without a name'}"
    if result.host_bound and point.metric not in NOT_RATES:
        return f"host-bound: {result.host_bound}"
    return None


def _measured(result: Result, metric: str) -> ReferenceRow:
    found = result.metric(metric)
    value, spread = (found.value, found.spread) if found else (None, None)
    missing, because = (None, None) if found else _missing(result)
    return ReferenceRow(result.case.name, metric, value, spread, None, None, None, None, None, missing, because)


def _missing(result: Result) -> tuple[str, str | None]:
    """Return why a number was not measured: its kind, and a detail."""
    row = result.row
    if row is None:
        return NOT_SUBMITTED, None
    if result.ended_as_published:
        return AS_PUBLISHED, None
    if row.verdict == FAILED:
        return FAILED_HERE, row.verdict_reason
    if row.phase != ENDED or not result.is_verified:
        return UNDER_WAY, row.state
    return (CANNOT_BE, result.flag) if result.flag else (NOT_MEASURED, None)
