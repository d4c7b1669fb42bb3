"""Reads the logs of everything that is under way or not yet judged, and records verdicts and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ReproError
from orchestrator.job_record import read_record
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import JobRow, job_rows
from orchestrator.ledger.measurements import Measurement, record_measurements
from orchestrator.ledger.tables import ENDED, FAILED, NEVER_SUBMITTED, RUNNING, VERIFIED
from orchestrator.masking import masked
from orchestrator.results.failure import Failure, failure_of
from orchestrator.results.outcome import Ending, Expected, judge
from orchestrator.results.read import log_bytes, read_log
from orchestrator.results.statistics import measured_iterations, metrics


def collect(ledger: Ledger, rows: Sequence[JobRow] | None = None) -> tuple[str, ...]:
    """Bring verdicts and metrics up to date, for `rows` or for every job that has no verdict yet.

    Returns what could not be read: a log that this user may not see is no empty log, and nothing is concluded from it.
    """
    wanted = job_rows(ledger, unjudged=True) if rows is None else rows
    unique = {row.attempt_id: row for row in wanted if row.phase in (RUNNING, ENDED) and row.state != NEVER_SUBMITTED}
    measured: list[Measurement] = []
    complaints: dict[str, None] = {}
    for row in unique.values():
        try:
            found = measure(row)
        except ReproError as error:
            complaints[str(error)] = None
            continue
        if found.iteration != row.iteration or found.verdict != row.verdict:
            measured.append(found)
    record_measurements(ledger, measured)
    return tuple(complaints)


def measure(row: JobRow) -> Measurement:
    """What the log of this attempt says now."""
    report = read_log(log_bytes(Path(row.folder)))
    layout = row.configuration["layout"]
    expected = Expected(row.gpus, layout["tensor_parallel"], layout["pipeline_parallel"], row.iterations)
    ending = Ending(row.phase, row.state, row.exit_code, row.reason, _outside_image(row))
    iterations = measured_iterations(report.iterations, row.configuration["training"]["warmup_iterations"])
    numbers = metrics(iterations, row.configuration)
    verdict, reason = judge(report, expected, ending)
    failure = failure_of(report, ending) if verdict == FAILED else None
    if verdict == VERIFIED and not numbers:
        verdict, reason, failure = FAILED, "no iteration is left after the warm-up", Failure.INCOMPLETE
    return Measurement(
        attempt_id=row.attempt_id,
        iteration=report.last_iteration,
        verdict=verdict,
        verdict_reason=masked(reason) if reason else None,
        iterations=tuple(iterations),
        metrics=tuple(numbers),
        failure=str(failure) if failure else None,
    )


def _outside_image(row: JobRow) -> str | None:
    """Without an image pyxis only warns and runs a step on the host: a job must prove that it was in its own."""
    if row.image is None or row.scheduler != "slurm":
        return None
    end = read_record(Path(row.folder) / "end")
    if end is None or end.inside_image is None:
        return f"its end record does not prove that it ran inside {row.image}"
    return end.outside_image
