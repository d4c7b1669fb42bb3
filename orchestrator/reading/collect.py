"""Collection of results: read new log content, judge ended attempts, and store iterations, metrics and verdicts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.errors import ReproError
from orchestrator.files import ScriptRecord, open_job_file, read_record, tail_bytes
from orchestrator.ledger.attempts import rows_of_attempts, unjudged_attempts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import (
    MeasuredMetric,
    Measurement,
    OffsetUpdate,
    file_offsets,
    iterations_of,
    positions,
    record_measurements,
)
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import NewJob
from orchestrator.ledger.tables import ENDED, FAILED, MEASURED, RUNNING, FileOffset
from orchestrator.masking import without_known
from orchestrator.megatron.logs import ALPA_PROGRAM, IterationLine
from orchestrator.megatron.logs.alpa import TABLE, TABLE_BYTES, table_rows
from orchestrator.megatron.logs.cause_lines import NOT_A_NUMBER
from orchestrator.megatron.logs.iteration_lines import IterationLines
from orchestrator.megatron.logs.parse import LogFacts, LogPart, LogReport, effective_of, merged_facts, read_part
from orchestrator.reading.causes import LONGEST_LINE, Cause, CauseFinder
from orchestrator.reading.failure import Ending, Failure
from orchestrator.reading.gpu_samples import MeanPower, joules, read_samples
from orchestrator.reading.log_lines import line_around, parse_line
from orchestrator.reading.logs import LogFile, job_secrets, log_blocks, log_files
from orchestrator.reading.statistics import is_possible, metrics, row_metrics, with_used
from orchestrator.reading.verdict import Judgement, expected_of, judge

ATTEMPTS_AT_ONCE = 100
"""Number of attempts whose rows are in memory together."""
LINES_AT_ONCE = 20_000
"""Number of iteration lines in one transaction; more if one attempt has more."""
TRIES = 3
"""Number of times that an attempt is read if another terminal reads it at the same time; then that one collects it."""

_FIRST_LINES = 4
"""Stored lines of a running attempt that are checked again: the next lines show whether the first ones count."""
_ONLY_WHILE_RUNNING = ("version", "settings", "unfinished")
"""Facts, most of them by size, that are not stored after the verdict."""


def collect(ledger: Ledger, *, running: bool = True) -> tuple[str, ...]:
    """Read the new content of every attempt without a verdict; with `running` also of those that have not ended.

    Return warnings: a log that this user may not read is not an empty log, and its attempt gets no verdict. Nothing is
    written if nothing is new. A verdict is final: its attempt is never read again.
    """
    warnings: dict[str, None] = {}
    ids = unjudged_attempts(ledger, (RUNNING, ENDED) if running else (ENDED,))
    for start in range(0, len(ids), ATTEMPTS_AT_ONCE):
        remaining = ids[start : start + ATTEMPTS_AT_ONCE]
        for _ in range(TRIES):
            remaining = _collect(ledger, remaining, warnings) if remaining else []
    return tuple(warnings)


def measure(row: JobRow) -> Measurement:
    """Return the measurement of an attempt from all of its files, as if they were read for the first time."""
    if row.spec.program is not None:
        return _measured_program(row, {}) or Measurement(row.attempt_id, row.iteration, None, None, (), ())
    return measured(row, _read(row, {}), ())


def _read(row: JobRow, before: Mapping[str, FileOffset]) -> NewContent:
    warmup_iterations = row.spec.warmup_iterations
    return read_new(Path(row.folder), before, final=row.phase == ENDED, warmup_iterations=warmup_iterations)


def _collect(ledger: Ledger, attempt_ids: Sequence[int], warnings: dict[str, None]) -> list[int]:
    """Read these attempts once, and return those that another terminal has read at the same time."""
    offsets = file_offsets(ledger, attempt_ids)
    moved: list[int] = []
    batch: list[Measurement] = []
    for row in rows_of_attempts(ledger, attempt_ids):
        if row.verdict is not None:  # another terminal has just judged it
            continue
        try:
            measurement = _new_measurement(ledger, row, offsets.get(row.attempt_id, {}), warnings)
        except ReproError as error:
            warnings[str(error)] = None
            continue
        batch += [measurement] if measurement is not None else []
        if sum(len(measurement.iterations) + len(measurement.rows) for measurement in batch) >= LINES_AT_ONCE:
            moved, batch = moved + record_measurements(ledger, batch), []
    return moved + record_measurements(ledger, batch)


def _new_measurement(
    ledger: Ledger, row: JobRow, before: Mapping[str, FileOffset], warnings: dict[str, None]
) -> Measurement | None:
    """Return the measurement of an attempt whose files were read up to `before`; None if nothing is new."""
    if row.spec.program is not None:
        return _measured_program(row, warnings)
    has_ended = row.phase == ENDED
    new = _read(row, before)
    warnings |= dict.fromkeys(new.warnings)
    if not has_ended and positions(new.files) == positions(before):
        return None
    stored = iterations_of(ledger, row.attempt_id, None if has_ended else _FIRST_LINES) if new.continues else []
    files = _stored_files(new.files, Path(row.folder), has_ended)
    return replace(measured(row, new, stored), read=OffsetUpdate(before, files, new.continues))


def _stored_files(files: Mapping[str, FileOffset], folder: Path, has_ended: bool) -> dict[str, FileOffset]:
    """Return the offsets with the facts to store, which contain no secret of the job's script."""
    secrets = job_secrets(folder)
    dropped = _ONLY_WHILE_RUNNING if has_ended else ()
    facts = {name: without_known(file.facts, secrets) for name, file in files.items()}
    return {
        name: replace(file, facts={fact: value for fact, value in facts[name].items() if fact not in dropped})
        for name, file in files.items()
    }


