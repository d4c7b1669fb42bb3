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
    FileOffset,
    MeasuredMetric,
    Measurement,
    OffsetUpdate,
    file_offsets,
    iterations_of,
    positions,
    record_measurements,
)
from orchestrator.ledger.rows import JobRow, gpu_hours
from orchestrator.ledger.tables import ENDED, FAILED, RUNNING, VERIFIED
from orchestrator.masking import masked, without_known
from orchestrator.megatron.logs.columns import IterationLine
from orchestrator.megatron.logs.root_cause import Cause, CauseFinder
from orchestrator.reading.config_check import expected_of
from orchestrator.reading.failure import Ending, Failure
from orchestrator.reading.gpu_samples import sampled_metrics
from orchestrator.reading.incremental import NewContent, read_new
from orchestrator.reading.logs import job_secrets, log_blocks
from orchestrator.reading.parse import LogReport
from orchestrator.reading.statistics import metrics, with_used
from orchestrator.reading.verdict import Judgement, judge

ATTEMPTS_AT_ONCE = 100
"""Number of attempts whose rows are in memory together."""
LINES_AT_ONCE = 20_000
"""Number of iteration lines in one transaction; more if one attempt has more."""
TRIES = 3
"""Number of times that an attempt is read if another terminal reads it at the same time; then that one collects it."""

_FIRST_LINES = 4
"""Stored lines of a running attempt that are checked again: the next lines show whether the first ones count."""
_ONLY_WHILE_RUNNING = ("version", "settings", "unfinished")
"""Facts, most of them by size, that are not stored after the verdict."""


def collect(ledger: Ledger, *, running: bool = True) -> tuple[str, ...]:
    """Read the new content of every attempt without a verdict; with `running` also of those that have not ended.

    Return warnings: a log that this user may not read is not an empty log, and its attempt gets no verdict. Nothing is
    written if nothing is new. A verdict is final: its attempt is never read again.
    """
    warnings: dict[str, None] = {}
    ids = unjudged_attempts(ledger, (RUNNING, ENDED) if running else (ENDED,))
    for start in range(0, len(ids), ATTEMPTS_AT_ONCE):
        remaining = ids[start : start + ATTEMPTS_AT_ONCE]
        for _ in range(TRIES):
            remaining = _collect(ledger, remaining, warnings) if remaining else []
    return tuple(warnings)


def measure(row: JobRow) -> Measurement:
    """Return the measurement of an attempt from all of its files, as if they were read for the first time."""
    return measured(row, _read(row, {}), ())


def _read(row: JobRow, before: Mapping[str, FileOffset]) -> NewContent:
    warmup_iterations = row.spec.warmup_iterations
    return read_new(Path(row.folder), before, final=row.phase == ENDED, warmup_iterations=warmup_iterations)


def _collect(ledger: Ledger, attempt_ids: Sequence[int], warnings: dict[str, None]) -> list[int]:
    """Read these attempts once, and return those that another terminal has read at the same time."""
    offsets = file_offsets(ledger, attempt_ids)
    batch = _Batch(ledger)
    for row in rows_of_attempts(ledger, attempt_ids):
        if row.verdict is not None:  # another terminal has just judged it
            continue
        before, has_ended = offsets.get(row.attempt_id, {}), row.phase == ENDED
        try:
            new = _read(row, before)
            warnings |= dict.fromkeys(new.warnings)
            if not has_ended and positions(new.files) == positions(before):
                continue
            stored = iterations_of(ledger, row.attempt_id, None if has_ended else _FIRST_LINES) if new.continues else []
            measurement = measured(row, new, stored)
        except ReproError as error:
            warnings[str(error)] = None
            continue
        files = _stored_files(new.files, Path(row.folder), has_ended)
        batch.add(measurement, OffsetUpdate(before, files, new.continues))
    batch.write()
    return batch.moved


