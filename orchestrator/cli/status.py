"""`repro status`: where every job stands, how fast it is and how long it still takes; once, or until all have ended."""

from __future__ import annotations

import io
import math
import shutil
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import Database, Json, MaybeExperiment, OnlyScale, OnlyWorkload, Where
from orchestrator.cli.output import as_json, next_command, say, table
from orchestrator.cli.session import ASK_EVERY_S, existing_ledger, look
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import short_name

if TYPE_CHECKING:
    from orchestrator.ledger.attempts import RefreshResult
    from orchestrator.ledger.database import Ledger
    from orchestrator.ledger.rows import JobSummary
    from orchestrator.paths import Folders

MOST_ROWS = 60
"""Above this many jobs `status` counts them by experiment; naming one lists its cases."""

LEAST_EVERY_S, MOST_EVERY_S = 5.0, 86400.0
REDRAW_S = 2.0
SHARE_OF_TIME = 5
"""Of a watching terminal's time at most one part in so many goes into looking, however many jobs there are."""

Watch = Annotated[bool, typer.Option("--watch", help="Go on until every job has ended.")]
Every = Annotated[
    float,
    typer.Option(
        "--every",
        metavar="SECONDS",
        help="With --watch: ask Slurm no oftener than this, all terminals together; the logs are read every 2 s.",
    ),
]


def status(
    experiment: MaybeExperiment = None,
    where: Where = None,
    scale: OnlyScale = None,
    workload: OnlyWorkload = None,
    watch: Watch = False,
    every: Every = ASK_EVERY_S,
    json: Json = False,
    database: Database = None,
) -> None:
    """Where every job stands: what the scheduler says, whether we verified it, how fast it is, how long it takes."""
    from orchestrator.paths import find_folders

    _require_patience(every)
    if workload is not None:
        from orchestrator.cli.selection import require_known

        require_known(workload)
    folders = find_folders()
    ledger = existing_ledger(folders, database)
    if ledger is None:
        if json:
            as_json([])
        say("nothing was submitted yet")
        next_command("repro list", "what there is to run")
        return
    shown = Shown(experiment, where, scale, workload)
    if watch:
        _watch(ledger, folders, shown, every, json)
        return
    view = _view(ledger, folders, shown)
    _print_talk(view)
    _print_rows(view, view.rows, json)
    next_command(*view.next)


@dataclass(frozen=True, slots=True)
class Shown:
    """Which jobs `status` is asked about; nothing means all."""

    experiment: str | None
    where: str | None
    scale: str | None
    workload: str | None

    @property
    def is_all(self) -> bool:
        return self == Shown(None, None, None, None)


@dataclass(frozen=True, slots=True)
class View:
    """One look: a row per job, or per experiment where there are many; bars, notes, and what to type next."""

    rows: list[dict[str, Any]]
    of_jobs: bool
    bars: list[str]
    notes: list[str]
    still_open: bool
    asked_at: datetime | None
    next: tuple[str, str]


def _require_patience(every: float) -> None:
    if math.isnan(every) or not LEAST_EVERY_S <= every <= MOST_EVERY_S:
        least, most = f"{LEAST_EVERY_S:.0f}", f"{MOST_EVERY_S:.0f}"
        what = f"--every {every:g}: must be {least} to {most} seconds; a scheduler serves everybody on the machine"
        raise ReproError(Problem(what, hint=f"--every {least if every < LEAST_EVERY_S else most}"))


def _view(ledger: Ledger, folders: Folders, shown: Shown, every: float = 0.0) -> View:
    """One look at everything; where jobs are counted, none is read."""
    from orchestrator.ledger.attempts import experiment_counts

    looked = look(ledger, every)
    if shown.is_all:
        counts = experiment_counts(ledger)
        if sum(count.cases for count in counts) > MOST_ROWS:
            return _counted(ledger, counts, looked)
    return _listed(ledger, folders, shown, looked)


def _counted(ledger: Ledger, counts: list[Any], looked: RefreshResult) -> View:
    from orchestrator.cli.job_table import bar_marks, total
    from orchestrator.ledger.reports import failure_counts
    from orchestrator.ledger.tables import field_values

    failures = failure_counts(ledger)
    rows = [
        field_values(count) | {"failures": failures.get((count.experiment, count.scale, count.cluster), {})}
        for count in counts
    ]
    still_open = any(count.running or count.waiting for count in counts)
    bar = total(counts, failures.values()).bar(*bar_marks())
    first = next((count for count in counts if count.running or count.waiting), counts[0])
    after = (f"repro status {short_name(first.experiment)}", "its cases")
    return View(rows, False, [bar], _notes(ledger, looked), still_open, looked.asked_at, after)


def _listed(ledger: Ledger, folders: Folders, shown: Shown, looked: RefreshResult) -> View:
    from orchestrator.cli.job_table import bar_marks, stands, tallies
    from orchestrator.ledger.attempts import job_rows, job_summaries
    from orchestrator.ledger.database import now
    from orchestrator.ledger.tables import OPEN

    named = _full_name(folders, shown.experiment)
    jobs: list[JobSummary]
    if shown.where is None:
        jobs = job_summaries(ledger, experiment=named)
    else:
        from orchestrator.catalog.case import parse_where
        from orchestrator.cli.selection import matches

        wanted = parse_where(shown.where)
        jobs = [row for row in job_rows(ledger, experiment=named) if matches(row, wanted)]
    jobs = [row for row in jobs if shown.scale in (None, row.scale) and shown.workload in (None, row.workload)]
    marks = bar_marks()
    return View(
        stands(ledger, jobs, now()),
        True,
        [tally.bar(*marks) for tally in tallies(jobs)],
        _notes(ledger, looked),
        any(row.phase in OPEN for row in jobs),
        looked.asked_at,
        _next(jobs),
    )


