"""Results of cases: repeated jobs combined, with measured and published numbers; attempts that a user left out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import PAPER, PublishedPoint
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError, for_each
from orchestrator.job_spec import Value
from orchestrator.ledger.attempts import attempts_of_jobs, job_rows, rows_of_attempts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import MeasuredMetric, MeasuredRow
from orchestrator.ledger.rows import JobRow, JobSummary
from orchestrator.ledger.tables import ENDED, FAILED, MEASURED, PARTIAL, RUNNING, VERIFIED, Run, field_values
from orchestrator.masking import masked
from orchestrator.programs.axes import MetricDefinition, Settings, principal_metric
from orchestrator.reading.failure import Failure, fails_as_published, ran_out_of_memory
from orchestrator.reading.job_status import attempt_text, reuse_text
from orchestrator.reading.statistics import MOST_NOISE, host_bound_reason, is_host_bound, noise_of_job, relative_spread
from orchestrator.text import counted, printable_line

_HINT = "for example --without 3f2a:1='a slow node'; repro history JOB shows the attempts of a job"


@dataclass(frozen=True, slots=True)
class LeftOutAttempt:
    """An attempt that is left out of results, with the reason. `outcome` is its verdict, else its state."""

    attempt_id: int
    job: str
    attempt: int
    case: str
    outcome: str
    reason: str

    def __str__(self) -> str:
        return f"{self.case}: attempt {self.attempt} of job {self.job} ({self.outcome}): {self.reason}"


def words_of(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the values of `--without` for the `job`, `attempt` and `reason` of rows in a bundle."""
    return [f"{row['job']}:{row['attempt']}={row['reason']}" for row in rows]


def left_out_attempts(ledger: Ledger, words: Sequence[str]) -> tuple[LeftOutAttempt, ...]:
    """Return the attempts that the values of `--without` name. ReproError has the problems of all values."""
    chosen = for_each(words, lambda word: _left_out(ledger, word))
    return tuple({attempt.attempt_id: attempt for attempt in chosen}.values())


def _left_out(ledger: Ledger, word: str) -> LeftOutAttempt:
    address, _, reason = word.partition("=")
    prefix, _, number = address.partition(":")
    option = f"--without {address}"
    if not (prefix and number.isascii() and number.isdigit()):
        raise ReproError(Problem(f"{option}: not JOB:NUMBER", hint=_HINT))
    if not reason.strip():
        raise ReproError(Problem(f"{option}: no reason", hint=_HINT))
    jobs = sorted({row.job_id for row in job_rows(ledger, job_prefix=prefix)})
    if len(jobs) != 1:
        what = f"matches several jobs: {', '.join(jobs[:5])}" if jobs else "no such job"
        raise ReproError(Problem(f"{option}: {what}", hint=_HINT))
    attempts = {attempt.number: attempt for attempt in attempts_of_jobs(ledger, jobs).get(jobs[0], ())}
    if int(number) not in attempts:
        raise ReproError(Problem(f"{option}: job {jobs[0]} has {counted(len(attempts), 'attempt')}", hint=_HINT))
    [row] = rows_of_attempts(ledger, [attempts[int(number)].attempt_id])
    outcome = " ".join(filter(None, (row.verdict or row.state, row.failure)))
    why = printable_line(masked(reason.strip()))
    return LeftOutAttempt(row.attempt_id, row.job_id, row.number, row.label, outcome, why)


R = TypeVar("R", bound=JobSummary)

# The 0.975 quantiles of Student's t for 1 to 30 degrees of freedom: NIST/SEMATECH e-Handbook of Statistical Methods,
# table 1.3.6.7.2.
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def t_975(degrees: int) -> float:
    """Return the 0.975 quantile of Student's t, slightly too large above 30 degrees of freedom."""
    return T_975[min(degrees, len(T_975)) - 1]


