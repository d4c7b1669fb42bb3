"""Commands that show jobs and the ledger: status, logs, history, sql."""

from __future__ import annotations

import io
import itertools
import json as json_text
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from datetime import timezone
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import api
from orchestrator.cli.job_table import bar, can_redraw, picture, print_jobs
from orchestrator.cli.options import (
    AnyExperiment,
    Database,
    JobName,
    Json,
    StateOptions,
    session_of,
)
from orchestrator.cli.output import VisibleLog, as_json, as_row, data, filled_columns, message, next_command, table
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import short_name
from orchestrator.text import utc_stamp

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_JOBS = 60
"""Number of jobs above which `status` without a filter counts them by experiment."""
POLL_EVERY_S = 15.0
LEAST_EVERY_S, MOST_EVERY_S = 5.0, 86400.0
REDRAW_S = 2.0
SHARE_OF_TIME = 5
"""A watching terminal waits this many times as long as an update takes."""

ROWS_AT_ONCE = 1000
"""Rows of `sql` that are fetched and printed together. Each block of a table has its own head."""

Watch = Annotated[bool, typer.Option("--watch", help="Continue until every job has ended.")]
Failed = Annotated[bool, typer.Option("--failed", help="Only jobs whose latest attempt failed.")]
Every = Annotated[
    float,
    typer.Option(
        "--every",
        metavar="SECONDS",
        help="With --watch: minimum interval between scheduler queries of all terminals. Logs are read every 2 s.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended.")]
