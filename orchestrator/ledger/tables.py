"""Tables and views of the ledger. The scheduler's state and the verdict are two columns.

A run is one `repro submit`. A job is identified by the hash of its configuration. An attempt is one submission of a
job.

SQLite stores any value in any column, so each column has a CHECK that its type makes. A wrong value is refused when it
is written, by whichever program. Times are UTC without a zone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import sqlalchemy as sa
from sqlalchemy import BigInteger, ForeignKey, Index, MetaData, TableClause, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from orchestrator.fields import Field
from orchestrator.ledger.sqlite_file import SCHEMA

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    Columns = TypeVarTuple("Columns")

SUBMITTING, WAITING, RUNNING, ENDED = "submitting", "waiting", "running", "ended"
"""Phases of an attempt. Each state of a scheduler belongs to one."""
OPEN = (SUBMITTING, WAITING, RUNNING)
VERIFIED, PARTIAL, FAILED = "verified", "partial", "failed"
"""Verdicts on an attempt, decided from its log: a partial one reached its time limit after enough samples."""
MEASURED = (VERIFIED, PARTIAL)
"""Verdicts of attempts whose numbers count, the better one first."""
NEVER_SUBMITTED = "NEVER_SUBMITTED"
LOST = "LOST"
"""State of an attempt that its scheduler no longer lists. It is revised if the scheduler lists the job again."""
QUEUED = "QUEUED"
"""State of an attempt that is recorded and not submitted yet."""
CANCELLED_BY, STOPPED_AFTER = "cancelled by ", "stopped after "
"""Beginnings of the reason of an attempt that a user cancelled, and of one that `repro` cancelled before it started."""


_SLICE = 900

SchedulerKind = Literal["slurm", "local"]
"""Scheduler of an attempt: Slurm, or the queue of this machine, which also starts the jobs of `mpirun` clusters."""

T = TypeVar("T")

_LARGEST = "1.7976931348623157e308"
_TIME = "[12][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9][0-9][0-9][0-9]"


class Word(sa.String):
    """Text that is one of a few words."""

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.words = words


class FiniteNumber(sa.types.TypeDecorator[float]):
    """A finite number. NaN and infinity become NULL, because only some databases can store them."""

    impl = sa.Double
    cache_ok = True
    python_type = float

    def bind_processor(self, _dialect: sa.Dialect) -> Callable[[float | None], float | None]:
        """Return the conversion of a number; it is the fastest hook, as a log has many numbers."""
        is_finite = math.isfinite
        return lambda value: value if value is not None and is_finite(value) else None


class Time(sa.types.TypeDecorator[datetime]):
    """A time in UTC, without a zone."""

    impl = sa.DateTime
    cache_ok = True
    python_type = datetime

    def process_bind_param(self, value: datetime | None, _dialect: sa.Dialect) -> datetime | None:
        """Return the time. Raise ValueError if it has a zone, which the database would drop."""
        if value is not None and value.tzinfo is not None:
            raise ValueError(f"{value} has a time zone")
        return value


class JsonObject(sa.JSON):
    """JSON: an object."""

    python_type: type[object] = dict
    sqlite_type = "object"

    def __init__(self, none_as_null: bool = True) -> None:
        super().__init__(none_as_null)


class JsonTexts(JsonObject):
    """JSON: a list of texts."""

    python_type = list
    sqlite_type = "array"


class Masked(sa.types.TypeDecorator[object]):
    """Text, or JSON of the given type, that is stored without secrets."""

    impl: sa.types.TypeEngine[Any] | type[sa.types.TypeEngine[Any]] = sa.Text
    cache_ok = True

    def __init__(self, json: sa.types.TypeEngine[Any] | None = None) -> None:
        super().__init__()
        self.impl = json or self.impl

    @property
    def python_type(self) -> type[Any]:
        """The type of the values."""
        return self.impl_instance.python_type

    def process_bind_param(self, value: object, _dialect: sa.Dialect) -> object:
        """Return the value without secrets."""
        from orchestrator.masking import masked, masked_tree  # what only reads needs no patterns

        return masked(value) if isinstance(value, str) else masked_tree(value)


def check_in_sqlite(column: sa.Column[object]) -> sa.CheckConstraint:
    """Return the constraint that a value of the column has its type. NOT NULL is a constraint of its own."""
    name, kind = f'"{column.name}"', column.type
    kind = kind.impl_instance if isinstance(kind, Masked) else kind
    if isinstance(kind, Word):
        condition = f"{name} IN ({', '.join(map(repr, kind.words))})"
    elif isinstance(kind, JsonObject):
        is_of_type = f"json_type({name}) = '{kind.sqlite_type}'"
        condition = f"CASE WHEN json_valid({name}) THEN {is_of_type} ELSE {name} IS NULL END"
    elif isinstance(kind, Time):
        condition = f"typeof({name}) IN ('text', 'null') AND {name} GLOB '{_TIME}'"
    elif isinstance(kind, FiniteNumber):
        condition = f"typeof({name}) IN ('real', 'null') AND abs({name}) <= {_LARGEST}"
    elif isinstance(kind, sa.Boolean):
        condition = f"{name} IN (0, 1)"
    else:
        condition = f"typeof({name}) IN ('{'integer' if isinstance(kind, sa.Integer) else 'text'}', 'null')"
    return sa.CheckConstraint(sa.literal_column(condition)).ddl_if(dialect="sqlite")


class Table(DeclarativeBase):
    """Base class of the ledger's tables."""

    type_annotation_map = {
        datetime: Time,
        float: FiniteNumber,
    }
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Run(Table):
    """One `repro submit`: user, time, command, code, profile and options."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(primary_key=True)
    experiment: Mapped[str] = mapped_column(index=True)
    scale: Mapped[str]
    cluster: Mapped[str]
    created_at: Mapped[datetime]
    user: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int]
    command: Mapped[list[str]] = mapped_column(Masked(JsonTexts()))
    git_commit: Mapped[str | None]
    git_dirty: Mapped[bool | None]
    versions: Mapped[dict[str, object]] = mapped_column(Masked(JsonObject()))
    profile: Mapped[dict[str, object]] = mapped_column(Masked(JsonObject()))
    profile_file: Mapped[str | None]
    run_options: Mapped[dict[str, object]] = mapped_column(JsonObject)


class Job(Table):
    """A case on a cluster. `id` is the hash of its non-default configuration, image, code and number of the repeat.

    `image_digest` is the digest of an image that was imported, else the identity of its file; NULL if neither is known.
    """

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True)
    cluster: Mapped[str]
    program: Mapped[str]
    code: Mapped[str] = mapped_column(Masked)
    image: Mapped[str | None] = mapped_column(Masked)
    image_digest: Mapped[str | None]
    configuration: Mapped[dict[str, object]] = mapped_column(Masked(JsonObject()))
    gpus: Mapped[int]
    iterations: Mapped[int]
    repeat: Mapped[int] = mapped_column(server_default="1")
    created_at: Mapped[datetime]


class RunJob(Table):
    """A job that a run requested, new or existing, and the name of its case. Figures and cases may share a job."""

    __tablename__ = "run_jobs"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    case_name: Mapped[str]


class Attempt(Table):
    """One submission of a job.

    `state` is the scheduler's state, `QUEUED` before the submission, `SUBMITTING` until the scheduler answers, or
    `NEVER_SUBMITTED`. `phase` is the phase of that state: submitting, waiting, running, ended. `verdict` is verified,
    partial, failed, or NULL while it is undecided. `failure` is the failure class, `deciding_line` the log line that
    decided it, `deciding_rank` the rank that printed the line. `execution` is the execution mode that the log contains,
    `graph` or `eager`; NULL if it contains none. `no_energy` is the reason why the GPU samples gave no energy; NULL if
    they did, or there are none.

    `file` is the submitted script, `options` are further `sbatch` options, and `array_index` is the attempt's element
    of the array. `is_requeued`: Slurm runs the job again if it loses a node. `host`, `user` and `pid` are those of the
    submission; a local job runs on that host. `pid_start_ticks` is the start time of process `pid` in clock ticks
    since boot, and `machine` identifies its machine, boot and PID namespace. `slurm_cluster` is the cluster of the
    submission, as `name@controller`. `seen_via` is the source of the last observation: squeue, sacct, or the
    job's record. `starts_at` and `ends_at` are the scheduler's expectation. `unseen_since` is the time since which no
    source lists the attempt, and `unseen_log_bytes` is the size of its log at that time. `unsettled_since` has, for
    each boot of a machine that waits for an answer about this attempt, the seconds since boot at which it began to
    wait. So clocks of two machines are never compared.

    `origin` is `by hand` for an adopted attempt, with a remark if its script is not the
    rendered one; NULL for attempts that `repro` submitted.
    """

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("job_id", "number"), Index("ix_attempts_phase", "phase"))

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    number: Mapped[int]
    scheduler: Mapped[str]
    host: Mapped[str]
    user: Mapped[str | None]
    pid: Mapped[int | None]
    pid_start_ticks: Mapped[int | None] = mapped_column(BigInteger)
    machine: Mapped[str | None]
    slurm_cluster: Mapped[str | None]
    file: Mapped[str | None]
    options: Mapped[list[str] | None] = mapped_column(JsonTexts)
    is_requeued: Mapped[bool | None]
    token: Mapped[str] = mapped_column(index=True)
    array_index: Mapped[int | None]
    scheduler_id: Mapped[str | None] = mapped_column(index=True)
    state: Mapped[str]
    phase: Mapped[str] = mapped_column(Word(*OPEN, ENDED))
    reason: Mapped[str | None] = mapped_column(Masked)
    nodes: Mapped[str | None]
    exit_code: Mapped[int | None]
    signal: Mapped[int | None]
    folder: Mapped[str]
    script: Mapped[str] = mapped_column(Masked)
    script_sha256: Mapped[str]
    created_at: Mapped[datetime]
    submitted_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    starts_at: Mapped[datetime | None]
    ends_at: Mapped[datetime | None]
    refreshed_at: Mapped[datetime | None]
    unseen_since: Mapped[datetime | None]
    unsettled_since: Mapped[dict[str, float] | None] = mapped_column(JsonObject)
    unseen_log_bytes: Mapped[int | None] = mapped_column(BigInteger)
    seen_via: Mapped[str | None]
    iteration: Mapped[int | None]
    verdict: Mapped[str | None] = mapped_column(Word(*MEASURED, FAILED))
    verdict_reason: Mapped[str | None] = mapped_column(Masked)
    failure: Mapped[str | None]
    deciding_line: Mapped[str | None] = mapped_column(Masked)
    deciding_rank: Mapped[int | None]
    execution: Mapped[str | None]
    origin: Mapped[str | None]
    no_energy: Mapped[str | None] = mapped_column(Masked)


class Metric(Table):
    """A number about an attempt. `spread` is half the range of the middle half of `count` samples."""

    __tablename__ = "metrics"

    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float]
    unit: Mapped[str]
    spread: Mapped[float | None]
    count: Mapped[int | None]


@dataclass(frozen=True, slots=True)
class IterationLine:
    """One interval report: averages over the iterations since the line before it.

    TFLOP/s are Megatron's, whose count of FLOPs differs between versions; tokens/s are Megatron-Kwai's, `host_wait_ms`
    is that of `orchestrator.pretrain`. A number is missing, too, if it is not plausible (`megatron.logs.statistics`).
    """

    iteration: Annotated[int, Field("last iteration of the interval")]
    elapsed_ms: Annotated[float, Field("mean time of an iteration in the interval", "ms")]
    loss: Annotated[float | None, Field("language-model loss")]
    grad_norm: Annotated[float | None, Field("norm of the gradient")]
    used: Annotated[bool, Field("whether the metrics of the case use this line")] = True
    loss_scale: Annotated[float | None, Field("loss scale")] = None
    skipped: Annotated[int | None, Field("skipped iterations")] = None
    nan: Annotated[int | None, Field("iterations with NaN, counted by the program")] = None
    reported_tflops_per_gpu: Annotated[float | None, Field("rate that the program prints", "TFLOP/s")] = None
    reported_tokens_per_s_per_gpu: Annotated[float | None, Field("rate that the program prints", "1/s")] = None
    power_w: Annotated[float | None, Field("power per GPU that the program prints", "W")] = None
    is_finite: Annotated[
        bool, Field("false if a number of the line was NaN, infinite or missing; the number is empty")
    ] = True
    host_wait_ms: Annotated[float | None, Field("time per iteration for which a GPU waited for the host", "ms")] = None


@dataclass(frozen=True, slots=True)
class FileOffset:
    """How far a file of an attempt was read, so that the next poll reads only new content.

    `name` is the file's in the attempt's folder, `bytes_read` how much of it is in the ledger. `inode` (text: some file
    systems use all 64 bits) and `fingerprint`, of the bytes at its beginning and of those before `bytes_read`, show
    whether it is still that file. The device is left out, because hosts that share a file system number it differently.
    `facts` are those that the reader of the program found.
    """

    name: str
    inode: str
    bytes_read: Annotated[int, BigInteger]
    fingerprint: str
    facts: dict[str, object]

    @property
    def position(self) -> tuple[str, int, str]:
        """Identity of the file, and the offset in it."""
        return self.inode, self.bytes_read, self.fingerprint


def _table_of(name: str, row_type: type, key: str) -> sa.Table:
    """Return the table with the fields of a dataclass about an attempt. `key` distinguishes its rows."""
    columns: list[sa.Column[Any]] = [sa.Column("attempt_id", ForeignKey("attempts.id"), primary_key=True)]
    for field, hint in get_type_hints(row_type, include_extras=True).items():
        own, *added = get_args(hint) if get_origin(hint) is Annotated else [hint]
        parts = (own, get_origin(own), *get_args(own), *added)
        kind = next(kind for part, kind in _COLUMN_TYPES.items() if part in parts)
        is_optional = kind is FiniteNumber or NoneType in parts
        columns.append(sa.Column(field, kind, primary_key=field == key, nullable=is_optional))
    return sa.Table(name, Table.metadata, *columns)


_COLUMN_TYPES: Mapping[object, type[sa.types.TypeEngine[Any]]] = {
    dict: JsonObject,
    BigInteger: BigInteger,
    bool: sa.Boolean,
    int: sa.Integer,
    float: FiniteNumber,
    str: sa.String,
}


class Iteration(Table):
    """One interval line of a log. A number that is NaN or infinite is NULL, and `is_finite` is false then."""

    __table__ = _table_of("iterations", IterationLine, "iteration")


class OutputRow(Table):
    """A row of a program's output: what names it, and its metrics. Their units are in the job's configuration."""

    __tablename__ = "output_rows"
    __table_args__ = {"sqlite_with_rowid": False}

    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    row_key: Mapped[dict[str, object]] = mapped_column(Masked(JsonObject()))
    metrics: Mapped[dict[str, float]] = mapped_column(JsonObject)


class LogOffset(Table):
    """How far a file of an attempt was read."""

    __table__ = _table_of("readings", FileOffset, "name")


class Event(Table):
    """An event of a run or an attempt. Ids are in the order of the events."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id"), index=True)
    attempt_id: Mapped[int | None] = mapped_column(ForeignKey("attempts.id"), index=True)
    kind: Mapped[str]
    detail: Mapped[str | None] = mapped_column(Masked)


