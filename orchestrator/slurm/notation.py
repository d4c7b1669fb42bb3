"""Slurm's notation: job ids (`123_4`), node lists (`n[1-3,07]`), time limits (`[D-]HH:MM:SS`), states, and job records.

Pure, except for user names. Source of the states: the job states and state flags of slurm.h, job_state_string() and
job_state_string_complete() of slurm_protocol_defs.c from release 20.11 to 24.11, and the "JOB STATE CODES" of
squeue(1) and sacct(1). EXPEDITING is of 25.11.
"""

from __future__ import annotations

import enum
import functools
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal

from orchestrator.errors import Problem, require_none
from orchestrator.identity import name_of_user

# Linux accepts arguments of up to 128 KiB, and an id has at most ten digits.
_MOST_IDS = 10_000

# MaxArraySize is at most 4,000,001 (slurm.conf(5)).
_MOST_TASKS = 4_000_001
_TASKS = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)


_JOB_ID = re.compile(r"[0-9]+([_+][0-9]*)?")


def require_job_ids(job_ids: Iterable[str]) -> list[str]:
    """Return the ids without blanks, each once and in the given order; ReproError for texts that are not ids."""
    ids = list(dict.fromkeys(job_id.strip() for job_id in job_ids if job_id.strip()))
    wrong = (job_id for job_id in ids if not _JOB_ID.fullmatch(job_id))
    require_none(Problem(f"not a Slurm job id: {text}", hint="ids look like 123 or 123_4") for text in wrong)
    return ids


def base_id(job_id: str) -> str:
    """Return the id without array index or component: `123` for `123_4` and `123+1`."""
    return job_id.partition("_")[0].partition("+")[0]


def id_lists(job_ids: Iterable[str]) -> Iterator[str]:
    """Yield comma-separated ids, in few lists of limited length. Array tasks have the array's id."""
    ids = sorted({base_id(job_id) for job_id in job_ids})
    yield from (",".join(ids[start : start + _MOST_IDS]) for start in range(0, len(ids), _MOST_IDS))


def expand_array_id(job_id: str) -> tuple[str, ...]:
    """Return the tasks of `123_[0-4:2,7%2]`: 123_0, 123_2, 123_4, 123_7. Any other id is returned unchanged.

    A part that Slurm has cut off (`...`) is left out.
    """
    base, bracket, tasks = job_id.partition("_[")
    if not bracket:
        return (job_id,)
    ids: list[str] = []
    for part in tasks.rstrip("]").split("%")[0].split(","):
        if span := _TASKS.fullmatch(part.strip()):
            first, last, step = int(span[1]), int(span[2] or span[1]), int(span[3] or 1)
            ids.extend(f"{base}_{task}" for task in range(first, min(last, _MOST_TASKS) + 1, max(step, 1)))
    return tuple(ids)


MOST_NODES = 65_536
"""Nodes of a list; Slurm clusters have fewer."""

_PART = r"\[[0-9,\-]+\]|[A-Za-z0-9_.\-]+"
_ITEM = rf"(?:{_PART})+"
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand_node_names(names: str | None) -> tuple[str, ...]:
    """Return every node name of a list, in its order; empty where the text is not a list of node names."""
    if not names or not re.fullmatch(rf"{_ITEM}(?:,{_ITEM})*", names):
        return ()
    items = ((_texts(part) for part in re.findall(_PART, item)) for item in re.findall(_ITEM, names))
    nodes = itertools.chain.from_iterable(map("".join, itertools.product(*parts)) for parts in items)
    try:
        listed = tuple(itertools.islice(nodes, MOST_NODES + 1))
    except ValueError:
        return ()
    return listed if len(listed) <= MOST_NODES else ()


