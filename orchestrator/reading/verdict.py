"""Verdict of an attempt from the problems of its log and the scheduler's state: verified, partial, or failed.

An attempt is verified if the job ended well, ran as planned, and its output is complete. The scheduler's state alone
verifies nothing. An attempt that reached its time limit is partial if that is a result, and nothing else is wrong. The
reader of a program finds the problems (`reading.reader`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.ledger.tables import CANCELLED_BY, FAILED, PARTIAL, VERIFIED
from orchestrator.reading.cause_kinds import TIME_LIMIT, WHAT_RAN, memory_short
from orchestrator.reading.causes import Cause
from orchestrator.reading.failure import BY_SCHEDULER, Ending, Failure, failing_line, failure_of

_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference between the plan and the log. `is_of_world`: the log's line of the world size shows it."""

    reason: str
    is_of_world: bool = False


def other_commit(ran: str | None, planned: str | None) -> Iterator[Mismatch]:
    """Yield the difference if another commit ran than planned."""
    if ran and planned and _COMMIT.fullmatch(ran) and not (ran.startswith(planned) or planned.startswith(ran)):
        yield Mismatch(f"ran commit {ran[:12]}, not {planned[:12]}")


OUT_OF_MEMORY = "out of memory on the GPU"
"""First words of the reason of a job that ran out of GPU memory."""
_IN_USE = "a GPU was in use by another process"

_ALLOCATING = re.compile(r"Tried to allocate ([0-9.]{1,9} [KMGT]?i?B)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict of an attempt.

    `reason` contains every reason, the first cause first. `failure` is the class of a failed attempt, and `cause` the
    line of its log that decided.
    """

    verdict: str
    reason: str | None
    failure: str | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class LogFindings:
    """Problems of the log of any program.

    `differs` are differences from the plan, `reasons` the other wrong contents, `lacking` the missing
    contents. `at_limit` returns how far a job came until its time limit, if that is a result. `own_failure`
    returns the line of a failure class of the program itself, whose kind is the class.
    """

    differs: Sequence[Mismatch] = ()
    reasons: Sequence[str] = ()
    lacking: Sequence[str] = ()
    is_finite: bool = True
    at_limit: Callable[[Cause | None], str | None] = lambda _cause: None
    own_failure: Callable[[], Cause | None] = lambda: None


def judgement_of(findings: LogFindings, ending: Ending, find_cause: Callable[[], Cause | None]) -> Judgement:
    """Return the judgement of a job that has ended.

    `find_cause` searches the log for errors. It is called only if the job is not verified.
    """
    differs = findings.differs
    reasons = [*(mismatch.reason for mismatch in differs), *findings.reasons]
    if ending.succeeded and not findings.lacking and not reasons and not ending.outside_image:
        return Judgement(VERIFIED, None)
    cause = find_cause()
    at_limit = findings.at_limit(cause) if ending.reached_limit and not reasons else None
    if at_limit and not ending.outside_image:
        return Judgement(PARTIAL, at_limit, None, _without_others(cause.of(TIME_LIMIT) if cause else None))
    reasons += findings.lacking
    kind, is_whole = cause.kind if cause else None, not findings.lacking
    failure = failure_of(ending, kind, differs=bool(differs), is_whole=is_whole, is_finite=findings.is_finite)
    if failure is Failure.STOPPED and ending.state == "CANCELLED":
        return Judgement(FAILED, f"not started: {ending.reason}", failure)
    own = findings.own_failure() if failure not in BY_SCHEDULER and not differs else None
    if own is not None:
        return Judgement(FAILED, "; ".join([*_end(ending, own.kind, own), *reasons]), own.kind, own)
    line = failing_line(failure, cause)
    lacks_proof = failure is Failure.CONFIGURATION and not differs and line is None and bool(ending.outside_image)
    if ending.outside_image and (lacks_proof or ending.state == "COMPLETED" or at_limit):
        reasons.append(ending.outside_image)  # any other failure has its own reason
    if lacks_proof and ending.state != "COMPLETED" and cause and cause.is_fault:
        line = cause
    if failure is Failure.CONFIGURATION and differs:  # other errors may follow from the configuration
        line = cause.of(WHAT_RAN) if cause and any(mismatch.is_of_world for mismatch in differs) else None
    fault = cause if differs and failure is Failure.CONFIGURATION else line
    return Judgement(FAILED, "; ".join([*_end(ending, failure, fault), *reasons]), failure, _without_others(line))


def _end(ending: Ending, failure: str, fault: Cause | None) -> list[str]:
    """Return reasons from the scheduler's state and the deciding line."""
    reasons: list[str] = []
    is_of_memory = failure in (Failure.GPU_OOM, Failure.GPU_IN_USE)
    if is_of_memory and fault:
        asked, short = _ALLOCATING.search(fault.line), memory_short(fault.line)
        details = [f"rank {fault.rank}"] if fault.rank is not None else []
        if failure is Failure.GPU_IN_USE and short is not None:
            details.append(f"others had {short.others_gib:.1f} of its {short.total_gib:.1f} GiB")
        details += [f"tried to allocate {asked[1]}"] if asked else []
        problem = OUT_OF_MEMORY if failure is Failure.GPU_OOM else _IN_USE
        reasons.append(f"{problem} ({', '.join(details)})" if details else problem)
    if failure is Failure.CANCELLED and (ending.reason or "").startswith(CANCELLED_BY):
        reasons.append(str(ending.reason))
    elif not ending.succeeded:
        code = f" with exit code {ending.exit_code}" if ending.exit_code else ""
        # The log of a cancelled job only shows the effect of the signal.
        why = str(fault) if fault and fault.is_fault and ending.state != "CANCELLED" else ending.reason
        reasons.append(f"{ending.state}{code}" + (f" ({why})" if why and not is_of_memory else ""))
    return reasons


def _without_others(cause: Cause | None) -> Cause | None:
    """Return the cause without its alternative lines."""
    return replace(cause, others=()) if cause else None
