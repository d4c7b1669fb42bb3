"""Rows of the report: cases and claims, and the provenance of their numbers (hours, profiles, scripts)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.catalog.library import Entry
from orchestrator.ledger.rows import AttemptOrigin
from orchestrator.ledger.tables import FAILED, MEASURED, Run
from orchestrator.money import Money, recorded_price, totals
from orchestrator.programs.metric import MetricDefinition, shares_beside
from orchestrator.reading.failure import POLICIES, Failure
from orchestrator.results.cases import Result
from orchestrator.results.claims import ClaimVerdict
from orchestrator.results.comparison import NOT_MEASURED, ComparedNumber, measured_number, reference_rows
from orchestrator.text import counted

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

    @property
    def summary(self) -> str:
        """Return `4 of 6 cases are verified, 1 failed, 1 is missing. 2 of 3 claims hold, none fails.`."""
        every = f"All {self.cases} cases are" if self.verified == self.cases > 1 else ""
        some = f"{self.verified} of {counted(self.cases, 'case')} {_is(self.verified)}"
        parts = [f"{every or some} verified"]
        parts += [f"{self.partial} {_is(self.partial)} partial"] if self.partial else []
        parts += [f"{self.as_published} ran out of memory as published"] if self.as_published else []
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.missing} {_is(self.missing)} missing"] if self.missing else []
        sentences = [parts]
        if self.claims:
            holding = f"{self.holds or 'None'} of {counted(self.claims, 'claim')} hold{_s(self.holds)}"
            open_claims = [f"{self.not_judged} {_is(self.not_judged)} not judged"] if self.not_judged else []
            sentences.append([holding, f"{self.fails or 'none'} fail{_s(self.fails)}", *open_claims])
        return " ".join(f"{', '.join(sentence)}." for sentence in sentences)


def _s(number: int) -> str:
    """Return the ending of a verb after `none` and `1`."""
    return "s" if number < 2 else ""


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


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


def _has_failed(result: Result) -> bool:
    return result.row is not None and result.row.verdict == FAILED and not result.ended_as_published


@dataclass(frozen=True, slots=True)
class CaseLine:
    """A case with one of its numbers. It has several lines if the source has several numbers for it.

    Time per iteration, execution mode, host wait, and the reason for a missing number accompany the figure's own metric
    (`is_own`). Unknown values are empty.
    """

    result: Result
    number: ComparedNumber
    is_own: bool
    metrics: Mapping[str, MetricDefinition]

    @property
    def verdict(self) -> Mark:
        """Return the verdict of the case."""
        result = self.result
        if result.is_verified:
            return Mark("good", "verified")
        if result.is_measured:
            return Mark("good", f"partial, {result.partial}")
        if result.ended_as_published:
            return Mark("good", "out of memory, as published")
        if _has_failed(result):
            return Mark("bad", "failed")
        return Mark("open", "not submitted" if result.row is None else result.row.state.lower().replace("_", " "))

    @property
    def iteration_ms(self) -> str:
        """Return the time of an iteration, unless it is the number."""
        timing = self.result.metric("iteration_ms") if self.is_own and self.number.metric != "iteration_ms" else None
        return with_spread(timing.value, timing.spread) if timing else ""

    @property
    def host_wait(self) -> str:
        """Return `12.3, 4.1 %`: the host wait in ms, and its share of the iteration time."""
        wait, percent = self.result.metric("host_wait_ms"), self.result.value("host_wait_percent")
        return f"{shown_number(wait.value)}, {percent:.3g} %" if self.is_own and wait and percent is not None else ""

    @property
    def shares(self) -> str:
        """Return `62.2 % of the peak by equation 3, 54.1 % computed, MFU 44.5 %`, for rates in TFLOP/s."""
        shares = shares_beside(self.metrics, self.number.metric)
        values = {share.phrase: self.result.value(share.name) for share in shares}
        return ", ".join(text.format(f"{value:.1f} %") for text, value in values.items() if value is not None)

    @property
    def used(self) -> str:
        """Return how many samples or repeats are behind the number."""
        metric = self.result.metric(self.number.metric)
        if metric is None:
            return NOT_MEASURED if self.number.missing == NOT_MEASURED else ""
        if metric.interval_low is not None:
            ends = f"{shown_number(metric.interval_low)} to {shown_number(metric.interval_high)}"
            return f"mean of {metric.repeats} repeats, 95 % in {ends}"
        return "" if metric.count is None else f"{metric.count} iterations"

    @property
    def tolerance(self) -> str:
        """Return `± 5 %, the source's`, or the reason why the number was not judged."""
        number = self.number
        if number.within is None or number.tolerance is None:
            return (number.because or "") if number.ratio is not None else ""
        return f"± {100 * number.tolerance:.4g} %" + (f", {number.tolerance_from}" if number.tolerance_from else "")

    @property
    def why(self) -> str:
        """Return the reasons why the number is missing or not comparable, each once."""
        row = self.result.row if self.is_own else None
        reason = (row.verdict_reason or (row.reason if row.verdict is None else None)) if row else None
        reasons = (reason, self.result.flag, self.result.noise, self.result.newer_text)
        return "; ".join(filter(None, reasons)) if self.is_own else ""


def case_lines(entry: Entry, results: Sequence[Result]) -> list[CaseLine]:
    """Return the lines of each case, the figure's own number first."""
    own = entry.experiment.axes.y.metric
    references: dict[str, list[ComparedNumber]] = {}
    for reference in reference_rows(entry, results):
        references.setdefault(reference.case, []).append(reference)
    lines: list[CaseLine] = []
    for result in results:
        numbers = sorted(references.get(result.case.name, []), key=lambda reference: reference.metric != own)
        if not numbers or numbers[0].metric != own:
            numbers.insert(0, replace(measured_number(entry, result, own), missing=None, because=None))
        lines += [CaseLine(result, number, number.metric == own, entry.metrics) for number in numbers]
    return lines


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