def _texts(part: str) -> Iterator[str]:
    """Yield the numbers of a bracket, or the only text; ValueError where a bracket has no range.

    The first number of a range sets the width.
    """
    for piece in part[1:-1].split(",") if part.startswith("[") else ():
        span = _RANGE.fullmatch(piece)
        if span is None:
            raise ValueError(f"{piece}: not a range of node numbers")
        first, last = int(span[1]), int(span[2] or span[1])
        yield from (f"{number:0{len(span[1])}d}" for number in range(first, min(last, first + MOST_NODES) + 1))
    if not part.startswith("["):
        yield part


_TIME_LIMIT = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{2})", re.ASCII)


def parse_time_limit(text: str) -> int | None:
    """Return `[D-][HH:]MM:SS` in seconds; None for other text, such as `UNLIMITED` or `Partition_Limit`."""
    match = _TIME_LIMIT.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


def time_limit_s(limit: str) -> int:
    """Return a time limit in seconds; ValueError if it is not `[D-][HH:]MM:SS`."""
    seconds = parse_time_limit(limit)
    if seconds is None:
        raise ValueError(f"not a time limit: {limit}")
    return seconds


def format_time_limit(seconds: int) -> str:
    """Return seconds as `[D-]H:MM:SS`."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


# ---- states and records of jobs ----------------------------------------------------------------------------------


class Phase(str, enum.Enum):
    """Phase of a job. Only `ended` allows a conclusion. An unknown state is never `ended`."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


# REVOKED: the job runs, or ran, on another cluster, which alone knows how it ended.
_PHASES = {
    Phase.WAITING: "PENDING CONFIGURING POWER_UP_NODE REQUEUED REQUEUED_CRON EXPEDITING REQUEUE_FED REQUEUE_HOLD "
    "SPECIAL_EXIT RESV_DEL_HOLD LAUNCH_FAILED RECONFIG_FAIL",
    Phase.RUNNING: "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED UPDATE_DB",
    Phase.ENDED: "COMPLETED FAILED CANCELLED TIMEOUT DEADLINE OUT_OF_MEMORY NODE_FAIL BOOT_FAIL PREEMPTED",
    Phase.UNKNOWN: "REVOKED",
}
_STATES = {state: phase for phase, states in _PHASES.items() for state in states.split()}
STATES = tuple(_STATES)
"""Names of the states of Slurm jobs."""

_MAY_RUN_AGAIN = frozenset({"NODE_FAIL", "PREEMPTED", "BOOT_FAIL"})


def base_state(text: str) -> str:
    """Return the bare state: CANCELLED for `CANCELLED by 1000` and `CANCELLED+`, OUT_OF_MEMORY for `OUT_OF_ME+`.

    A word that is not known comes back as it is, in capitals; "" stays "".
    """
    parts = text.split()
    if not parts:
        return ""
    word = parts[0].upper()
    if not word.endswith("+"):
        return word
    # sacct cuts a word that is too long for its column, and marks the cut with a plus.
    stem = word.rstrip("+")
    longer = [state for state in _STATES if state.startswith(stem)]
    return longer[0] if stem and stem not in _STATES and len(longer) == 1 else stem


def phase_of(state: str) -> Phase:
    """Return the phase of a state in any form that squeue and sacct print; `unknown` for an unknown state."""
    return _STATES.get(base_state(state), Phase.UNKNOWN)


def may_run_again(state: str) -> bool:
    """Return whether Slurm itself puts jobs with this end back into the queue, so that one such row proves little."""
    return base_state(state) in _MAY_RUN_AGAIN


SEPARATOR = "\x1f"

