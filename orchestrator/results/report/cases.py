"""Rows of the report about cases and claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.catalog.library import Entry
from orchestrator.ledger.tables import FAILED
from orchestrator.metrics import shares_beside
from orchestrator.results.cases import CaseMetric, Result
from orchestrator.results.claims import ClaimVerdict
from orchestrator.results.comparison import NOT_MEASURED, ComparedNumber, measured_number, reference_rows

MarkKind = Literal["good", "bad", "open"]


@dataclass(frozen=True, slots=True)
class Mark:
    """Verdict on the page: its word, and the kind that selects sign and colour."""

    kind: MarkKind
    word: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of cases and claims by outcome; each is counted once."""

    cases: int = 0
    verified: int = 0
    partial: int = 0
    as_published: int = 0
    failed: int = 0
    missing: int = 0
    holds: int = 0
    fails: int = 0
    not_judged: int = 0

    @property
    def claims(self) -> int:
        """Return the number of claims."""
        return self.holds + self.fails + self.not_judged

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class CaseCells:
    """A case, or one of its published numbers if the source has several.

    Time per iteration, execution mode, host wait, and the reason for a missing number accompany the figure's own
    metric. `shares` are those of the GPU's peak, for rates in TFLOP/s. Unknown values are empty.
    """

    case: str
    job: str
    verdict: Mark
    metric: str
    measured: str
    iteration_ms: str
    execution: str
    host_wait: str
    host_bound: Mark | None
    shares: str
    used: str
    published: str
    how: str
    ratio: str
    within: Mark | None
    tolerance: str
    why: str


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim with its verdict; `values` are the numbers behind it as text, in the order of `verdict.used`.

    `experiment` is the full name of the experiment that has the claim.
    """

    experiment: str
    mark: Mark
    verdict: ClaimVerdict
    values: tuple[str, ...]


_CLAIM_MARKS: Mapping[str, Mark] = {
    "holds": Mark("good", "holds"),
    "fails": Mark("bad", "fails"),
    "not judged": Mark("open", "not judged"),
}


def counts_of(results: Sequence[Result], claims: Sequence[ClaimVerdict]) -> Counts:
    """Count cases and claims; a case that ran out of memory as published is neither failed nor verified."""
    measured = sum(result.is_measured for result in results)
    verified = sum(result.is_verified for result in results)
    as_published = sum(result.ended_as_published for result in results)
    failed = sum(_has_failed(result) for result in results)
    verdicts = [claim.verdict for claim in claims]
    return Counts(
        cases=len(results),
        verified=verified,
        partial=measured - verified,
        as_published=as_published,
        failed=failed,
        missing=len(results) - measured - as_published - failed,
        holds=verdicts.count("holds"),
        fails=verdicts.count("fails"),
        not_judged=verdicts.count("not judged"),
    )


def case_rows(entry: Entry, results: Sequence[Result]) -> tuple[CaseCells, ...]:
    """Return a row for each case, the figure's own number first."""
    own = entry.experiment.axes.y.metric
    references: dict[str, list[ComparedNumber]] = {}
    for reference in reference_rows(entry, results):
        references.setdefault(reference.case, []).append(reference)
    rows: list[CaseCells] = []
    for result in results:
        numbers = sorted(references.get(result.case.name, []), key=lambda reference: reference.metric != own)
        if not numbers or numbers[0].metric != own:
            numbers.insert(0, replace(measured_number(result, own), missing=None, because=None))
        rows += [_case_row(result, reference, own) for reference in numbers]
    return tuple(rows)


def claim_rows(entry: Entry, claims: Sequence[ClaimVerdict]) -> tuple[ClaimRow, ...]:
    """Return a row for each claim of the experiment."""
    rows: list[ClaimRow] = []
    for verdict in claims:
        values = tuple(with_spread(used.value, used.spread) for used in verdict.used)
        rows.append(ClaimRow(entry.name, _CLAIM_MARKS[verdict.verdict], verdict, values))
    return tuple(rows)


