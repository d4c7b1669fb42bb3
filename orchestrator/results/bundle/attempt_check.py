"""Comparison of every attempt in a bundle with its logs and records. The ledger's rows are not believed.

The script of a job writes a record at its start and at its end. Slurm prints a line into a log when it ends a job.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from orchestrator.errors import Problem, ReproError
from orchestrator.files import ScriptRecord, read_record
from orchestrator.ledger.attempts import rows_of_attempts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import Measurement, record_measurements
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import LOST, NEVER_SUBMITTED, OPEN, field_values
from orchestrator.reading import cause_kinds as kinds
from orchestrator.reading.collect import measure
from orchestrator.reading.failure import Failure
from orchestrator.reading.logs import log_files
from orchestrator.reading.reader import reader_of
from orchestrator.results.bundle.extract import Extract, memory_ledger, read_rows
from orchestrator.results.export.rows import Row
from orchestrator.text import counted

_FOLDER = re.compile(r"jobs/[A-Za-z0-9][A-Za-z0-9._-]{0,200}/attempt-[0-9]{1,9}")
_WITHOUT_SUBMISSION = (Failure.NOT_SUBMITTED, Failure.REFUSED, Failure.CANCELLED, Failure.STOPPED)
"""Failure classes of attempts that no scheduler received. No file shows which one it was."""
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
_CLOSE = 1e-9
"""Relative; two machines may differ in the last digits of a median."""
_MOST_SHOWN = 5
"""Differences that are listed per attempt or per case."""


@dataclass(slots=True)
class Derived:
    """Ledger with the numbers that the logs give, and the differences from the numbers in the bundle."""

    ledger: Ledger
    differences: list[str] = field(default_factory=list)
    attempts: int = 0
    never_ran: int = 0
    under_way: int = 0
    iterations: int = 0
    metrics: int = 0
    rows: int = 0

    @property
    def what(self) -> str:
        """Return how much was compared."""
        text = f"{counted(self.attempts, 'attempt')} read again: {self.iterations} iterations, {self.metrics} metrics"
        text += f", {counted(self.rows, 'row')}" if self.rows else ""
        text += f"; {self.never_ran} never ran" if self.never_ran else ""
        return text + (f"; {self.under_way} not judged yet" if self.under_way else "")


def read_logs(
    folder: Path, extract: Extract, missing: Mapping[str, str], left_out: Collection[str], *, keeps_iterations: bool
) -> Derived:
    """Read the log of each attempt, compare it with the stored numbers, and record it in a ledger in memory.

    The logs of the attempts `left_out`, as `--without` names them, are not read: they may be gone.
    """
    for attempt in extract.attempts:
        own = f"-{attempt['job_id']}/attempt-{attempt['number']}"
        if not _FOLDER.fullmatch(attempt["folder"]) or not attempt["folder"].endswith(own):
            what = f"{attempt['folder'][:80]!r} is not the folder of attempt {attempt['number']}"
            raise ReproError(Problem(what, "ledger/attempts.jsonl:"))
    without_numbers = dataclasses.replace(extract, metrics=[], output_rows=[])
    derived = Derived(memory_ledger(without_numbers, (), folder))
    rows = {row.attempt_id: row for row in rows_of_attempts(derived.ledger, [row["id"] for row in extract.attempts])}
    metrics: dict[int, dict[str, Row]] = {}
    for metric in extract.metrics:
        numbers = {name: value for name, value in metric.items() if name != "attempt_id"}
        metrics.setdefault(metric["attempt_id"], {})[metric["name"]] = numbers
    for output in extract.output_rows:
        name = "row " + json.dumps(output["row_key"])
        numbers = {"position": output["position"], **output["metrics"]}
        metrics.setdefault(output["attempt_id"], {})[name] = numbers
    of_attempts = itertools.groupby(read_rows(folder, "iterations"), key=lambda row: row["attempt_id"])
    groups = (list(rows) for _, rows in of_attempts)
    group = next(groups, None)
    for attempt in extract.attempts:
        lines: list[Row] = []
        if group and group[0]["attempt_id"] == attempt["id"]:
            lines, group = group, next(groups, None)
        row = rows[attempt["id"]]
        numbers = metrics.pop(row.attempt_id, {})
        if f"{row.job_id}:{row.number}" in left_out:
            continue
        differences = _read_log(derived, row, attempt, numbers, lines, keeps_iterations)
        lost = [
            f"{path}: not in the bundle ({reason})"
            for path, reason in missing.items()
            if path == attempt["folder"] or path.startswith(f"{attempt['folder']}/")
        ]
        derived.differences += lost if differences and lost else differences
    if group or metrics:
        derived.differences.append("ledger/: numbers of attempts that are missing or out of order")
    folders = {path.relative_to(folder).as_posix() for path in folder.glob("jobs/*/*")}
    for path in sorted(folders - {attempt["folder"] for attempt in extract.attempts}):
        derived.differences.append(f"{path}: files of no attempt in ledger/attempts.jsonl")
    return derived


def missing_attempts(extract: Extract) -> Iterator[str]:
    """Yield the attempts before the last one of each job that the ledger in the bundle lacks."""
    numbers: dict[str, set[int]] = {}
    for attempt in extract.attempts:
        numbers.setdefault(attempt["job_id"], set()).add(attempt["number"])
    for job, of_job in numbers.items():
        for number in sorted(set(range(1, max(of_job))) - of_job):
            yield f"ledger/attempts.jsonl: attempt {number} of job {job} is missing"


def _read_log(
    derived: Derived,
    row: JobRow,
    attempt: Row,
    metrics: Mapping[str, Row],
    lines: Sequence[Row],
    keeps_iterations: bool,
) -> list[str]:
    """Record the numbers of an attempt's files in the derived ledger; return the differences from the stored ones."""
    path = attempt["folder"]
    try:
        differences = [f"{path} ({row.label}): {difference}" for difference in end_differences(row)]
        measured = measure(row)
    except ReproError as error:
        return [f"{path}: {error.problems[0].what.replace(row.folder, 'its folder')}"]
    location, is_open = f"{path} ({row.label})", row.phase in OPEN
    if is_open:
        derived.under_way += 1
        return [*differences, *_log_differences(location, attempt, metrics, lines, measured, is_open)]
    if row.state == NEVER_SUBMITTED and attempt["failure"] in _WITHOUT_SUBMISSION:
        measured = dataclasses.replace(measured, failure=attempt["failure"])
    derived.never_ran += row.state == NEVER_SUBMITTED
    derived.attempts += row.state != NEVER_SUBMITTED
    derived.iterations += len(measured.iterations)
    derived.metrics += len(measured.metrics)
    derived.rows += len(measured.rows)
    recorded = measured if keeps_iterations else dataclasses.replace(measured, iterations=())
    if row.state == NEVER_SUBMITTED:  # the reason is the scheduler's, and in no file
        recorded = dataclasses.replace(recorded, verdict_reason=row.verdict_reason)
    record_measurements(derived.ledger, [recorded])
    return [*differences, *_log_differences(location, attempt, metrics, lines, measured, is_open)]


