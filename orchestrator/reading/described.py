"""Verdict, numbers and progress of a job whose program the experiment describes."""

# ruff: noqa: ARG002  # the interface gives each reader what another one needs

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from orchestrator.errors import ReproError
from orchestrator.files import Unreadable, tail_bytes
from orchestrator.job_spec import JobSpec, Value
from orchestrator.ledger.measurements import MeasuredMetric, MeasuredRow
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import NewJob
from orchestrator.ledger.tables import ENDED, FAILED, FileOffset
from orchestrator.programs.output import OutputProblem, OutputValue, ProgramOutput, Scalar, last_iteration
from orchestrator.programs.program import ProgramFields, failure_line, judge_output
from orchestrator.programs.record import recorded_program
from orchestrator.reading.causes import LONGEST_LINE, Cause
from orchestrator.reading.failure import DECIDES_ANY_END, Ending, Judgement, LogFindings, judgement_of, other_commit
from orchestrator.reading.logs import LogFile, file_of_job, log_blocks, log_files, parse_line, text_lines
from orchestrator.reading.reader import LogReader, LogReading, StoredLines
from orchestrator.reading.statistics import ENOUGH_SAMPLES, TAIL_BYTES, RunningProgress, sample_that_counts
from orchestrator.text import counted, printable_line

_MOST_PROBLEMS = 5
"""Problems of an output that the reason of a verdict contains."""
_LONGEST_PROBLEM = 300

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TASK = re.compile(rb"\A *[0-9]{1,9}: ")
_PROCESS = re.compile(rb"\A\[(?:[\w.-]{1,100}@)?[0-9]{1,9},[0-9]{1,9}\]<std(?:out|err)>:? ?")


class DescribedReader(LogReader):
    """Reader of the output of a program that an experiment describes, by the record in the job's configuration."""

    def progress(self, folder: Path, spec: JobSpec, iterations: int) -> RunningProgress | None:
        """Return the last iteration in the end of the output."""
        program = recorded_program(json.dumps(spec.program))
        if program.output.iterations is None:
            return None
        iteration = last_iteration(program.output, tail_bytes(folder, program.output.file or "log.txt", TAIL_BYTES))
        return None if iteration is None else RunningProgress(iteration)

    def read(
        self,
        row: JobRow,
        before: Mapping[str, FileOffset],
        ending: Ending,
        stored: StoredLines,
        warnings: dict[str, None],
    ) -> LogReading | None:
        """Return the verdict and the numbers of an ended job, or the new iteration of a running one."""
        folder = Path(row.folder)
        if ending.phase == ENDED:
            return result_of_program(row, folder, ending, row.elapsed_s, warnings)
        current = self.progress(folder, row.spec, row.iterations)
        return LogReading(None, iteration=current.iteration) if current and current.iteration != row.iteration else None

    def judged(self, job: JobRow | NewJob, folder: Path, ending: Ending, seconds: float | None) -> Judgement | None:
        """Return the judgement of a job that has ended."""
        return result_of_program(job, folder, ending, seconds, {}).judgement


def result_of_program(
    job: JobRow | NewJob, folder: Path, ending: Ending, seconds: float | None, warnings: dict[str, None]
) -> LogReading:
    """Return the verdict and the numbers of a job that has ended after these seconds."""
    program = recorded_program(json.dumps(job.spec.program))
    file, absent = _output_file(program, folder)
    blocks = file.blocks() if file is not None else None
    lines = _without_labels(text_lines(blocks or ()), job.scheduler)
    judged = judge_output(program, _settings(job), lines, ending.exit_code, seconds)
    output = judged.output
    lacking = [*absent, *(problem for problem in judged.problems if problem.kind != "wrong")]
    samples = [output.iterations[number] for number in sorted(output.iterations)][program.warmup :]
    if program.output.of_iterations and output.iterations and not samples:
        lacking.append(OutputProblem("no iteration is left after the warm-up"))
    wrong = [problem for problem in judged.problems if problem.kind == "wrong"]
    stopped: list[OutputProblem] = []
    findings = LogFindings(
        differs=list(other_commit(ending.commit, job.code if _COMMIT.fullmatch(job.code) else None)),
        reasons=_shown(wrong),
        lacking=_shown(lacking),
        is_finite=bool(lacking),
        at_limit=lambda cause: _result_at_limit(program, output, lacking, len(samples), cause),
        own_failure=lambda: _own_failure(program, folder, job.scheduler, stopped),
    )
    judgement = judgement_of(findings, ending, lambda: LogReader().cause(folder))
    if judgement.verdict == FAILED and judgement.cause is None and file is not None:
        judgement = replace(judgement, cause=_line_of_problem(file, [*wrong, *lacking]))
    if stopped:
        judgement = replace(judgement, reason="; ".join(filter(None, [judgement.reason, *_shown(stopped)])))
    warnings |= dict.fromkeys(blocks.warnings if blocks else ())
    metrics = list(_metrics(program, output, samples))
    return LogReading(judgement, metrics, max(output.iterations, default=None), rows=tuple(_rows(program, output)))


