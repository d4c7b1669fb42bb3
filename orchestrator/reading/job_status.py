"""Status of jobs: state, verdict, speed, remaining time, and the reason why a job waits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from orchestrator.errors import Problem, ReproError
from orchestrator.fields import Field, row_of
from orchestrator.ledger.attempts import (
    ResultRows,
    S,
    changed_arguments,
    described_metrics,
    job_counts,
    job_specs,
    measured_for,
    run_records,
    runs_of,
)
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.measurements import MeasuredMetric, metrics_of
from orchestrator.ledger.rows import JobSummary
from orchestrator.ledger.sqlite_file import JobCount
from orchestrator.ledger.tables import FAILED, PARTIAL, QUEUED, RUNNING, SUBMITTING, VERIFIED, WAITING
from orchestrator.money import Money, Price, recorded_price, totals
from orchestrator.paths import short_name
from orchestrator.reading.statistics import host_bound_reason, noise_of_job

if TYPE_CHECKING:
    from orchestrator.job_spec import JobSpec
    from orchestrator.programs.record import Program
    from orchestrator.reading.statistics import RunningProgress
    from orchestrator.slurm.reasons import WaitReason

_FLOPS = "tflops_per_gpu"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """State, verdict, speed and remaining time of a job. Times are in UTC.

    `tflops_per_gpu` is measured in a job that has ended, and current in a running job. `metric` is the first metric of
    a program without `tflops_per_gpu` that the job has as one number, else its first metric. `left_by` is what ends a
    running job first: its pace or its time limit. `iteration` is the last one of `iterations`; None for a program
    that prints none, and `iterations` is 0 if no number is planned. The attempt is the job's result
    (`ledger.attempts`). `newer` is the state of a later attempt: `attempt 2: failed (cancelled)`; then `left_s` and
    `starts_at` are of that attempt. `reused` is the origin and the age of an attempt that another experiment made.
    `gpu_hours`, `cost` in `currency`, and the energy (J) are those of the attempt after its end; `no_energy` is the
    reason why GPU samples gave no energy.
    """

    job: Annotated[str, Field(of="job_id")]
    experiment: str
    scale: str
    cluster: str
    case: Annotated[str, Field(of="case_name")]
    repeat: int
    attempt: Annotated[int, Field(of="number")]
    state: str
    verdict: str | None
    failure: str | None
    iteration: int | None
    iterations: int
    program: str
    tflops_per_gpu: float | None
    left_s: int | None
    left_by: str | None
    starts_at: datetime | None
    id: Annotated[str | None, Field(of="scheduler_id")]
    nodes: str | None
    why: str | None
    newer: str | None = None
    reused: str | None = None
    gpu_hours: float | None = None
    cost: float | None = None
    currency: str | None = None
    joules_per_iteration: float | None = None
    joules_per_token: float | None = None
    no_energy: str | None = None
    arguments: str | None = None
    metric: str | None = None
    metric_value: float | None = None
    metric_unit: str | None = None

    @property
    def label(self) -> str:
        """Return the case's name with the number of the repeat and the changed arguments."""
        return " ".join(filter(None, [self.case, f"#{self.repeat}" if self.repeat > 1 else None, self.arguments]))

    @property
    def progress(self) -> str:
        """Return `3/8`, `3` without a planned number, or `-` for a program that prints no iterations."""
        return "-" if self.iteration is None else iteration_text(self.iteration, self.iterations)

    @property
    def left(self) -> str | None:
        """Return the remaining time of a running job, or the start time of a waiting one, as text."""
        if self.left_s is not None:
            return duration(self.left_s) + (f" ({self.left_by})" if self.left_by == "time limit" else "")
        if self.starts_at is None:
            return None
        local, today = (moment.replace(tzinfo=timezone.utc).astimezone() for moment in (self.starts_at, now()))
        return f"starts {local:%H:%M}" if local.date() == today.date() else f"starts {local:%m-%d %H:%M}"


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job that a command has changed or started. `id` is the one of the scheduler; `reused` is an origin and age."""

    job: Annotated[str, Field(of="job_id")]
    experiment: str
    scale: str
    cluster: str
    case: Annotated[str, Field(of="case_name")]
    repeat: int
    attempt: Annotated[int, Field(of="number")]
    state: str
    verdict: str | None
    id: Annotated[str | None, Field(of="scheduler_id")]
    origin: str | None
    why: Annotated[str | None, Field(of="verdict_reason")]
    reused: str | None = None


@dataclass(frozen=True, slots=True)
class ExperimentStatus:
    """Number of cases of an experiment by verdict and state, and failures by class. `arguments` are changed ones.

    A measured job whose latest attempt is open counts twice.
    """

    experiment: str
    scale: str
    cluster: str
    cases: int
    verified: int
    partial: int
    failed: int
    running: int
    waiting: int
    failures: Mapping[str, int]
    arguments: str | None = None

    @property
    def name(self) -> str:
        """Return `figure-13 cpu local`, with changed arguments."""
        return " ".join(filter(None, [short_name(self.experiment), self.scale, self.cluster, self.arguments]))

    def text(self) -> str:
        """Return `5/10 verified, 2 running, 1 waiting, 2 failed (1 timeout, 1 gpu-oom)`."""
        classes = ", ".join(f"{count} {failure}" for failure, count in self.failures.items())
        counts = ((getattr(self, name), name) for name in ("partial", "running", "waiting", "failed"))
        parts = [f"{self.verified}/{self.cases} verified", *(f"{number} {name}" for number, name in counts if number)]
        return ", ".join(parts) + (f" ({classes})" if classes else "")


def job_statuses(ledger: Ledger, results: ResultRows[S]) -> list[JobStatus]:
    """Return the status of each job. Of the logs, only the ends of running jobs are read."""
    at = now()
    metrics = metrics_of(ledger, [row.attempt_id for row in results.rows if row.phase != RUNNING])
    latest = [results.newer.get(row.attempt_id, row) for row in results.rows]
    specs = job_specs(ledger, [row.job_id for row in latest if row.phase == RUNNING])
    made_for = measured_for(ledger, results.rows)
    prices = recorded_prices(
        ledger, [attempt_id for attempt_id, measured in metrics.items() if "gpu_hours" in measured]
    )
    changed = _changed(ledger)
    named = described_metrics(ledger, [row.job_id for row in results.rows])
    in_flops = {row.program for row in results.rows if _FLOPS in metrics.get(row.attempt_id, {})}
    return [
        _status(
            row,
            last,
            specs.get(last.job_id),
            metrics.get(row.attempt_id, {}),
            prices.get(row.attempt_id),
            at,
            named.get(row.job_id) or (() if row.program in in_flops else _metrics_without_flops(row.program)),
            reused=reuse_text(row, made_for, at),
            arguments=changed.get(row.job_id),
        )
        for row, last in zip(results.rows, latest, strict=True)
    ]


def _status(
    row: JobSummary,
    last: JobSummary,
    spec: JobSpec | None,
    measured: Mapping[str, MeasuredMetric],
    price: Price | None,
    at: datetime,
    names: Sequence[str],
    **texts: str | None,
) -> JobStatus:
    """Return the status of a job whose latest attempt is `last`; `spec` is that of a running job.

    `names` are the metrics of a program without `tflops_per_gpu`.
    """
    progress, problem = running_progress(last, spec) if spec is not None else (None, None)
    current = progress if last is row else None
    left_s, left_by = _left(last, progress, at)
    values = {name: metric.value for name, metric in measured.items()}
    metric = next((name for name in names if name in measured), next(iter(names), None))
    own = measured.get(metric) if metric is not None else None
    money = price.of(values["gpu_hours"]) if price is not None and "gpu_hours" in values else None
    return row_of(
        JobStatus,
        row,
        iteration=iteration_of(row, current),
        tflops_per_gpu=current.tflops_per_gpu if current else values.get(_FLOPS),
        left_s=None if left_s is None else round(left_s),
        left_by=left_by,
        starts_at=last.starts_at if last.phase == WAITING else None,
        why=problem or _why(row, current, at) or _remark(row, measured),
        newer=None if last is row else attempt_text(last, iteration_of(last, progress)),
        cost=money.amount if money else None,
        currency=money.currency if money else None,
        metric=metric,
        metric_value=own.value if own else None,
        metric_unit=own.unit or None if own else None,
        **{name: values.get(name) for name in ("gpu_hours", "joules_per_iteration", "joules_per_token")},
        **texts,
    )


def _changed(ledger: Ledger) -> dict[str, str]:
    """Return the changed arguments of jobs as they are typed, by job id."""
    if not (changed := changed_arguments(ledger)):
        return {}
    from orchestrator.job_spec import shown_changes  # only for such jobs

    return {job_id: shown_changes(changes) for job_id, changes in changed.items()}


def recorded_prices(ledger: Ledger, attempt_ids: Sequence[int]) -> dict[int, Price]:
    """Return the price of a GPU-hour that was recorded with the run of each attempt, by attempt id."""
    if not attempt_ids:
        return {}

    runs = runs_of(ledger, attempt_ids)
    prices = {run.id: recorded_price(run.profile) for run in run_records(ledger, set(runs.values()))}
    return {attempt_id: price for attempt_id, run_id in runs.items() if (price := prices.get(run_id)) is not None}


def spent_text(jobs: Sequence[JobStatus]) -> str | None:
    """Return `12.4 GPU-hours (31.00 USD) in the attempts shown`; None if none of them has ended on GPUs."""
    hours = {job.job: job.gpu_hours for job in jobs if job.gpu_hours is not None}  # figures may share a job
    if not hours:
        return None
    paid = {job.job: Money(job.cost, job.currency) for job in jobs if job.cost is not None and job.currency is not None}
    money = " + ".join(map(str, totals(paid.values())))
    return f"{sum(hours.values()):.4g} GPU-hours{f' ({money})' if money else ''} in the attempts shown"


def attempt_text(row: JobSummary, iteration: int | None = None) -> str:
    """Return the state of an attempt: `attempt 2: RUNNING 3/8`, `attempt 2: failed (cancelled)`."""
    if row.verdict == FAILED:
        return f"attempt {row.number}: failed" + (f" ({row.failure})" if row.failure else "")
    shown = iteration_text(iteration, row.iterations) if row.phase == RUNNING and iteration is not None else ""
    return f"attempt {row.number}: {row.verdict or ' '.join(filter(None, [row.state, shown]))}"


def iteration_text(iteration: int, planned: int) -> str:
    """Return `3/8`, or `3` if the number of iterations is not planned."""
    return f"{iteration}/{planned}" if planned else str(iteration)


def reuse_text(row: JobSummary, made_for: Mapping[int, str], at: datetime) -> str | None:
    """Return `from figure-13, 3h05m ago` for an attempt that another experiment made, else None.

    `made_for` is that of `measured_for`; the age is the time from the attempt's end to `at` (UTC).
    """
    origin = made_for.get(row.attempt_id, row.experiment)
    if origin == row.experiment:
        return None
    age = f", {duration((at - row.ended_at).total_seconds())} ago" if row.ended_at else ""
    return f"from {short_name(origin)}{age}"


def _remark(row: JobSummary, measured: Mapping[str, MeasuredMetric]) -> str | None:
    """Return what limits the use of a job's numbers, or the origin of an edited script."""
    host_bound, timing = host_bound_reason(measured), measured.get("iteration_ms")
    noise = noise_of_job(timing) if timing is not None and row.verdict != FAILED else None
    remarks = [f"host-bound: {host_bound}" if host_bound else None, f"noisy: {noise}" if noise else None]
    edited = row.origin if row.origin and "," in row.origin else None  # its script is not the rendered one
    return "; ".join(filter(None, remarks)) or edited


