"""Message about a figure whose jobs have ended: cases, claims, cost and the next command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import metrics_of
from orchestrator.ledger.reports import attempts_of_jobs
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import FAILED, OPEN, PARTIAL
from orchestrator.money import totals
from orchestrator.reading.failure import Failure
from orchestrator.reading.job_status import recorded_prices
from orchestrator.results.cases import Result
from orchestrator.results.claims import Verdict
from orchestrator.results.outcome import FigureOutcome
from orchestrator.text import printable_line

MOST_FAILURES = 10
"""Failed cases that a message names."""

_ENDS = (PARTIAL, "failed", "failed as published", "cancelled", "not judged", "not ended", "without a job")
"""Ends of cases that are not verified, in the order of a message."""
_CLAIMS: Mapping[Verdict, str] = {"holds": "hold", "fails": "fail", "not judged": "not judged"}
"""Verdicts, and their words for several claims."""


@dataclass(frozen=True, slots=True)
class Message:
    """Message about the end of a figure.

    `failed` is that of the outcome, `complete` whether every case is verified or partial.
    """

    title: str
    text: str
    failed: bool
    complete: bool


def message_of(outcome: FigureOutcome, spent: str | None) -> Message:
    """Return the message about an outcome; `spent` is that of `spent_by_jobs`."""
    counts = Counter(map(_end_of, outcome.results))
    cases, verified = len(outcome.results), counts["verified"]
    parts = [f"{verified}/{cases} verified", *(f"{counts[end]} {end}" for end in _ENDS if counts[end])]
    claims = Counter(claim.verdict for claim in outcome.claims)
    claim_parts = [
        f"{count} {verdict if count == 1 else several}"
        for verdict, several in _CLAIMS.items()
        if (count := claims[verdict])
    ]
    figure = f"{outcome.entry.name} at scale {outcome.scale} on {outcome.cluster}"
    title = f"{outcome.entry.short_name} {outcome.scale} {outcome.cluster}: {', '.join(parts)}"
    title += f"; claims: {', '.join(claim_parts)}" if claim_parts else ""
    program = [f"program: {outcome.program}"] if outcome.program else []
    lines = [f"{figure}: {outcome.entry.experiment.title}", *program, f"cases: {', '.join(parts)}", *_failures(outcome)]
    lines += [f"claims: {', '.join(claim_parts) or 'none'}"]
    lines += [
        f"  {claim.verdict}: {claim.claim.says} ({claim.claim.source}): {claim.because}"
        + ("" if claim.margin is None else f"; {claim.margin}")
        for claim in outcome.claims
    ]
    lines += [f"cost: {spent}"] if spent else []
    lines += [f"next: {_next(outcome)}"]
    return Message(title, "\n".join(map(printable_line, lines)), outcome.failed, verified + counts[PARTIAL] == cases)


def spent_by_jobs(ledger: Ledger, rows: Sequence[JobRow]) -> str | None:
    """Return `12.4 GPU-hours (31.00 USD)` of all attempts of these jobs; None if none has ended on GPUs."""
    attempts = attempts_of_jobs(ledger, {row.job_id for row in rows})
    metrics = metrics_of(ledger, [attempt.attempt_id for of_job in attempts.values() for attempt in of_job])
    hours = {attempt_id: own["gpu_hours"].value for attempt_id, own in metrics.items() if "gpu_hours" in own}
    if not hours:
        return None
    prices = recorded_prices(ledger, list(hours))
    money = " + ".join(map(str, totals(price.of(hours[attempt_id]) for attempt_id, price in prices.items())))
    return f"{sum(hours.values()):.4g} GPU-hours{f' ({money})' if money else ''}"


def _end_of(result: Result) -> str:
    """Return how a case ended, as a message counts it."""
    row = result.row
    if row is None:
        return "without a job"
    if result.is_measured:
        return "verified" if result.is_verified else PARTIAL
    if row.phase in OPEN:
        return "not ended"
    if row.verdict != FAILED:
        return "not judged"
    if result.ended_as_published:
        return "failed as published"
    return "cancelled" if row.failure == str(Failure.CANCELLED) else "failed"


def _failures(outcome: FigureOutcome) -> list[str]:
    """Return a line for each failed case with its class and reason; cancelled cases are only counted."""
    rows = [result.row for result in outcome.results if result.row is not None and _end_of(result) == "failed"]
    lines = [f"  failed: {row.label} ({row.failure}): {row.verdict_reason}" for row in rows[:MOST_FAILURES]]
    more = len(rows) - MOST_FAILURES
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _next(outcome: FigureOutcome) -> str:
    """Return the next command, which selects this figure also after other runs of its experiment."""
    waiting = any(row.phase in OPEN for result in outcome.results for row in (result.row, *result.newer) if row)
    if outcome.failures and not waiting:
        row = outcome.failures[0]
        return f"repro {'logs' if row.started_at else 'history'} {row.job_id}"
    program = f" --workload {outcome.workloads[0]}" if outcome.replaced_workload else ""
    selection = f"{outcome.entry.short_name} --scale {outcome.scale} --cluster {outcome.cluster}{program}"
    return f"repro {'status' if waiting else 'collect'} {selection}"
