"""Comparison of every attempt in a bundle with its logs and records. The ledger's rows are not believed."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.attempts import rows_of_attempts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import Measurement, record_measurements
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import FAILED, NEVER_SUBMITTED, OPEN
from orchestrator.megatron.logs.iteration_lines import IterationLine
from orchestrator.reading.collect import measure
from orchestrator.reading.energy import ENERGY_METRICS
from orchestrator.reading.failure import Failure
from orchestrator.results.bundle.check import first_of, same, shown
from orchestrator.results.bundle.end_check import end_differences
from orchestrator.results.bundle.extract import Extract, memory_ledger, read_rows
from orchestrator.results.export.rows import Row
from orchestrator.text import counted

_FOLDER = re.compile(r"jobs/[A-Za-z0-9][A-Za-z0-9._-]{0,200}/attempt-[0-9]{1,9}")
_WITHOUT_SUBMISSION = (Failure.NOT_SUBMITTED, Failure.REFUSED, Failure.CANCELLED, Failure.STOPPED)
"""Failure classes of attempts that no scheduler received. No file shows which one it was."""


@dataclass(slots=True)
class Derived:
    """Ledger with the numbers that the logs give, and the differences from the numbers in the bundle."""

    ledger: Ledger
    differences: list[str] = field(default_factory=list)
    attempts: int = 0
    older: int = 0
    never_ran: int = 0
    under_way: int = 0
    iterations: int = 0
    metrics: int = 0

    @property
    def what(self) -> str:
        """Return how much was compared."""
        text = f"{counted(self.attempts, 'attempt')} read again: {self.iterations} iterations, {self.metrics} metrics"
        text += f"; {self.older} compared only in what an older repro recorded" if self.older else ""
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
    without_numbers = dataclasses.replace(extract, metrics=[])
    derived = Derived(memory_ledger(without_numbers, (), folder, lambda _run: {}, lambda _attempt: None))
    rows = {row.attempt_id: row for row in rows_of_attempts(derived.ledger, [row["id"] for row in extract.attempts])}
    metrics: dict[int, dict[str, Row]] = {}
    for metric in extract.metrics:
        metrics.setdefault(metric["attempt_id"], {})[metric["name"]] = metric
    groups = _lines_by_attempt(folder)
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


def _lines_by_attempt(folder: Path) -> Iterator[list[Row]]:
    """Yield the stored iterations of each attempt."""
    for _, rows in itertools.groupby(read_rows(folder, "iterations"), key=lambda row: row["attempt_id"]):
        yield list(rows)


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
    if row.phase in OPEN:
        derived.under_way += 1
        return [*differences, *_open_differences(f"{path} ({row.label})", attempt, metrics, lines, measured)]
    if _is_of_older_repro(attempt, lines):
        measured = _as_older_repro(measured, attempt, metrics)
        derived.older += 1
    elif row.spec.computes is None:  # that repro gave MFU for Llama models only
        measured = _without_new(measured, metrics, ("mfu_percent",))
    measured = _without_new(measured, metrics, ENERGY_METRICS)
    if row.state == NEVER_SUBMITTED and attempt["failure"] in _WITHOUT_SUBMISSION:
        measured = dataclasses.replace(measured, failure=attempt["failure"])
    derived.never_ran += row.state == NEVER_SUBMITTED
    derived.attempts += row.state != NEVER_SUBMITTED
    derived.iterations += len(measured.iterations)
    derived.metrics += len(measured.metrics)
    recorded = measured if keeps_iterations else dataclasses.replace(measured, iterations=())
    if row.state == NEVER_SUBMITTED:  # the reason is the scheduler's, and in no file
        recorded = dataclasses.replace(recorded, verdict_reason=row.verdict_reason)
    record_measurements(derived.ledger, [recorded])
    location = f"{path} ({row.label})"
    differences += _attempt_differences(location, attempt, measured)
    differences += _metric_differences(location, metrics, measured)
    return [*differences, *_iteration_differences(location, lines, measured)]


def _open_differences(
    location: str, attempt: Row, metrics: Mapping[str, Row], lines: Sequence[Row], measured: Measurement
) -> Iterator[str]:
    """Yield the differences of an attempt under way: its log may be longer than the part that the ledger has.

    The next line shows whether the first ones are used.
    """
    yield from _attempt_differences(location, attempt, measured, ("verdict", "failure"))
    yield from _metric_differences(location, metrics, measured)
    lines = [{name: value for name, value in line.items() if name != "used"} for line in lines]
    numbers = {line["iteration"] for line in lines}
    known = tuple(line for line in measured.iterations if line.iteration in numbers)
    yield from _iteration_differences(location, lines, dataclasses.replace(measured, iterations=known))


def _attempt_differences(
    location: str,
    attempt: Row,
    measured: Measurement,
    names: Sequence[str] = ("verdict", "failure", "iteration", "execution"),
) -> Iterator[str]:
    for name in names:
        if attempt[name] != getattr(measured, name):
            values = f"{shown(attempt[name])} in the ledger, {shown(getattr(measured, name))} from its log"
            yield f"{location}: {name} is {values}"


def _is_of_older_repro(attempt: Row, lines: Sequence[Row]) -> bool:
    """Return whether an older repro read the log: lines without counts, or a failure without a class."""
    if lines:
        return all(line["skipped"] is None for line in lines)
    return attempt["verdict"] == FAILED and attempt["failure"] is None


def _as_older_repro(measured: Measurement, attempt: Row, metrics: Mapping[str, Row]) -> Measurement:
    """Return the part of a measurement that an older repro recorded."""
    lines = (
        IterationLine(line.iteration, line.elapsed_ms, line.loss, line.grad_norm, line.used)
        for line in measured.iterations
    )
    return dataclasses.replace(
        measured,
        iterations=tuple(lines),
        metrics=tuple(metric for metric in measured.metrics if metric.name in metrics),
        failure=measured.failure if attempt["failure"] is not None else None,
    )


def _without_new(measured: Measurement, metrics: Mapping[str, Row], names: Collection[str]) -> Measurement:
    """Return the measurement without those of these metrics that an older repro did not record."""
    kept = tuple(metric for metric in measured.metrics if metric.name not in names or metric.name in metrics)
    return dataclasses.replace(measured, metrics=kept)


def _metric_differences(location: str, stored: Mapping[str, Row], measured: Measurement) -> Iterator[str]:
    derived = {metric.name: metric for metric in measured.metrics}
    for name in dict.fromkeys([*stored, *derived]):
        if name not in derived or name not in stored:
            yield _only_in_one(location, name, name in stored)
            continue
        for part in ("value", "unit", "spread", "count"):
            before, after = stored[name][part], getattr(derived[name], part)
            if not same(before, after):
                of = "" if part == "value" else f", its {part},"
                yield f"{location}: {name}{of} is {shown(before)} in the ledger, {shown(after)} from its log"


def _iteration_differences(location: str, stored: Sequence[Row], measured: Measurement) -> Iterator[str]:
    rows = {row["iteration"]: row for row in stored}
    derived = {line.iteration: line for line in measured.iterations}
    differences: list[str] = []
    for number in sorted(rows.keys() | derived.keys()):
        if number not in rows or number not in derived:
            differences.append(_only_in_one(location, f"iteration {number}", number in rows))
            continue
        for name, value in rows[number].items():
            if name not in ("attempt_id", "iteration") and not same(value, getattr(derived[number], name)):
                values = f"{shown(value)} in the ledger, {shown(getattr(derived[number], name))} in its log"
                differences.append(f"{location}: iteration {number}: {name} is {values}")
    yield from first_of(differences, location)


def _only_in_one(location: str, name: str, in_ledger: bool) -> str:
    has, lacks = ("the ledger", "its log") if in_ledger else ("its log", "the ledger")
    return f"{location}: {name} is in {has} and not in {lacks}"
