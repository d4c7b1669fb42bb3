"""Waiting for jobs: a progress bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from orchestrator.cli.job_table import can_never_start, mend_for, running_progress, wait_reason
from orchestrator.cli.output import next_command, say
from orchestrator.cli.session import ASK_EVERY_S, look
from orchestrator.errors import Problem
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import OPEN, QUEUED, RUNNING
from orchestrator.text import counted

LOCAL_POLL_S = 0.5
SLURM_POLL_S = 3.0
"""How often the logs are read, and what other terminals have learned."""

MOST_NAMED = 3
"""Running jobs that a line names, or the picture has a bar for."""

Show = Callable[[list[JobRow]], None]


def wait_for(
    ledger: Ledger,
    rows: Callable[[], list[JobRow]],
    experiment: str,
    each_time: Callable[[], None] | None = None,
) -> None:
    """Return when every one of these jobs has ended, or what is left can never start; it is said what holds that.

    `each_time` is called after each look at the scheduler and the logs, before `rows` is. `experiment` is what is
    suggested when Ctrl-C leaves the jobs to themselves; "" for several.
    """
    said: set[str] = set()
    try:
        with _progress() as show:
            while True:
                for complaint in look(ledger, ASK_EVERY_S).complaints:
                    if complaint not in said:
                        said.add(complaint)
                        say(f"note: {complaint}")
                if each_time is not None:
                    each_time()
                now = rows()
                show(now)
                left = [row for row in now if row.phase in OPEN]
                if not left or _is_stuck(left):
                    break
                time.sleep(SLURM_POLL_S if all(row.scheduler == "slurm" for row in left) else LOCAL_POLL_S)
    except KeyboardInterrupt:
        say("no longer waiting; the jobs go on")
        one = f" {experiment}" if experiment else ""
        next_command(f"repro status{one} --watch", f"or: repro cancel{one or ' JOB'}")
        raise
    for line in what_holds(left):
        say(line)


class Following:
    """These jobs as they stand now. Of those that have ended the ledger is asked once, however long the others take."""

    def __init__(self, ledger: Ledger, rows: Sequence[JobRow]) -> None:
        self._ledger = ledger
        self._rows = {row.job_id: row for row in rows}

    def __call__(self) -> list[JobRow]:
        under_way = {row.job_id: row for row in job_rows(self._ledger, only_open=True) if row.job_id in self._rows}
        for job_id, row in self._rows.items():
            if job_id in under_way:
                self._rows[job_id] = under_way[job_id]
            elif row.phase in OPEN or row.verdict is None:
                found = job_rows(self._ledger, job_prefix=job_id)
                self._rows[job_id] = next(one for one in found if one.job_id == job_id)
        return list(self._rows.values())


def what_holds(rows: Sequence[JobRow]) -> list[str]:
    """A line for each thing that keeps jobs from ever starting, with the mend; `rows` are under way."""
    alike: dict[tuple[bool, str | None], list[JobRow]] = {}
    for row in rows:
        alike.setdefault((row.state == QUEUED, row.reason), []).append(row)
    return [f"{_named(some)}: {_held_by(some)}" for some in alike.values()]


def _held_by(rows: Sequence[JobRow]) -> Problem:
    row = rows[0]
    reason = wait_reason(row)
    if reason is not None:
        return Problem(f"{row.reason}: {reason.meaning}", hint=mend_for(reason, *rows))
    because = f" ({row.reason})" if row.reason else ""
    return Problem(f"waits its turn{because}", hint=f"repro wait {rows[0].job_id} sends it when there is room")


def _named(rows: Sequence[JobRow]) -> str:
    if len(rows) == 1:
        return f"{rows[0].job_id} ({rows[0].label})"
    return f"{counted(len(rows), 'job')}, {rows[0].job_id} ({rows[0].label}) first"


def _is_stuck(left: Sequence[JobRow]) -> bool:
    """Whether nothing of this moves by itself: all of it is held, could never start, or waits for room behind that."""
    to_be_sent = [row for row in left if row.state == QUEUED]
    return len(to_be_sent) < len(left) and all(can_never_start(row) for row in left if row.state != QUEUED)


@contextmanager
def _progress() -> Iterator[Show]:
    """Bars on a terminal; elsewhere a line whenever something has changed."""
    if not sys.stderr.isatty():
        yield _Lines().show
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        jobs = progress.add_task("jobs")
        current = [progress.add_task("", visible=False) for _ in range(MOST_NAMED)]

        def show(rows: list[JobRow]) -> None:
            running = _running(rows)
            about = f"jobs, {len(running)} running" if len(running) > MOST_NAMED else "jobs"
            progress.update(jobs, description=about, completed=_done(rows), total=len(rows))
            for task in current[len(running) :]:
                progress.update(task, visible=False)
            for task, row in zip(current, running, strict=False):
                progress.update(
                    task,
                    visible=True,
                    description=f"{row.label} iteration",
                    completed=_iteration(row),
                    total=row.iterations,
                )

        yield show


class _Lines:
    """The same for a log file: what changed, once."""

    def __init__(self) -> None:
        self.last = ""

    def show(self, rows: list[JobRow]) -> None:
        running = _running(rows)
        named = [f"{row.label} iteration {_iteration(row)}/{row.iterations}" for row in running[:MOST_NAMED]]
        more = [f"and {len(running) - MOST_NAMED} more"] if len(running) > MOST_NAMED else []
        line = "; ".join(filter(None, [f"{_done(rows)}/{len(rows)} cases ended", ", ".join([*named, *more])]))
        if line != self.last:
            self.last = line
            say(line)


def _running(rows: Sequence[JobRow]) -> list[JobRow]:
    return [row for row in rows if row.phase == RUNNING]


def _iteration(row: JobRow) -> int:
    """Of a running job, as the end of its log says it."""
    now, _ = running_progress(row, row.spec)
    return now.iteration if now else row.iteration or 0


def _done(rows: Sequence[JobRow]) -> int:
    return sum(row.phase not in OPEN for row in rows)