@dataclass(frozen=True, slots=True)
class CaseMetric(MeasuredMetric):
    """Metric of a case: the number of its job, or the mean of `repeats` jobs with a 95 % confidence interval.

    For repeats, `spread` is the mean of their spreads and `count` the sum of their samples. `jobs` are the nodes
    and the number of each job.
    """

    interval_low: float | None = None
    interval_high: float | None = None
    repeats: int = 1
    jobs: tuple[tuple[str | None, float], ...] = ()

    @property
    def noise(self) -> float:
        """Return the relative uncertainty: half the confidence interval, or the spread of a single job."""
        if not self.value:
            return 0.0
        if self.interval_low is not None and self.interval_high is not None:
            return (self.interval_high - self.interval_low) / 2 / abs(self.value)
        return relative_spread(self)

    @property
    def too_noisy(self) -> str | None:
        """Return why it cannot be compared, for example `spread 12 % of the median`; None if it can."""
        if self.repeats == 1:
            return noise_of_job(self)
        if self.noise <= MOST_NOISE:
            return None
        return f"95 % interval {100 * self.noise:.2g} % of the mean of {self.repeats} repeats either way"


NEVER_RAN = {str(failure) for failure in (Failure.NOT_SUBMITTED, Failure.REFUSED, Failure.STOPPED, Failure.CANCELLED)}
"""Failure classes of attempts that no scheduler received. No file shows which one it was."""


