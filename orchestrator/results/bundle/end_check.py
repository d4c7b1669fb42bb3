"""Comparison of an attempt's end in the ledger with the records of its script and with Slurm's lines in its logs.

The script of a job writes a record at its start and at its end. Slurm prints a line into a log when it ends a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from orchestrator.files import ScriptRecord, read_record
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import LOST, NEVER_SUBMITTED, OPEN
from orchestrator.megatron.logs import root_cause_kinds as kinds
from orchestrator.megatron.logs.root_cause import CauseFinder
from orchestrator.reading.logs import log_blocks, log_files

_TIMED_OUT = 124
"""Exit code of timeout(1), which ends a local job at its time limit."""
_SIGNALLED = 128
"""A shell adds this to the number of the signal that ended a process. sacct subtracts it from exit codes."""
_TOLERANCE = timedelta(seconds=5)
"""Slurm and records have whole seconds, and a clock may be corrected while a job runs."""

_SLURM_LINES = {
    "TIMEOUT": kinds.TIME_LIMIT,
    "DEADLINE": kinds.TIME_LIMIT,
    "PREEMPTED": kinds.PREEMPTED,
    "NODE_FAIL": kinds.NODE_FAILURE,
    "OUT_OF_MEMORY": kinds.NO_HOST_MEMORY,
}
"""Kind of the line that Slurm prints when it ends a job with this state."""


def end_differences(row: JobRow) -> Iterator[str]:
    """Yield the differences between an attempt's end in the ledger and the files in its folder."""
    folder = Path(row.folder)
    start, end = read_record(folder / "start"), read_record(folder / "end")
    for name, record in (("start", start), ("end", end)):
        if record is None and (folder / name).exists():
            yield f"its {name} record cannot be parsed"
        if record is not None and record.scheduler_id not in (row.scheduler_id, "none"):
            yield f"scheduler_id is {row.scheduler_id} in the ledger, {record.scheduler_id} in its {name} record"
    if row.state == NEVER_SUBMITTED:
        yield from _traces(folder)
        return
    yield from _state_differences(row, folder, end)
    if end is not None and row.phase not in OPEN and (row.scheduler == "local" or row.state in ("COMPLETED", "FAILED")):
        yield from _code_differences(row, end.exit_code)
    if start is not None and end is not None and row.phase not in OPEN:
        yield from _time_differences(row, start, end)


def _traces(folder: Path) -> Iterator[str]:
    """Yield the traces of a run. The script's own output is none: a copy that Slurm accepted late prints a refusal."""
    records = [name for name in ("start", "end", "claimed") if (folder / name).exists()]
    logs = [log.name for log in log_files(folder) if log.name != "batch.txt"]
    if names := [*records, *logs]:
        yield f"state is {NEVER_SUBMITTED} in the ledger, and its folder contains {', '.join(names)}"


def _state_differences(row: JobRow, folder: Path, end: ScriptRecord | None) -> Iterator[str]:
    code = end.exit_code if end else None
    is_in_ledger = f"state is {row.state} in the ledger"
    if row.phase in OPEN:
        if code is not None and not row.is_requeued:  # Slurm runs a requeued job again, which replaces the record
            yield f"{is_in_ledger}, and its end record has exit code {code}"
        return
    if code is None and (row.state == "COMPLETED" or (row.state == "TIMEOUT" and row.scheduler == "local")):
        yield f"{is_in_ledger}, and it has no end record"
    elif code is not None and not _allows(row, folder, code):
        yield f"{is_in_ledger}, and its end record has exit code {code}"
    elif _needs_line(row, code) and not _is_ended_by_slurm(row, folder):
        yield f"{is_in_ledger}, and no log has Slurm's line about it"


def _allows(row: JobRow, folder: Path, code: int) -> bool:
    """Return whether a job whose end record has this exit code can have the row's state."""
    if row.scheduler == "local":
        by_code = "COMPLETED" if code == 0 else "TIMEOUT" if code == _TIMED_OUT else "FAILED"
        return row.state == by_code or (row.state == "CANCELLED" and code != 0 and (folder / "cancelled").exists())
    if row.state in ("COMPLETED", "FAILED"):
        return (code == 0) == (row.state == "COMPLETED")
    return row.state != LOST  # the state of a job without an end record


def _needs_line(row: JobRow, code: int | None) -> bool:
    """Return whether only Slurm's line proves the state: a job that ended well, or whose numbers count at its limit."""
    return row.scheduler == "slurm" and (row.state == "TIMEOUT" or (code == 0 and row.state != "COMPLETED"))


def _is_ended_by_slurm(row: JobRow, folder: Path) -> bool:
    """Return whether a log has Slurm's line for the row's state, or the job's folder the mark of a cancellation."""
    if row.state == "CANCELLED":
        return (folder / "cancelled").exists()
    finder = CauseFinder()
    for block in log_blocks(folder):
        finder.feed(block)
    cause = finder.cause()
    return cause is not None and row.state in _SLURM_LINES and cause.of(_SLURM_LINES[row.state]) is not None


def _code_differences(row: JobRow, code: int) -> Iterator[str]:
    is_local, signal = row.scheduler == "local", code - _SIGNALLED
    if row.exit_code not in ((code,) if is_local else (code, signal, None)):
        yield f"exit_code is {row.exit_code} in the ledger, {code} in its end record"
    if row.signal not in ((None,) if is_local else (None, 0, signal)):
        yield f"signal is {row.signal} in the ledger, and its end record has exit code {code}"


def _time_differences(row: JobRow, start: ScriptRecord, end: ScriptRecord) -> Iterator[str]:
    """Compare durations, as two machines may have different clocks. Slurm's also include prolog and epilog."""
    if row.started_at is None or row.ended_at is None:
        return
    recorded, by_ledger = end.at - start.at, row.ended_at - row.started_at
    is_shorter = by_ledger < recorded - _TOLERANCE
    if is_shorter or (row.scheduler == "local" and by_ledger > recorded + _TOLERANCE):
        times = f"{by_ledger.total_seconds():.0f} s in the ledger, {recorded.total_seconds():.0f} s by its records"
        yield f"its duration is {times}"
