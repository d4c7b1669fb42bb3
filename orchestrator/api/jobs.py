"""Jobs in the ledger: access to the ledger, selection of jobs, their status and their history."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typing_extensions import Unpack

from orchestrator.api import DEFAULT, Session, StateFilter
from orchestrator.errors import Problem, ReproError, did_you_mean, names_hint, require_none
from orchestrator.fields import Field, row_of, rows_of
from orchestrator.files import open_job_file
from orchestrator.job_spec import JobSpec, Value
from orchestrator.ledger.attempts import (
    RefreshResult,
    anything_to_refresh,
    attempts_of_jobs,
    described_axes,
    job_count,
    job_history,
    job_rows,
    job_summaries,
    last_seen,
    program_names,
    result_rows,
)
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.rows import JobRow, JobSummary
from orchestrator.ledger.tables import FAILED, LOST, MEASURED, OPEN, QUEUED, SUBMITTING
from orchestrator.paths import Folders
from orchestrator.reading.job_status import (
    ExperimentStatus,
    JobStatus,
    counted_jobs,
    duration,
    experiment_statuses,
    job_statuses,
)
from orchestrator.slurm.notation import STATES, base_state

if TYPE_CHECKING:
    from orchestrator.ledger.readonly_sql import Answer, Relation
    from orchestrator.reading.logs import RankLines

POLL_EVERY_S = 15.0
"""Minimum interval between two scheduler queries of a command that waits, over all terminals that share a ledger."""
SLURM_REFRESH_S = 3.0
"""Interval between two reads of a Slurm job's state while its log is followed."""
READ_EVERY_S = 0.5
"""Interval between two reads of a log that is followed."""


def update(ledger: Ledger, at_most_every_s: float = 0.0, *, running: bool = False) -> RefreshResult:
    """Ask the scheduler about open jobs, then read the logs and judge the jobs that have ended.

    The scheduler is not asked if any terminal asked it less than `at_most_every_s` ago. Logs are always read, but with
    infinity nothing is. With `running`, the new iterations of running jobs are stored too.
    """
    if math.isinf(at_most_every_s) or not anything_to_refresh(ledger):
        return RefreshResult()
    # Only here: `status` with no open job must start without the scheduler's and the parser's modules.
    from orchestrator.launch.refresh import refresh
    from orchestrator.reading.collect import collect

    refreshed = refresh(ledger, at_most_every_s)
    return RefreshResult((*refreshed.complaints, *collect(ledger, running=running)), refreshed.asked_at)


def updated_ledger(session: Session, *, running: bool = False) -> Ledger:
    """Return the ledger after an update; report what could not be read."""
    ledger = session.ledger()
    session.note(update(ledger, running=running).complaints)
    return ledger


def job_filter(
    ledger: Ledger | None,
    where: str | None = None,
    scale: str | None = None,
    cluster: str | None = None,
    program: str | None = None,
    state: str | None = None,
) -> Callable[[JobSummary], bool]:
    """Return a predicate for jobs; ReproError if a state, axis or program is unknown. `where` needs a JobRow.

    The programs that the ledger's jobs ran are known, and their axes.
    """
    states = _states(state)
    has = None if where is None else _settings_filter(ledger, where)
    if program is not None:
        from orchestrator.programs.record import require_program

        require_program(program, program_names(ledger) if ledger is not None else ())

    def matches(row: JobSummary) -> bool:
        if scale not in (None, row.scale) or cluster not in (None, row.cluster) or program not in (None, row.program):
            return False
        if states and not states & {base_state(row.state), (row.verdict or "").upper()}:
            return False
        return has is None or (isinstance(row, JobRow) and has(row.spec))

    return matches


def _settings_filter(ledger: Ledger | None, where: str) -> Callable[[JobSpec], bool]:
    """Return a predicate for the settings of a job, whose program may be any; ReproError for a wrong axis or value."""
    from orchestrator.catalog.case import is_typed, parse_where, typed_values
    from orchestrator.programs.record import programs

    typed = typed_values(where)
    of_axis = {axis: one.names.axes for one in programs().values() for axis in one.names.axes.columns}
    if others := [(axis, text) for axis, text in typed if axis not in of_axis]:
        known = dict.fromkeys([*of_axis, *(described_axes(ledger) if ledger is not None else ())])
        for axis, text in (one for one in others if one[0] not in known):
            raise ReproError(Problem(f"--where {axis}={text}: no such axis", hint=names_hint(axis, known)))
    wanted: dict[str, Value] = {}
    for axes in dict.fromkeys(of_axis.values()):
        wanted |= parse_where(",".join("=".join(one) for one in typed if of_axis.get(one[0]) is axes), axes)

    def matches(spec: JobSpec) -> bool:
        if spec.program is None:
            return all(spec.settings.get(axis) == wanted.get(axis, "") for axis, _ in typed)
        return all((value := spec.settings.get(axis)) is not None and is_typed(value, text) for axis, text in typed)

    return matches