def shown_hours(hours: float | None) -> str:
    """Return hours with two decimals; `< 0.01` for less, 0.00 if a clock went backwards, nothing before the end."""
    if hours is None:
        return ""
    return "< 0.01" if 0 < hours < 0.01 else f"{max(0.0, hours):,.2f}"


@dataclass(frozen=True, slots=True)
class Profile:
    """A cluster profile as recorded, and the runs that used it."""

    file: str
    runs: str
    text: str


@dataclass(frozen=True, slots=True)
class RecordedScript:
    """Text of a script, and the jobs that ran it."""

    anchor: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Hours:
    """Cost of attempts in GPU-hours, or in process-hours for the device `cpu`; `costs` in each currency."""

    device: str
    number: float
    in_failed: float
    costs: tuple[Money, ...] = ()

    @property
    def unit(self) -> str:
        """Return the unit."""
        return "process-hours on CPUs" if self.device == "cpu" else "GPU-hours"

    @property
    def spent(self) -> str:
        """Return the number for people."""
        return shown_hours(self.number)

    @property
    def summary(self) -> str:
        """Return `12.40 GPU-hours, 0.31 of them in attempts that failed`."""
        lost = f", {shown_hours(self.in_failed)} of them in attempts that failed" if self.in_failed else ""
        return f"{self.spent} {self.unit}{f' ({self.money})' if self.costs else ''}{lost}"

    @property
    def money(self) -> str:
        """Return `31.00 USD`; nothing without a price."""
        return " + ".join(map(str, self.costs))


def hours_of(attempts: Iterable[AttemptOrigin], device: str, runs: Iterable[Run]) -> Hours:
    """Return the cost of the attempts that have ended, with the prices in the profiles of their runs."""
    hours = [(max(0.0, attempt.gpu_hours or 0.0), attempt.verdict == FAILED, attempt.run_id) for attempt in attempts]
    prices = {run.id: price for run in runs if device != "cpu" and (price := recorded_price(run.profile))}
    costs = totals(prices[run_id].of(number) for number, _, run_id in hours if number and run_id in prices)
    in_failed = sum(number for number, failed, _ in hours if failed)
    return Hours(device, sum(number for number, *_ in hours), in_failed, costs)


def profiles_of(runs: Sequence[Run]) -> tuple[Profile, ...]:
    """Return each profile once, with its runs."""
    used: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        text = json.dumps(run.profile, indent=2, ensure_ascii=False, default=str)
        used.setdefault((run.profile_file or "as shipped", text), []).append(run.id)
    return tuple(Profile(file, ", ".join(ids), text) for (file, text), ids in used.items())


def scripts_of(
    attempts: Sequence[AttemptOrigin], names: Mapping[str, str], texts: Mapping[str, str], anchors: Mapping[str, str]
) -> tuple[RecordedScript, ...]:
    """Return each script in `texts` once, with its jobs; `names` are the cases by job, `anchors` are by digest."""
    ran: dict[str, dict[str, None]] = {}
    for attempt in attempts:
        if attempt.script_sha256 in texts:
            ran.setdefault(attempt.script_sha256, {})[f"{names[attempt.job_id]} ({attempt.job_id})"] = None
    return tuple(
        RecordedScript(anchors[digest], "; ".join(jobs), texts[digest].rstrip("\n")) for digest, jobs in ran.items()
    )


def attempt_mark(attempt: AttemptOrigin) -> Mark:
    """Return the verdict of an attempt, else its state."""
    if attempt.verdict in MEASURED:
        return Mark("good", str(attempt.verdict))
    if attempt.verdict == FAILED:
        return Mark("bad", f"failed ({attempt.failure})" if attempt.failure else "failed")
    return Mark("open", attempt.state.lower().replace("_", " "))


def policy_text(failure: str | None) -> str:
    """Return what `repro retry` does about a failure class."""
    policy = {member.value: POLICIES[member] for member in Failure}.get(failure or "")
    if policy is None:
        return ""
    action = "retried on other nodes" if policy.exclude_node else "retried"
    return f"{policy.reason}: {action if policy.retry else 'not retried'}"
