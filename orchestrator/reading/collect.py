"""Collection of results: read new log content, judge ended attempts, and store iterations, metrics and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.errors import ReproError
from orchestrator.job_dir import read_record
from orchestrator.ledger.attempts import rows_of_attempts, unjudged_attempts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import (
    FileRead,
    MeasuredIteration,
    MeasuredMetric,
    Measurement,
    ReadOn,
    files_read,
    iterations_of,
    places,
    record_measurements,
)
from orchestrator.ledger.reports import gpu_hours
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import ENDED, FAILED, RUNNING, VERIFIED
from orchestrator.masking import masked, without_known
from orchestrator.megatron.logs.iteration import IterationLine
from orchestrator.megatron.logs.root_cause import Cause, CauseFinder
from orchestrator.reading.failure import Failure
from orchestrator.reading.gpu_samples import sampled_metrics
from orchestrator.reading.incremental import Followed, follow
from orchestrator.reading.job_secrets import job_secrets
from orchestrator.reading.logs import log_blocks
from orchestrator.reading.parse import LogReport
from orchestrator.reading.statistics import measured_iterations, metrics
from orchestrator.reading.verdict import Ending, Judgement, expected_of, judge

AT_ONCE = 100
"""Attempts whose rows are in memory together, however many there are."""
LINES_AT_ONCE = 20_000
"""Interval lines that are written in one transaction; more, where one attempt has more."""
LOOKS = 3
"""At an attempt that another terminal reads at the same time; then it is left to that one."""

_HEAD = 4
"""Stored lines of a running attempt that are looked at again: whether the first ones count, the next ones tell."""
_ONLY_TO_GO_ON = ("version", "settings", "unfinished")
"""Facts, most of them by size, that are not kept once there is a verdict."""


def collect(ledger: Ledger, *, running: bool = True) -> tuple[str, ...]:
    """Read what is new of every attempt that has no verdict yet; with `running` also of those that have not ended.

    Returns what could not be read: a log that this user may not see is no empty log, and nothing is concluded from it.
    Nothing is written where nothing is new. A verdict is final: its attempt is never read again.
    """
    complaints: dict[str, None] = {}
    ids = unjudged_attempts(ledger, (RUNNING, ENDED) if running else (ENDED,))
    for start in range(0, len(ids), AT_ONCE):
        left = ids[start : start + AT_ONCE]
        for _ in range(LOOKS):
            left = _collect(ledger, left, complaints) if left else []
    return tuple(complaints)


def measure(row: JobRow) -> Measurement:
    """What the files of this attempt say, all of them read anew: the same as many looks at them while they grew."""
    return measured(row, follow(Path(row.folder), {}, final=row.phase == ENDED), ())


def _collect(ledger: Ledger, attempt_ids: Sequence[int], complaints: dict[str, None]) -> list[int]:
    """One look at these attempts; returns those that another terminal has read on in meanwhile."""
    known = files_read(ledger, attempt_ids)
    batch = _Batch(ledger)
    for row in rows_of_attempts(ledger, attempt_ids):
        if row.verdict is not None:  # another terminal's, of a moment ago
            continue
        before, has_ended = known.get(row.attempt_id, {}), row.phase == ENDED
        try:
            followed = follow(Path(row.folder), before, final=has_ended)
        except ReproError as error:
            complaints[str(error)] = None
            continue
        complaints |= dict.fromkeys(followed.complaints)
        if not has_ended and places(followed.files) == places(before):
            continue
        stored = iterations_of(ledger, row.attempt_id, None if has_ended else _HEAD) if followed.keeps else []
        try:
            found = measured(row, followed, stored)
        except ReproError as error:
            complaints[str(error)] = None
            continue
        files = _without_secrets(followed.files, Path(row.folder))
        files = {name: _of_the_end(file) for name, file in files.items()} if has_ended else files
        batch.add(found, ReadOn(before, files, followed.keeps))
    batch.write()
    return batch.moved


def _without_secrets(files: Mapping[str, FileRead], folder: Path) -> dict[str, FileRead]:
    """Return the files with facts that contain no secret of the job's script."""
    secret = job_secrets(folder)
    return {name: replace(file, facts=without_known(file.facts, secret)) for name, file in files.items()}


def _of_the_end(file: FileRead) -> FileRead:
    """Its facts to be looked at, and not to be gone on from."""
    return replace(file, facts={name: fact for name, fact in file.facts.items() if name not in _ONLY_TO_GO_ON})


@dataclass
class _Batch:
    """What is written in one transaction; `moved` are those of which nothing was, as `record_measurements` has them."""

    ledger: Ledger
    measurements: list[Measurement] = field(default_factory=list)
    read_on: dict[int, ReadOn] = field(default_factory=dict)
    lines: int = 0
    moved: list[int] = field(default_factory=list)

    def add(self, found: Measurement, on: ReadOn) -> None:
        self.measurements.append(found)
        self.read_on[found.attempt_id] = on
        self.lines += len(found.iterations)
        if self.lines >= LINES_AT_ONCE:
            self.write()

    def write(self) -> None:
        self.moved += record_measurements(self.ledger, self.measurements, self.read_on)
        self.measurements, self.read_on, self.lines = [], {}, 0


def measured(row: JobRow, followed: Followed, stored: Sequence[MeasuredIteration]) -> Measurement:
    """What is known of an attempt now. `stored` are its iterations so far, of one that still runs only the first few.

    Of the iterations only those that are new, or that count otherwise than before.
    """
    lines = _lines(row, followed, stored)
    marked = _marked(lines, row.spec.warmup_iterations, bool(followed.facts.odd_lines))
    before = {line.iteration: line for line in stored}
    reached = [line.iteration for line in lines[-1:]] + ([row.iteration] if followed.keeps and row.iteration else [])
    judgement = judge(LogReport(lines, followed.facts), expected_of(row), _ending(row), lambda: _cause(row))
    numbers = metrics(marked, row.spec, followed.facts) if judgement else []
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
    return sampled_metrics(Path(row.folder), row.spec.warmup_iterations)


def _together(*several: Sequence[MeasuredMetric]) -> tuple[MeasuredMetric, ...]:
    """Of two with a name the later one: what was sampled on the GPUs is nearer to the truth than what a log says."""
    return tuple({metric.name: metric for some in several for metric in some}.values())


def _gpu_hours(row: JobRow) -> list[MeasuredMetric]:
    """What it cost; processes on CPU cores cost none."""
    if row.started_at is None or row.ended_at is None or row.spec.device == "cpu":
        return []
    return [MeasuredMetric("gpu_hours", gpu_hours(row.gpus, row.started_at, row.ended_at), "h")]