def measured(row: JobRow, new: NewContent, stored: Sequence[IterationLine]) -> Measurement:
    """Return the measurement of an attempt after reading new content.

    `stored` are its stored iterations; of a running attempt only the first few. The measurement has the iterations that
    are new, and those whose `used` has changed.
    """
    before = {line.iteration: line for line in stored}
    by_number = before | {line.iteration: line for line in new.lines}
    merged = [by_number[number] for number in sorted(by_number)] if stored else new.lines
    lines = with_used(merged, row.spec.warmup_iterations)
    reached = [line.iteration for line in lines[-1:]] + ([row.iteration] if new.continues and row.iteration else [])
    judgement, numbers = _judged(row, Path(row.folder), new.facts, lines, _ending(row))
    if judgement and judgement.failure is Failure.NUMBERS and judgement.cause is None:
        judgement = replace(judgement, cause=_line_of_numbers(row, lines))
    changed = tuple(line for line in lines if before.get(line.iteration) != line)
    return _measurement(row, judgement, numbers, new.facts, max(reached, default=None), changed)


def _measured_program(row: JobRow, warnings: dict[str, None]) -> Measurement | None:
    """Return the measurement of an attempt of a described program; None while it runs without a new iteration."""
    from orchestrator.reading.described import progress_of_program, result_of_program  # only for such a program

    folder = Path(row.folder)
    if row.phase != ENDED:
        iteration = progress_of_program(row.spec, folder)
        is_new = iteration is not None and iteration != row.iteration
        return _measurement(row, None, [], LogFacts(), iteration) if is_new else None
    result = result_of_program(row, folder, _ending(row), row.elapsed_s)
    warnings |= dict.fromkeys(result.warnings)
    measurement = _measurement(row, result.judgement, result.metrics, LogFacts(), result.iteration)
    return replace(measurement, rows=result.rows)


def _measurement(
    row: JobRow,
    judgement: Judgement | None,
    numbers: list[MeasuredMetric],
    facts: LogFacts,
    iteration: int | None,
    iterations: tuple[IterationLine, ...] = (),
) -> Measurement:
    """Return the measurement with the numbers of GPU samples, and without secrets of the job's script."""
    sampled = read_samples(Path(row.folder), facts, row.gpus) if judgement else None
    power = sampled.power if sampled and numbers else MeanPower()
    others = (sampled.metrics, joules(power, numbers), _gpu_hours(row)) if sampled else ()
    cause = judgement.cause if judgement else None
    secrets = job_secrets(Path(row.folder)) if judgement else frozenset()
    return Measurement(
        attempt_id=row.attempt_id,
        iteration=iteration,
        verdict=judgement.verdict if judgement else None,
        verdict_reason=without_known(judgement.reason, secrets) if judgement and judgement.reason else None,
        iterations=iterations,
        metrics=_by_name(numbers, *(filter(is_possible, other) for other in others)) if sampled else (),
        failure=str(judgement.failure) if judgement and judgement.failure else None,
        deciding_line=without_known(cause.line, secrets) if cause else None,
        deciding_rank=cause.rank if cause else None,
        execution=facts.execution,
        no_energy=power.unknown,
    )


def is_verified(job: NewJob, folder: Path, end: ScriptRecord) -> bool:
    """Return whether an ended attempt that the ledger lacks is verified or partial."""
    state = "COMPLETED" if end.exit_code == 0 else "FAILED"
    ending = Ending(ENDED, state, end.exit_code, None, commit=end.commit, nodes_inside=end.nodes_inside)
    if job.spec.program is not None:
        from orchestrator.reading.described import result_of_program  # only for such a program

        start = read_record(folder / "start")
        seconds = (end.at - start.at).total_seconds() if start is not None else None
        return result_of_program(job, folder, ending, seconds).judgement.verdict in MEASURED
    new = read_new(folder, {}, final=True, warmup_iterations=job.spec.warmup_iterations)
    lines = with_used(new.lines, job.spec.warmup_iterations)
    judgement, _ = _judged(job, folder, new.facts, lines, ending)
    return judgement is not None and judgement.verdict in MEASURED


