"""Commands that show jobs: their status, their logs, their history, and rows of the ledger."""

from __future__ import annotations

import codecs
import io
import itertools
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from datetime import timezone
from typing import Annotated

import typer
from typing_extensions import Unpack

from orchestrator import api
from orchestrator.cli import options as option
from orchestrator.cli.job_table import (
    bar,
    can_redraw,
    job_lines,
    picture,
    print_jobs,
    suggest_results,
    suggest_status,
    suggest_why,
)
from orchestrator.cli.options import argument, command_session, flag, value_option, with_options
from orchestrator.cli.output import VisibleLog, as_row, console, data, filled_columns, message, put, suggest, table
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import short_name
from orchestrator.text import counted, utc_stamp

ROWS_AT_ONCE = 1000
"""Rows of `sql` that are fetched and printed together. Each block of a table has its own head."""

EXAMPLE_QUERY = "select case_name, verdict, name, value, unit from v_metrics"
_COLUMNS = (
    *("attempt", "id", "nodes", "state", "verdict", "failure", "execution", "exit_code", "signal", "submitted"),
    *("started", "ended", "iteration_ms", "tflops_per_gpu", "used", "why", "origin"),
)
"""Columns of `history`."""

app = typer.Typer(rich_markup_mode=None)


@app.command()
def logs(
    job: option.JobName,
    follow: Annotated[bool, flag("Continue until the job has ended.", "--follow", "-f")] = False,
    rank: Annotated[int | None, value_option("RANK", "Only the lines of this rank.", min=0)] = None,
    attempt: Annotated[int | None, value_option("NUMBER", "Number of an earlier attempt.", min=1)] = None,
) -> None:
    """Print the log of a job, unchanged unless stdout is a terminal."""
    log = api.logs(job, rank=rank, attempt=attempt, follow=follow, session=command_session())
    if follow and log.job.phase in api.OPEN and log.job.phase != api.RUNNING:
        message(f"{log.job.job_id} ({log.job.label}) is {log.job.state}; its log follows when it runs. Ctrl-C ends")
    printable = VisibleLog().feed if sys.stdout.isatty() else bytes
    if console.is_json:
        for lines in _lines(log.pieces):
            console.json.print_rows(lines)
        console.json.print_rows([])
    try:
        for piece in () if console.is_json else log.pieces:
            sys.stdout.buffer.write(printable(piece))
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        message("no longer following; the job continues")
        raise
    suggest("the state of its jobs", "status", short_name(log.job.experiment))