def latest_job(rows: Sequence[R]) -> R:
    """Return the latest job that was judged after it ran, else the latest that runs, else the latest.

    The rows are in the order of their runs. A job that is new, refused or cancelled hides no result of another.
    """

    def rank(row: JobSummary) -> int:
        if row.verdict is not None:
            return 0 if row.failure in NEVER_RAN else 2
        return 1 if row.phase in (RUNNING, ENDED) else 0

    return max(enumerate(rows), key=lambda numbered: (rank(numbered[1]), numbered[0]))[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """Last job of a case, combined with its repeats; without a job if the case was not submitted.

    `rows` are the jobs behind the numbers, the best first; `row` is the median job. Without a number both are the last
    job. `failed` are failed repeats. `noise` is the reason why the times are too noisy to be compared, `flag` the
    reason why the numbers cannot be right.
    """

    row: JobRow | None = None
    rows: tuple[JobRow, ...] = ()
    metrics: Mapping[str, CaseMetric] = field(default_factory=dict)
    failed: tuple[JobRow, ...] = ()
    noise: str | None = None
    flag: str | None = None

    @property
    def is_measured(self) -> bool:
        """Return whether its numbers count: its job is verified or partial."""
        return self.row is not None and self.row.verdict in MEASURED

    def metric(self, name: str) -> CaseMetric | None:
        """Return a measured metric; None unless the job is verified or partial, and its numbers can be right."""
        return self.metrics.get(name) if self.is_measured and self.flag is None else None

    def value(self, name: str) -> float | None:
        """Return the value of a metric, or None."""
        metric = self.metric(name)
        return metric.value if metric else None

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the known execution modes in the logs of its jobs: two if repeats ran in different modes."""
        return tuple(sorted({row.execution for row in self.rows if row.execution is not None}))

    @property
    def execution(self) -> str | None:
        """Return the execution modes of its jobs as text; None if they are unknown."""
        return " and ".join(self.modes) or None

    @property
    def is_host_bound(self) -> bool | None:
        """Return whether its GPUs waited too long for the host; None unless that was measured."""
        return is_host_bound(self.metrics) if self.metric("host_wait_percent") else None

    @property
    def host_bound(self) -> str | None:
        """Return why it is host-bound; None if it is not or if that is unknown."""
        return host_bound_reason(self.metrics) if self.is_host_bound else None


RowKey = tuple[tuple[str, Value], ...]
"""Axes and values that name a row of a program's output; empty for a job without rows."""


def combine_rows(
    rows: Sequence[JobRow],
    metrics: Mapping[int, Mapping[str, MeasuredMetric]],
    output_rows: Mapping[int, Sequence[MeasuredRow]],
    principal: MetricDefinition,
) -> dict[RowKey, Combined]:
    """Combine the jobs of one case row by row of their outputs, in the order of the output.

    Each row has the metrics of its job, too. Without a measured job that has rows, the only key is empty.
    """
    last = latest_job(rows)
    by_key: dict[RowKey, dict[int, Mapping[str, MeasuredMetric]]] = {}
    for job in (row for row in rows if row.verdict in MEASURED and _are_repeats(row, last)):
        for row in output_rows.get(job.attempt_id, ()):
            key = tuple((axis, _plain(value)) for axis, value in row.key.items())
            of_row = {metric.name: metric for metric in row.metrics}
            by_key.setdefault(key, {})[job.attempt_id] = {**metrics.get(job.attempt_id, {}), **of_row}
    if not by_key:
        return {(): combine_repeats(rows, metrics, principal)}
    return {key: combine_repeats(rows, of_key, principal) for key, of_key in by_key.items()}


def _plain(value: Value) -> Value:
    """Return a whole number as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def combine_repeats(
    rows: Sequence[JobRow], metrics: Mapping[int, Mapping[str, MeasuredMetric]], principal: MetricDefinition
) -> Combined:
    """Combine the jobs of one case, which are in the order of their runs; `metrics` are by attempt.

    Jobs like `latest_job` count. Jobs with the same code, configuration and image are repeats. Only repeats with the
    `principal` metric count if there is one. It orders them.
    """
    last = latest_job(rows)
    alike = [row for row in rows if _are_repeats(row, last)]
    measured = [row for row in alike if row.verdict in MEASURED and principal.name in metrics.get(row.attempt_id, {})]
    if not measured:
        own = metrics.get(last.attempt_id, {})
        return Combined(row=last, rows=(last,), metrics={name: mean_metric([metric]) for name, metric in own.items()})
    is_descending = principal.better == "higher"
    measured.sort(key=lambda row: metrics[row.attempt_id][principal.name].value, reverse=is_descending)
    by_job = [metrics[row.attempt_id] for row in measured]
    middle = (len(measured) - 1) // 2
    nodes = [row.nodes for row in measured]
    means = {
        name: mean_metric(
            [job[name] for job in by_job if name in job],
            [of_job for of_job, job in zip(nodes, by_job, strict=True) if name in job],
        )
        for name in by_job[middle]
    }
    return Combined(
        row=measured[middle],
        rows=tuple(measured),
        metrics=means,
        failed=tuple(row for row in alike if row.verdict == FAILED),
        noise=means[principal.name].too_noisy if principal.is_rate else None,
        flag=_flag(measured, by_job),
    )


def _are_repeats(row: JobRow, other: JobRow) -> bool:
    ran, other_ran = ((one.spec, one.code, one.image, one.image_digest) for one in (row, other))
    return ran == other_ran


def mean_metric(repeats: Sequence[MeasuredMetric], nodes: Sequence[str | None] = ()) -> CaseMetric:
    """Return the mean of the medians of several jobs, with Student's t interval. `nodes` are those of each job."""
    first = repeats[0]
    jobs = tuple((of_job, repeat.value) for of_job, repeat in zip(nodes, repeats, strict=False))
    if len(repeats) == 1:
        return CaseMetric(first.name, first.value, first.unit, first.spread, first.count, jobs=jobs)
    values = [repeat.value for repeat in repeats]
    mean = statistics.fmean(values)
    half = t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    spreads = [repeat.spread for repeat in repeats if repeat.spread is not None]
    counts = [repeat.count for repeat in repeats if repeat.count is not None]
    return CaseMetric(
        name=first.name,
        value=mean,
        unit=first.unit,
        spread=statistics.fmean(spreads) if spreads else None,
        count=sum(counts) if counts else None,
        interval_low=mean - half,
        interval_high=mean + half,
        repeats=len(values),
        jobs=jobs,
    )


def _flag(rows: Sequence[JobRow], by_job: Sequence[Mapping[str, MeasuredMetric]]) -> str | None:
    """Return why the numbers cannot be right: a rate above the GPU's peak means that the times in the log are wrong."""
    for row, metrics in zip(rows, by_job, strict=True):
        share = metrics.get("percent_of_peak") if row.spec.program is None else None
        if share is not None and share.value > 100:
            return f"{row.job_id} would run at {share.value:.4g} % of the GPU's peak"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Combined):
    """Case with its job, metrics, and the published number for the figure's own metric.

    If the case is a row of its job's output, `row_key` has the axes that name the row. `losses` are (iteration, loss)
    pairs, empty unless requested; `gpu` is the name of the cluster's GPU; `instead_of` is the program of the published
    numbers if another program ran. `newer` has the latest attempts of these jobs where a later attempt than the result
    exists, `later` the later jobs that have not run. `measured_for` is another experiment that made the job's result,
    by its full name. `left_out` are attempts that a user left out.
    """

    case: Case
    row_key: RowKey = ()
    published: PublishedPoint | None = None
    losses: tuple[tuple[int, float], ...] = ()
    gpu: str | None = None
    instead_of: str | None = None
    newer: tuple[JobRow, ...] = ()
    later: tuple[JobRow, ...] = ()
    measured_for: str | None = None
    left_out: tuple[LeftOutAttempt, ...] = ()

    @property
    def job_case(self) -> str:
        """Return the name of its job's case. The case itself may be a row of the job's output."""
        return self.row.case_name if self.row is not None else self.case.name

    @property
    def failures(self) -> list[JobRow]:
        """Return its jobs and repeats that failed unexpectedly. A measured case has no failures that a user cancelled.

        A later attempt that failed counts, too.
        """
        if self.ended_as_published or self.row is None:
            return []
        failed = [row for row in (self.row, *self.failed, *self.newer) if row.verdict == FAILED]
        return [row for row in failed if not self.is_measured or row.failure != str(Failure.CANCELLED)]

    def reused_text(self, at: datetime) -> str | None:
        """Return the origin and the age, at a time in UTC, of a result that another experiment measured, else None."""
        if self.row is None or self.measured_for is None:
            return None
        return reuse_text(self.row, {self.row.attempt_id: self.measured_for}, at)

    @property
    def newer_text(self) -> str | None:
        """Return later attempts and jobs, and attempts that were left out; None if there is none.

        For example `attempt 2: failed (cancelled)`, or `attempt 1 of 3f2a9c: left out (a slow node)`.
        """
        jobs = (f"{row.job_id}, {attempt_text(row)}" for row in self.later)
        left_out = (f"attempt {one.attempt} of {one.job}: left out ({one.reason})" for one in self.left_out)
        return "; ".join((*map(attempt_text, self.newer), *jobs, *left_out)) or None

    @property
    def is_verified(self) -> bool:
        """Return whether its job is verified."""
        return self.row is not None and self.row.verdict == VERIFIED

    @property
    def partial(self) -> str | None:
        """Return the progress of its partial jobs, `363/400`; None if it has none."""
        return ", ".join(f"{row.iteration}/{row.iterations}" for row in self.rows if row.verdict == PARTIAL) or None

    @property
    def ran_out_of_memory(self) -> bool:
        """Return whether its job ran out of memory."""
        return self.row is not None and ran_out_of_memory(self.row.failure)

    @property
    def expects_oom(self) -> bool:
        """Return whether the source reports that the case runs out of memory."""
        return self.case.expected is not None and self.case.expected.outcome == "oom"

    @property
    def ended_as_published(self) -> bool:
        """Return whether it failed as the source reports."""
        return self.ran_out_of_memory and self.row is not None and fails_as_published(self.case, self.row.failure)

    def has(self, settings: Settings) -> bool:
        """Return whether the case has all of these settings."""
        return settings.items() <= self.case.settings.items()


