"""Verdict of an attempt from its log and the scheduler's state: verified, partial, or failed with reasons.

An attempt is verified if the job ended well, ran as planned, its last planned iteration was read, no number is NaN, and
not most iterations were skipped. The scheduler's state alone verifies nothing. An attempt that reached its time limit
is partial if it has enough samples (`statistics.has_enough`), and nothing else is wrong.
`templates/gate.sh.j2` has the same rules, as far as a job can check them.

Alpa's benchmark prints no iteration. Its result row counts in place of the last one. The row does not contain the batch
size and the layout, so the log must also list the arguments, and the program's table must end with the same row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.ledger.tables import CANCELLED_BY, ENDED, FAILED, PARTIAL, VERIFIED
from orchestrator.megatron.logs.alpa import TABLE
from orchestrator.megatron.logs.iteration_lines import implausible_number
from orchestrator.megatron.logs.root_cause import Cause
from orchestrator.megatron.logs.root_cause_kinds import TIME_LIMIT, WHAT_RAN, memory_short
from orchestrator.reading.config_check import Expected, mismatches, unlisted_settings, world_size_of
from orchestrator.reading.failure import DECIDES_ANY_END, Ending, Failure, failing_line, failure_of
from orchestrator.reading.parse import LogReport
from orchestrator.reading.statistics import has_enough, mostly_skipped
from orchestrator.text import counted

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
    failure: Failure | None = None
    cause: Cause | None = None


def judge(
    report: LogReport, expected: Expected, ending: Ending, find_cause: Callable[[], Cause | None]
) -> Judgement | None:
    """Return the judgement; None if the job has not ended.

    The lines of the report are those of `with_used`. `find_cause` searches the log for errors. It is called only if the
    attempt is not verified by the other checks.
    """
    if ending.phase != ENDED:
        return None
    differs = mismatches(report, expected, ending.commit)
    not_finite = _not_finite(report)
    reasons = [*(mismatch.reason for mismatch in differs), *_unknown_world(report), *not_finite]
    lacking = _lacking(report, expected)
    is_whole = lacking is None
    if ending.succeeded and is_whole and not reasons and not ending.outside_image:
        return Judgement(VERIFIED, None)
    cause = find_cause()
    at_limit = _result_at_limit(report, expected, cause) if ending.reached_limit and not reasons else None
    if at_limit and not ending.outside_image:
        return Judgement(PARTIAL, at_limit, None, _without_others(cause.of(TIME_LIMIT) if cause else None))
    if lacking is not None:
        reasons.append(lacking)
    kind = cause.kind if cause else None
    failure = failure_of(ending, kind, differs=bool(differs), is_whole=is_whole, is_finite=not not_finite)
    if failure is Failure.STOPPED and ending.state == "CANCELLED":
        return Judgement(FAILED, f"not started: {ending.reason}", failure)
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


def _lacking(report: LogReport, expected: Expected) -> str | None:
    """Return what the log of a complete run has and this log does not; None if it is complete."""
    if expected.result_row is not None:
        return _lacking_of_row(report, expected)
    if report.last_iteration is None:
        return "the log has no iteration"
    if report.last_iteration < expected.iterations:
        return f"the log ends at iteration {report.last_iteration} of {expected.iterations}"
    return None


def _lacking_of_row(report: LogReport, expected: Expected) -> str | None:
    row, unlisted = report.facts.alpa, unlisted_settings(report, expected)
    if row is None:
        return "the log has no result row"
    if row.tflops is None:
        return "its result row has no throughput"
    if not report.facts.settings:
        return "the log has no list of arguments"
    if unlisted:
        return f"its list of arguments lacks {', '.join(unlisted)}"
    if report.table_row is None:
        return f"{TABLE} in its folder has no row"
    if report.table_row != row:
        return f"the last row of {TABLE} is not the one in the log"
    return None


def _result_at_limit(report: LogReport, expected: Expected, cause: Cause | None) -> str | None:
    """Return how far a job came until its time limit; None if that is not a result.

    A program without iteration lines has none. A failed rank may be why the others waited until the limit.
    """
    last = report.last_iteration
    if last is None:
        return None
    is_whole = last >= expected.iterations
    if is_whole and report.says_done:
        return "reached its time limit after its training was done"
    if cause is not None and cause.kind in DECIDES_ANY_END:
        return None
    if not has_enough(report.iterations, expected.iterations):
        return None
    samples = sum(line.used for line in report.iterations)
    return f"reached its time limit at iteration {last} of {expected.iterations}, with {counted(samples, 'sample')}"


def _end(ending: Ending, failure: Failure, fault: Cause | None) -> list[str]:
    """Return reasons from the scheduler's state and the deciding line."""
    reasons, is_of_memory = [], failure in (Failure.GPU_OOM, Failure.GPU_IN_USE)
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


def _unknown_world(report: LogReport) -> list[str]:
    has_result = bool(report.iterations) or report.facts.alpa is not None
    return ["the log has no world size"] if has_result and world_size_of(report) is None else []


def _not_finite(report: LogReport) -> list[str]:
    line = next((line for line in report.iterations if not line.is_finite), None)
    row, skipped = report.facts.alpa, mostly_skipped(report.iterations)
    if line is None and row is not None and not math.isfinite(row.tflops or 0):
        return [f"the throughput in its result row is {row.tflops}"]
    if line is None:
        return [skipped] if skipped else []
    number = implausible_number(line.iteration, line.iteration, line.elapsed_ms, line.loss, line.grad_norm)
    if number is None or "nan" in number or "inf" in number:  # the ledger keeps no number that is NaN
        return [f"NaN, infinite or missing numbers at iteration {line.iteration}"]
    return [f"impossible number at iteration {line.iteration}: {number}"]


def _without_others(cause: Cause | None) -> Cause | None:
    """Return the cause without its alternative lines."""
    return replace(cause, others=()) if cause else None
