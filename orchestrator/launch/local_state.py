"""What became of a job on this machine, from the files its queue and its script leave. No daemon, no database.

A job's folder has `start` and `end` records (`name=value` lines), written whole by rename, and `cancelled` when
somebody asked for it to stop.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from orchestrator.job_files import tail_bytes
from orchestrator.job_record import JobRecord, read_record

TIMED_OUT = 124
"""What timeout(1) exits with."""
NOT_STARTED = 95
"""Exit code of a script that finds its folder claimed by another job."""
_REFUSED = re.compile(rb"^repro: (not started: .+)$", re.MULTILINE)
_LONGEST_REFUSAL = 4096


@dataclass(frozen=True, slots=True)
class LocalState:
    """In Slurm's words, so that one table serves both."""

    state: str
    reason: str | None = None
    exit_code: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


def local_state(folder: Path, queue_pid: int | None, *, has_rebooted: bool = False) -> LocalState:
    """Return the state of the job in `folder`, whose queue runs (or ran) as `queue_pid`.

    If the machine `has_rebooted` since, no process is that of the job. Each thing is read before the thing that follows
    it, so that a job which moves on meanwhile is not called lost.
    """
    queued = not has_rebooted and queue_pid is not None and is_alive(queue_pid, "queue.sh")
    start = read_record(folder / "start")
    running = not has_rebooted and start is not None and is_alive(start.pid, str(folder))
    end = read_record(folder / "end")
    cancelled = (folder / "cancelled").exists()
    if end is not None:
        return _ended(end, start, cancelled)
    if running and start is not None:
        return LocalState("RUNNING", started_at=start.at)
    if cancelled:
        began = start.at if start else None
        return LocalState("CANCELLED", "cancelled" if start else "cancelled before it started", started_at=began)
    if start is not None:
        why = "its process is gone and left no end record (killed, or the machine went down)"
        return LocalState("NODE_FAIL", why, started_at=start.at)
    refused = _refused_start(folder)
    if refused is not None:
        return LocalState("FAILED", refused, NOT_STARTED)
    if queued:
        return LocalState("PENDING", "waits for the jobs before it")
    return LocalState("NODE_FAIL", "its queue is gone and never started it (killed, or the machine went down)")


def _refused_start(folder: Path) -> str | None:
    """Why the script ended before it wrote a record: another job has claimed the folder."""
    found = _REFUSED.search(tail_bytes(folder, "batch.txt", _LONGEST_REFUSAL))
    return found[1].decode(errors="replace") if found else None


def is_alive(pid: int, marker: str) -> bool:
    """Whether this process runs and is ours: its command line has `marker`, so a reused pid is not mistaken."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return False
    return state != "Z" and marker.encode() in command


def _ended(end: JobRecord, start: JobRecord | None, cancelled: bool) -> LocalState:
    began = start.at if start else None
    if end.exit_code == 0:
        return LocalState("COMPLETED", None, 0, began, end.at)
    if cancelled:
        return LocalState("CANCELLED", "cancelled", end.exit_code, began, end.at)
    if end.exit_code == TIMED_OUT:
        return LocalState("TIMEOUT", "the time limit was reached", end.exit_code, began, end.at)
    return LocalState("FAILED", None, end.exit_code, began, end.at)


def began_at(pid: int) -> datetime | None:
    """When the process of this id began (UTC, to the second and rounded down); None where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = re.search(r"^btime ([0-9]+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return None
    if boot is None or fields[0] == "Z":
        return None
    since_epoch_s = int(boot[1]) + int(fields[19]) // os.sysconf("SC_CLK_TCK")  # proc(5): field 22, in clock ticks
    return datetime.fromtimestamp(since_epoch_s, tz=timezone.utc).replace(tzinfo=None)


def find_process(marker: str) -> str | None:
    """The id of a process whose command line has `marker`."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and is_alive(int(folder.name), marker):
            return folder.name
    return None
