"""Waiting for jobs with a progress bar, and saying at the end whether the figure came out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.catalog.library import Entry
from orchestrator.cli.output import as_json, data, next_command, say, table
from orchestrator.cli.scope import Outcome, read_outcome
from orchestrator.errors import EXIT_FAILED, EXIT_OK
from orchestrator.folders import Folders
from orchestrator.launch.refresh import refresh
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import JobRow, job_rows
from orchestrator.ledger.tables import OPEN, RUNNING
from orchestrator.results.collect import collect
from orchestrator.results.export import claim_rows

LOCAL_POLL_S = 0.5
SLURM_POLL_S = 5.0

Show = Callable[[list[JobRow]], None]


def wait_for(ledger: Ledger, run_id: str, experiment: str) -> None:
    """Return when every job of the run has ended; Ctrl-C leaves the jobs running."""
    said: set[str] = set()
    try:
        with _progress() as show:
            while True:
                for complaint in refresh(ledger).complaints:
                    if complaint not in said:
                        said.add(complaint)
                        say(f"note: {complaint}")
                collect(ledger)
                rows = job_rows(ledger, run_id=run_id)
                show(rows)
                if all(row.phase not in OPEN for row in rows):
                    return
                time.sleep(LOCAL_POLL_S if all(row.scheduler == "local" for row in rows) else SLURM_POLL_S)
    except KeyboardInterrupt:
        say("no longer waiting; the jobs go on")
        next_command(f"repro status {experiment} --watch", f"or: repro cancel {experiment}")
        raise


def outcome(ledger: Ledger, folders: Folders, entry: Entry, scale: str, cluster: str, json: bool) -> int:
    """Print the table of cases and a line per claim; the exit code says whether all of it is well."""
    now = read_outcome(ledger, folders, entry.name, scale, cluster)
    if json:
        as_json({"cases": case_rows(now), "claims": claim_rows(now.claims)})
    else:
        print_cases(now)
        print_claims(now, to_stdout=True)
    failed = [result.row for result in now.found if result.row is not None and result.row.verdict == "failed"]
    if failed:
        next_command(f"repro logs {failed[0].job_id}", f"why {failed[0].case_name} failed")
    else:
        next_command(f"repro plot {entry.short_name}", "the figure as a picture")
    return EXIT_FAILED if now.failed else EXIT_OK


def case_rows(now: Outcome) -> list[dict[str, object]]:
    metric = now.entry.experiment.axes.y.metric
    rows: list[dict[str, object]] = []
    for result in now.found:
        row = result.row
        timing = result.metrics.get("iteration_ms") if result.is_verified else None
        rows.append(
            {
                "job": row.job_id if row else None,
                "case": result.case.name,
                "state": row.state if row else "not submitted",
                "verdict": row.verdict if row else None,
                "iteration_ms": timing.value if timing else None,
                "spread_ms": timing.spread if timing else None,
                "used": timing.count if timing else None,
                metric: result.value(metric),
                "percent_of_peak": result.value("percent_of_peak"),
                "published": result.published.value if result.published else None,
                "why": row.verdict_reason if row else None,
            }
        )
    return rows


def print_cases(now: Outcome) -> None:
    rows = case_rows(now)
    optional = [name for name in ("percent_of_peak", "published", "why") if any(row[name] is not None for row in rows)]
    always = [
        "job",
        "case",
        "state",
        "verdict",
        "iteration_ms",
        "spread_ms",
        "used",
        now.entry.experiment.axes.y.metric,
    ]
    table(rows, [*always, *optional])


def print_claims(now: Outcome, to_stdout: bool) -> None:
    """`holds`, `fails` or `not judged`, what the paper says, and what was seen."""
    for verdict in now.claims:
        line = f"{verdict.verdict:<10}  {verdict.claim.says} ({verdict.claim.source})\n{'':<10}  {verdict.because}"
        if to_stdout:
            data(line)
        else:
            say(line)


@contextmanager
def _progress() -> Iterator[Show]:
    """A bar on a terminal; elsewhere a line whenever something has changed."""
    if not sys.stderr.isatty():
        yield _Lines().show
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        cases = progress.add_task("cases")
        current = progress.add_task("", visible=False)

        def show(rows: list[JobRow]) -> None:
            progress.update(cases, completed=_done(rows), total=len(rows))
            running = next((row for row in rows if row.phase == RUNNING), None)
            if running is None:
                progress.update(current, visible=False)
                return
            description = f"{running.case_name} iteration"
            progress.update(
                current,
                visible=True,
                description=description,
                completed=running.iteration or 0,
                total=running.iterations,
            )

        yield show


class _Lines:
    """The same for a log file: what changed, once."""

    def __init__(self) -> None:
        self.last = ""

    def show(self, rows: list[JobRow]) -> None:
        running = [f"{r.case_name} iteration {r.iteration or 0}/{r.iterations}" for r in rows if r.phase == RUNNING]
        line = f"{_done(rows)}/{len(rows)} cases ended" + (f"; {', '.join(running)}" if running else "")
        if line != self.last:
            self.last = line
            say(line)


def _done(rows: list[JobRow]) -> int:
    return sum(row.phase not in OPEN for row in rows)