def case_results(
    entry: Entry,
    cases: Sequence[Case],
    rows: Sequence[JobRow],
    metrics: Mapping[int, Mapping[str, MeasuredMetric]],
    losses: Mapping[int, Sequence[tuple[int, float]]] | None = None,
    newer: Mapping[int, JobRow] | None = None,
    made_for: Mapping[int, str] | None = None,
    output_rows: Mapping[int, Sequence[MeasuredRow]] | None = None,
) -> list[Result]:
    """Return a result for each case of the scale, measured or not; one for each row of a measured job's output.

    `rows` are of one cluster, oldest first; `metrics`, `losses` and `output_rows` are by attempt, `newer` are the
    latest attempts by the attempt that is the result, `made_for` the experiments that made the attempts. A case that
    ran more than once counts with its last job and its repeats.
    """
    newer = newer or {}
    principal = principal_metric(entry.metrics, entry.experiment.plot.y.metric)
    by_name: dict[str, list[JobRow]] = {}
    for row in rows:
        by_name.setdefault(row.case_name, []).append(row)
    gpu = next(filter(None, (row.spec.gpu for row in rows)), None)
    named = entry.experiment.published_program if cases and cases[0].scale == PAPER else None
    own = named or (cases[0].instead_of if cases else None)
    results: list[Result] = []
    for case in cases:
        jobs = by_name.get(case.name, [])
        by_key = combine_rows(jobs, metrics, output_rows or {}, principal) if jobs else {(): Combined()}
        for key, combined in by_key.items():
            of_row = _case_of_row(entry, case, key) if key else case
            published = published_for(entry, of_row, gpu)
            result = Result(case=of_row, row_key=key, published=published, gpu=gpu, instead_of=own)
            if (job := combined.row) is not None:
                last = max(index for index, row in enumerate(jobs) if _are_repeats(row, job))
                origin = (made_for or {}).get(job.attempt_id, job.experiment)
                ran = (*combined.rows, *combined.failed)
                record, own_metrics = entry.record, combined.metrics
                result = replace(
                    result,
                    **field_values(combined)
                    | {"metrics": record.with_derived(case, own_metrics) if record else own_metrics},
                    losses=tuple((losses or {}).get(job.attempt_id, ())),
                    measured_for=None if origin == job.experiment else origin,
                    later=tuple(jobs[last + 1 :]),
                    newer=tuple(newer[row.attempt_id] for row in ran if row.attempt_id in newer),
                )
            results.append(result)
    return results