def name_list(names: Sequence[str] | str) -> Sequence[str]:
    """Return the names; a lone name is a list of one."""
    return [names] if isinstance(names, str) else names


def job_states() -> list[str]:
    """Return the states and verdicts of jobs, in capitals: those of `repro`, then those of Slurm."""
    return list(dict.fromkeys([*(word.upper() for word in (*MEASURED, FAILED)), QUEUED, SUBMITTING, LOST, *STATES]))


def _states(text: str | None) -> set[str]:
    """Return the states and verdicts of a list such as `running,timeout`, in capitals; ReproError if one is unknown."""
    names = [] if text is None else [name.strip() for name in text.split(",")]
    known = job_states()
    hint = "a state of Slurm (PENDING, RUNNING, TIMEOUT, ...), QUEUED, verified, partial or failed"
    require_none(
        Problem(f"--state {name}: no such state", hint=did_you_mean(name.upper(), known) or hint)
        for name in names
        if name.upper() not in known
    )
    return {name.upper() for name in names}


def select_jobs(
    ledger: Ledger, folders: Folders, targets: Sequence[str], **selection: Unpack[StateFilter]
) -> list[JobRow]:
    """Return the jobs of these experiments, job ids, starts of job ids and scheduler ids."""
    from orchestrator.catalog.library import experiment_names, full_name, names_meant  # not for `status`

    matches, names = job_filter(ledger, **selection), experiment_names(folders)
    chosen: dict[int, JobRow] = {}
    for target in targets:
        if names_meant(names, target):
            rows = job_rows(ledger, experiment=full_name(folders, target))
        else:
            rows = [_job_with_id(ledger, target)]
        chosen |= {row.attempt_id: row for row in rows if matches(row)}
    return list(chosen.values())


def _job_with_id(ledger: Ledger, target: str) -> JobRow:
    rows = job_rows(ledger, job_prefix=target)
    rows = rows or [row for row in job_rows(ledger) if row.scheduler_id == target]
    ids = sorted({row.job_id for row in rows})
    if not ids:
        raise ReproError(Problem("no experiment or job of this name", f"{target}:", "repro status shows the jobs"))
    if len(ids) > 1:
        raise ReproError(Problem(f"matches several jobs: {', '.join(ids[:5])}", f"{target}:", "give more of the id"))
    return rows[0]


def one_job(ledger: Ledger, folders: Folders, target: str) -> JobRow:
    """Return the only job of a target; ReproError if it has several or none."""
    rows = select_jobs(ledger, folders, [target])
    if len(rows) != 1:
        raise ReproError(Problem(f"{len(rows)} jobs, expected one", f"{target}:", "repro status shows the jobs"))
    return rows[0]