def _judged(
    job: JobRow | NewJob, folder: Path, facts: LogFacts, lines: Sequence[IterationLine], ending: Ending
) -> tuple[Judgement | None, list[MeasuredMetric]]:
    """Return the judgement of an attempt from all lines of its log, None before its end, and its numbers."""
    prints_row = job.workload == ALPA_PROGRAM
    has_table = prints_row and ending.phase == ENDED
    rows = list(table_rows(tail_bytes(folder, TABLE, TABLE_BYTES))) if has_table else []
    report = LogReport(lines, facts, rows[-1] if rows else None)
    # The log is read once more only for an attempt that is not simply verified: its deciding line may be anywhere.
    judgement = judge(report, expected_of(job), ending, lambda: _cause(folder))
    numbers = []
    if judgement:
        numbers = row_metrics(facts, job.spec) if prints_row else metrics(lines, job.spec, facts)
    if judgement and judgement.verdict in MEASURED and not numbers:
        judgement = Judgement(FAILED, "no iteration is left after the warm-up", Failure.INCOMPLETE)
    return _without_impossible(judgement, numbers, lines)


def _without_impossible(
    judgement: Judgement | None, numbers: list[MeasuredMetric], lines: Sequence[IterationLine]
) -> tuple[Judgement | None, list[MeasuredMetric]]:
    """Return no numbers, and the verdict failed, if one of the numbers cannot have been measured."""
    wrong = next((metric for metric in numbers if not is_possible(metric)), None)
    if judgement is None or wrong is None:
        return judgement, numbers
    if judgement.verdict != FAILED:
        fastest = _fastest(lines)
        place = f" at iteration {fastest.iteration}: {fastest.elapsed_ms:g} ms per iteration give" if fastest else ":"
        why = f"impossible number{place} {wrong.name} {wrong.value:g} {wrong.unit}"
        judgement = Judgement(FAILED, why, Failure.NUMBERS)
    return judgement, []


def _fastest(lines: Sequence[IterationLine]) -> IterationLine | None:
    return min((line for line in lines if line.used), key=lambda line: line.elapsed_ms, default=None)


def _line_of_numbers(row: JobRow, lines: Sequence[IterationLine]) -> Cause | None:
    """Return the last line of the log about the first iteration with a wrong number, else about the fastest one."""
    wrong = next((line for line in lines if not line.is_finite), None) or _fastest(lines)
    if wrong is None:
        return None
    printed, cause = re.compile(rb"iteration +%d/" % wrong.iteration), None
    for block in log_blocks(Path(row.folder)):
        for match in printed.finditer(block):
            line = parse_line(block[slice(*line_around(block, match.start()))])
            cause = Cause(NOT_A_NUMBER, line.text.strip()[:LONGEST_LINE], line.rank)
    return cause


def _ending(row: JobRow) -> Ending:
    """Return the end of the attempt.

    Without an image pyxis only warns and runs a step on the host, so a job must prove that it ran in its image.
    """
    end = read_record(Path(row.folder) / "end") if row.phase == ENDED else None
    outside = None
    if row.phase == ENDED and row.image is not None and row.scheduler == "slurm":
        outside = end.outside_image if end else None
        if end is None or end.inside_image is None:
            outside = f"its end record does not prove that it ran inside {row.image}"
    return Ending(
        phase=row.phase,
        state=row.state,
        exit_code=row.exit_code,
        reason=row.reason,
        outside_image=outside,
        commit=end.commit if end else None,
        nodes_inside=end.nodes_inside if end else None,
    )


def _cause(folder: Path) -> Cause | None:
    """Search the whole log for the line that decided."""
    finder = CauseFinder()
    for block in log_blocks(folder):
        finder.feed(block)
    return finder.cause()


def _by_name(*lists: Iterable[MeasuredMetric]) -> tuple[MeasuredMetric, ...]:
    """Merge metrics. A later list replaces metrics of an earlier one: samples are more reliable than a log."""
    return tuple({metric.name: metric for metrics in lists for metric in metrics}.values())


def _gpu_hours(row: JobRow) -> list[MeasuredMetric]:
    """Return the cost of the attempt; none for processes on CPU cores."""
    if row.gpu_hours is None or row.spec.device == "cpu":
        return []
    return [MeasuredMetric("gpu_hours", row.gpu_hours, "h")]


# ---- new content of log files ---------------------------------------------------------------------------------