def _log_differences(
    location: str, attempt: Row, metrics: Mapping[str, Row], lines: Sequence[Row], measured: Measurement, is_open: bool
) -> Iterator[str]:
    """Yield the differences of an attempt's rows from its log.

    The log of an attempt under way may be longer than the part that the ledger has. The next line shows whether the
    first ones are used.
    """
    names = ("verdict", "failure") if is_open else ("verdict", "failure", "iteration", "execution")
    recorded, read = {name: attempt[name] for name in names}, {name: getattr(measured, name) for name in names}
    yield from differences_of(location, {"": recorded}, {"": read})
    numbers = {metric.name: field_values(metric) for metric in measured.metrics}
    for position, output in enumerate(measured.rows, 1):
        values = {metric.name: metric.value for metric in output.metrics}
        numbers["row " + json.dumps(dict(output.key))] = {"position": position, **values}
    different = list(differences_of(location, metrics, numbers))
    yield from first_of(different, location) if measured.rows else different
    left_out = ("attempt_id", "used") if is_open else ("attempt_id",)
    stored, derived = (
        {f"iteration {row['iteration']}": {name: row[name] for name in row if name not in left_out} for row in rows}
        for rows in (lines, map(field_values, measured.iterations))
    )
    derived = {name: row for name, row in derived.items() if name in stored} if is_open else derived
    yield from first_of(list(differences_of(location, stored, derived)), location)


def differences_of(
    location: str,
    stored: Mapping[str, Row],
    derived: Mapping[str, Row],
    text: str = "{} in the ledger, {} from its log",
) -> Iterator[str]:
    """Yield the differences of two tables by the names of their rows. `text` has the places of the two values."""
    for name in dict.fromkeys([*stored, *derived]):
        place = f"{location}: {name}" if name else location
        if name not in stored or name not in derived:
            has, lacks = ("the ledger", "its log") if name in stored else ("its log", "the ledger")
            yield f"{place} is in {has} and not in {lacks}"
            continue
        for column in {**stored[name], **derived[name]}:
            before, after = stored[name].get(column), derived[name].get(column)
            if not same(before, after):
                yield f"{place}: {column} is {text.format(shown(before), shown(after))}"


def first_of(differences: Sequence[str], location: str) -> Iterator[str]:
    """Yield the first differences, and the number of the others."""
    yield from differences[:_MOST_SHOWN]
    if len(differences) > _MOST_SHOWN:
        yield f"{location}: {len(differences) - _MOST_SHOWN} more like these"


def shown(value: object) -> str:
    """Return a value as text."""
    return "nothing" if value is None else str(value)


def same(stored: object, derived: object) -> bool:
    """Return whether two values are equal; numbers up to rounding, and NaN is stored as nothing."""
    if isinstance(derived, float):
        if not math.isfinite(derived):
            return stored is None
        return isinstance(stored, (int, float)) and math.isclose(stored, derived, rel_tol=_CLOSE)
    return bool(stored == derived)


# ---- the end of an attempt ------------------------------------------------------------------------------------


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
    cause = reader_of(row.program, row.spec.program).cause(folder)
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
