"""Collection of results: read new log content, judge ended attempts, and store iterations, metrics and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import ReproError
from orchestrator.files import ScriptRecord, read_record
from orchestrator.ledger.attempts import rows_of_attempts, unjudged_attempts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import (
    MeasuredMetric,
    Measurement,
    OffsetUpdate,
    file_offsets,
    iterations_of,
    record_measurements,
)
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import NewJob
from orchestrator.ledger.tables import ENDED, MEASURED, RUNNING, FileOffset, IterationLine
from orchestrator.masking import without_known
from orchestrator.reading.failure import Ending
from orchestrator.reading.gpu_samples import MeanPower, read_samples
from orchestrator.reading.logs import job_secrets
from orchestrator.reading.reader import LogReader, LogReading, reader_of
from orchestrator.reading.statistics import is_possible

ATTEMPTS_AT_ONCE = 100
"""Number of attempts whose rows are in memory together."""
LINES_AT_ONCE = 20_000
"""Number of iteration lines in one transaction; more if one attempt has more."""
TRIES = 3
"""Number of times that an attempt is read if another terminal reads it at the same time; then that one collects it."""


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
    reader = reader_of(row.program, row.spec.program)
    reading = reader.read(row, {}, ending_of(row), lambda _most: [], {})
    if reading is None:
        return Measurement(row.attempt_id, row.iteration, None, None, (), ())
    return _measurement(row, reader, replace(reading, offsets=None))


def _collect(ledger: Ledger, attempt_ids: Sequence[int], warnings: dict[str, None]) -> list[int]:
    """Read these attempts once, and return those that another terminal has read at the same time."""
    offsets = file_offsets(ledger, attempt_ids)
    moved: list[int] = []
    batch: list[Measurement] = []
    for row in rows_of_attempts(ledger, attempt_ids):
        if row.verdict is not None:  # another terminal has just judged it
            continue
        try:
            measurement = _new_measurement(ledger, row, offsets.get(row.attempt_id, {}), warnings)
        except ReproError as error:
            warnings[str(error)] = None
            continue
        batch += [measurement] if measurement is not None else []
        if sum(len(measurement.iterations) + len(measurement.rows) for measurement in batch) >= LINES_AT_ONCE:
            moved, batch = moved + record_measurements(ledger, batch), []
    return moved + record_measurements(ledger, batch)


def _new_measurement(
    ledger: Ledger, row: JobRow, before: Mapping[str, FileOffset], warnings: dict[str, None]
) -> Measurement | None:
    """Return the measurement of an attempt whose files were read up to `before`; None if nothing is new."""
    reader = reader_of(row.program, row.spec.program)

    def stored(most: int | None) -> list[IterationLine]:
        return iterations_of(ledger, row.attempt_id, most)

    reading = reader.read(row, before, ending_of(row), stored, warnings)
    return None if reading is None else _measurement(row, reader, reading)


def _measurement(row: JobRow, reader: LogReader, reading: LogReading) -> Measurement:
    """Return the measurement with the numbers of GPU samples, and without secrets of the job's script."""
    judgement, folder = reading.judgement, Path(row.folder)
    sampled = read_samples(folder, reading.window, row.gpus) if judgement else None
    power = sampled.power if sampled and reading.metrics else MeanPower()
    others = (sampled.metrics, reader.joules(power, reading.metrics), _gpu_hours(row)) if sampled else ()
    cause = judgement.cause if judgement else None
    secrets = job_secrets(folder) if judgement or reading.offsets else frozenset()
    return Measurement(
        attempt_id=row.attempt_id,
        iteration=reading.iteration,
        verdict=judgement.verdict if judgement else None,
        verdict_reason=without_known(judgement.reason, secrets) if judgement and judgement.reason else None,
        iterations=reading.iterations,
        metrics=_by_name(reading.metrics, *(filter(is_possible, other) for other in others)) if sampled else (),
        failure=str(judgement.failure) if judgement and judgement.failure else None,
        deciding_line=without_known(cause.line, secrets) if cause else None,
        deciding_rank=cause.rank if cause else None,
        execution=reading.execution,
        no_energy=power.unknown,
        read=_without_secrets(reading.offsets, secrets) if reading.offsets else None,
        rows=reading.rows,
    )


def _without_secrets(offsets: OffsetUpdate, secrets: frozenset[str]) -> OffsetUpdate:
    after = {name: replace(file, facts=without_known(file.facts, secrets)) for name, file in offsets.after.items()}
    return replace(offsets, after=after)


def is_verified(job: NewJob, folder: Path, end: ScriptRecord) -> bool:
    """Return whether an ended attempt that the ledger lacks is verified or partial."""
    state = "COMPLETED" if end.exit_code == 0 else "FAILED"
    ending = Ending(ENDED, state, end.exit_code, None, commit=end.commit, nodes_inside=end.nodes_inside)
    start = read_record(folder / "start")
    seconds = (end.at - start.at).total_seconds() if start is not None else None
    judgement = reader_of(job.program, job.spec.program).judged(job, folder, ending, seconds)
    return judgement is not None and judgement.verdict in MEASURED


def ending_of(row: JobRow) -> Ending:
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


def _by_name(*lists: Iterable[MeasuredMetric]) -> tuple[MeasuredMetric, ...]:
    """Merge metrics. A later list replaces metrics of an earlier one: samples are more reliable than a log."""
    return tuple({metric.name: metric for metrics in lists for metric in metrics}.values())


def _gpu_hours(row: JobRow) -> list[MeasuredMetric]:
    """Return the cost of the attempt; none for processes on CPU cores."""
    if row.gpu_hours is None or row.spec.device == "cpu":
        return []
    return [MeasuredMetric("gpu_hours", row.gpu_hours, "h")]