class Poll(Table):
    """The last poll of a scheduler. All terminals share it, so that they do not poll more often than one."""

    __tablename__ = "looks"

    scheduler: Mapped[str] = mapped_column(primary_key=True)
    asked_at: Mapped[datetime]
    complaints: Mapped[list[str]] = mapped_column(Masked(JsonTexts()))


class ExperimentFile(Table):
    """The file of an experiment that was submitted by a path, `my/figure.yaml`."""

    __tablename__ = "experiment_files"

    experiment: Mapped[str] = mapped_column(primary_key=True)
    file: Mapped[str]


for _table in Table.metadata.tables.values():
    for _column in _table.columns:
        _table.append_constraint(check_in_sqlite(_column))


def rows_of(table: type[Table]) -> TableClause:
    """Return the table for statements below the ORM, which are faster for many rows."""
    assert isinstance(table.__table__, TableClause)
    return table.__table__


def batched(ids: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield slices of ids that every database accepts in one statement (SQLite before 3.32: 999 parameters)."""
    for start in range(0, len(ids), _SLICE):
        yield ids[start : start + _SLICE]


def rows_with(
    session: Session, query: sa.Select[Unpack[Columns]], column: Any, values: Iterable[Any]
) -> Iterator[sa.Row[Unpack[Columns]]]:
    """Yield the rows of a query with one of these values in a column, in the order of the values' batches."""
    for some in batched(sorted(set(values))):
        yield from session.execute(query.where(column.in_(some)))


def field_values(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, those of its base classes included. Their values are not copied."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


# Experiments and cases that requested a job. Two runs of one figure request the same jobs.
_ASKED = """
    SELECT DISTINCT runs.experiment, runs.scale, runs.cluster, run_jobs.case_name, run_jobs.job_id
    FROM run_jobs JOIN runs ON runs.id = run_jobs.run_id
"""

_ATTEMPTS = """
    SELECT asked.experiment, asked.scale, asked.cluster, asked.case_name, jobs.repeat, jobs.program,
        jobs.id AS job_id, attempts.number AS attempt, attempts.id AS attempt_id, attempts.run_id,
        attempts.state, attempts.phase, attempts.verdict, attempts.failure, attempts.verdict_reason, attempts.reason,
        attempts.deciding_line, attempts.deciding_rank, attempts.execution, attempts.iteration, jobs.iterations,
        jobs.gpus, attempts.nodes, {times},
        {wait_s} AS wait_s, {elapsed_s} AS elapsed_s,
        CASE WHEN {device} = 'cpu' THEN NULL ELSE jobs.gpus * {elapsed_s} / 3600.0 END AS gpu_hours,
        attempts.exit_code, attempts.signal, attempts.scheduler, attempts.scheduler_id, attempts.host, attempts.folder,
        attempts.origin, attempts.no_energy,
        runs.git_commit, runs.git_dirty, jobs.code, jobs.image, jobs.image_digest
    FROM attempts
    JOIN jobs ON jobs.id = attempts.job_id
    JOIN runs ON runs.id = attempts.run_id
    JOIN ({asked}) AS asked ON asked.job_id = attempts.job_id
"""

_TIMES = ("created_at", "submitted_at", "started_at", "ended_at")

# The result of each case: the last verified attempt of its job, else the last partial one, else the latest. A case has
# several jobs if its code or image changed; the latest run decides.
_RESULTS = """
    SELECT v.experiment, v.scale, v.cluster, v.case_name, v.repeat, v.program, v.job_id, v.attempt, v.attempt_id,
        v.state, v.verdict, v.failure, v.verdict_reason, v.deciding_line, v.execution, v.gpus, v.nodes,
        {layout},
        v.wait_s, v.elapsed_s, v.gpu_hours, v.started_at, v.ended_at, v.git_commit, v.code, v.image, v.image_digest,
        v.no_energy
    FROM v_attempts AS v
    JOIN jobs ON jobs.id = v.job_id
    JOIN (
        SELECT runs.experiment, runs.scale, runs.cluster, run_jobs.case_name, jobs.program, jobs.repeat,
            max(runs.id) AS run_id
        FROM run_jobs JOIN runs ON runs.id = run_jobs.run_id JOIN jobs ON jobs.id = run_jobs.job_id
        GROUP BY runs.experiment, runs.scale, runs.cluster, run_jobs.case_name, jobs.program, jobs.repeat
    ) AS latest ON latest.experiment = v.experiment AND latest.scale = v.scale AND latest.cluster = v.cluster
        AND latest.case_name = v.case_name AND latest.program = v.program AND latest.repeat = v.repeat
    WHERE EXISTS (
        SELECT 1 FROM run_jobs
        WHERE run_jobs.run_id = latest.run_id AND run_jobs.job_id = v.job_id AND run_jobs.case_name = v.case_name
    ) AND NOT EXISTS (
        SELECT 1 FROM attempts AS other
        WHERE other.job_id = v.job_id AND (
            {other_rank} > {rank} OR ({other_rank} = {rank} AND other.number > v.attempt)
        )
    )
"""

_RANK = "CASE {verdict} WHEN 'verified' THEN 2 WHEN 'partial' THEN 1 ELSE 0 END"

_ITERATIONS = """
    SELECT v.experiment, v.scale, v.cluster, v.case_name, v.repeat, v.program, v.job_id, v.attempt, v.attempt_id,
        v.verdict, {columns}
    FROM iterations AS i JOIN v_attempts AS v ON v.attempt_id = i.attempt_id
"""

# Metrics of whole jobs, and of the rows of outputs, whose units are those of the job's program.
_ALL_METRICS = """
    SELECT v.experiment, v.scale, v.cluster, v.case_name, v.repeat, v.program, v.job_id, v.attempt, v.attempt_id,
        v.verdict, m.row_key, m.name, m.value, m.unit, m.spread, m.count
    FROM (
        SELECT attempt_id, NULL AS row_key, name, value, unit, spread, count FROM metrics
        UNION ALL
        SELECT o.attempt_id, {row_key}, each.key, {value}, COALESCE({unit}, ''), NULL, NULL
        FROM output_rows AS o JOIN attempts ON attempts.id = o.attempt_id JOIN jobs ON jobs.id = attempts.job_id
            CROSS JOIN {each} AS each
    ) AS m JOIN v_attempts AS v ON v.attempt_id = m.attempt_id
"""

_LAYOUT = ("tensor_parallel", "pipeline_parallel", "virtual_stages", "micro_batch_size", "global_batch_size")

VIEWS = ("v_attempts", "v_results", "v_iterations", "v_metrics")
"""Names of the views. A view may select from the ones before it."""


def create_schema(connection: sa.Connection) -> None:
    """Create the tables and views of an empty database, in the caller's transaction. A killed process leaves none."""
    Table.metadata.create_all(connection, checkfirst=False)
    _create_views(connection)
    # Every version of repro recognizes a ledger, and its schema, by this table.
    connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    connection.exec_driver_sql(f"INSERT INTO alembic_version VALUES ('{SCHEMA}')")


def _create_views(connection: sa.Connection) -> None:
    seconds, stamp, configured, of_rows = _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL
    layout = {name: configured.format(path=f"layout.{name}", keys=f"layout,{name}", kind="integer") for name in _LAYOUT}
    texts = {
        "v_attempts": _ATTEMPTS.format(
            asked=_ASKED,
            times=", ".join(f"{stamp.format(f'attempts.{name}')} AS {name}" for name in _TIMES),
            wait_s=seconds.format("attempts.submitted_at", "attempts.started_at"),
            elapsed_s=seconds.format("attempts.started_at", "attempts.ended_at"),
            device=configured.format(path="device", keys="device", kind="text"),
        ),
        "v_results": _RESULTS.format(
            layout=", ".join(f"{value} AS {name}" for name, value in layout.items()),
            rank=_RANK.format(verdict="v.verdict"),
            other_rank=_RANK.format(verdict="other.verdict"),
        ),
        "v_iterations": _ITERATIONS.format(
            columns=", ".join(f"i.{column.name}" for column in rows_of(Iteration).c if column.name != "attempt_id")
        ),
        "v_metrics": _ALL_METRICS.format_map(of_rows),
    }
    for name in VIEWS:
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {texts[name]}")


# Seconds between two times, exact to a millisecond; a time as ISO 8601 text in whole seconds, as in an export; a value
# of a job's configuration; the parts of a row's metric. SQLite stores times as text.
_SQLITE = (
    "round((julianday({1}) - julianday({0})) * 86400.0, 3)",
    "strftime('%Y-%m-%dT%H:%M:%SZ', {0})",
    "json_extract(jobs.configuration, '$.{path}')",
    {
        "row_key": "o.row_key",
        "value": "each.value",
        "unit": "json_extract(jobs.configuration, '$.program.metrics.\"' || each.key || '\".unit')",
        "each": "json_each(o.metrics)",
    },
)
_POSTGRESQL = (
    "round(extract(epoch FROM {1} - {0})::numeric, 3)::double precision",
    """to_char({0}, 'YYYY-MM-DD"T"HH24:MI:SS"Z"')""",
    "(jobs.configuration #>> '{{{keys}}}')::{kind}",
    {
        "row_key": "o.row_key::text",
        "value": "each.value::double precision",
        "unit": "(jobs.configuration #>> ARRAY['program', 'metrics', each.key, 'unit'])",
        "each": "json_each_text(o.metrics)",
    },
)
