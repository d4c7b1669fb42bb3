"""Waiting for jobs: a progress bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.cli.output import next_command, say
from orchestrator.launch.refresh import refresh
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import JobRow, job_rows
from orchestrator.ledger.tables import OPEN, RUNNING
from orchestrator.results.collect import collect

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