def wait_reason(row: JobSummary) -> WaitReason | None:
    """Return Slurm's explained reason for not starting a job; None for other jobs and if there is no reason yet."""
    if row.phase != WAITING or row.scheduler != "slurm" or row.state == QUEUED or not row.reason:
        return None
    from orchestrator.slurm.reasons import explain_reason  # only for a waiting job

    return explain_reason(row.reason)


def can_never_start(row: JobSummary) -> bool:
    """Return whether a user or an administrator must change something before the job can start."""
    reason = wait_reason(row)
    return reason is not None and reason.kind in ("held", "never")


def hint_for(reason: WaitReason, *rows: JobSummary) -> str | None:
    """Return what to do about a reason. If it concerns one job, the hint has its id."""
    if reason.hint is None or len(rows) != 1:
        return reason.hint
    return re.sub(r"\bID\b", rows[0].scheduler_id or "ID", reason.hint)


def iteration_of(row: JobSummary, current: RunningProgress | None) -> int | None:
    """Return the last iteration of a job; None if its program prints no iterations. `current` is its progress."""
    if current is not None:
        return current.iteration
    if row.iteration or not row.iterations:
        return row.iteration or None
    record = _record(row.program)
    return 0 if record is None or record.prints_iterations else None


def _metrics_without_flops(program: str) -> Sequence[str]:
    """Return the metrics of a known program without `tflops_per_gpu`."""
    record = _record(program)
    return () if record is None or _FLOPS in record.names.metrics else list(record.names.metrics)