def history(job: str, *, session: Session = DEFAULT) -> JobHistory:
    """Return every attempt of a job with its measurements and events."""
    ledger = session.ledger()
    row = one_job(ledger, session.folders, job)
    session.note(update(ledger).complaints)
    attempts = job_history(ledger, row.job_id)
    if not attempts:
        raise ReproError(Problem("no attempt can be read", f"{row.job_id}:"))
    return JobHistory(
        row, tuple(row_of(JobAttempt, one, row, events=rows_of(JobEvent, one.events)) for one in attempts)
    )


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of an attempt."""

    at: datetime
    event: Annotated[str, Field(of="kind")]
    detail: str | None


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """An attempt of a job, with its measurements by name, and its events."""

    job: Annotated[str, Field(of="job_id")]
    experiment: str
    scale: str
    cluster: str
    case: Annotated[str, Field(of="case_name")]
    repeat: int
    program: str
    number: int
    run_id: str
    scheduler: str
    scheduler_id: str | None
    host: str
    user: str | None
    nodes: str | None
    state: str
    reason: str | None
    verdict: str | None
    verdict_reason: str | None
    failure: str | None
    execution: str | None
    exit_code: int | None
    signal: int | None
    origin: str | None
    created_at: datetime
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    folder: str
    image: str | None
    image_digest: str | None
    metrics: Mapping[str, MeasuredMetric]
    events: Sequence[JobEvent]


@dataclass(frozen=True, slots=True)
class JobHistory:
    """A job with all its attempts, the first one first."""

    job: JobRow
    attempts: tuple[JobAttempt, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """Status of jobs and the counts of their experiments; only the counts where there are too many jobs to list.

    `asked_at` is when the scheduler was last asked (UTC). `is_submitted` is False if the ledger has no jobs.
    """

    jobs: tuple[JobStatus, ...]
    experiments: tuple[ExperimentStatus, ...]
    tallies: tuple[ExperimentStatus, ...]
    notes: tuple[str, ...]
    is_open: bool
    asked_at: datetime | None
    is_submitted: bool = True


def status(
    experiment: str | None = None,
    *,
    failed: bool = False,
    most_jobs: int | None = None,
    at_most_every_s: float = 0.0,
    session: Session = DEFAULT,
    **selection: Unpack[StateFilter],
) -> Status:
    """Return the status of all jobs, or of those that match.

    With `failed`, only jobs whose latest attempt failed. `state` is that of the latest attempt or of the result. If
    nothing is selected and there are more than `most_jobs`, the experiments are counted instead.
    """
    state = selection.pop("state", None)
    ledger = session.existing_ledger()
    matches, has_state = job_filter(ledger, **selection), job_filter(ledger, state=state)
    if ledger is None:
        return Status((), (), (), (), False, None, is_submitted=False)
    name = None
    if experiment is not None:
        from orchestrator.catalog.library import full_name  # loads YAML

        name = full_name(session.folders, experiment)
    result = update(ledger, at_most_every_s)
    notes = tuple(_notes(ledger, result))
    selects = experiment is not None or failed or state is not None or any(selection.values())
    if most_jobs is not None and not selects and job_count(ledger) > most_jobs:
        experiments, total = experiment_statuses(ledger)
        return Status((), tuple(experiments), (total,), notes, bool(total.running or total.waiting), result.asked_at)
    read = job_summaries if selection.get("where") is None else job_rows
    rows = [row for row in read(ledger, experiment=name) if matches(row) and (not failed or row.verdict == FAILED)]
    if state is not None:
        chosen = {row.job_id for row in (*rows, *result_rows(ledger, rows).rows) if has_state(row)}
        rows = [row for row in rows if row.job_id in chosen]
    is_open = any(row.phase in OPEN for row in rows)
    results = result_rows(ledger, rows)
    jobs, counts = tuple(job_statuses(ledger, results)), tuple(counted_jobs(ledger, results))
    submitted = selects or bool(rows)
    return Status(jobs, counts, counts, notes, is_open, result.asked_at, is_submitted=submitted)


def _notes(ledger: Ledger, result: RefreshResult) -> list[str]:
    """Return what could not be learned, and the age of the states for that reason."""
    notes = [f"note: {complaint}" for complaint in result.complaints]
    seen = last_seen(ledger) if notes else None
    if seen is not None and (result.asked_at is None or seen < result.asked_at):
        notes.append(f"note: states are from {duration((now() - seen).total_seconds())} ago")
    return notes


def job_ids() -> list[str]:
    """Return the ids of all jobs, for completion."""
    ledger = DEFAULT.existing_ledger()
    return [row.job_id for row in job_summaries(ledger)] if ledger else []


def submitted_programs() -> list[str]:
    """Return the names of the programs that jobs ran, for completion."""
    ledger = DEFAULT.existing_ledger()
    return program_names(ledger) if ledger else []


@dataclass(frozen=True, slots=True)
class JobLog:
    """Log of an attempt. `pieces` yields its bytes once, while it grows if it is followed."""

    job: JobRow
    pieces: Iterator[bytes]

    def read(self) -> bytes:
        """Return all bytes of the log."""
        return b"".join(self.pieces)


def logs(
    job: str, *, rank: int | None = None, attempt: int | None = None, follow: bool = False, session: Session = DEFAULT
) -> JobLog:
    """Return the log of a job, or the lines of one rank; of the latest attempt, or of the given one.

    With `follow`, it is read until the job has ended, through all its attempts.
    """
    from orchestrator.reading.logs import RankLines, ranks_per_task  # not for `status`

    ledger = session.ledger()
    row = one_job(ledger, session.folders, job)
    if rank is not None and not 0 <= rank < row.gpus:
        raise ReproError(Problem(f"--rank {rank}: the job has {row.gpus} ranks", hint=f"0 to {row.gpus - 1}"))
    folder = _attempt_folder(ledger, row, row.number if attempt is None else attempt)
    lines = None if rank is None else RankLines(rank, ranks_per_task(folder, row))
    return JobLog(row, _pieces(session, ledger, row, folder, lines, attempt, follow))


def _pieces(
    session: Session,
    ledger: Ledger,
    row: JobRow,
    folder: Path,
    lines: RankLines | None,
    attempt: int | None,
    follow: bool,
) -> Iterator[bytes]:
    from orchestrator.reading.logs import GrowingLog, file_blocks  # not for `status`

    is_empty, shown = True, row.number if attempt is None else attempt
    reported: set[str] = set()
    log, next_refresh = GrowingLog(folder, session.reporter.message), 0.0
    while True:
        if follow and time.monotonic() >= next_refresh:
            from orchestrator.launch.refresh import refresh  # only to follow

            complaints = refresh(ledger, POLL_EVERY_S).complaints
            session.note(complaint for complaint in complaints if complaint not in reported)
            reported.update(complaints)
            row = next((same for same in job_rows(ledger, job_prefix=row.job_id) if same.job_id == row.job_id), row)
            next_refresh = time.monotonic() + (SLURM_REFRESH_S if row.scheduler == "slurm" else 0.0)
        for block in log.new_blocks():
            piece = block if lines is None else lines.feed(block)
            is_empty = is_empty and not piece
            yield piece
        if follow and attempt is None and row.number != shown:
            shown = row.number
            session.reporter.message(f"attempt {shown} of {row.job_id}: {row.scheduler_id or row.state}")
            log = GrowingLog(Path(row.folder), session.reporter.message)
            continue
        if not follow or row.phase not in OPEN or row.number != shown:
            break
        time.sleep(READ_EVERY_S)
    if lines is None:
        # The output of the script itself: empty unless something failed around the program.
        batch = open_job_file(log.folder, "batch.txt")
        for block in file_blocks(batch) if batch is not None else ():
            is_empty = False
            yield block
    else:
        end = lines.end()
        is_empty = is_empty and not end
        yield end
    if is_empty:
        _report_empty(session, row, log.folder, lines)


def _report_empty(session: Session, row: JobRow, folder: Path, lines: RankLines | None) -> None:
    """Report that there is no output, or no line of a rank; ReproError if a log has no labels of ranks."""
    report, job = session.reporter.message, f"{row.job_id} ({row.label})"
    if lines is None:
        if row.phase in OPEN:
            report(f"{job} has no output yet; its state is {row.state}")
        else:
            report(f"{job} has no output: {row.verdict_reason or row.state}; repro history {row.job_id} has its events")
        for log in sorted(folder.parent.glob("warm-up-*/log.txt")):
            report(f"it waits for the kernels that another job compiles: {log}")
    elif lines.labels_seen:
        report(f"rank {lines.rank} of {job} has no labelled lines yet")
    else:
        what = f"{job}: no line of its log has the label of a rank"
        raise ReproError(Problem(what, hint=f"repro logs {row.job_id} prints all lines"))


def _attempt_folder(ledger: Ledger, row: JobRow, number: int) -> Path:
    if number == row.number:
        return Path(row.folder)
    attempts = {of_job.number: of_job.folder for of_job in attempts_of_jobs(ledger, [row.job_id])[row.job_id]}
    if number not in attempts:
        hint = f"1 to {row.number}" if row.number > 1 else "there is only the first"
        raise ReproError(Problem(f"--attempt {number}: {row.job_id} has no such attempt", hint=hint))
    return Path(attempts[number])


@contextmanager
def query(sql: str, *, session: Session = DEFAULT) -> Iterator[Answer]:
    """Run one SELECT on the ledger, read-only; rows are fetched while they are read."""
    from orchestrator.ledger.readonly_sql import asked  # not for `status`

    ledger = session.ledger()
    if anything_to_refresh(ledger):
        session.note(["open jobs have their last recorded state; `repro collect` reads their logs first"])
    with asked(ledger, sql) as answer:
        yield answer


def relations(*, session: Session = DEFAULT) -> list[Relation]:
    """Return the views and tables of the ledger with their columns."""
    from orchestrator.ledger.readonly_sql import relations as ledger_relations  # not for `status`

    return ledger_relations(session.ledger())
