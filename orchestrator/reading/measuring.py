"""What was read of an attempt -> what the ledger keeps of it: iterations, and at its end verdict and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.job_record import read_record
from orchestrator.ledger.jobs import JobRow
from orchestrator.ledger.measurements import MeasuredIteration, MeasuredMetric, Measurement
from orchestrator.ledger.tables import ENDED, FAILED, VERIFIED
from orchestrator.masking import masked
from orchestrator.megatron.iterations import IterationLine
from orchestrator.megatron.log_causes import Cause, CauseFinder
from orchestrator.reading.failure import Failure
from orchestrator.reading.following import Followed
from orchestrator.reading.gpu_samples import sampled_metrics
from orchestrator.reading.job_secrets import job_secrets
from orchestrator.reading.log_files import log_blocks
from orchestrator.reading.outcome import Ending, Judgement, expected_of, judge
from orchestrator.reading.read import LogReport
from orchestrator.reading.statistics import measured_iterations, metrics


def measured(row: JobRow, followed: Followed, stored: Sequence[MeasuredIteration]) -> Measurement:
    """What is known of an attempt now. `stored` are its iterations so far, of one that still runs only the first few.

    Of the iterations only those that are new, or that count otherwise than before.
    """
    lines = _lines(row, followed, stored)
    marked = _marked(lines, row.configuration["training"]["warmup_iterations"], bool(followed.facts.odd_lines))
    before = {line.iteration: line for line in stored}
    reached = [line.iteration for line in lines[-1:]] + ([row.iteration] if followed.keeps and row.iteration else [])
    judgement = judge(LogReport(lines, followed.facts), expected_of(row), _ending(row), lambda: _cause(row))
    numbers = metrics(marked, row.configuration, followed.facts) if judgement else []
    if judgement and judgement.verdict == VERIFIED and not numbers:
        judgement = Judgement(FAILED, "no iteration is left after the warm-up", Failure.INCOMPLETE)
    cause = judgement.cause if judgement else None
    secret = job_secrets(Path(row.folder)) if judgement else frozenset()
    return Measurement(
        attempt_id=row.attempt_id,
        iteration=max(reached, default=None),
        verdict=judgement.verdict if judgement else None,
        verdict_reason=masked(judgement.reason, secret) if judgement and judgement.reason else None,
        iterations=tuple(line for line in marked if before.get(line.iteration) != line),
        metrics=_together(numbers, _sampled(row), _gpu_hours(row)) if judgement else (),
        failure=str(judgement.failure) if judgement and judgement.failure else None,
        deciding_line=masked(cause.line, secret) if cause else None,
        deciding_rank=cause.rank if cause else None,
        execution=followed.facts.execution,
    )


def _lines(row: JobRow, followed: Followed, stored: Sequence[MeasuredIteration]) -> list[IterationLine]:
    """What is new after what is stored; a line takes the place of a stored one with its number."""
    if not stored:
        return list(followed.lines)
    series = {line.iteration: _as_read(line, row.iterations) for line in stored}
    series |= {line.iteration: line for line in followed.lines}
    return [series[number] for number in sorted(series)]


def _as_read(stored: MeasuredIteration, planned: int) -> IterationLine:
    """As it was; of one that was not finite, whose numbers are not all stored, only that it was not."""
    return IterationLine(
        iteration=stored.iteration,
        train_iterations=planned if stored.is_finite else 0,
        elapsed_ms=stored.elapsed_ms,
        loss=stored.loss,
        grad_norm=stored.grad_norm,
        skipped=stored.skipped or 0,
        nan=stored.nan or 0,
        loss_scale=stored.loss_scale,
        reported_tflops_per_gpu=stored.reported_tflops_per_gpu,
        reported_tokens_per_s_per_gpu=stored.reported_tokens_per_s_per_gpu,
        power_w=stored.power_w,
        host_wait_ms=stored.host_wait_ms,
    )


def _marked(lines: Sequence[IterationLine], warmup_iterations: int, some_are_odd: bool) -> list[MeasuredIteration]:
    """With which of them count; a line that is not finite is kept, and does not."""
    marked = measured_iterations(lines, warmup_iterations)
    if not some_are_odd and not any(line.nan for line in lines):
        return marked
    by_number = {line.iteration: line for line in marked}
    return [by_number[line.iteration] if line.is_finite else _not_finite(line) for line in lines]


def _not_finite(line: IterationLine) -> MeasuredIteration:
    return MeasuredIteration(
        iteration=line.iteration,
        elapsed_ms=line.elapsed_ms,
        loss=line.loss,
        grad_norm=line.grad_norm,
        used=False,
        loss_scale=line.loss_scale,
        skipped=line.skipped,
        nan=line.nan,
        reported_tflops_per_gpu=line.reported_tflops_per_gpu,
        reported_tokens_per_s_per_gpu=line.reported_tokens_per_s_per_gpu,
        power_w=line.power_w,
        is_finite=False,
        host_wait_ms=line.host_wait_ms,
    )


def _ending(row: JobRow) -> Ending:
    """Without an image pyxis only warns and runs a step on the host: a job must prove that it was in its own."""
    end = read_record(Path(row.folder) / "end") if row.phase == ENDED else None
    outside = None
    if row.phase == ENDED and row.image is not None and row.scheduler == "slurm":
        outside = end.outside_image if end else None
        if end is None or end.inside_image is None:
            outside = f"its end record does not prove that it ran inside {row.image}"
    return Ending(
        phase=row.phase,
        state=row.state,
        exit_code=row.exit_code,
        reason=row.reason,
        outside_image=outside,
        commit=end.commit if end else None,
        nodes_inside=end.nodes_inside if end else None,
    )


def _cause(row: JobRow) -> Cause | None:
    """What decided, searched for in all of the log."""
    finder = CauseFinder()
    for block in log_blocks(Path(row.folder)):
        finder.feed(block)
    return finder.cause()


def _sampled(row: JobRow) -> list[MeasuredMetric]:
    return sampled_metrics(Path(row.folder), row.configuration["training"]["warmup_iterations"])


def _together(*several: Sequence[MeasuredMetric]) -> tuple[MeasuredMetric, ...]:
    """Of two with a name the later one: what was sampled on the GPUs is nearer to the truth than what a log says."""
    return tuple({metric.name: metric for some in several for metric in some}.values())


def _gpu_hours(row: JobRow) -> list[MeasuredMetric]:
    """What it cost; processes on CPU cores cost none."""
    if row.started_at is None or row.ended_at is None or row.configuration.get("device") == "cpu":
        return []
    hours = row.gpus * (row.ended_at - row.started_at).total_seconds() / 3600
    return [MeasuredMetric("gpu_hours", hours, "h")]
