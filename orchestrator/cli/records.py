"""Commands that print what was recorded: the log of a job, its history, and rows of the ledger."""

from __future__ import annotations

import codecs
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli import options as option
from orchestrator.cli.options import argument, session_of, value_option
from orchestrator.cli.output import WIDE_HINT, VisibleLog, as_row, data, filled_columns, message, suggest, table
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import short_name
from orchestrator.text import utc_stamp

ROWS_AT_ONCE = 1000
"""Rows of `sql` that are fetched and printed together. Each block of a table has its own head."""

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended.")]
Rank = Annotated[int | None, value_option("--rank", "RANK", "Only the lines of this rank.", min=0)]
AttemptNumber = Annotated[int | None, value_option("--attempt", "NUMBER", "Number of an earlier attempt.", min=1)]
Query = Annotated[
    str | None,
    argument("SELECT", 'One SELECT: "select * from v_results". Without it: the views and tables.'),
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
EXAMPLE_QUERY = "select case_name, verdict, tflops_per_gpu from v_results"
_MEASURED = ("iteration_ms", "tflops_per_gpu")

app = typer.Typer(rich_markup_mode=None)


@app.command()
def logs(
    context: typer.Context,
    job: option.JobName,
    follow: Follow = False,
    rank: Rank = None,
    attempt: AttemptNumber = None,
    json: option.Json = False,
    database: option.Database = None,
) -> None:
    """Print the log of a job, unchanged unless stdout is a terminal."""
    log = api.logs(job, rank=rank, attempt=attempt, follow=follow, session=session_of(context, database))
    if follow and log.job.phase in api.OPEN and log.job.phase != api.RUNNING:
        message(f"{log.job.job_id} ({log.job.label}) is {log.job.state}; its log follows when it runs. Ctrl-C ends")
    printable = VisibleLog().feed if sys.stdout.isatty() else bytes
    if json:
        for lines in _lines(log.pieces):
            context.obj.json.print_rows(lines)
        context.obj.json.print_rows([])
    try:
        for piece in () if json else log.pieces:
            sys.stdout.buffer.write(printable(piece))
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        message("no longer following; the job continues")
        raise
    suggest("the state of its jobs", "status", short_name(log.job.experiment), database=database)


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
def history(
    context: typer.Context,
    job: option.JobName,
    wide: option.Wide = False,
    json: option.Json = False,
    database: option.Database = None,
) -> None:
    """Show each attempt of a job and what it measured, then each event with its time (UTC) and cause."""
    job_history = api.history(job, session=session_of(context, database))
    row, attempts = job_history.job, job_history.attempts
    if json:
        context.obj.json.put(attempts=attempts)
    else:
        rows = [_attempt_row(attempt) for attempt in attempts]
        message(f"{row.job_id}: {row.label} of {row.experiment} at scale {row.scale} on {row.cluster}, {row.workload}")
        if row.image is not None:
            message(f"image {row.image}, {row.image_digest or 'unknown'}")
        important = ("attempt", "id", "state", "verdict", "why", "failure", "started", "iteration_ms")
        table(rows, filled_columns(rows), wide=wide, important=important, hint=WIDE_HINT)
        data("")
        table(_event_rows(attempts), ["at", "attempt", "event", "detail"], wide=wide, hint=WIDE_HINT)
    earlier = attempts[-1].number - 1
    purpose = "the log of the attempt before" if earlier else "the log"
    suggest(purpose, "logs", row.job_id, attempt=earlier or None, database=database)


def _attempt_row(attempt: api.JobAttempt) -> dict[str, object]:
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
    context: typer.Context,
    query: Query = None,
    json: option.Json = False,
    csv: AsCsv = False,
    database: option.Database = None,
) -> None:
    """Query the ledger, read-only."""
    if json and csv:
        raise ReproError(Problem("--json and --csv: give one of them"))
    session = session_of(context, database)
    if query is None:
        relations = api.relations(session=session)
        if json:
            context.obj.json.put(relations=relations)
        else:
            _print_relations(relations)
            suggest("more in docs/reference/ledger.md", "sql", EXAMPLE_QUERY, database=database)
        return
    with api.query(query, session=session) as answer:
        if json:
            for rows in _blocks(answer.rows):
                named = [dict(zip(answer.columns, row, strict=True)) for row in rows]
                context.obj.json.print_rows(named, columns=answer.columns)
            context.obj.json.print_rows([], columns=answer.columns)
        elif csv:
            head: list[Sequence[object]] = [answer.columns]
            for block in itertools.chain([head], _blocks(answer.rows)):
                data("\n".join(map(api.csv_line, block)))
        else:
            blocks = _blocks(answer.rows)
            for block in itertools.chain([next(blocks, [])], blocks):
                table([dict(zip(answer.columns, row, strict=True)) for row in block], answer.columns, wide=True)
    suggest("the views and tables, and their columns", "sql", database=database)


def _print_relations(relations: Sequence[api.Relation]) -> None:
    rows = [{**as_row(relation), "columns": ", ".join(relation.columns)} for relation in relations]
    table(rows, ["name", "kind", "columns"])


def _blocks(rows: Iterable[Sequence[object]]) -> Iterator[list[Sequence[object]]]:
    iterator = iter(rows)
    while block := list(itertools.islice(iterator, ROWS_AT_ONCE)):
        yield block