Rank = Annotated[int | None, typer.Option("--rank", min=0, help="Only the lines of this rank.")]
AttemptNumber = Annotated[int | None, typer.Option("--attempt", min=1, help="Number of an earlier attempt.")]
ShowAll = Annotated[bool, typer.Option("--all", help="Show forgotten attempts, too.")]
Query = Annotated[
    str | None, typer.Argument(help='One SELECT: "select * from v_results". Without it: the views and tables.')
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
_IDENTITY = ("number", "run_id", "scheduler", "scheduler_id", "host", "user", "nodes")
_PLAIN = (
    *_IDENTITY,
    "state",
    "reason",
    "verdict",
    "verdict_reason",
    "failure",
    "execution",
    "exit_code",
    "signal",
    "origin",
    "forgotten_by",
)
_TIMES = ("created_at", "submitted_at", "started_at", "ended_at", "forgotten_at")
_MEASURED = ("iteration_ms", "tflops_per_gpu")

app = typer.Typer(rich_markup_mode=None)


@app.command()
@api.with_keywords(StateOptions)
def status(
    context: typer.Context,
    experiment: AnyExperiment = None,
    *,
    failed: Failed = False,
    watch: Watch = False,
    every: Every = POLL_EVERY_S,
    json: Json = False,
    database: Database = None,
    **options: Unpack[StateOptions],
) -> None:
    """Show the state, verdict, speed and remaining time of jobs."""
    if math.isnan(every) or not LEAST_EVERY_S <= every <= MOST_EVERY_S:
        least, most = f"{LEAST_EVERY_S:.0f}", f"{MOST_EVERY_S:.0f}"
        what = f"--every {every:g}: must be {least} to {most} seconds, to protect the scheduler"
        raise ReproError(Problem(what, hint=f"--every {least if every < LEAST_EVERY_S else most}"))
    session = session_of(context, database)
    interval = every if watch else 0.0
    updates = _updates(
        lambda: api.status(
            experiment, failed=failed, most_jobs=MOST_JOBS, at_most_every_s=interval, session=session, **options
        )
    )
    now = next(updates)
    if not now.is_submitted:
        if json:
            as_json([])
        message(str(session.no_jobs()))
        next_command("repro list", "the experiments")
        return
    if watch:
        now = _watch(itertools.chain([now], updates), every, json)
    else:
        _print_notes(now)
        _print_rows(now.jobs, now.experiments, json)
    next_command(*_next(now))


def _updates(current: Callable[[], api.Status]) -> Iterator[api.Status]:
    """Yield the status again and again until no job is open."""
    while True:
        began = time.monotonic()
        now = current()
        yield now
        if not now.is_open:
            return
        time.sleep(max(REDRAW_S, SHARE_OF_TIME * (time.monotonic() - began)))


def _watch(updates: Iterable[api.Status], every: float, json: bool) -> api.Status:
    """Draw each status over the last one on a terminal; elsewhere print what has changed. Return the last status."""
    before: dict[object, object] = {}
    is_first = True
    try:
        with picture(sys.stdout) if can_redraw(sys.stdout) and not json else nullcontext() as draw:
            for now in updates:
                if draw is not None:
                    draw(_picture(now, every))
                    continue
                rows: list[api.JobStatus | api.ExperimentStatus] = [*now.jobs, *now.experiments]
                states = {_key(row): _state(row) for row in rows}
                jobs = [job for job in now.jobs if before.get(_key(job)) != _state(job)]
                experiments = [row for row in now.experiments if before.get(_key(row)) != _state(row)]
                if is_first or jobs or experiments:
                    _print_notes(now)
                    _print_rows(jobs, experiments, json)
                before, is_first = states, False
    except KeyboardInterrupt:
        message("no longer watching; the jobs continue")
        raise
    return now


def _key(row: api.JobStatus | api.ExperimentStatus) -> object:
    if isinstance(row, api.JobStatus):
        return row.experiment, row.scale, row.cluster, row.case, row.job
    return row.experiment, row.scale, row.cluster


def _state(row: api.JobStatus | api.ExperimentStatus) -> object:
    if isinstance(row, api.JobStatus):
        return row.attempt, row.state, row.verdict, row.newer
    return row.verified, row.failed, row.running, row.waiting


def _print_notes(now: api.Status) -> None:
    for line in (*now.notes, *map(bar, now.tallies)):
        message(line)


def _print_rows(jobs: Sequence[api.JobStatus], experiments: Sequence[api.ExperimentStatus], json: bool) -> None:
    if jobs and not json:
        print_jobs(jobs)
        return
    rows = [*map(as_row, jobs), *map(as_row, experiments)]
    if json:
        as_json([{name: value for name, value in row.items() if name != "left"} for row in rows])
    elif experiments:
        failures = [", ".join(f"{count} {name}" for name, count in row["failures"].items()) for row in rows]
        table([row | {"failures": text} for row, text in zip(rows, failures, strict=True)], list(rows[0]))
    else:
        message("no matching job")


def _next(now: api.Status) -> tuple[str, str]:
    failed = next((job for job in now.jobs if job.verdict == "failed"), None)
    if now.experiments:
        first = next((row for row in now.experiments if row.running or row.waiting), now.experiments[0])
        return f"repro status {short_name(first.experiment)}", "its cases"
    if failed is not None:
        repeat = f" #{failed.repeat}" if failed.repeat > 1 else ""
        return f"repro logs {failed.job}", f"why {failed.case}{repeat} failed"
    if now.is_open:
        return "repro status --watch", "until all jobs have ended"
    if now.jobs:
        return f"repro collect {now.jobs[-1].experiment} --export csv", "the numbers and the claims"
    return "repro status", "the state of all jobs"


def _picture(now: api.Status, every: float) -> list[str]:
    """Return the lines that fit on the terminal: running jobs first, then failed ones."""
    around = len(now.notes) + len(now.tallies) + 4  # the table's head, the last query, the next command, the cursor
    room = max(1, shutil.get_terminal_size().lines - around)
    jobs = list(now.jobs)
    if len(jobs) > room:
        jobs.sort(key=lambda job: (job.verdict == "verified", job.state != "RUNNING", not job.verdict))
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        _print_rows(jobs[:room], now.experiments[:room], json=False)
    lines = [*now.notes, *map(bar, now.tallies), *text.getvalue().splitlines()]
    if now.asked_at is not None:
        at = now.asked_at.replace(tzinfo=timezone.utc).astimezone()
        lines.append(f"Slurm was queried at {at:%H:%M:%S}; all terminals together query every {every:g} s. Ctrl-C ends")
    return lines


@app.command()
def logs(
    context: typer.Context,
    job: JobName,
    follow: Follow = False,
    rank: Rank = None,
    attempt: AttemptNumber = None,
    database: Database = None,
) -> None:
    """Print the log of a job, unchanged unless stdout is a terminal."""
    log = api.logs(job, rank=rank, attempt=attempt, follow=follow, session=session_of(context, database))
    printable = VisibleLog().feed if sys.stdout.isatty() else bytes
    for piece in log.pieces:
        sys.stdout.buffer.write(printable(piece))
        sys.stdout.buffer.flush()
    next_command(f"repro status {short_name(log.job.experiment)}", "the state of its jobs")


@app.command()
def history(
    context: typer.Context, job: JobName, show_all: ShowAll = False, json: Json = False, database: Database = None
) -> None:
    """Show each attempt of a job and what it measured, then each event with its time (UTC) and cause."""
    job_history = api.history(job, forgotten=show_all, session=session_of(context, database))
    row, attempts = job_history.job, job_history.attempts
    if json:
        image = {"image": row.image, "image_digest": row.image_digest}
        as_json([_attempt_json(attempt) | image for attempt in attempts])
    else:
        rows = [_attempt_row(attempt) for attempt in attempts]
        message(f"{row.job_id}: {row.label} of {row.experiment} at scale {row.scale} on {row.cluster}, {row.workload}")
        if row.image_digest is not None:
            message(f"image {row.image}, {row.image_digest}")
        table(rows, filled_columns(rows))
        data("")
        table(_event_rows(attempts), ["at", "attempt", "event", "detail"])
    last = attempts[-1].number
    option, when = (f" --attempt {last - 1}", " of the attempt before") if last > 1 else ("", "")
    next_command(f"repro logs {row.job_id}{option}", f"the log{when}")


def _attempt_json(attempt: api.PastAttempt) -> dict[str, object]:
    values = {name: getattr(attempt, name) for name in (*_PLAIN, "folder")}
    times = {name: utc_stamp(getattr(attempt, name)) for name in _TIMES}
    metrics = {
        name: {key: value for key, value in api.field_values(metric).items() if key != "name"}
        for name, metric in attempt.metrics.items()
    }
    events = [{"at": utc_stamp(event.at), "event": event.kind, "detail": event.detail} for event in attempt.events]
    return {**values, **times, "metrics": metrics, "events": events}


def _attempt_row(attempt: api.PastAttempt) -> dict[str, object]:
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
        "origin": attempt.origin,
        "forgotten": attempt.forgotten_at and f"{utc_stamp(attempt.forgotten_at)} by {attempt.forgotten_by}",
    }


