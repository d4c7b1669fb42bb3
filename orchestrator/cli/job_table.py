"""Tables of jobs and cases, bars of experiments, and pictures that are redrawn on a terminal."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import typer

from orchestrator import api
from orchestrator.cli.output import (
    MOST_LINES,
    WIDE_HINT,
    as_row,
    console,
    data,
    message,
    only,
    print_beside,
    repro_command,
    suggest,
    table,
    table_lines,
)
from orchestrator.paths import short_name
from orchestrator.text import counted, printable

if TYPE_CHECKING:
    from orchestrator.config.user import Address

BAR_WIDTH = 10
NEVER_STARTED = ("cancelled", "not-submitted", "refused", "stopped")
"""Failure classes of jobs that may have no log."""
MOST_NAMED = 3
"""Running jobs that the progress of a waiting command names."""
MOST_BARS = 4
"""Running jobs with a bar on a terminal."""

_FIRST_COLUMNS = ("job", "experiment", "scale", "cluster", "case", "state", "verdict", "failure", "iteration")
_COLUMNS = (*_FIRST_COLUMNS, "program", "tflops_per_gpu", "metric", "left", "id", "why", "newer", "reused")
_WIDE_COLUMNS = ("gpu_hours", "cost", "joules_per_iteration", "joules_per_token", "no_energy")
"""Columns of `status --wide`."""
_ONLY_IF_DIFFERENT = ("experiment", "scale", "cluster", "program")
_ONLY_IF_FILLED = ("failure", "metric", "left", "why", "newer", "reused", *_WIDE_COLUMNS)
_IMPORTANT = (
    "job",
    "verdict",
    "failure",
    "tflops_per_gpu",
    "metric",
    "state",
    "case",
    "iteration",
    "left",
    "newer",
    "experiment",
)
"""Columns that a narrow terminal shows first."""


def bar(tally: api.ExperimentStatus) -> str:
    """Return a bar of measured jobs, full only if all are verified or partial, with its name and counts."""
    return f"{tally.name} [{_bar(tally.verified + tally.partial, tally.cases, BAR_WIDTH)}] {tally.text()}"


def _bar(done: int, of: int, width: int) -> str:
    """Return a bar of blocks for a terminal that has them, else of ASCII characters."""
    stream = getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # while rich draws, stderr has no encoding
    full, empty = "█░" if stream.isatty() else "#."
    try:
        full.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        full, empty = "#."
    length = width * done // max(of, 1)
    return full * length + empty * (width - length)


def print_jobs(jobs: Sequence[api.JobStatus], *, wide: bool = False) -> None:
    """Print a row for each job, without columns that are empty or have one value; `wide` adds cost and energy.

    On a terminal, the reasons of `why` are lines below the table, because they are longer than a row.
    """
    rows = [_job_cells(job) for job in jobs]
    columns = (*_COLUMNS, *_WIDE_COLUMNS) if wide else _COLUMNS
    below = sys.stdout.isatty() and not wide
    shown = [column for column in columns if _is_shown(column, rows) and not (below and column == "why")]
    table(rows, shown, wide=wide, important=_IMPORTANT)
    for job in [job for job in jobs if job.why] if below else ():
        print_beside(job.job, str(job.why), len(job.job))


def job_lines(jobs: Sequence[api.JobStatus], width: int) -> list[str]:
    """Return the lines of the same table that fit in a width, and a line with the names of the other columns."""
    rows = [_job_cells(job) for job in jobs]
    columns = [column for column in _COLUMNS if _is_shown(column, rows)]
    shown, lines = table_lines(rows, columns, width, _IMPORTANT)
    hidden = ", ".join(column for column in columns if column not in shown)
    return [*lines, f"not shown: {hidden} ({WIDE_HINT})"] if hidden else lines


def _job_cells(job: api.JobStatus) -> dict[str, object]:
    texts = {"case": job.label, "experiment": short_name(job.experiment), "iteration": job.progress, "left": job.left}
    metric = None
    if job.metric_value is not None:
        metric = " ".join(filter(None, (job.metric, api.shown_number(job.metric_value), job.metric_unit)))
    cost = None if job.cost is None else f"{job.cost:.2f} {job.currency}"
    return as_row(job) | texts | {"cost": cost, "metric": metric, "has_metric": job.metric is not None}


def _is_shown(column: str, rows: Sequence[Mapping[str, object]]) -> bool:
    if column in _ONLY_IF_DIFFERENT:
        return len({row[column] for row in rows}) > 1
    if column == "tflops_per_gpu" and rows and all(row["has_metric"] for row in rows):
        return any(row[column] for row in rows)
    return column not in _ONLY_IF_FILLED or any(row[column] for row in rows)


def print_outcome(
    outcome: api.FigureOutcome, rows: Sequence[api.CaseRow], columns: Sequence[str] | None = None
) -> None:
    """Print what was reproduced at which size, the cases, and the claims. `rows` are those of an export.

    The default columns are the main ones, without those that are empty or normal in all rows.
    """
    experiment = outcome.entry.experiment
    paper = f" ({outcome.entry.paper.venue})" if outcome.entry.paper.venue else ""
    data(f"{experiment.figure}{paper}: {experiment.title}")
    published = experiment.about or "the published size"
    here = published
    if outcome.scale in experiment.scales:
        here = experiment.scales[outcome.scale].about or outcome.scale
        print_beside("in the paper", published, 12)
    program = f", with {outcome.program}" if outcome.program else ""
    print_beside("here", f"scale {outcome.scale} on {outcome.cluster}{program}: {here}", 12)
    data("")
    metric = experiment.plot.y.metric
    chosen = columns or [name for name in api.main_columns(outcome.entry) if _is_of_interest(name, rows)]
    shown = [{**row, "state": row.state or "not submitted"} for row in rows]
    table(shown, chosen, important=("case", "verdict", "iteration_ms", metric, "published"))
    verdicts = Counter(row.verdict for row in rows)
    partial = f", {verdicts['partial']} partial" if verdicts["partial"] else ""
    of_cases = f"{verdicts['verified']} of {counted(len(rows), 'case')} verified{partial}"
    data(f"\n{of_cases}; claims of the paper: {claim_counts(outcome)}")
    failed = [row for row in rows if row.verdict_reason]
    for row in failed[:MOST_LINES]:
        print_beside(str(row.verdict), f"{row.case}: {row.verdict_reason}")
    if len(failed) > MOST_LINES:
        data(f"... and {len(failed) - MOST_LINES} more: repro status {outcome.entry.short_name} --failed")
    print_claims(outcome)
    if any(row["device"] == "cpu" for row in rows) and experiment.device != "cpu":
        data("\nProcesses on CPU cores took the place of GPUs. Their times and rates do not show those of GPUs.")


def _is_of_interest(column: str, rows: Sequence[api.CaseRow]) -> bool:
    if column in ("job", "state"):  # for `repro logs`
        return any(row.verdict != "verified" for row in rows)
    if column == "verdict_reason":  # printed below the table, where it has room
        return False
    if column == "repeats":
        return any((row.repeats or 1) > 1 for row in rows)
    return any(row[column] is not None for row in rows)


def claim_counts(outcome: api.FigureOutcome) -> str:
    """Return `2 hold, 1 fails, 1 not judged`."""
    count = Counter[str](verdict.verdict for verdict in outcome.claims)
    plurals = {"holds": "hold", "fails": "fail", "not judged": "not judged"}
    texts = [f"{count[name]} {name if count[name] == 1 else plural}" for name, plural in plurals.items() if count[name]]
    return ", ".join(texts) or "no claims"


def print_claims(outcome: api.FigureOutcome, with_numbers: bool = False) -> None:
    """Print verdict, statement and observation of each claim; with the numbers behind it if asked for."""
    for verdict in outcome.claims:
        print_beside(verdict.verdict, f"{verdict.claim.says} ({verdict.claim.source})")
        print_beside("", verdict.because)
        if verdict.margin is not None:
            print_beside("", str(verdict.margin))
        for used in verdict.used if with_numbers else ():
            spread = f" ± {api.shown_number(used.spread)}" if used.spread is not None else ""
            of_other = "" if used.experiment == outcome.entry.name else f"{used.experiment} "
            number, metric = api.shown_number(used.value) + spread, outcome.entry.metrics.get(used.metric)
            number = f"{used.metric} {metric.with_unit(number) if metric is not None else number}"
            data(f"{'':<12}{of_other}{used.case}  {number}  (job {used.job})")


def suggest_why(failed: api.JobRow | api.JobStatus) -> None:
    """Print the command that shows why a job failed: its log, that of its canary, or its events if it did not start."""
    job_id = failed.job if isinstance(failed, api.JobStatus) else failed.job_id
    canary = api.canary_of(job_id, session=api.Session(console.database)) if failed.failure == "stopped" else None
    label = failed.label if canary is None else f"the canary of {failed.label}"
    command = "history" if (canary or failed).failure in NEVER_STARTED else "logs"
    suggest(f"why {label} failed", command, job_id if canary is None else canary.job_id)


def suggest_status(names: Sequence[str], selection: Mapping[str, object], *, watch: bool = False) -> None:
    """Print the command that shows the states of the jobs; with `watch`, until all have ended."""
    purpose = "until all jobs have ended" if watch else "their states"
    suggest(purpose, "status", *only(names), **selection, watch=watch)


def suggest_results(names: Sequence[str], selection: Mapping[str, object]) -> None:
    """Print the command that shows the numbers of an experiment, or the claims of several."""
    if len(names) == 1:
        suggest("the numbers and the claims", "collect", *names, **selection)
    else:
        suggest("the verdicts of the claims", "claims", *names, **{**selection, "where": None})


def can_redraw(file: TextIO) -> bool:
    """Return whether the file is a terminal that can move its cursor."""
    return file.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


@contextmanager
def picture(file: TextIO) -> Iterator[Callable[[Sequence[str]], None]]:
    """Yield a function that draws lines over the last ones on a terminal. Messages appear above the picture."""
    from rich.console import Console as RichConsole  # loaded only to draw
    from rich.live import Live
    from rich.text import Text

    screen = RichConsole(file=file, highlight=False, markup=False, emoji=False)
    with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:

        def draw(lines: Sequence[str]) -> None:
            text = Text(printable("\n".join(lines)), no_wrap=True, overflow="ellipsis")
            live.update(text, refresh=True)

        yield draw


@contextmanager
def waiting(
    context: typer.Context,
    addresses: Sequence[Address],
    selection: api.JobFilter | None = None,
    names: Sequence[str] = (),
) -> Iterator[None]:
    """Show the progress of the jobs that the block waits for, and send a message if an error ends it.

    After Ctrl-C, print how to follow or cancel the jobs of `selection`. `names` are their experiments, by default those
    of the jobs.
    """
    from orchestrator.cli.notify import message_of_error  # masks secrets: not for `status`

    try:
        with message_of_error(addresses, context.command_path), _progress():
            yield
    except KeyboardInterrupt:
        if selection is not None:
            message("no longer waiting; the jobs continue")
            names = names or sorted({short_name(job.experiment) for job in console.waiting_for})
            purpose = f"or: {repro_command('cancel', *names, **selection)}" if names else "their states"
            suggest(purpose, "status", *only(names), **selection, watch=True)
        raise


@contextmanager
def _progress() -> Iterator[None]:
    """Show the progress of jobs: bars on a terminal, elsewhere a line for each change."""
    last = ""

    def show_changes(jobs: Sequence[api.JobRow]) -> None:
        nonlocal last
        line = _progress_line(jobs)
        if line != last:
            message(line)
        last = line

    if not can_redraw(sys.stderr):
        console.show_progress = show_changes
        yield
        return
    with picture(sys.stderr) as draw:
        console.show_progress = lambda jobs: draw(_progress_bars(jobs))
        yield
        draw([])


def _progress_line(jobs: Sequence[api.JobRow]) -> str:
    ended, running = _ended_and_running(jobs)
    named = [_running_text(job) for job in running[:MOST_NAMED]]
    more = [f"and {len(running) - MOST_NAMED} more"] if len(running) > MOST_NAMED else []
    return "; ".join(filter(None, [f"{ended}/{len(jobs)} cases ended", ", ".join([*named, *more])]))


def _progress_bars(jobs: Sequence[api.JobRow]) -> list[str]:
    ended, running = _ended_and_running(jobs)
    first = _progress_bar(f"jobs, {len(running)} running", ended, len(jobs))
    return [first, *(_running_text(job, with_bar=True) for job in running[:MOST_BARS])]


def _progress_bar(name: str, done: int, total: int) -> str:
    return f"{_bar(done, total, 4 * BAR_WIDTH)} {done}/{total} {name}"


def _ended_and_running(jobs: Sequence[api.JobRow]) -> tuple[int, list[api.JobRow]]:
    return sum(job.phase not in api.OPEN for job in jobs), [job for job in jobs if job.phase == api.RUNNING]


def _running_text(job: api.JobRow, *, with_bar: bool = False) -> str:
    """Return `pp=2,gbs=16 iteration 3/8`, or its bar; `gpus=4 running` if its program prints no iterations."""
    iteration = api.iteration_of(job, api.running_progress(job, job.spec)[0])
    if iteration is None:
        return f"{job.label} running"
    if with_bar and job.iterations:
        return _progress_bar(f"{job.label} iteration", iteration, job.iterations)
    return f"{job.label} iteration {api.iteration_text(iteration, job.iterations)}"