def _full_name(folders: Folders, experiment: str | None) -> str | None:
    if experiment is None:
        return None
    from orchestrator.catalog.library import full_name

    return full_name(folders, experiment)


def _notes(ledger: Ledger, looked: RefreshResult) -> list[str]:
    """What could not be asked, and how old what is shown may be for that."""
    if not looked.complaints:
        return []
    from orchestrator.cli.job_table import duration
    from orchestrator.ledger.database import now
    from orchestrator.ledger.reports import last_seen

    notes = [f"note: {complaint}" for complaint in looked.complaints]
    seen = last_seen(ledger)
    if seen is not None and (looked.asked_at is None or seen < looked.asked_at):
        notes.append(f"note: states are as last seen {duration((now() - seen).total_seconds())} ago")
    return notes


def _next(jobs: list[JobSummary]) -> tuple[str, str]:
    from orchestrator.ledger.tables import FAILED, OPEN

    failed = next((row for row in jobs if row.verdict == FAILED), None)
    if failed is not None:
        return f"repro logs {failed.job_id}", f"why {failed.label} failed"
    if any(row.phase in OPEN for row in jobs):
        return "repro status --watch", "until they have ended"
    if jobs:
        return f"repro collect {short_name(jobs[-1].experiment)} --export csv", "the numbers and the claims"
    return "repro list", "what there is to run"


def _print_talk(view: View) -> None:
    for line in (*view.notes, *view.bars):
        say(line)


def _print_rows(view: View, rows: list[dict[str, Any]], json: bool) -> None:
    if json:
        as_json([{name: value for name, value in row.items() if name != "left"} for row in rows])
    elif not rows:
        say("no such job")
    elif view.of_jobs:
        from orchestrator.cli.job_table import print_rows

        print_rows(rows)
    else:
        kinds = [", ".join(f"{count} {kind}" for kind, count in row["failures"].items()) for row in rows]
        table([row | {"failures": kind} for row, kind in zip(rows, kinds, strict=True)], list(rows[0]))


def _watch(ledger: Ledger, folders: Folders, shown: Shown, every: float, json: bool) -> None:
    """Look again and again; on a terminal the picture is drawn over the last one, elsewhere what changed is added."""
    on_screen = sys.stdout.isatty() and not json
    changes = _Changes()
    try:
        while True:
            began = time.monotonic()
            view = _view(ledger, folders, shown, every)
            if on_screen:
                _draw(view, every, first=changes.nothing_yet)
            changes.show(view, json, silent=on_screen)
            if not view.still_open:
                next_command(*view.next)
                return
            time.sleep(max(REDRAW_S, SHARE_OF_TIME * (time.monotonic() - began)))
    except KeyboardInterrupt:
        say("no longer watching; the jobs go on")
        raise


def _draw(view: View, every: float, first: bool) -> None:
    """From the top left corner over what stands there, and nothing is cleared that is drawn again: no flicker."""
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        _print_talk(view)
        _print_rows(view, _fitting(view), json=False)
        if view.asked_at is not None:
            at = view.asked_at.replace(tzinfo=timezone.utc).astimezone()
            say(f"Slurm was asked at {at:%H:%M:%S}; all terminals together ask every {every:g} s, Ctrl-C ends this one")
    width = shutil.get_terminal_size().columns
    lines = [line if len(line) <= width else f"{line[: width - 1]}>" for line in text.getvalue().splitlines()]
    frame = "".join(f"{line}\033[K\n" for line in lines)
    sys.stdout.write(("\033[2J" if first else "") + "\033[H" + frame + "\033[J")
    sys.stdout.flush()


def _fitting(view: View) -> list[dict[str, Any]]:
    """As many rows as the terminal has room for: of jobs those that run first, and then those that failed."""
    around = len(view.notes) + len(view.bars) + 4  # the table's head, when Slurm was asked, what to type, the cursor
    room = max(1, shutil.get_terminal_size().lines - around)
    if len(view.rows) <= room or not view.of_jobs:
        return view.rows[:room]
    order = sorted(
        view.rows, key=lambda row: (row["verdict"] == "verified", row["state"] != "RUNNING", not row["verdict"])
    )
    return order[:room]


class _Changes:
    """For a file or a pipe: everything once, then only what has another state or verdict than before."""

    def __init__(self) -> None:
        self._before: dict[tuple[object, ...], object] = {}
        self.nothing_yet = True

    def show(self, view: View, json: bool, silent: bool) -> None:
        after = {_key(row): _state(row) for row in view.rows}
        changed = [row for row in view.rows if self._before.get(_key(row)) != _state(row)]
        if not silent and (changed or self.nothing_yet):
            _print_talk(view)
            _print_rows(view, changed, json)
        self._before, self.nothing_yet = after, False


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return tuple(row.get(name) for name in ("experiment", "scale", "cluster", "case", "job"))


def _state(row: dict[str, Any]) -> object:
    return [row.get(n) for n in ("attempt", "state", "verdict", "verified", "failed", "running", "waiting")]