# Our names of the fields, and those of squeue and sacct.
_FIELDS = (
    ("id", "JobArrayID", "JobID"),
    ("state", "State", "State"),
    ("code", "exit_code", "ExitCode"),
    ("nodes", "NodeList", "NodeList"),
    ("submit", "SubmitTime", "Submit"),
    ("start", "StartTime", "Start"),
    ("end", "EndTime", "End"),
    ("preempted", "PreemptTime", None),
    ("limit", "TimeLimit", "Timelimit"),
    ("user", "UserName", "User"),
    ("uid", None, "UID"),
    ("reason", "Reason", "Reason"),
    ("name", "Name", "JobName"),
    ("output", "STDOUT", None),
    ("comment", "Comment", "Comment"),
)
_QUEUE = {name: ours for ours, name, _ in _FIELDS if name}
_ACCOUNTING = {name: ours for ours, _, name in _FIELDS if name}
QUEUE_FIELDS = tuple(_QUEUE)
ACCOUNTING_FIELDS = tuple(_ACCOUNTING)

_ID = r"\d+(?:\+\d+|_\d+|_\[[^\]\n\x1f]*\]?|_[-\d,:%.]+)?"
_CANCELLED_BY = re.compile(r"\s*CANCELLED\+? by (\d{1,10})\s*", re.ASCII | re.IGNORECASE)
_NOTHING = frozenset({"", "None", "(null)", "N/A", "n/a", "Unknown", "None assigned", "NONE"})
_FIRST = datetime.min.replace(tzinfo=timezone.utc)
_LAST = datetime.max.replace(tzinfo=timezone.utc)

Source = Literal["squeue", "sacct"]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """State of a job, or of one array task (`123_4`), as Slurm reports it.

    `nodes` is Slurm's list, `n[1-2]`. `exit_code` and `signal` are those of the batch script, None before the end;
    `signal` is also None if no signal ended it. Times are in UTC; None if unknown. `starts_at` is the expected start of
    a waiting job, `ends_at` the time at which a running job reaches its limit. `reason` is Slurm's reason for
    waiting, or of the end; after the end, accounting may have the earlier reason. `user` is a name, or a number if this
    machine has no name for it. `cancelled_by` is a user, too (sacct only). `preempted_at` is the time of a preemption's
    signal (not in sacct): a job that then ends by itself within its grace is FAILED, not PREEMPTED. `output` is the
    output file of the batch script (not in sacct), perhaps with Slurm's patterns in it.
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
    user: str = ""
    submitted_at: datetime | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    cancelled_by: str | None = None
    preempted_at: datetime | None = None
    name: str = ""
    output: str = ""

    @property
    def phase(self) -> Phase:
        """Return the phase of the state."""
        return phase_of(self.state)


def parse_queue(stdout: str) -> Iterator[JobRecord]:
    """Parse the output of `squeue --array --Format` with QUEUE_FIELDS. Times must be seconds since the epoch."""
    for row in _rows(stdout, _QUEUE):
        for job_id in expand_array_id(row["id"]):
            yield record_of(job_id, row, _wait_status(row["code"]), "squeue")


def parse_accounting(stdout: str) -> Iterator[JobRecord]:
    """Parse the output of `sacct -X -P` with ACCOUNTING_FIELDS. Times must be seconds since the epoch."""
    for row in _rows(stdout, _ACCOUNTING):
        if row["name"] == "allocation" and not row["limit"]:
            # sacct's first row of a job lasts some seconds and has one node where there are several.
            row |= {"nodes": "", "comment": "", "name": ""}
        row["user"] = _text(row["user"]) or row["uid"]
        # The start of a job may be written after its end: the row then has the end state, no end time, and code `0:0`.
        code = (None, None) if _time(row["end"]) is None else exit_and_signal(row["code"])
        for job_id in expand_array_id(row["id"]):
            yield record_of(job_id, row, code, "sacct")


def comment_pattern(comments: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of these comments, each alone or joined to a text of the site."""
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, comments))})(?![\w-])")


def by_id(records: Iterable[JobRecord]) -> dict[str, JobRecord]:
    """Return the newest record of each job id. An id has several if its job ran twice or Slurm used the id again.

    The newest record has the latest submission (a requeue counts as one), then the latest start or none; among equal
    records it is the last.
    """
    newest: dict[str, JobRecord] = {}
    for record in records:
        before = newest.get(record.job_id)
        if before is None or _age(record) >= _age(before):
            newest[record.job_id] = record
    return newest


