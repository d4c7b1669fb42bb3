"""Rows of the report about cases and claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.catalog.library import Entry
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import FAILED
from orchestrator.results.cases import CaseMetric, Result
from orchestrator.results.claims import ClaimVerdict
from orchestrator.results.comparison import NOT_MEASURED, ReferenceRow, beside_published


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of cases and claims by outcome; each is counted once."""

    cases: int = 0
    verified: int = 0
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
class CaseRow:
    """A case, or one of its published numbers if the source has several.

    Time per iteration, execution mode, host wait, and the reason for a missing number stand beside the figure's own
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
class UsedRow:
    """A number behind a claim's verdict."""

    case: str
    job: str
    metric: str
    value: str


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim with its verdict, the reason, and the numbers behind it."""

    mark: Mark
    says: str
    source: str
    because: str
    used: tuple[UsedRow, ...]


_CLAIM_KINDS = {"holds": "good", "fails": "bad", "not judged": "open"}


def counts_of(found: Sequence[Result], claims: Sequence[ClaimVerdict]) -> Counts:
    """Count cases and claims; a case that ran out of memory as published is neither failed nor verified."""
    verified = sum(result.is_verified for result in found)
    as_published = sum(result.ended_as_published for result in found)
    failed = sum(_has_failed(result) for result in found)
    judged = [claim.verdict for claim in claims]
    return Counts(
        cases=len(found),
        verified=verified,
        as_published=as_published,
        failed=failed,
        missing=len(found) - verified - as_published - failed,
        holds=judged.count("holds"),
        fails=judged.count("fails"),
        not_judged=judged.count("not judged"),
    )


def case_rows(entry: Entry, found: Sequence[Result]) -> tuple[CaseRow, ...]:
    """Return a row for each case, the figure's own number first."""
    own = entry.experiment.axes.y.metric
    beside: dict[str, list[ReferenceRow]] = {}
    for one in beside_published(entry, found):
        beside.setdefault(one.case, []).append(one)
    rows: list[CaseRow] = []
    for result in found:
        numbers = sorted(beside.get(result.case.name, []), key=lambda one: one.metric != own)
        if not numbers or numbers[0].metric != own:
            numbers.insert(0, _unpublished(result, own))
        rows += [_case_row(result, one, own) for one in numbers]
    return tuple(rows)


def claim_rows(claims: Sequence[ClaimVerdict]) -> tuple[ClaimRow, ...]:
    """Return a row for each claim."""
    return tuple(
        ClaimRow(
            mark=Mark(_CLAIM_KINDS[one.verdict], one.verdict),  # type: ignore[arg-type]  # its keys are the verdicts
            says=one.claim.says,
            source=one.claim.source,
            because=one.because,
            used=tuple(
                UsedRow(used.case, used.job or "", used.metric, with_spread(used.value, used.spread))
                for used in one.used
            ),
        )
        for one in claims
    )


def _unpublished(result: Result, metric: str) -> ReferenceRow:
    found = result.metric(metric)
    value, spread = (found.value, found.spread) if found else (None, None)
    return ReferenceRow(result.case.name, metric, value, spread, None, None, None, None, None)


def _case_row(result: Result, beside: ReferenceRow, own: str) -> CaseRow:
    timing = result.metric("iteration_ms") if beside.metric == own != "iteration_ms" else None
    return CaseRow(
        case=result.case.name,
        job=result.row.job_id if result.row else "",
        verdict=_verdict(result),
        metric=beside.metric,
        measured=with_spread(beside.measured, beside.spread),
        iteration_ms=with_spread(timing.value, timing.spread) if timing else "",
        execution=" and ".join(result.modes) if beside.metric == own else "",
        host_wait=_host_wait(result) if beside.metric == own else "",
        host_bound=Mark("open", "host-bound") if beside.metric == own and result.host_bound else None,
        shares=_shares(result) if beside.metric == "tflops_per_gpu" else "",
        used=NOT_MEASURED if beside.missing == NOT_MEASURED else _used(result.metric(beside.metric)),
        published=shown_number(beside.published.value) if beside.published else "",
        how=_how(beside.published) if beside.published else "",
        ratio=f"{beside.ratio:.3f}" if beside.ratio is not None else "",
        within=_within(beside),
        tolerance=_tolerance(beside),
        why=_why(result) if beside.metric == own else "",
    )