def _event_rows(attempts: Sequence[api.PastAttempt]) -> list[dict[str, object]]:
    """Return the events of all attempts, the oldest first."""
    events = [(event, attempt.number) for attempt in attempts for event in attempt.events]
    return [
        {"at": utc_stamp(event.at), "attempt": number, "event": event.kind, "detail": event.detail}
        for event, number in sorted(events, key=lambda pair: pair[0].at)
    ]


@app.command()
def sql(
    context: typer.Context, query: Query = None, json: Json = False, csv: AsCsv = False, database: Database = None
) -> None:
    """Query the ledger, read-only."""
    if json and csv:
        raise ReproError(Problem("--json and --csv: give one of them"))
    session = session_of(context, database)
    if query is None:
        _print_relations(api.relations(session=session), json)
        return
    with api.query(query, session=session) as answer:
        if json:
            _print_json(answer)
        elif csv:
            head: list[Sequence[object]] = [answer.columns]
            for block in itertools.chain([head], _blocks(answer.rows)):
                data("\n".join(map(api.csv_line, block)))
        else:
            blocks = _blocks(answer.rows)
            for block in itertools.chain([next(blocks, [])], blocks):
                table([dict(zip(answer.columns, row, strict=True)) for row in block], answer.columns)
    next_command("repro sql", "the views and tables, and their columns")


def _print_relations(relations: Sequence[api.Relation], json: bool) -> None:
    if json:
        as_json([as_row(relation) for relation in relations])
        return
    rows = [{**as_row(relation), "columns": ", ".join(relation.columns)} for relation in relations]
    table(rows, ["name", "kind", "columns"])
    next_command('repro sql "select case_name, verdict, tflops_per_gpu from v_results"', "more in docs/ledger.md")


def _print_json(answer: api.Answer) -> None:
    """Print one list, with at most one block of it in memory."""
    opening = "["
    for block in _blocks(answer.rows):
        rows = (dict(zip(answer.columns, map(_json_value, row), strict=True)) for row in block)
        data(opening + ",\n ".join(json_text.dumps(row, default=str, allow_nan=False) for row in rows))
        opening = ","
    data("]" if opening == "," else "[]")


def _blocks(rows: Iterable[Sequence[object]]) -> Iterator[list[Sequence[object]]]:
    iterator = iter(rows)
    while block := list(itertools.islice(iterator, ROWS_AT_ONCE)):
        yield block


def _json_value(value: object) -> object:
    """Return None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
