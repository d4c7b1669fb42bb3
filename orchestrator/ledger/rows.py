"""Rows of the ledger as frozen dataclasses, read from the columns that have the names of their fields."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute, Session

from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import JobSpec, shown_changes
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import Attempt, Job, JsonObject, Run, RunJob, SchedulerKind, Table, rows_with

R = TypeVar("R")

_CACHED_SPECS = 4096


@dataclass(frozen=True, slots=True)
class Observation:
    """Current state of an attempt, as its scheduler reports it."""

    state: str
    phase: str
    reason: str | None = None
    nodes: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    seen_via: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow(Observation):
    """One submission of a job and its last state, without its script. `tables.Attempt` describes the columns."""

    attempt_id: int
    job_id: str
    run_id: str
    number: int
    scheduler: SchedulerKind
    host: str
    user: str | None = None
    pid: int | None = None
    pid_start_ticks: int | None = None
    machine: str | None = None
    slurm_cluster: str | None = None
    is_requeued: bool | None = None
    token: str
    array_index: int | None = None
    scheduler_id: str | None = None
    folder: str
    created_at: datetime
    submitted_at: datetime | None = None
    refreshed_at: datetime | None = None
    unseen_since: datetime | None = None
    iteration: int | None = None
    verdict: str | None = None
    verdict_reason: str | None = None
    failure: str | None = None
    deciding_line: str | None = None
    deciding_rank: int | None = None
    execution: str | None = None
    no_energy: str | None = None
    origin: str | None = None
    file: str = ""
    options: tuple[str, ...] = ()
    script_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrigin(AttemptRow):
    """One submission of a job, with what ran in it. The script is found by its digest."""

    gpus: int
    program: str
    code: str
    image: str | None = None
    image_digest: str | None = None

    @property
    def gpu_hours(self) -> float | None:
        """Return the hours of the attempt times its GPUs, or its processes on CPU cores; None before the end."""
        return None if self.elapsed_s is None else self.gpus * self.elapsed_s / 3600

    @property
    def elapsed_s(self) -> float | None:
        """Return the seconds from start to end; None before the end."""
        return (self.ended_at - self.started_at).total_seconds() if self.started_at and self.ended_at else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary(AttemptOrigin):
    """A job of an experiment with its latest attempt, without the job's configuration.

    `run_id` is the run that asked for the job. An earlier run may have made the attempt.
    """

    experiment: str
    scale: str
    cluster: str
    case_name: str
    iterations: int
    repeat: int = 1
    profile_file: str | None = None

    @property
    def label(self) -> str:
        """Return the case's name with the number of the repeat: `pp=8,gbs=32 #2`."""
        return self.case_name if self.repeat == 1 else f"{self.case_name} #{self.repeat}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow(JobSummary):
    """A job of an experiment with its latest attempt and its configuration."""

    spec: JobSpec

    @property
    def label(self) -> str:
        """Return the case's name with the number of the repeat and the changed arguments."""
        name = self.case_name if self.repeat == 1 else f"{self.case_name} #{self.repeat}"
        return " ".join(filter(None, [name, shown_changes(self.spec.argument_changes)]))


def submissions_of(attempts: Sequence[AttemptRow]) -> int:
    """Return how many of these attempts a scheduler has had."""
    return sum(attempt.scheduler_id is not None for attempt in attempts)


class RowReader(Generic[R]):
    """Reader of rows of one type: a query selects `columns`, and `rows` makes a dataclass of each result.

    A field is read from the column with its name in the first of `tables` that has one, unless `columns` names another.
    """

    def __init__(
        self, row_type: type[R], tables: Sequence[type[Table]], **columns: InstrumentedAttribute[Any] | sa.Label[Any]
    ) -> None:
        assert dataclasses.is_dataclass(row_type)
        self._row_type = row_type
        names = [field.name for field in dataclasses.fields(row_type)]
        # The constructor of a frozen dataclass with 50 fields takes half of the time of a read.
        self._setters: dict[str, Callable[[R, object], None]] = {
            name: getattr(row_type, name).__set__ for name in names
        }
        self._conversions = [(name, convert) for name, convert in _CONVERSIONS.items() if name in names]
        self.columns = tuple(columns[name] if name in columns else _column(tables, name) for name in names)

    def read(self, ledger: Ledger, query: sa.Select[Any]) -> list[R]:
        """Return the rows of a query. Their folders are where they are now."""
        with ledger.reading() as session:
            return list(self.rows(session.execute(query), ledger.run_folders()))

    def rows(self, results: Iterable[sa.Row[Any]], folders: Callable[[str], str] | None = None) -> Iterator[R]:
        """Yield a row for each result; with `folders`, its folder is where it is now."""
        setters = tuple(self._setters.values())
        conversions = [*self._conversions, ("folder", folders)] if folders else self._conversions
        for result in results:
            row = object.__new__(self._row_type)
            for set_field, value in zip(setters, result, strict=True):
                set_field(row, value)
            for name, convert in conversions:
                self._setters[name](row, convert(getattr(row, name)))
            yield row


def _column(tables: Sequence[type[Table]], name: str) -> InstrumentedAttribute[Any]:
    column: InstrumentedAttribute[Any] = next(getattr(table, name) for table in tables if hasattr(table, name))
    return column


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "options": lambda options: tuple(options or ()),
    "file": lambda file: file or "",
}


class _StoredSpec(sa.types.TypeDecorator["JobSpec"]):
    """Configuration of a job. Jobs of one case have the same text, which is parsed once."""

    impl = JsonObject
    cache_ok = True

    def result_processor(self, _dialect: sa.Dialect, _coltype: object) -> Callable[[Any], JobSpec]:
        """Return the conversion of a stored configuration."""

        def read(stored: Mapping[str, Any]) -> JobSpec:
            try:
                return JobSpec.from_json(stored)
            except TypeError as error:
                what = f"the configuration of a job is one of another version of repro ({error})"
                raise ReproError(Problem(what)) from None

        cached = functools.lru_cache(maxsize=_CACHED_SPECS)(lambda stored: read(json.loads(stored)))
        return lambda stored: cached(stored) if isinstance(stored, str) else read(stored)  # PostgreSQL


JOB_SPEC = sa.type_coerce(Job.configuration, _StoredSpec()).label("spec")

JOB_TABLES = (Attempt, Run, RunJob, Job)
JOB_SUMMARIES = RowReader(JobSummary, JOB_TABLES, attempt_id=Attempt.id, run_id=Run.id)
JOB_ROWS = RowReader(JobRow, JOB_TABLES, attempt_id=Attempt.id, run_id=Run.id, spec=JOB_SPEC)
ATTEMPTS = RowReader(AttemptRow, [Attempt], attempt_id=Attempt.id)
ATTEMPT_ORIGINS = RowReader(AttemptOrigin, [Attempt, Job], attempt_id=Attempt.id)


def attempts_by_job(session: Session, ledger: Ledger, job_ids: Collection[str]) -> dict[str, list[AttemptRow]]:
    """Return the attempts of each of these jobs that has one, the first one first."""
    query = sa.select(*ATTEMPTS.columns).order_by(Attempt.number)
    by_job: dict[str, list[AttemptRow]] = {}
    for attempt in ATTEMPTS.rows(rows_with(session, query, Attempt.job_id, job_ids), ledger.run_folders()):
        by_job.setdefault(attempt.job_id, []).append(attempt)
    return by_job