def _has_failed(result: Result) -> bool:
    return result.row is not None and result.row.verdict == FAILED and not result.ended_as_published


def _verdict(result: Result) -> Mark:
    if result.is_verified:
        return Mark("good", "verified")
    if result.ended_as_published:
        return Mark("good", "out of memory, as published")
    if _has_failed(result):
        return Mark("bad", "failed")
    return Mark("open", "not submitted" if result.row is None else result.row.state.lower().replace("_", " "))


def _host_wait(result: Result) -> str:
    """Return `12.3, 4.1 %`: the host wait in ms, and its share of the iteration time."""
    wait, percent = result.metric("host_wait_ms"), result.value("host_wait_percent")
    return f"{shown_number(wait.value)}, {percent:.3g} %" if wait and percent is not None else ""


def _shares(result: Result) -> str:
    """Return `62.2 % of the peak by equation 3, 54.1 % computed, MFU 44.5 %`, without unknown shares."""
    shown = {
        "percent_of_peak": "{} of the peak by equation 3",
        "percent_of_peak_computed": "{} computed",
        "mfu_percent": "MFU {}",
    }
    known = ((text, result.value(name)) for name, text in shown.items())
    return ", ".join(text.format(f"{value:.1f} %") for text, value in known if value is not None)


def _used(metric: CaseMetric | None) -> str:
    """Return how many samples or repeats are behind a number."""
    if metric is None:
        return ""
    if metric.interval_low is not None:
        ends = f"{shown_number(metric.interval_low)} to {shown_number(metric.interval_high)}"
        return f"mean of {metric.repeats} repeats, 95 % in {ends}"
    return "" if metric.count is None else f"{metric.count} iterations"


def _how(point: PublishedPoint) -> str:
    return ", ".join([point.how, *([] if point.confirmed else ["unconfirmed"]), point.source])


def _within(beside: ReferenceRow) -> Mark | None:
    if beside.ratio is None:
        return None
    if beside.within is None:
        return Mark("open", "not judged")
    return Mark("good", "within") if beside.within else Mark("bad", "beyond")


def _tolerance(beside: ReferenceRow) -> str:
    """Return `± 5 %, the source's`, or the reason why the number was not judged."""
    if beside.within is None or beside.tolerance is None:
        return (beside.because or "") if beside.ratio is not None else ""
    return f"± {100 * beside.tolerance:.4g} %" + (f", {beside.tolerance_from}" if beside.tolerance_from else "")


def _why(result: Result) -> str:
    """Return the reasons why the number of a case is missing or not comparable, each once."""
    said = [_reason(result.row) if result.row else None, result.flag, result.noise]
    return "; ".join(one for one in said if one)


def _reason(row: JobRow) -> str | None:
    return row.verdict_reason or (row.reason if row.verdict is None else None)


Kind = Literal["good", "bad", "open"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A verdict: its word, and the kind that selects sign and colour."""

    kind: Kind
    word: str


def shown_number(value: float | None) -> str:
    """Return a number with four digits, all digits before the point: `533`, `1.042`, `14,974`."""
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def with_spread(value: float | None, spread: float | None) -> str:
    """Return `142.3 ± 1.2`, with as many decimals as the value, or the first digit of a smaller spread."""
    shown = shown_number(value)
    if not shown or spread is None or not math.isfinite(spread):
        return shown
    off = f"{spread:,.{len(shown.partition('.')[2])}f}"
    return f"{shown} ± {off if float(off.replace(',', '')) or not spread else f'{spread:.1g}'}"


def shown_hours(hours: float) -> str:
    """Return hours with two decimals; `< 0.01` for less."""
    return "< 0.01" if 0 < hours < 0.01 else f"{hours:,.2f}"
