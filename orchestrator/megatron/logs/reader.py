"""Reader of logs of the Megatron family: new content of log files, and its measurement."""

# ruff: noqa: ARG002  # the interface gives each reader what another one needs

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.files import open_job_file, tail_bytes
from orchestrator.job_spec import JobSpec
from orchestrator.ledger.measurements import MeasuredMetric, OffsetUpdate, positions
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import NewJob
from orchestrator.ledger.tables import ENDED, FAILED, MEASURED, FileOffset, IterationLine
from orchestrator.megatron.logs.alpa import ALPA_PROGRAM, TABLE, TABLE_BYTES, table_rows
from orchestrator.megatron.logs.iteration_lines import IterationLines
from orchestrator.megatron.logs.parse import LogFacts, LogPart, LogReport, effective_of, merged_facts, read_part
from orchestrator.megatron.logs.statistics import (
    can_be_measured,
    is_long_enough,
    joules,
    metrics,
    progress,
    row_metrics,
    with_used,
)
from orchestrator.megatron.logs.verdict import expected_of, judge
from orchestrator.megatron.spec import training_spec
from orchestrator.reading.cause_kinds import NOT_A_NUMBER, WHAT_RAN
from orchestrator.reading.causes import LONGEST_LINE, Cause, ProgramLines
from orchestrator.reading.failure import Ending, Failure, Judgement
from orchestrator.reading.gpu_samples import MeanPower
from orchestrator.reading.logs import LogFile, line_around, log_blocks, log_files, parse_line
from orchestrator.reading.reader import LogReader, LogReading, StoredLines
from orchestrator.reading.statistics import TAIL_BYTES, RunningProgress

_FIRST_LINES = 4
"""Stored lines of a running attempt that are checked again: the next lines show whether the first ones count."""
_ONLY_WHILE_RUNNING = ("version", "settings", "unfinished")
"""Facts, most of them by size, that are not stored after the verdict."""


WORLD = b"using world size: "

MEGATRON_LINES = ProgramLines(
    kinds=(
        (
            NOT_A_NUMBER,
            re.compile(r"\biteration +[0-9].{0,900}(?:number of nan iterations: {1,3}[1-9]|: [-+]?(?:nan|inf) \|)"),
        ),
        (WHAT_RAN, re.compile(r"using world size: [0-9]")),
    ),
    tokens=(b" nan |", b"inf |", WORLD),
    rare=re.compile(rb"number of nan iterations: {1,3}[1-9]"),
    starts=WORLD,
    works=b"elapsed time per iteration",
)
"""Lines that are no errors, and show why a job failed: where it started, what ran, and NaN. Lines of NaN iterations
have no literal of their own."""


class MegatronReader(LogReader):
    """Reader of logs with iteration lines, or with the result row of Alpa's benchmark."""

    lines = MEGATRON_LINES

    def progress(self, folder: Path, spec: JobSpec, iterations: int) -> RunningProgress | None:
        """Return the progress in the end of the log."""
        return progress(tail_bytes(folder, "log.txt", TAIL_BYTES), iterations, spec)

    def read(
        self,
        row: JobRow,
        before: Mapping[str, FileOffset],
        ending: Ending,
        stored: StoredLines,
        warnings: dict[str, None],
    ) -> LogReading | None:
        """Read the new content of the log files."""
        folder, has_ended = Path(row.folder), ending.phase == ENDED
        new = read_new(folder, before, final=has_ended, warmup_iterations=training_spec(row.spec).warmup_iterations)
        warnings |= dict.fromkeys(new.warnings)
        if not has_ended and positions(new.files) == positions(before):
            return None
        lines = stored(None if has_ended else _FIRST_LINES) if new.continues else []
        return self._reading(
            row, new, lines, ending, OffsetUpdate(before, _stored(new.files, has_ended), new.continues)
        )

    def _reading(
        self, row: JobRow, new: NewContent, stored: Sequence[IterationLine], ending: Ending, offsets: OffsetUpdate
    ) -> LogReading:
        """Return the reading of new content. `stored` are stored iterations; of a running attempt the first few."""
        before = {line.iteration: line for line in stored}
        by_number = before | {line.iteration: line for line in new.lines}
        merged = [by_number[number] for number in sorted(by_number)] if stored else new.lines
        lines = with_used(merged, training_spec(row.spec).warmup_iterations)
        reached = [line.iteration for line in lines[-1:]] + ([row.iteration] if new.continues and row.iteration else [])
        judgement, numbers = self._judged(row, Path(row.folder), new.facts, lines, ending)
        if judgement and judgement.failure is Failure.NUMBERS and judgement.cause is None:
            judgement = replace(judgement, cause=_line_of_numbers(row, lines))
        return LogReading(
            judgement,
            numbers,
            max(reached, default=None),
            tuple(line for line in lines if before.get(line.iteration) != line),
            execution=new.facts.execution,
            window=(new.facts.measured_from, new.facts.measured_until),
            offsets=offsets,
        )

    def judged(self, job: JobRow | NewJob, folder: Path, ending: Ending, seconds: float | None) -> Judgement | None:
        """Return the judgement of a job that has ended, from its whole log."""
        new = read_new(folder, {}, final=True, warmup_iterations=training_spec(job.spec).warmup_iterations)
        lines = with_used(new.lines, training_spec(job.spec).warmup_iterations)
        return self._judged(job, folder, new.facts, lines, ending)[0]

    def has_enough(self, log: bytes, spec: JobSpec) -> bool:
        """Return whether a job that was ended early has a result, from the end of its log."""
        return is_long_enough(log, training_spec(spec).warmup_iterations)

    def joules(self, power: MeanPower, metrics: Sequence[MeasuredMetric]) -> list[MeasuredMetric]:
        """Return the energy of an iteration and of a token."""
        return joules(power, metrics)

    def _judged(
        self, job: JobRow | NewJob, folder: Path, facts: LogFacts, lines: Sequence[IterationLine], ending: Ending
    ) -> tuple[Judgement | None, list[MeasuredMetric]]:
        """Return the judgement of an attempt from all lines of its log, None before its end, and its numbers."""
        prints_row = job.program == ALPA_PROGRAM
        has_table = prints_row and ending.phase == ENDED
        rows = list(table_rows(tail_bytes(folder, TABLE, TABLE_BYTES))) if has_table else []
        report = LogReport(lines, facts, rows[-1] if rows else None)
        # The log is read once more only for an attempt that is not simply verified: its deciding line may be anywhere.
        judgement = judge(report, expected_of(job), ending, lambda: self.cause(folder))
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
    wrong = next((metric for metric in numbers if not can_be_measured(metric)), None)
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


def _stored(files: Mapping[str, FileOffset], has_ended: bool) -> dict[str, FileOffset]:
    """Return the offsets with the facts to store."""
    dropped = _ONLY_WHILE_RUNNING if has_ended else ()
    return {
        name: replace(file, facts={fact: value for fact, value in file.facts.items() if fact not in dropped})
        for name, file in files.items()
    }


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