FINGERPRINT_BYTES = 4096
"""Bytes at a file's beginning, and before its offset, that identify it: a rewritten log does not have both again."""


@dataclass(frozen=True, slots=True)
class NewContent:
    """New content of an attempt's log files.

    `files` are the offsets after reading, `lines` the new iteration lines, `facts` all facts so far. If not
    `continues`, earlier lines do not count any more, and `lines` are all lines. `warnings` are one line each.
    """

    files: dict[str, FileOffset]
    lines: IterationLines
    facts: LogFacts
    continues: bool
    warnings: tuple[str, ...] = ()


def read_new(folder: Path, before: Mapping[str, FileOffset], *, final: bool, warmup_iterations: int = 0) -> NewContent:
    """Read the log files of a folder from the offsets `before`.

    An incomplete last line is left for the next time unless this is `final`. If each rank has a log file, several files
    may have the same iterations, so only the first file with iterations gives lines. If all files are gone, the facts
    so far still count. Raise Unreadable or ReproError as `log_files` does.
    """
    files = log_files(folder)
    facts = _stored_facts(before)
    if facts and not files:
        return NewContent(dict(before), IterationLines(), merged_facts(list(facts.values())), True)
    if facts and _are_the_same(files, before):
        read = [
            _read_file(file, before.get(file.name), facts.get(file.name, LogFacts()), final, warmup_iterations)
            for file in files
        ]
        source = next((name for name in (file.name for file in files) if _has_lines(facts.get(name))), None)
        if source is None or source == _source(read):
            return _new_content(read, continues=source is not None)
        # An earlier file has its first iterations now. The lines of the other file do not count any more.
    return _new_content(
        [_read_file(file, None, LogFacts(), final, warmup_iterations) for file in files], continues=False
    )


@dataclass(frozen=True, slots=True)
class _FileContent:
    """New content of one file."""

    offset: FileOffset
    facts: LogFacts
    parts: list[LogPart]
    warnings: Sequence[str] = ()


def _new_content(files: Sequence[_FileContent], continues: bool) -> NewContent:
    source = _source(files)
    parts = next((file.parts for file in files if file.offset.name == source), [])
    return NewContent(
        files={file.offset.name: file.offset for file in files},
        lines=effective_of(parts),
        facts=merged_facts([file.facts for file in files]),
        continues=continues and not any(part.is_restarted for part in parts),
        warnings=tuple(warning for file in files for warning in file.warnings),
    )


def _source(files: Sequence[_FileContent]) -> str | None:
    """Return the name of the first file with iterations."""
    return next((file.offset.name for file in files if _has_lines(file.facts)), None)


def _has_lines(facts: LogFacts | None) -> bool:
    return facts is not None and facts.last_iteration is not None


def _stored_facts(before: Mapping[str, FileOffset]) -> dict[str, LogFacts]:
    """Return the stored facts by file; nothing if another version of the program stored them."""
    try:
        return {name: LogFacts.from_json(file.facts) for name, file in before.items()}
    except ValueError:
        return {}


def _read_file(
    file: LogFile, before: FileOffset | None, facts: LogFacts, final: bool, warmup_iterations: int
) -> _FileContent:
    """Read one file from its offset."""
    start = end = before.bytes_read if before else 0
    if before is not None and file.size <= start:
        return _FileContent(before, facts, [])
    parts: list[LogPart] = []
    blocks = file.blocks(start)
    for block in blocks:
        part = read_part(block, facts, final, warmup_iterations)
        facts, end = part.facts, end + part.consumed
        parts.append(part)
    if before is not None and end == start:
        return _FileContent(before, facts, parts, blocks.warnings)
    offset = FileOffset(file.name, str(file.inode), end, _fingerprint(file, end), facts.as_json())
    return _FileContent(offset, facts, parts, blocks.warnings)


def _are_the_same(files: Sequence[LogFile], before: Mapping[str, FileOffset]) -> bool:
    """Return whether each file that was read exists, and still begins with the bytes that were read."""
    by_name = {file.name: file for file in files}
    return all(
        name in by_name
        and str(by_name[name].inode) == old.inode
        and _fingerprint(by_name[name], old.bytes_read) == old.fingerprint
        for name, old in before.items()
    )


def _fingerprint(file: LogFile, end: int) -> str:
    """Return a digest of the bytes at the file's beginning and of those before `end`."""
    opened = open_job_file(file.folder, file.name)
    if opened is None:
        return ""
    with opened:
        head = opened.read(min(end, FINGERPRINT_BYTES))
        opened.seek(max(0, end - FINGERPRINT_BYTES))
        return hashlib.sha256(head + opened.read(min(end, FINGERPRINT_BYTES))).hexdigest()[:32]