def _record(program: str) -> Program | None:
    """Return the record of a known program; None if it cannot be loaded."""
    from orchestrator.programs.record import known_program

    with suppress(ReproError):
        return known_program(program)
    return None


def running_progress(row: JobSummary, spec: JobSpec) -> tuple[RunningProgress | None, str | None]:
    """Return the progress in the end of a job's log, or the reason why the log cannot be read."""
    from orchestrator.reading.reader import reader_of  # only for a running job

    try:
        return reader_of(row.program, spec.program).progress(Path(row.folder), spec, row.iterations), None
    except ReproError as error:
        return None, str(error.problems[0])


def _left(row: JobSummary, current: RunningProgress | None, at: datetime) -> tuple[float | None, str | None]:
    """Return the seconds until a running job ends, and what ends it: its pace, or an earlier time limit."""
    pace = current.left_s if current else None
    limit = max(0.0, (row.ends_at - at).total_seconds()) if row.ends_at and row.phase == RUNNING else None
    if limit is not None and (pace is None or limit < pace):
        return limit, "time limit"
    return pace, None if pace is None else "pace"


def _why(row: JobSummary, current: RunningProgress | None, at: datetime) -> str | None:
    if row.verdict_reason:
        return row.verdict_reason
    if row.unseen_since is not None and row.phase in (WAITING, RUNNING):
        return f"not listed by the scheduler for {duration((at - row.unseen_since).total_seconds())}"
    if current is not None and current.left_s is not None and row.ends_at is not None:
        excess = timedelta(seconds=current.left_s) - (row.ends_at - at)
        if excess > timedelta(0):
            return f"needs {duration(excess.total_seconds())} more than its time limit at this pace"
    reason = wait_reason(row)
    if reason is None or reason.kind == "unknown":
        return row.reason
    hint = hint_for(reason, row) if can_never_start(row) else None
    return str(Problem(f"{row.reason}: {reason.meaning}", hint=hint))


