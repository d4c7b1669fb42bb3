"""What a log and the scheduler's state amount to: verified, or failed with the reason.

Verified means: the job ended well, ran as planned, its last expected iteration was read, and no number is NaN.
The scheduler's word alone verifies nothing. One that reached its time limit has its result, too, when all of it was
done and it hung at its exit, or when enough of it was measured by then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import ENDED, FAILED, VERIFIED
from orchestrator.megatron.logs.root_cause import Cause
from orchestrator.megatron.logs.root_cause_kinds import TIME_LIMIT, WHAT_RAN, memory_short
from orchestrator.reading.config_check import Expected, expected_of, mismatches, world_size_of
from orchestrator.reading.failure import WHATEVER_THE_END, Failure, failing_line, failure_of
from orchestrator.reading.parse import LogReport
from orchestrator.reading.statistics import measured_iterations

__all__ = ["ENOUGH_INTERVALS", "OUT_OF_MEMORY", "Ending", "Expected", "Judgement", "expected_of", "judge"]
__all__ += ["ran_out_of_memory"]

ENOUGH_INTERVALS = 2
"""Measured intervals, those after the warm-up, with which a job that reached its time limit has a result: the fewest
that have a spread."""

OUT_OF_MEMORY = "out of memory on the GPU"
"""What the reason of a job that ran out of device memory starts with."""

_IN_USE = "a GPU was in use by another process"
"""The same of one whose memory others had; no such start, as that is no end that a source may expect."""

_ALLOCATING = re.compile(r"Tried to allocate ([0-9.]{1,9} [KMGT]?i?B)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Ending:
    """What the scheduler says about the end, and what the job's own record lacks of the proof that it ran inside its
    image. `commit` is that of the program's checkout, where the record has it. `nodes_inside` is the number of nodes
    that ran the program inside the image; None where it is not known.
    """

    phase: str
    state: str
    exit_code: int | None
    reason: str | None
    outside_image: str | None = None
    commit: str | None = None
    nodes_inside: int | None = None

    @property
    def is_well(self) -> bool:
        return self.state == "COMPLETED" and self.exit_code in (0, None)


@dataclass(frozen=True, slots=True)
class Judgement:
    """`reason` has every reason, the first cause first; `failure` is the class of a failed attempt, `cause` the line
    of its log that decided it.
    """

    verdict: str
    reason: str | None
    failure: Failure | None = None
    cause: Cause | None = None


def judge(
    report: LogReport, expected: Expected, ending: Ending, find_cause: Callable[[], Cause | None]
) -> Judgement | None:
    """None while the job is under way. `find_cause` is asked only where the attempt is not simply well: a good log is
    never searched for errors. What decides, the first first: the success marker; arguments; a GPU's memory; the host's;
    NCCL; the time limit with enough measured; a node or another job; the container; anything else.
    """
    if ending.phase != ENDED:
        return None
    differs = mismatches(report, expected, ending.commit)
    numbers = _numbers(report)
    wrong = [*(mismatch.said for mismatch in differs), *_untold(report), *numbers]
    is_whole = (report.last_iteration or 0) >= expected.iterations
    if ending.is_well and is_whole and not wrong and not ending.outside_image:
        return Judgement(VERIFIED, None)
    cause = find_cause()
    reached = _reached(report, expected, cause) if ending.state == "TIMEOUT" and not wrong else None
    if reached and not ending.outside_image:
        return Judgement(VERIFIED, reached, None, _alone(cause.of(TIME_LIMIT) if cause else None))
    if report.last_iteration is None:
        wrong.append("no iteration was read from its log")
    elif not is_whole:
        wrong.append(f"its log ends at iteration {report.last_iteration} of {expected.iterations}")
    kind = cause.kind if cause else None
    failure = failure_of(ending, kind, differs=bool(differs), is_whole=is_whole, is_finite=not numbers)
    line = failing_line(failure, cause)
    lacks_proof = failure is Failure.CONFIGURATION and not differs and line is None and bool(ending.outside_image)
    if ending.outside_image and (lacks_proof or ending.state == "COMPLETED" or reached):
        wrong.append(ending.outside_image)  # any other failure has a reason of its own
    if lacks_proof and ending.state != "COMPLETED" and cause and cause.is_fault:
        line = cause
    if failure is Failure.CONFIGURATION and differs:  # what else went wrong may have come of it
        line = cause.of(WHAT_RAN) if cause and any(mismatch.is_of_world for mismatch in differs) else None
    fault = cause if differs and failure is Failure.CONFIGURATION else line
    return Judgement(FAILED, "; ".join([*_end(ending, failure, fault), *wrong]), failure, _alone(line))


def ran_out_of_memory(row: JobRow) -> bool:
    """Whether a GPU's memory was what the job failed of."""
    return row.verdict == FAILED and (row.verdict_reason or "").startswith(OUT_OF_MEMORY)


def _reached(report: LogReport, expected: Expected, cause: Cause | None) -> str | None:
    """How far a job came until its time limit, where that is a result."""
    last = report.last_iteration or 0
    if report.says_done and last >= expected.iterations:
        return "reached its time limit when its training was done"
    if cause is not None and cause.kind in WHATEVER_THE_END:
        return None
    measured = sum(line.used for line in measured_iterations(report.iterations, expected.warmup_iterations))
    if measured < ENOUGH_INTERVALS:
        return None
    return f"reached its time limit at iteration {last} of {expected.iterations}, with {measured} measured intervals"


def _end(ending: Ending, failure: Failure, fault: Cause | None) -> list[str]:
    """How it ended, and what its log says of that."""
    said, of_memory = [], failure in (Failure.GPU_OOM, Failure.GPU_IN_USE)
    if of_memory and fault:
        asked, short = _ALLOCATING.search(fault.line), memory_short(fault.line)
        of = [f"rank {fault.rank}"] if fault.rank is not None else []
        if failure is Failure.GPU_IN_USE and short is not None:
            of.append(f"others had {short.others_gib:.1f} of its {short.total_gib:.1f} GiB")
        of += [f"tried to allocate {asked[1]}"] if asked else []
        what = OUT_OF_MEMORY if failure is Failure.GPU_OOM else _IN_USE
        said.append(f"{what} ({', '.join(of)})" if of else what)
    if not ending.is_well:
        code = f" with exit code {ending.exit_code}" if ending.exit_code else ""
        # A cancelled job's log says what the signal did to it; the question is who sent it.
        told = str(fault) if fault and fault.is_fault and ending.state != "CANCELLED" else ending.reason
        said.append(f"{ending.state}{code}" + (f" ({told})" if told and not of_memory else ""))
    return said


def _untold(report: LogReport) -> list[str]:
    if report.iterations and world_size_of(report) is None:
        return ["its log does not say what world size it ran with"]
    return []


def _numbers(report: LogReport) -> list[str]:
    bad = next((line.iteration for line in report.iterations if not line.is_finite), None)
    return [] if bad is None else [f"NaN or infinite numbers at iteration {bad}"]


def _alone(cause: Cause | None) -> Cause | None:
    """Without the lines of other kinds."""
    return replace(cause, others=()) if cause else None