def _lines(pieces: Iterable[bytes]) -> Iterator[list[str]]:
    """Yield the complete lines of each piece of a log; at the end, the rest."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + decoder.decode(piece)).split("\n")
        yield lines
    rest += decoder.decode(b"", True)
    yield [rest] if rest else []


@app.command()
def history(job: option.JobName, wide: option.Wide = False) -> None:
    """Show each attempt of a job and what it measured, then each event with its time (UTC) and cause."""
    job_history = api.history(job, session=command_session())
    row, attempts = job_history.job, job_history.attempts
    put(attempts=attempts)
    rows = [_attempt_row(attempt) for attempt in attempts]
    message(f"{row.job_id}: {row.label} of {row.experiment} at scale {row.scale} on {row.cluster}, {row.program}")
    if row.image is not None:
        message(f"image {row.image}, {row.image_digest or 'unknown'}")
    important = ("attempt", "id", "state", "verdict", "why", "failure", "started", "iteration_ms")
    table(rows, filled_columns(rows, _COLUMNS), wide=wide, important=important)
    data("")
    table(_event_rows(attempts), ["at", "attempt", "event", "detail"], wide=wide)
    earlier = attempts[-1].number - 1
    purpose = "the log of the attempt before" if earlier else "the log"
    suggest(purpose, "logs", row.job_id, attempt=earlier or None)


def _attempt_row(attempt: api.JobAttempt) -> dict[str, object]:
    timing = attempt.metrics.get("iteration_ms")
    return {
        **as_row(attempt),
        **{name: metric.value for name, metric in attempt.metrics.items()},
        "attempt": attempt.number,
        "id": attempt.scheduler_id,
        "submitted": utc_stamp(attempt.submitted_at),
        "started": utc_stamp(attempt.started_at),
        "ended": utc_stamp(attempt.ended_at),
        "used": timing.count if timing else None,
        "why": attempt.verdict_reason or attempt.reason,
    }


def _event_rows(attempts: Sequence[api.JobAttempt]) -> list[dict[str, object]]:
    """Return the events of all attempts, the oldest first."""
    events = [(event, attempt.number) for attempt in attempts for event in attempt.events]
    return [
        {"at": utc_stamp(event.at), "attempt": number, "event": event.event, "detail": event.detail}
        for event, number in sorted(events, key=lambda pair: pair[0].at)
    ]


@app.command()
def sql(
    query: Annotated[
        str | None, argument("SELECT", 'One SELECT: "select * from v_results". Without it: the views and tables.')
    ] = None,
    csv: Annotated[bool, flag("Print CSV.", "--csv")] = False,
) -> None:
    """Query the ledger, read-only."""
    if console.is_json and csv:
        raise ReproError(Problem("--json and --csv: give one of them"))
    session = command_session()
    if query is None:
        relations = api.relations(session=session)
        put(relations=relations)
        rows = [as_row(relation) | {"columns": ", ".join(relation.columns)} for relation in relations]
        table(rows, ["name", "kind", "columns"])
        suggest("more in docs/reference/ledger.md", "sql", EXAMPLE_QUERY)
        return
    with api.query(query, session=session) as answer:
        if console.is_json:
            for block in _blocks(answer.rows):
                named = [dict(zip(answer.columns, row, strict=True)) for row in block]
                console.json.print_rows(named, columns=answer.columns)
            console.json.print_rows([], columns=answer.columns)
        elif csv:
            head: list[Sequence[object]] = [answer.columns]
            for block in itertools.chain([head], _blocks(answer.rows)):
                data("\n".join(map(api.csv_line, block)))
        else:
            blocks = _blocks(answer.rows)
            for block in itertools.chain([next(blocks, [])], blocks):
                table([dict(zip(answer.columns, row, strict=True)) for row in block], answer.columns, wide=True)
    suggest("the views and tables, and their columns", "sql")


def _blocks(rows: Iterable[Sequence[object]]) -> Iterator[list[Sequence[object]]]:
    iterator = iter(rows)
    while block := list(itertools.islice(iterator, ROWS_AT_ONCE)):
        yield block


MOST_JOBS = 60
"""Number of jobs above which `status` without a filter counts them by experiment."""
POLL_EVERY_S = 15.0
REDRAW_S = 2.0
SHARE_OF_TIME = 5
"""A watching terminal waits this many times as long as an update takes."""


@app.command()
@with_options(option.JOBS)
def status(
    experiment: option.AnyExperiment = None,
    *,
    state: option.OnlyState = None,
    failed: Annotated[bool, flag("Only jobs whose latest attempt failed.", "--failed")] = False,
    watch: Annotated[bool, flag("Continue until every job has ended.", "--watch")] = False,
    wide: option.Wide = False,
    **selection: Unpack[api.JobFilter],
) -> None:
    """Show the state, verdict, speed and remaining time of jobs."""
    session, most_jobs = command_session(), None if console.is_json else MOST_JOBS

    def current(at_most_every_s: float) -> api.Status:
        return api.status(
            experiment,
            failed=failed,
            state=state,
            most_jobs=most_jobs,
            at_most_every_s=at_most_every_s,
            session=session,
            **selection,
        )

    if watch:
        shows_picture = can_redraw(sys.stdout) and not console.is_json
        now = current(math.inf if shows_picture else POLL_EVERY_S)  # a picture starts with what is recorded
    else:
        now = current(0.0)
        put(jobs=now.jobs, experiments=now.experiments, notes=now.notes)
    if not now.is_submitted:
        message(str(session.no_jobs()))
        suggest("the experiments", "list")
        return
    if watch:
        now = _watch(now, lambda: current(POLL_EVERY_S), wide)
    else:
        _print_notes(now)
        if not console.is_json:
            _print_rows(now.jobs, now.experiments, wide)
    _suggest_next(now, experiment, {**selection, "state": state}, failed_only=failed)


def _watch(now: api.Status, current: Callable[[], api.Status], wide: bool) -> api.Status:
    """Draw each status over the last one on a terminal; elsewhere print what has changed. Return the last status."""
    before: Mapping[object, object] | None = None
    took_s = 0.0
    try:
        with picture(sys.stdout) if can_redraw(sys.stdout) and not console.is_json else nullcontext() as draw:
            while True:
                if draw is not None:
                    draw(_picture(now, wide))
                else:
                    before = _print_changes(now, before, wide)
                if not now.is_open:
                    return now
                time.sleep(max(REDRAW_S, SHARE_OF_TIME * took_s))
                began = time.monotonic()
                now = current()
                took_s = time.monotonic() - began
    except KeyboardInterrupt:
        message("no longer watching; the jobs continue")
        raise


def _print_changes(now: api.Status, before: Mapping[object, object] | None, wide: bool) -> Mapping[object, object]:
    """Print the rows whose state differs from the one before; as JSON, a complete document. Return the states."""
    jobs = {(row.experiment, row.scale, row.cluster, row.case, row.job): row for row in now.jobs}
    counts = {(row.experiment, row.scale, row.cluster, row.arguments): row for row in now.experiments}
    states: dict[object, object] = {
        **{key: (row.attempt, row.state, row.verdict, row.newer) for key, row in jobs.items()},
        **{key: (row.verified, row.partial, row.failed, row.running, row.waiting) for key, row in counts.items()},
    }
    changed = {key for key, state in states.items() if before is None or before.get(key) != state}
    if console.is_json and not now.is_open:
        put(jobs=now.jobs, experiments=now.experiments, notes=now.notes)
    elif console.is_json and (changed or before is None):
        console.json.print_line(jobs=now.jobs, experiments=now.experiments, notes=now.notes)
    elif changed or before is None:
        _print_notes(now)
        changed_counts = [row for key, row in counts.items() if key in changed]
        _print_rows([row for key, row in jobs.items() if key in changed], changed_counts, wide)
    return states


def _print_notes(now: api.Status) -> None:
    for line in (*now.notes, *map(bar, now.tallies)):
        message(line)


def _print_rows(jobs: Sequence[api.JobStatus], experiments: Sequence[api.ExperimentStatus], wide: bool) -> None:
    """Print a row for each job and what they cost, or a row for each experiment if no jobs are listed."""
    rows = [as_row(experiment) for experiment in experiments]
    if jobs:
        print_jobs(jobs, wide=wide)
        if (spent := api.spent_text(jobs)) is not None:
            message(spent)
    elif experiments:
        failures = [", ".join(f"{count} {name}" for name, count in row["failures"].items()) for row in rows]
        table(
            [row | {"failures": text} for row, text in zip(rows, failures, strict=True)],
            [name for name in rows[0] if name != "arguments"],
        )
    else:
        message("no matching job")


def _suggest_next(now: api.Status, experiment: str | None, selection: api.StateFilter, *, failed_only: bool) -> None:
    """Print the command that explains the first failure, waits for open jobs, or shows the results."""
    failed = next((job for job in now.jobs if job.verdict == "failed"), None)
    if now.experiments and not now.jobs:
        first = next((row for row in now.experiments if row.running or row.waiting), now.experiments[0])
        name = short_name(first.experiment)
        suggest("its cases", "status", name, cluster=first.cluster, scale=first.scale)
    elif failed is not None:
        suggest_why(failed)
    elif now.is_open:
        names = list(dict.fromkeys(short_name(job.experiment) for job in now.jobs))
        suggest_status(names, selection, watch=True)
    elif now.jobs:
        suggest_results([short_name(now.jobs[-1].experiment)], {**selection, "state": None})
    elif experiment is not None and (failed_only or any(selection.values())):
        suggest("all its jobs", "status", experiment)
    else:
        suggest("the experiments that have jobs", "status")


def _picture(now: api.Status, wide: bool) -> list[str]:
    """Return the lines that fit on the terminal: running jobs first, then failed ones."""
    around = len(now.notes) + len(now.tallies) + 6  # head, rows and columns not shown, last query, next command, cursor
    room = max(1, shutil.get_terminal_size().lines - around)
    jobs = list(now.jobs)
    if len(jobs) > room:
        jobs.sort(key=lambda job: (job.verdict in ("verified", "partial"), job.state != "RUNNING", not job.verdict))
    if jobs and not wide:
        rows = job_lines(jobs[:room], shutil.get_terminal_size().columns)
    else:
        text = io.StringIO()
        with redirect_stdout(text), redirect_stderr(text):
            _print_rows(jobs[:room], now.experiments[:room], wide)
        rows = text.getvalue().splitlines()
    lines = [*now.notes, *map(bar, now.tallies), *rows]
    left = len(jobs or now.experiments) - room
    if left > 0:
        lines.append(f"{counted(left, 'more row')} not shown; running and failed jobs come first")
    if now.asked_at is None and now.is_open and not now.notes:
        lines.append("states as last recorded; the scheduler is being asked. Ctrl-C ends")
    if now.asked_at is not None:
        at = now.asked_at.replace(tzinfo=timezone.utc).astimezone()
        lines.append(
            f"Slurm was queried at {at:%H:%M:%S}; all terminals together query every {POLL_EVERY_S:g} s. Ctrl-C ends"
        )
    return lines
