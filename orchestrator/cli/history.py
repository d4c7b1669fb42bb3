"""`repro history`: everything that became of one job, attempt by attempt, event by event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import Database, JobName, Json
from orchestrator.cli.output import as_json, data, filled_columns, next_command, say, table
from orchestrator.cli.session import bring_up_to_date
from orchestrator.errors import Problem, ReproError
from orchestrator.text import utc_stamp

if TYPE_CHECKING:
    from orchestrator.ledger.reports import PastAttempt

_MEASURED = ("iteration_ms", "tflops_per_gpu")
_PLAIN = (
    *("number", "run_id", "scheduler", "scheduler_id", "host", "user", "nodes", "state", "reason", "verdict"),
    *("verdict_reason", "failure", "execution", "exit_code", "signal", "folder"),
)
_TIMES = ("created_at", "submitted_at", "started_at", "ended_at")


def history(job: JobName, json: Json = False, database: Database = None) -> None:
    """Everything about one job: each attempt and what it measured, then each event with its time (UTC) and cause."""
    from orchestrator.cli.logs import one_job
    from orchestrator.cli.selection import submitted_ledger
    from orchestrator.ledger.reports import job_history
    from orchestrator.paths import find_folders

    folders = find_folders()
    ledger = submitted_ledger(folders, database)
    row = one_job(ledger, folders, job, "a history is of one")
    for complaint in bring_up_to_date(ledger):
        say(f"note: {complaint}")
    attempts = job_history(ledger, row.job_id)
    if not attempts:
        raise ReproError(Problem(f"{row.job_id}: no attempt can be read"))
    if json:
        image = {"image": row.image, "image_digest": row.image_digest}
        as_json([_as_json(attempt) | image for attempt in attempts])
    else:
        rows = [_as_row(attempt) for attempt in attempts]
        say(f"{row.job_id}: {row.label} of {row.experiment} at scale {row.scale} on {row.cluster}, {row.workload}")
        if row.image_digest is not None:
            say(f"image {row.image}, {row.image_digest}")
        table(rows, filled_columns(rows))
        data("")
        table(_events(attempts), ["at", "attempt", "event", "detail"])
    last = attempts[-1].number
    earlier = f" --attempt {last - 1}" if last > 1 else ""
    next_command(f"repro logs {row.job_id}{earlier}", "what it printed" + (" the time before" if earlier else ""))


def _as_json(attempt: PastAttempt) -> dict[str, Any]:
    from orchestrator.ledger.tables import field_values

    plain = {name: getattr(attempt, name) for name in _PLAIN}
    times = {name: utc_stamp(getattr(attempt, name)) for name in _TIMES}
    metrics = {
        name: {key: value for key, value in field_values(metric).items() if key != "name"}
        for name, metric in attempt.metrics.items()
    }
    events = [{"at": utc_stamp(event.at), "event": event.kind, "detail": event.detail} for event in attempt.events]
    return {**plain, **times, "metrics": metrics, "events": events}


def _as_row(attempt: PastAttempt) -> dict[str, Any]:
    """The columns of the table; those that no attempt fills are left out of it."""

    measured = {name: attempt.metrics[name].value for name in _MEASURED if name in attempt.metrics}
    timing = attempt.metrics.get("iteration_ms")
    return {
        "attempt": attempt.number,
        "id": attempt.scheduler_id,
        "nodes": attempt.nodes,
        "state": attempt.state,
        "verdict": attempt.verdict,
        "failure": attempt.failure,
        "execution": attempt.execution,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "submitted": utc_stamp(attempt.submitted_at),
        "started": utc_stamp(attempt.started_at),
        "ended": utc_stamp(attempt.ended_at),
        **{name: measured.get(name) for name in _MEASURED},
        "used": timing.count if timing else None,
        "why": attempt.verdict_reason or attempt.reason,
    }


def _events(attempts: list[PastAttempt]) -> list[dict[str, Any]]:
    """Of all attempts together, the oldest first."""

    found = [(event, attempt) for attempt in attempts for event in attempt.events]
    return [
        {"at": utc_stamp(event.at), "attempt": attempt.number, "event": event.kind, "detail": event.detail}
        for event, attempt in sorted(found, key=lambda pair: pair[0].at)
    ]