def duration(seconds: float) -> str:
    """Return `45s`, `12m`, `1h05m` or `3d04h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes}m"
    hours = minutes // 60
    return f"{hours}h{minutes % 60:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"


def counted_jobs(ledger: Ledger, results: ResultRows[S]) -> list[ExperimentStatus]:
    """Return the counts of these jobs by experiment, scale, cluster and changed arguments, in their order."""
    groups: dict[tuple[str, str, str, str | None], dict[str, JobCount]] = {}
    changed = _changed(ledger)
    for row in results.rows:
        group = (row.experiment, row.scale, row.cluster, changed.get(row.job_id))
        phase = results.newer.get(row.attempt_id, row).phase
        groups.setdefault(group, {})[row.job_id] = JobCount(*group[:3], row.program, row.verdict, row.failure, phase)
    return [_total(*group, jobs.values()) for group, jobs in groups.items()]


def experiment_statuses(ledger: Ledger) -> tuple[list[ExperimentStatus], ExperimentStatus]:
    """Return the counts of each experiment, scale and cluster, counted by the database, and those of all together."""
    counts = job_counts(ledger)
    places = groupby(counts, lambda count: (count.experiment, count.scale, count.cluster))
    statuses = [_total(*place, None, of_place) for place, of_place in places]
    return statuses, _total("all experiments", "", "", None, counts)


def _total(
    experiment: str, scale: str, cluster: str, arguments: str | None, counts: Iterable[JobCount]
) -> ExperimentStatus:
    verdicts, phases, failures = Counter[str | None](), Counter[str](), Counter[str]()
    for count in counts:
        verdicts[count.verdict] += count.jobs
        phases[count.phase] += count.jobs
        if count.verdict == FAILED and count.failure:
            failures[count.failure] += count.jobs
    return ExperimentStatus(
        experiment,
        scale,
        cluster,
        cases=verdicts.total(),
        verified=verdicts[VERIFIED],
        partial=verdicts[PARTIAL],
        failed=verdicts[FAILED],
        running=phases[RUNNING],
        waiting=phases[WAITING] + phases[SUBMITTING],
        failures=dict(failures.most_common()),
        arguments=arguments,
    )