def _stored_files(files: Mapping[str, FileOffset], folder: Path, has_ended: bool) -> dict[str, FileOffset]:
    """Return the offsets with the facts to store, which contain no secret of the job's script."""
    secrets = job_secrets(folder)
    dropped = _ONLY_WHILE_RUNNING if has_ended else ()
    facts = {name: without_known(file.facts, secrets) for name, file in files.items()}
    return {
        name: replace(file, facts={fact: value for fact, value in facts[name].items() if fact not in dropped})
        for name, file in files.items()
    }


@dataclass
class _Batch:
    """Measurements of one transaction. `moved` are the attempts that `record_measurements` did not write."""

    ledger: Ledger
    measurements: list[Measurement] = field(default_factory=list)
    updates: dict[int, OffsetUpdate] = field(default_factory=dict)
    lines: int = 0
    moved: list[int] = field(default_factory=list)

    def add(self, measurement: Measurement, update: OffsetUpdate) -> None:
        """Add a measurement, and write the batch if it is large."""
        self.measurements.append(measurement)
        self.updates[measurement.attempt_id] = update
        self.lines += len(measurement.iterations)
        if self.lines >= LINES_AT_ONCE:
            self.write()

    def write(self) -> None:
        """Write the batch and begin the next one."""
        self.moved += record_measurements(self.ledger, self.measurements, self.updates)
        self.measurements, self.updates, self.lines = [], {}, 0


def measured(row: JobRow, new: NewContent, stored: Sequence[IterationLine]) -> Measurement:
    """Return the measurement of an attempt after reading new content.

    `stored` are its stored iterations; of a running attempt only the first few. The measurement has the iterations that
    are new, and those whose `used` has changed.
    """
    before = {line.iteration: line for line in stored}
    by_number = before | {line.iteration: line for line in new.lines}
    merged = [by_number[number] for number in sorted(by_number)] if stored else new.lines
    lines = with_used(merged, row.spec.warmup_iterations)
    reached = [line.iteration for line in lines[-1:]] + ([row.iteration] if new.continues and row.iteration else [])
    # The log is read once more only for an attempt that is not simply verified: its deciding line may be anywhere.
    judgement = judge(LogReport(lines, new.facts), expected_of(row), _ending(row), lambda: _cause(row))
    numbers = metrics(lines, row.spec, new.facts) if judgement else []
    if judgement and judgement.verdict == VERIFIED and not numbers:
        judgement = Judgement(FAILED, "no iteration is left after the warm-up", Failure.INCOMPLETE)
    cause = judgement.cause if judgement else None
    secrets = job_secrets(Path(row.folder)) if judgement else frozenset()
    return Measurement(
        attempt_id=row.attempt_id,
        iteration=max(reached, default=None),
        verdict=judgement.verdict if judgement else None,
        verdict_reason=masked(judgement.reason, secrets) if judgement and judgement.reason else None,
        iterations=tuple(line for line in lines if before.get(line.iteration) != line),
        metrics=_by_name(numbers, sampled_metrics(Path(row.folder), new.facts), _gpu_hours(row)) if judgement else (),
        failure=str(judgement.failure) if judgement and judgement.failure else None,
        deciding_line=masked(cause.line, secrets) if cause else None,
        deciding_rank=cause.rank if cause else None,
        execution=new.facts.execution,
    )


def _ending(row: JobRow) -> Ending:
    """Return the end of the attempt.

    Without an image pyxis only warns and runs a step on the host, so a job must prove that it ran in its image.
    """
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
    """Search the whole log for the line that decided."""
    finder = CauseFinder()
    for block in log_blocks(Path(row.folder)):
        finder.feed(block)
    return finder.cause()


def _by_name(*lists: Sequence[MeasuredMetric]) -> tuple[MeasuredMetric, ...]:
    """Merge metrics. A later list replaces metrics of an earlier one: samples are more reliable than a log."""
    return tuple({metric.name: metric for metrics in lists for metric in metrics}.values())


def _gpu_hours(row: JobRow) -> list[MeasuredMetric]:
    """Return the cost of the attempt; none for processes on CPU cores."""
    if row.started_at is None or row.ended_at is None or row.spec.device == "cpu":
        return []
    return [MeasuredMetric("gpu_hours", gpu_hours(row.gpus, row.started_at, row.ended_at), "h")]
