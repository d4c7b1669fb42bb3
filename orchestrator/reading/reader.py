"""Reader of the output of a program: what `collect`, `status` and `bundle verify` ask it."""

# ruff: noqa: ARG002  # the interface gives each reader what another one needs

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Problem, ReproError, names_hint
from orchestrator.job_spec import JobSpec
from orchestrator.ledger.measurements import MeasuredMetric, MeasuredRow, OffsetUpdate
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import NewJob
from orchestrator.ledger.tables import ENDED, FileOffset, IterationLine
from orchestrator.programs.plug_ins import Registry, called
from orchestrator.programs.record import DESCRIBED, find_program, program_name
from orchestrator.reading.causes import ANY_PROGRAM, Cause, CauseFinder, ProgramLines
from orchestrator.reading.failure import Ending, Judgement, LogFindings, judgement_of
from orchestrator.reading.gpu_samples import MeanPower
from orchestrator.reading.logs import log_blocks
from orchestrator.reading.statistics import RunningProgress

StoredLines = Callable[[int | None], list[IterationLine]]
"""Returns the first lines that the ledger has of an attempt; all lines for None."""


@dataclass(frozen=True, slots=True)
class LogReading:
    """New content of an attempt's files. The judgement is None before its end.

    `iterations` are those that are new or have changed. `window` is the first and last time of the measured iterations,
    as the log prints them. `offsets` show how far each file was read.
    """

    judgement: Judgement | None
    metrics: Sequence[MeasuredMetric] = ()
    iteration: int | None = None
    iterations: tuple[IterationLine, ...] = ()
    rows: tuple[MeasuredRow, ...] = ()
    execution: str | None = None
    window: tuple[str | None, str | None] = (None, None)
    offsets: OffsetUpdate | None = None


class LogReader:
    """Reader of a program whose output is not read: the end of a job and the errors in its log decide.

    `lines` are those of the program that the search for the cause of a failure uses.
    """

    lines: ProgramLines = ANY_PROGRAM

    def progress(self, folder: Path, spec: JobSpec, iterations: int) -> RunningProgress | None:
        """Return the progress of a running job with this number of planned iterations; None if it shows none."""
        return None

    def read(
        self,
        row: JobRow,
        before: Mapping[str, FileOffset],
        ending: Ending,
        stored: StoredLines,
        warnings: dict[str, None],
    ) -> LogReading | None:
        """Read the files of an attempt that were read up to `before`; None if a running one has nothing new."""
        return LogReading(self.judged(row, Path(row.folder), ending, None)) if ending.phase == ENDED else None

    def judged(self, job: JobRow | NewJob, folder: Path, ending: Ending, seconds: float | None) -> Judgement | None:
        """Return the judgement of a job that has ended after these seconds, from its whole folder."""
        return judgement_of(LogFindings(), ending, lambda: self.cause(folder))

    def has_enough(self, log: bytes, spec: JobSpec) -> bool:
        """Return whether a job that was ended early has a result, from the end of its log."""
        return False

    def joules(self, power: MeanPower, metrics: Sequence[MeasuredMetric]) -> list[MeasuredMetric]:
        """Return the energy that follows from the mean power of all GPUs and the metrics of a job."""
        return []

    def cause(self, folder: Path) -> Cause | None:
        """Search the whole log for the line that decided."""
        finder = CauseFinder(self.lines)
        for block in log_blocks(folder):
            finder.feed(block)
        return finder.cause()


def _checked(_: str, found: object) -> type[LogReader]:
    if not (isinstance(found, type) and issubclass(found, LogReader)):
        raise TypeError("is no class of reading.reader.LogReader")
    return found


READERS = Registry("repro.readers", _checked)


def reader_of(program: str, described: Mapping[str, object] | None = None) -> LogReader:
    """Return the reader of a program, `described` by an experiment or known by its name. ReproError without one."""
    output = described.get("output") if described is not None else None
    if isinstance(output, Mapping) and "reader" in output:
        name = str(output["reader"])
        if (kind := READERS.find(name)) is None:
            hint = names_hint(name, READERS.names())
            raise ReproError(Problem(f"{name}: no such reader", hint=hint), *READERS.broken())
        return kind()
    known = DESCRIBED.reader if described is not None else find_program(program_name(program)).reader
    return called(known, "reader", LogReader) if known is not None else LogReader()
