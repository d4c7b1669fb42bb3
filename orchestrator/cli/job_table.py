"""How jobs stand, for whoever looks: a row for each, and a bar for all of an experiment."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import table
from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import JobSpec
from orchestrator.ledger.attempts import ExperimentCount
from orchestrator.ledger.rows import JobSummary
from orchestrator.ledger.tables import FAILED, QUEUED, RUNNING, SUBMITTING, VERIFIED, WAITING
from orchestrator.paths import short_name
from orchestrator.text import utc_stamp

if TYPE_CHECKING:
    from orchestrator.ledger.database import Ledger
    from orchestrator.ledger.measurements import MeasuredMetric
    from orchestrator.reading.statistics import Progress
    from orchestrator.slurm.pending_reasons import WaitReason

BAR_WIDTH = 10

_COLUMNS = (
    *("job", "experiment", "scale", "cluster", "case", "state", "verdict", "failure", "iteration", "workload"),
    *("tflops_per_gpu", "left", "id", "why"),
)
_ONLY_WHERE_THEY_DIFFER = ("experiment", "scale", "cluster", "workload")
_ONLY_WHERE_FILLED = ("failure", "left", "why")


@dataclass(frozen=True, slots=True)
class Tally:
    """How many jobs of an experiment are how far; `failures` by class, where the class is known."""

    name: str
    jobs: int
    verified: int
    failed: int
    running: int
    waiting: int
    failures: Mapping[str, int] = field(default_factory=dict)

    def said(self) -> str:
        """`5/10 verified, 2 running, 1 waiting, 2 failed (1 timeout, 1 gpu-oom)`."""
        kinds = ", ".join(f"{count} {failure}" for failure, count in self.failures.items())
        parts = {"running": self.running, "waiting": self.waiting, "failed": self.failed}
        words = [
            f"{self.verified}/{self.jobs} verified",
            *(f"{count} {name}" for name, count in parts.items() if count),
        ]
        return ", ".join(words) + (f" ({kinds})" if kinds else "")

    def bar(self, full: str, empty: str) -> str:
        """The same behind its name and a bar of what is verified, which is full only when all of it is."""
        length = BAR_WIDTH * self.verified // max(self.jobs, 1)
        return f"{self.name} [{full * length}{empty * (BAR_WIDTH - length)}] {self.said()}"


def bar_marks() -> tuple[str, str]:
    """What bars on stderr are made of: blocks where the terminal can show them."""
    try:
        "█░".encode(sys.stderr.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#", "."
    return ("█", "░") if sys.stderr.isatty() else ("#", ".")


def tallies(jobs: Iterable[JobSummary]) -> list[Tally]:
    """One for each experiment, scale and cluster, in the order in which they come; a job counts once."""
    groups: dict[str, dict[str, JobSummary]] = {}
    for row in jobs:
        groups.setdefault(f"{short_name(row.experiment)} {row.scale} {row.cluster}", {})[row.job_id] = row
    return [_tally(name, list(rows.values())) for name, rows in groups.items()]


def _tally(name: str, rows: Sequence[JobSummary]) -> Tally:
    phases, verdicts = Counter(row.phase for row in rows), Counter(row.verdict for row in rows)
    failures = Counter(row.failure for row in rows if row.verdict == FAILED and row.failure)
    waiting = phases[WAITING] + phases[SUBMITTING]
    return Tally(
        name, len(rows), verdicts[VERIFIED], verdicts[FAILED], phases[RUNNING], waiting, dict(failures.most_common())
    )


def total(counts: Sequence[ExperimentCount], failures: Iterable[Mapping[str, int]]) -> Tally:
    """All of it as one."""
    kinds: Counter[str] = Counter()
    for one in failures:
        kinds.update(one)
    return Tally(
        "everything",
        jobs=sum(count.cases for count in counts),
        verified=sum(count.verified for count in counts),
        failed=sum(count.failed for count in counts),
        running=sum(count.running for count in counts),
        waiting=sum(count.waiting for count in counts),
        failures=dict(kinds.most_common()),
    )


def stands(ledger: Ledger, jobs: Sequence[JobSummary], at: datetime) -> list[dict[str, Any]]:
    """A row for each job, as plain values; of the logs only the ends of those that run are read.

    `tflops_per_gpu` is what was measured in a job that has ended, and what is reached now in one that runs. `at` is
    now, in UTC without a zone.
    """
    from orchestrator.ledger.attempts import job_specs
    from orchestrator.ledger.measurements import metrics_of

    metrics = metrics_of(ledger, [row.attempt_id for row in jobs if row.phase != RUNNING])
    specs = job_specs(ledger, [row.job_id for row in jobs if row.phase == RUNNING])
    rows = []
    for row in jobs:
        now, trouble = running_progress(row, specs[row.job_id]) if row.job_id in specs else (None, None)
        own = metrics.get(row.attempt_id, {})
        measured = own.get("tflops_per_gpu")
        left_s, left_by = _left(row, now, at)
        rows.append(
            {
                "job": row.job_id,
                "experiment": short_name(row.experiment),
                "scale": row.scale,
                "cluster": row.cluster,
                "case": row.case_name,
                "repeat": row.repeat,
                "attempt": row.number,
                "state": row.state,
                "verdict": row.verdict,
                "failure": row.failure,
                "iteration": f"{now.iteration if now else row.iteration or 0}/{row.iterations}",
                "workload": row.workload,
                "tflops_per_gpu": now.tflops_per_gpu if now else measured.value if measured else None,
                "left_s": None if left_s is None else round(left_s),
                "left_by": left_by,
                "starts_at": utc_stamp(row.starts_at) if row.phase == WAITING else None,
                "left": _shown_left(row, left_s, left_by, at),
                "id": row.scheduler_id,
                "nodes": row.nodes,
                "why": trouble or _why(row, now, at) or _host_bound(own),
            }
        )
    return rows


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """The table of them; what all of them share, or none of them has, is no column."""
    labelled = [row | {"case": row["case"] + (f" #{row['repeat']}" if row["repeat"] > 1 else "")} for row in rows]
    table(labelled, [name for name in _COLUMNS if _is_shown(name, rows)])


def wait_reason(row: JobSummary) -> WaitReason | None:
    """Slurm's reason for not starting a job, explained; None for other jobs, and for those it was not given yet."""
    if row.phase != WAITING or row.scheduler != "slurm" or row.state == QUEUED or not row.reason:
        return None
    from orchestrator.slurm.pending_reasons import explain_reason

    return explain_reason(row.reason)


