"""What squeue and sacct print, as one kind of record; pure.

Fields are separated by the unit separator, which nobody types into a comment, and the comment stands last, so that
whatever is in it stays in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

from orchestrator.slurm.states import Phase, base_state, phase_of

SEPARATOR = "\x1f"

QUEUE_FIELDS = ("JobArrayID", "State", "exit_code", "NodeList", "StartTime", "EndTime", "Reason", "Comment")
ACCOUNTING_FIELDS = (
    "JobID",
    "State",
    "ExitCode",
    "NodeList",
    "Start",
    "End",
    "Reason",
    "JobName",
    "Timelimit",
    "Comment",
)

_JOB_ID = re.compile(r"\d+(?:\+\d+|_\d+|_\[[^\]]*\]?|_[-\d,:%.]+)?")
_TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_NOTHING = frozenset({"", "None", "(null)", "N/A", "n/a", "Unknown", "None assigned", "NONE"})

Source = Literal["squeue", "sacct"]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What Slurm says about one job or one task of an array (`123_4`) at one moment.

    `nodes` is Slurm's own list, `n[1-2]`. `exit_code` and `signal` are those of the batch script, and None before
    the end; `signal` is also None when none ended it. Times are in UTC; None when the thing has not happened.
    """

    job_id: str
    state: str
    reason: str
    nodes: str
    exit_code: int | None
    signal: int | None
    comment: str
    started_at: datetime | None
    ended_at: datetime | None
    source: Source

    @property
    def phase(self) -> Phase:
        """Where the job stands."""
        return phase_of(self.state)


def parse_queue(stdout: str) -> Iterator[JobRecord]:
    """Records of `squeue --array --Format` with QUEUE_FIELDS; times must be seconds since the epoch."""
    for fields in _rows(stdout, len(QUEUE_FIELDS)):
        job, state, code, nodes, start, end, reason, comment = fields
        for job_id in expand_array_id(job):
            yield _record(job_id, state, _wait_status(code), nodes, (start, end), reason, comment, "squeue")


def parse_accounting(stdout: str) -> Iterator[JobRecord]:
    """Records of `sacct -X -P` with ACCOUNTING_FIELDS; times must be seconds since the epoch."""
    for fields in _rows(stdout, len(ACCOUNTING_FIELDS)):
        job, state, code, nodes, start, end, reason, name, limit, comment = fields
        if name == "allocation" and not limit:
            # A stub: sacct's first word on a job, some seconds long, with one node where there are several.
            nodes = comment = ""
        for job_id in expand_array_id(job):
            yield _record(job_id, state, _exit_and_signal(code), nodes, (start, end), reason, comment, "sacct")


def expand_array_id(job_id: str) -> tuple[str, ...]:
    """`123_[0-4:2,7%2]` -> 123_0, 123_2, 123_4, 123_7; any other id as it is. A part cut off (`...`) is left out."""
    base, bracket, tasks = job_id.partition("_[")
    if not bracket:
        return (job_id,)
    found: list[str] = []
    for part in tasks.rstrip("]").split("%")[0].split(","):
        if span := _TASKS.fullmatch(part.strip()):
            first, last, step = int(span[1]), int(span[2] or span[1]), int(span[3] or 1)
            found.extend(f"{base}_{task}" for task in range(first, last + 1, max(step, 1)))
    return tuple(found)


def _rows(stdout: str, width: int) -> Iterator[list[str]]:
    """The rows of the output; a line that does not begin a row belongs to the comment of the row before it."""
    row: list[str] = []
    for line in stdout.split("\n"):
        fields = line.split(SEPARATOR, width - 1)
        if len(fields) == width and _JOB_ID.fullmatch(fields[0].strip()):
            if row:
                yield row
            row = fields
        elif row:
            row[-1] += f"\n{line}"
    if row:
        yield row


def _record(
    job_id: str,
    state: str,
    code: tuple[int | None, int | None],
    nodes: str,
    times: tuple[str, str],
    reason: str,
    comment: str,
    source: Source,
) -> JobRecord:
    word = base_state(state)
    phase = phase_of(word)
    ended = phase is Phase.ENDED
    # Before the fact, squeue prints when it expects the start or the end to be.
    started_at = None if phase is Phase.WAITING else _time(times[0])
    return JobRecord(
        job_id=job_id.strip(),
        state=word,
        reason=_text(reason),
        nodes=_text(nodes),
        exit_code=code[0] if ended else None,
        signal=(code[1] or None) if ended else None,
        comment=_comment(comment),
        started_at=started_at,
        ended_at=_time(times[1]) if ended else None,
        source=source,
    )


def _wait_status(text: str) -> tuple[int | None, int | None]:
    """(exit code, signal) of squeue's exit_code, which is the raw wait status, or `code:signal` in other releases."""
    if ":" in text:
        return _exit_and_signal(text)
    if not text.strip().isdecimal():
        return None, None
    status = int(text)
    return (status >> 8) & 0xFF, status & 0x7F


def _exit_and_signal(text: str) -> tuple[int | None, int | None]:
    """(exit code, signal) of sacct's `code:signal`."""
    code, _, signal = text.strip().partition(":")
    return (int(code) if code.isdecimal() else None), (int(signal) if signal.isdecimal() else None)


def _time(text: str) -> datetime | None:
    """A UTC time from seconds since the epoch; None for `Unknown`, `N/A` and 0."""
    seconds = text.strip()
    if not (seconds.isascii() and seconds.isdecimal()) or not 0 < int(seconds) < 2**33:
        return None
    return datetime.fromtimestamp(int(seconds), tz=timezone.utc)


def _text(value: str) -> str:
    return "" if value.strip() in _NOTHING else value.strip()


def _comment(value: str) -> str:
    value = value.rstrip("\n")
    return "" if value == "(null)" else value


def by_id(records: Iterable[JobRecord]) -> dict[str, JobRecord]:
    """The records by job id; of several for one id (a job that ran twice) the last, which is the latest."""
    return {record.job_id: record for record in records}