def _case_of_row(entry: Entry, case: Case, key: RowKey) -> Case:
    """Return the case of a row of the output of a case's job, with the published numbers of the row."""
    settings = {**case.settings, **dict(key)}
    points = entry.experiment.published if case.scale == PAPER else ()
    of_row = [point for point in points if point not in case.published and point.where.items() <= settings.items()]
    return replace(case, point=(*case.point, *key), settings=settings, published=(*case.published, *of_row))


def in_order_of_runs(rows: Iterable[JobRow], runs: Sequence[Run]) -> list[JobRow]:
    """Return the rows in the order of their runs, the latest run last."""
    order = {run.id: position for position, run in enumerate(runs)}
    return sorted(rows, key=lambda row: order.get(row.run_id, -1))


def published_for(entry: Entry, case: Case, gpu: str | None = None) -> PublishedPoint | None:
    """Return a case's published number for the figure's own metric; None if it is for another GPU."""
    metric = entry.experiment.plot.y.metric
    return next((point for point in published_on(case, gpu) if point.metric == metric), None)


def published_on(case: Case, gpu: str | None) -> list[PublishedPoint]:
    """Return the published numbers that apply to this GPU: its own first, then those that name no GPU."""
    own = [point for point in case.published if point.gpu and gpu and point.gpu in gpu]
    return own + [point for point in case.published if not point.gpu]
