"""State of jobs on this machine, and other users of its GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from orchestrator.clusters.machine import GpuMemory, GpuProcess, gpu_memory
from orchestrator.clusters.resolve import Cluster
from orchestrator.job_dir import JobRecord, read_record, tail_bytes
from orchestrator.planning.plan import Plan

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


LEAST_MIB = 1024
"""Less of a GPU in use is no news: drivers and displays keep some hundred MiB of their own."""

_MARK = b"REPRO_LOCAL_ID="
"""What the queue of this machine starts each job with: jobs of ours wait for one another."""


def warnings(plans: Sequence[Plan], cluster: Cluster) -> list[str]:
    """What to know of the GPUs that these jobs will take: one line for each that somebody has memory of, and one where
    nvidia-smi fails, as jobs then run on CPU cores or not at all.
    """
    machine = cluster.machine
    if machine is None:
        return []
    if machine.gpus == 0:
        return [f"no GPU of this machine is used: {machine.lack}"] if machine.lack else []
    wanted = max((plan.case.layout.gpus for plan in plans if plan.case.device == "gpu"), default=0)
    return list(taken(gpu_memory()[:wanted])) if wanted else []


def taken(gpus: Sequence[GpuMemory]) -> Iterator[str]:
    """One line for each GPU of which others than our own jobs have memory."""
    for gpu in gpus:
        others = [process for process in gpu.processes if not _is_ours(process.pid)]
        if gpu.used_mib < LEAST_MIB or (gpu.processes and not others):
            continue
        whose = ", ".join(map(_shown, others)) or "nvidia-smi does not say by which process"
        used = f"{gpu.used_mib / 1024:.1f} of {gpu.total_mib / 1024:.1f} GiB"
        yield f"GPU {gpu.index} is in use, {used}: {whose}; jobs that it leaves too little for fail as gpu-in-use"


def _shown(process: GpuProcess) -> str:
    held = f", {process.used_mib / 1024:.1f} GiB" if process.used_mib is not None else ""
    return f"process {process.pid} ({process.name}{held})"


def _is_ours(pid: int) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone, or outside of this container
        return False
    return any(variable.startswith(_MARK) for variable in variables)