def record_of(job_id: str, row: Mapping[str, str], code: tuple[int | None, int | None], source: Source) -> JobRecord:
    """Return the record of one job from its printed fields."""
    word = sys.intern(base_state(row["state"]))
    phase = phase_of(word)
    waiting, ended = phase is Phase.WAITING, phase is Phase.ENDED
    start, end = _time(row["start"]), _time(row["end"])
    limit, canceller = parse_time_limit(row["limit"]), _CANCELLED_BY.fullmatch(row["state"])
    if phase is Phase.RUNNING and end is None and start is not None and limit is not None:
        end = start + timedelta(seconds=limit)  # sacct has no expected end
    return JobRecord(
        job_id=job_id.strip().removesuffix("+0"),  # the first component of a heterogeneous job has the script
        state=word,
        reason=_text(row["reason"]),
        nodes=_text(row["nodes"]),
        exit_code=code[0] if ended else None,
        signal=(code[1] or None) if ended else None,
        comment="" if (comment := row["comment"].rstrip("\n")) == "(null)" else comment,
        # Before a start or an end, Slurm prints the expected time.
        started_at=None if waiting else start,
        ended_at=end if ended else None,
        source=source,
        user=_text(row["user"]),
        submitted_at=_time(row["submit"]),
        starts_at=start if waiting else None,
        ends_at=end if phase is Phase.RUNNING else None,
        cancelled_by=name_of_user(int(canceller[1])) if canceller else None,
        preempted_at=_time(row.get("preempted", "")),
        name=_text(row["name"]),
        output=_text(row.get("output", "")),
    )


def exit_and_signal(text: str) -> tuple[int | None, int | None]:
    """Return exit code and signal of `code:signal`, as sacct prints it."""
    code, _, signal = text.strip().partition(":")
    return _number(code), _number(signal)


def _rows(stdout: str, names: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the rows of the output by our field names. A line that begins no row continues the comment before it."""
    before: re.Match[str] | None = None
    for start in _row_start(tuple(names.values())).finditer(stdout):
        if before is not None:
            yield {**before.groupdict(), "comment": stdout[before.end() : start.start()]}
        before = start
    if before is not None:
        yield {**before.groupdict(), "comment": stdout[before.end() :]}


@functools.cache
def _row_start(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of all fields before the comment. A name or a file may have several lines, like a comment."""
    one_line, lines = r"[^\x1f\n]*", r"[^\x1f]*"
    fields = (rf"(?P<{name}>{lines if name in ('name', 'output') else one_line})\x1f" for name in names[1:-1])
    return re.compile(rf"^[ \t]*(?P<id>{_ID})[ \t]*\x1f{''.join(fields)}", re.MULTILINE | re.ASCII)


def _age(record: JobRecord) -> tuple[datetime, datetime]:
    return record.submitted_at or _FIRST, record.started_at or _LAST


def _wait_status(text: str) -> tuple[int | None, int | None]:
    """Return exit code and signal of squeue's exit_code: the raw wait status, or `code:signal` in some releases."""
    if ":" in text:
        return exit_and_signal(text)
    status = _number(text)
    return (None, None) if status is None else ((status >> 8) & 0xFF, status & 0x7F)


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else None


# Rows share users, states, nodes and times. A cache of values saves memory for a long queue.
_VALUES_KEPT = 4096


@functools.lru_cache(_VALUES_KEPT)
def _time(text: str) -> datetime | None:
    """Return a UTC time from seconds since the epoch; None for `Unknown`, `N/A` and 0."""
    seconds = _number(text)
    return datetime.fromtimestamp(seconds, tz=timezone.utc) if seconds and seconds < 2**33 else None


@functools.lru_cache(_VALUES_KEPT)
def _text(value: str) -> str:
    return "" if value.strip() in _NOTHING else value.strip()