def can_never_start(row: JobSummary) -> bool:
    """Whether it waits for what no patience brings: a person must free it or change it."""
    reason = wait_reason(row)
    return reason is not None and reason.kind in ("held", "never")


def mend_for(reason: WaitReason, *rows: JobSummary) -> str | None:
    """What to do about it, with the job's own id in it where it is about one job."""
    if reason.hint is None or len(rows) != 1:
        return reason.hint
    return re.sub(r"\bID\b", rows[0].scheduler_id or "ID", reason.hint)


def running_progress(row: JobSummary, spec: JobSpec) -> tuple[Progress | None, str | None]:
    """How far the end of a job's log says that it is; or why that could not be read."""
    from orchestrator.job_dir import tail_bytes
    from orchestrator.reading.statistics import TAIL_BYTES, progress

    try:
        tail = tail_bytes(Path(row.folder), "log.txt", TAIL_BYTES)
    except ReproError as error:
        return None, str(error.problems[0])
    return progress(tail, row.iterations, spec), None


def duration(seconds: float) -> str:
    """`45s`, `12m`, `1h05m`, `3d04h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes}m"
    hours = minutes // 60
    return f"{hours}h{minutes % 60:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"


def _left(row: JobSummary, now: Progress | None, at: datetime) -> tuple[float | None, str | None]:
    """Seconds until a running job has ended, and by what: its pace, or the limit where that comes first."""
    pace = now.left_s if now else None
    limit = max(0.0, (row.ends_at - at).total_seconds()) if row.ends_at and row.phase == RUNNING else None
    if limit is not None and (pace is None or limit < pace):
        return limit, "time limit"
    return pace, None if pace is None else "pace"


def _shown_left(row: JobSummary, left_s: float | None, left_by: str | None, at: datetime) -> str | None:
    if left_s is not None:
        return duration(left_s) + (f" ({left_by})" if left_by == "time limit" else "")
    if row.phase == WAITING and row.starts_at is not None:
        return f"starts {_on_the_clock(row.starts_at, at)}"
    return None


def _on_the_clock(moment: datetime, at: datetime) -> str:
    """`14:30` of this person's day, with the date where it is another."""
    here, today = (one.replace(tzinfo=timezone.utc).astimezone() for one in (moment, at))
    return f"{here:%H:%M}" if here.date() == today.date() else f"{here:%m-%d %H:%M}"


def _why(row: JobSummary, now: Progress | None, at: datetime) -> str | None:
    if row.verdict_reason:
        return row.verdict_reason
    if row.unseen_since is not None and row.phase in (WAITING, RUNNING):
        return f"the scheduler has not known it for {duration((at - row.unseen_since).total_seconds())}"
    if now is not None and now.left_s is not None and row.ends_at is not None:
        beyond = timedelta(seconds=now.left_s) - (row.ends_at - at)
        if beyond > timedelta(0):
            return f"at its pace it needs {duration(beyond.total_seconds())} more than its time limit leaves"
    reason = wait_reason(row)
    if reason is None or reason.kind == "unknown":
        return row.reason
    hint = mend_for(reason, row) if can_never_start(row) else None
    return str(Problem(f"{row.reason}: {reason.meaning}", hint=hint))


def _host_bound(metrics: Mapping[str, MeasuredMetric]) -> str | None:
    from orchestrator.results.cases import host_bound_reason

    reason = host_bound_reason(metrics)
    return f"host-bound: {reason}" if reason else None


def _is_shown(column: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    if column in _ONLY_WHERE_THEY_DIFFER:
        return len({row[column] for row in rows}) > 1
    return column not in _ONLY_WHERE_FILLED or any(row[column] for row in rows)