def _case_row(result: Result, reference: ComparedNumber, own: str) -> CaseCells:
    timing = result.metric("iteration_ms") if reference.metric == own != "iteration_ms" else None
    return CaseCells(
        case=result.case.name,
        job=result.row.job_id if result.row else "",
        verdict=_verdict(result),
        metric=reference.metric,
        measured=with_spread(reference.measured, reference.spread),
        iteration_ms=with_spread(timing.value, timing.spread) if timing else "",
        execution=(result.execution or "") if reference.metric == own else "",
        host_wait=_host_wait(result) if reference.metric == own else "",
        host_bound=Mark("open", "host-bound") if reference.metric == own and result.host_bound else None,
        shares=_shares(result, reference.metric),
        used=NOT_MEASURED if reference.missing == NOT_MEASURED else _used(result.metric(reference.metric)),
        published=shown_number(reference.published),
        how=_how(reference.point) if reference.point else "",
        ratio=f"{reference.ratio:.3f}" if reference.ratio is not None else "",
        within=_within(reference),
        tolerance=_tolerance(reference),
        why=_why(result) if reference.metric == own else "",
    )


def _has_failed(result: Result) -> bool:
    return result.row is not None and result.row.verdict == FAILED and not result.ended_as_published


def _verdict(result: Result) -> Mark:
    if result.is_verified:
        return Mark("good", "verified")
    if result.is_measured:
        return Mark("good", f"partial, {result.partial}")
    if result.ended_as_published:
        return Mark("good", "out of memory, as published")
    if _has_failed(result):
        return Mark("bad", "failed")
    return Mark("open", "not submitted" if result.row is None else result.row.state.lower().replace("_", " "))


def _host_wait(result: Result) -> str:
    """Return `12.3, 4.1 %`: the host wait in ms, and its share of the iteration time."""
    wait, percent = result.metric("host_wait_ms"), result.value("host_wait_percent")
    return f"{shown_number(wait.value)}, {percent:.3g} %" if wait and percent is not None else ""


def _shares(result: Result, metric: str) -> str:
    """Return `62.2 % of the peak by equation 3, 54.1 % computed, MFU 44.5 %`, without unknown shares."""
    values = {share.phrase: result.value(share.name) for share in shares_beside(metric)}
    return ", ".join(text.format(f"{value:.1f} %") for text, value in values.items() if value is not None)


def _used(metric: CaseMetric | None) -> str:
    """Return how many samples or repeats are behind a number."""
    if metric is None:
        return ""
    if metric.interval_low is not None:
        ends = f"{shown_number(metric.interval_low)} to {shown_number(metric.interval_high)}"
        return f"mean of {metric.repeats} repeats, 95 % in {ends}"
    return "" if metric.count is None else f"{metric.count} iterations"


def _how(point: PublishedPoint) -> str:
    return f"{point.origin}, {point.source}"


def _within(reference: ComparedNumber) -> Mark | None:
    if reference.ratio is None:
        return None
    if reference.within is None:
        return Mark("open", "not judged")
    return Mark("good", "within") if reference.within else Mark("bad", "beyond")


def _tolerance(reference: ComparedNumber) -> str:
    """Return `± 5 %, the source's`, or the reason why the number was not judged."""
    if reference.within is None or reference.tolerance is None:
        return (reference.because or "") if reference.ratio is not None else ""
    return f"± {100 * reference.tolerance:.4g} %" + (
        f", {reference.tolerance_from}" if reference.tolerance_from else ""
    )


def _why(result: Result) -> str:
    """Return the reasons why the number of a case is missing or not comparable, each once."""
    row = result.row
    reason = (row.verdict_reason or (row.reason if row.verdict is None else None)) if row else None
    return "; ".join(filter(None, (reason, result.flag, result.noise, result.newer_text)))


def shown_number(value: float | None) -> str:
    """Return a number with four digits, or with all digits before the decimal point: `1.042`, `14,974`."""
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def with_spread(value: float | None, spread: float | None) -> str:
    """Return `142.3 ± 1.2`, with as many decimals as the value, or the first digit of a smaller spread."""
    shown = shown_number(value)
    if not shown or spread is None or not math.isfinite(spread):
        return shown
    rounded = f"{spread:,.{len(shown.partition('.')[2])}f}"
    return f"{shown} ± {rounded if float(rounded.replace(',', '')) or not spread else f'{spread:.1g}'}"


def shown_hours(hours: float) -> str:
    """Return hours with two decimals; `< 0.01` for less."""
    return "< 0.01" if 0 < hours < 0.01 else f"{hours:,.2f}"
