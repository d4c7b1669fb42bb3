"""What a log and the scheduler's state amount to: verified, or failed with the reason.

Verified means: the job ended well, ran as planned, its last expected iteration was read, and no number is NaN.
The scheduler's word alone verifies nothing. One that reached its time limit when all of it was done has its result:
it hung at its exit.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.ledger.jobs import JobRow
from orchestrator.ledger.tables import ENDED, FAILED, VERIFIED
from orchestrator.results.read import OUT_OF_MEMORY, LogReport


@dataclass(frozen=True, slots=True)
class Expected:
    """What the plan says a job runs as."""

    gpus: int
    tensor_parallel: int
    pipeline_parallel: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Ending:
    """What the scheduler says about the end, and what the job's own record lacks of the proof that it ran inside its
    image.
    """

    phase: str
    state: str
    exit_code: int | None
    reason: str | None
    outside_image: str | None = None


def judge(report: LogReport, expected: Expected, ending: Ending) -> tuple[str | None, str | None]:
    """(verdict, reason); (None, None) while the job is under way. Every reason is given, the first cause first."""
    if ending.phase != ENDED:
        return None, None
    reasons = [*_mismatches(report, expected), *_numbers(report)]
    if ending.state == "TIMEOUT" and not reasons and report.says_done and _has_all(report, expected):
        return VERIFIED, "reached its time limit when its training was done"
    if ending.state != "COMPLETED" or ending.exit_code not in (0, None):
        code = f" with exit code {ending.exit_code}" if ending.exit_code else ""
        # A cancelled job's log says what the signal did to it; the question is who sent it.
        told = ending.reason if ending.state == "CANCELLED" else report.cause or ending.reason
        why = None if report.out_of_memory else told
        reasons.insert(0, f"{ending.state}{code}" + (f" ({why})" if why else ""))
    last = report.last_iteration
    if last is None:
        reasons.append("no iteration was read from its log")
    elif not _has_all(report, expected):
        reasons.append(f"its log ends at iteration {last} of {expected.iterations}")
    if ending.outside_image and ending.state == "COMPLETED":  # what failed otherwise has its own reason
        reasons.append(ending.outside_image)
    if reasons and report.out_of_memory:
        reasons.insert(0, report.out_of_memory)
    return (FAILED, "; ".join(reasons)) if reasons else (VERIFIED, None)


def ran_out_of_memory(row: JobRow) -> bool:
    """Whether a GPU's memory was what the job failed of."""
    return row.verdict == FAILED and (row.verdict_reason or "").startswith(OUT_OF_MEMORY)


def _has_all(report: LogReport, expected: Expected) -> bool:
    return (report.last_iteration or 0) >= expected.iterations


def _mismatches(report: LogReport, expected: Expected) -> list[str]:
    """What was asked for and not run: a clamped layout or a lone rank trains without complaint."""
    world = report.world
    if world is None:
        return ["its log does not say what world size it ran with"] if report.iterations else []
    pairs = (
        ("world size", world.world_size, expected.gpus),
        ("tensor-parallel size", world.tensor_parallel, expected.tensor_parallel),
        ("pipeline-parallel size", world.pipeline_parallel, expected.pipeline_parallel),
    )
    return [f"ran with {name} {ran}, not {planned}" for name, ran, planned in pairs if ran != planned]


def _numbers(report: LogReport) -> list[str]:
    bad = [line.iteration for line in report.iterations if not line.is_finite]
    return [f"NaN or infinite numbers at iteration {bad[0]}"] if bad else []