def _output_file(program: ProgramFields, folder: Path) -> tuple[LogFile | None, list[OutputProblem]]:
    """Return the file with the output, and why there is none. Raise Unreadable if it may not be read."""
    name = program.output.file
    try:
        file = file_of_job(folder, name) if name is not None else next(iter(log_files(folder)), None)
    except Unreadable:
        raise
    except ReproError as error:
        return None, [OutputProblem(f"{name or 'the log'} {error.problems[0].what}")]
    return file, [] if file is not None else [OutputProblem(f"{name or 'log.txt'} is not in the job's folder")]


def _without_labels(lines: Iterable[bytes], scheduler: str) -> Iterator[bytes]:
    """Return the lines without the label of `srun`, which is the number of the task, or of `mpirun`."""
    label = _TASK if scheduler == "slurm" else _PROCESS
    return (label.sub(b"", line) for line in lines)


def _settings(job: JobRow | NewJob) -> Mapping[str, Scalar]:
    nodes = {"nodes": job.spec.resources.nodes} if job.spec.resources is not None else {}
    return {"gpus": job.gpus, **nodes, **job.spec.settings}


def _shown(problems: Sequence[OutputProblem]) -> list[str]:
    """Return the first problems in one line each, and the number of the others."""
    first = [printable_line(problem.text)[:_LONGEST_PROBLEM] for problem in problems[:_MOST_PROBLEMS]]
    return [*first, f"{len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else first


def _result_at_limit(
    program: ProgramFields, output: ProgramOutput, lacking: Sequence[OutputProblem], samples: int, cause: Cause | None
) -> str | None:
    """Return how far a job came until its time limit; None if that is not a result: a table may be cut off."""
    if not lacking and program.verified is not None:
        return "reached its time limit after its output was complete"
    if cause is not None and cause.kind in DECIDES_ANY_END:
        return None
    if samples < ENOUGH_SAMPLES or any(problem.kind != "iterations" for problem in lacking):
        return None
    last = max(output.iterations)
    return f"reached its time limit at iteration {last}, with {counted(samples, 'sample')}"


def _own_failure(program: ProgramFields, folder: Path, scheduler: str, stopped: list[OutputProblem]) -> Cause | None:
    """Return the log line of a failure class of the program. Add the patterns that were stopped."""
    found = failure_line(program, _without_labels(text_lines(log_blocks(folder)), scheduler))
    stopped += map(OutputProblem, found.problems)
    return _cause_at(found.failure, log_blocks(folder), found.line) if found.failure is not None else None


def _line_of_problem(file: LogFile, problems: Sequence[OutputProblem]) -> Cause | None:
    """Return the line of the first problem that has one."""
    place = next((problem.line for problem in problems if problem.line), 0)
    return _cause_at("output", file.blocks(), place) if place else None


def _cause_at(kind: str, blocks: Iterable[bytes], number: int) -> Cause | None:
    raw = next(islice(text_lines(blocks), number - 1, None), None)
    if raw is None:
        return None
    line = parse_line(raw.rstrip().rpartition(b"\r")[2])  # the last state of a progress bar
    return Cause(kind, line.text.strip()[:LONGEST_LINE], line.rank)


def _metrics(
    program: ProgramFields, output: ProgramOutput, samples: Sequence[Mapping[str, OutputValue]]
) -> Iterator[MeasuredMetric]:
    """Yield the metrics of the whole job: values that the output has once, and statistics of iterations."""
    for name, fields in program.metrics.items():
        unit = fields.unit or ""
        if name in program.output.of_iterations:
            values = [value for found in samples if (value := _number(found.get(name))) is not None]
            if values:
                yield sample_that_counts(name, unit, fields.take, values)
        elif (value := _number(output.values.get(name))) is not None:
            yield MeasuredMetric(name, value, unit)


def _rows(program: ProgramFields, output: ProgramOutput) -> Iterator[MeasuredRow]:
    """Yield the rows of the output with their metrics."""
    for key, row in output.rows.items():
        values = ((name, fields.unit or "", _number(row.get(name))) for name, fields in program.metrics.items())
        metrics = (MeasuredMetric(name, value, unit) for name, unit, value in values if value is not None)
        named: dict[str, Value] = dict(zip(program.output.key, map(_key_value, key), strict=True))
        yield MeasuredRow(named, tuple(metrics))


def _key_value(value: Scalar) -> Value:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(found: OutputValue | None) -> float | None:
    """Return the number if it is finite."""
    value = found.value if found is not None else None
    return value if isinstance(value, float) and math.isfinite(value) else None
