"""Comparison of measured numbers with published ones, and of two sides: clusters, dates, commits or runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Annotated, Literal, NamedTuple

from orchestrator.catalog.case import shown_value
from orchestrator.catalog.claims import PublishedClaim
from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.fields import Column, Columns, Field, TableRow, row_of
from orchestrator.ledger.attempts import attempts_of_jobs, cases_asked_for, last_result, with_attempt
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import MeasuredMetric, MeasuredRow
from orchestrator.ledger.rows import AttemptRow, JobRow
from orchestrator.ledger.tables import ENDED, FAILED, Run
from orchestrator.programs.axes import MetricDefinition, principal_metric
from orchestrator.programs.record import definitions_of, programs
from orchestrator.results.cases import Combined, Result, RowKey, combine_rows, in_order_of_runs, published_on
from orchestrator.results.evidence import job_spread, numbers_of, on_same_nodes, published_part, uncertainty_of

OUR_TOLERANCE = 0.1
"""Relative tolerance if no claim of the experiment has one for the number. This is our choice: the widest tolerance
that a shipped experiment allows a published rate, because these numbers also come from other machines and software."""

NOT_MEASURED = "not measured"


_HOST_WAIT = "host_wait_percent"


def _beside(metrics: Mapping[str, MetricDefinition]) -> Iterator[MetricDefinition]:
    """Yield the metrics of a program that are shown beside others, and the host wait."""
    yield from (metric for metric in metrics.values() if metric.beside)
    if _HOST_WAIT in metrics:
        yield metrics[_HOST_WAIT]


def _beside_columns() -> tuple[Column, ...]:
    """Return a column for each such metric of any program."""
    metrics = {metric.name: metric for one in programs().values() for metric in _beside(one.names.metrics)}
    return tuple(Column(name, "number", metric.meaning, metric.unit) for name, metric in metrics.items())


@dataclass(frozen=True, kw_only=True)
class ComparedNumber(TableRow):
    """A measured number of a case, and the published one. `missing` is the kind of number that is missing."""

    result: Result
    point: PublishedPoint | None = None
    experiment: Annotated[str, Field("full name of the experiment", of="case.experiment")]
    scale: Annotated[str, Field("scale of the case", of="case.scale")]
    cluster: Annotated[str | None, Field("cluster of the run", of="row.cluster")]
    case: Annotated[str, Field("case, in the syntax of `--where`", of="case.name")]
    metric: Annotated[str, Field("metric of both numbers, with the unit in its name")]
    measured: Annotated[float | None, Field("measured number", of="number.value")]
    spread: Annotated[float | None, Field("its spread", of="number.spread")]
    published: Annotated[float | None, Field("published number", of="point.value")]
    published_how: Annotated[str | None, Field("`printed`, `derived`, or from a plot", of="point.how")]
    published_confirmed: Annotated[bool | None, Field("whether it was confirmed in the source", of="point.confirmed")]
    published_error: Annotated[float | None, Field("largest error of a number from a plot", of="point.error")]
    published_source: Annotated[str | None, Field("place in the source", of="point.source")]
    published_gpu: Annotated[str | None, Field("GPU of the published number", of="point.gpu")]
    ratio: Annotated[float | None, Field("measured over published number")] = None
    tolerance: Annotated[float | None, Field("relative tolerance")] = None
    tolerance_from: Annotated[str | None, Field("origin of the tolerance")] = None
    within: Annotated[bool | None, Field("whether the ratio is within the tolerance; null if it is not judged")] = None
    missing: Annotated[str | None, Field("kind of number that is missing: measured, published, or quiet enough")] = None
    because: Annotated[str | None, Field("why the number is missing or not judged")] = None
    interval_low: Annotated[float | None, Field("lower end of the 95 % interval", of="number.interval_low")]
    interval_high: Annotated[float | None, Field("upper end of the 95 % interval", of="number.interval_high")]
    repeats: Annotated[int | None, Field("repeats behind the number", of="number.repeats")]
    gpu: Annotated[str | None, Field("GPU of the cluster")]
    execution: Annotated[str | None, Field("execution mode")]
    host_bound: Annotated[bool | None, Field("whether the GPUs waited too long for the host", of="is_host_bound")]
    job: Annotated[str | None, Field("job id", of="row.job_id")]
    attempt: Annotated[int | None, Field("number of the attempt", of="row.number")]
    newer: Annotated[str | None, Field("state of a later attempt that is not the result", of="newer_text")]
    measured_for: Annotated[str | None, Field("other experiment that submitted the attempt")]
    reused: Annotated[str | None, Field("origin and age of a number that another experiment measured")] = None
    beside: Annotated[Mapping[str, float | None], Columns(_beside_columns)]
    flops: Annotated[str | None, Field("equation of the FLOPs behind the rates")]


def reference_rows(entry: Entry, results: Sequence[Result]) -> list[ComparedNumber]:
    """Return a row per case and published number; one row for the figure's own metric if a case has none."""
    rows: list[ComparedNumber] = []
    for result in results:
        points = _points(result)
        rows += [_reference_row(entry, result, point, results) for point in points]
        if not points:
            own = measured_number(entry, result, entry.experiment.plot.y.metric)
            rows.append(own if own.missing else replace(own, missing="no published number"))
    return rows


def _points(result: Result) -> list[PublishedPoint]:
    """Return the published number of each metric for this GPU or for any GPU, else those of other GPUs."""
    own, every = published_on(result.case, result.gpu), result.case.published
    return [
        point
        for metric in dict.fromkeys(point.metric for point in every)
        for point in [one for one in own if one.metric == metric][:1] or [one for one in every if one.metric == metric]
    ]


def _reference_row(entry: Entry, result: Result, point: PublishedPoint, results: Sequence[Result]) -> ComparedNumber:
    row = measured_number(entry, result, point.metric, point)
    metric = result.metric(point.metric)
    if metric is None:
        return row
    tolerance, origin = OUR_TOLERANCE, "default, no claim is about it"
    for claim in reversed(entry.experiment.claims):  # the first one counts
        if isinstance(claim, PublishedClaim) and point.metric in claim.metrics and result.has(claim.where):
            tolerance, origin = claim.tolerance, f"{claim.tolerance_is}, claim {claim.id}"
    row = replace(row, ratio=metric.value / point.value, tolerance=tolerance, tolerance_from=origin)
    reason = _not_comparable(entry, result, point)
    if reason is not None:
        return replace(row, because=reason)
    definition = entry.metrics[point.metric]
    (number,) = numbers_of([result], definition, results)
    part = published_part(result, point, definition, number, tolerance)
    if part.holds is None and part.open_because is None and metric.too_noisy:
        return replace(row, missing="too noisy", because=metric.too_noisy)
    if part.holds is None:
        return replace(row, because=point.doubt if part.open_because else f"within noise ({part.margin})")
    return replace(row, within=part.holds)


def _not_comparable(entry: Entry, result: Result, point: PublishedPoint) -> str | None:
    """Return why the ratio is not judged, or None."""
    if not point.confirmed:
        return "the number is not confirmed"
    if result.instead_of is not None:
        return f"published for {result.instead_of}, and {result.case.program} ran"
    if result.case.argument_changes:
        return "published for other arguments, which --arg or --no-arg changed"
    gpu = point.gpu or (entry.paper.machine.gpu if entry.paper.machine else None)
    if gpu and gpu not in (result.gpu or ""):
        return f"published for {gpu}, measured on {result.gpu or 'a GPU without a name'}"
    if point.metric not in entry.metrics:
        return f"{result.case.program} has no metric {point.metric}"
    if result.host_bound and entry.metrics[point.metric].is_rate:
        return f"host-bound: {result.host_bound}"
    return None


def measured_number(entry: Entry, result: Result, metric: str, point: PublishedPoint | None = None) -> ComparedNumber:
    """Return the measured number of a case beside a published one, not yet compared."""
    number = result.metric(metric)
    missing, because = (None, None) if number else _missing(result)
    return row_of(
        ComparedNumber,
        result,
        SimpleNamespace(number=number, point=point),
        result=result,
        point=point,
        metric=metric,
        missing=missing,
        because=because,
        beside={each.name: result.value(each.name) for each in _beside(entry.metrics)},
        flops=result.case.equation,
    )


def _missing(result: Result) -> tuple[str, str | None]:
    """Return why a number was not measured: its kind, and a detail."""
    row = result.row
    if row is None:
        return "not submitted", None
    if result.ended_as_published:
        return "out of memory as published", None
    if row.verdict == FAILED:
        return "failed", row.verdict_reason
    if row.phase != ENDED or not result.is_measured:
        return "under way", row.state
    return ("cannot be right", result.flag) if result.flag else (NOT_MEASURED, None)


SideKind = Literal["cluster", "date", "commit", "run"]
Change = Literal[
    "regression",
    "improvement",
    "same within noise",
    "not comparable",
    "now fails",
    "only in A",
    "only in B",
    "no number in either",
]
_SHORTEST_PREFIX = 4
"""Fewest characters that can stand for a commit or a run's id."""


class _CaseKey(NamedTuple):
    """Key by which the cases of two sides are matched; `cluster` is None if clusters are compared.

    `row_key` is that of a row of the job's output, whose name is part of the case's.
    """

    experiment: str
    scale: str
    case: str
    program: str
    cluster: str | None
    row_key: RowKey = ()


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two sides; `name` is complete also if the user typed only its beginning."""

    kind: SideKind
    name: str

    def __str__(self) -> str:
        return f"the {self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class CaseDiff:
    """Case on both sides, A and B: its numbers with spread, repeats and the median job.

    `ratio` is B over A in the metric's own unit. A relative difference below `noise` is not a change; `noise_from`
    is its origin. `because` is the reason why a side has no number, why numbers are too noisy, or why the sides cannot
    be compared.
    """

    experiment: str
    scale: str
    case: str
    program: str
    metric: str
    a: Annotated[float | None, Field(of="a.value")]
    a_spread: Annotated[float | None, Field(of="a.spread")]
    a_repeats: Annotated[int | None, Field(of="a.repeats")]
    a_job: Annotated[str | None, Field(of="job_a.job_id")]
    b: Annotated[float | None, Field(of="b.value")]
    b_spread: Annotated[float | None, Field(of="b.spread")]
    b_repeats: Annotated[int | None, Field(of="b.repeats")]
    b_job: Annotated[str | None, Field(of="job_b.job_id")]
    ratio: float | None = None
    noise: float | None = None
    noise_from: str | None = None
    change: Change = "no number in either"
    because: str | None = None


def side_of(name: str, runs: Sequence[Run], codes: Collection[str]) -> Side:
    """Return the side with a name; ReproError if there is none or more than one. `codes` are those of all jobs."""
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", name):
        try:
            datetime.fromisoformat(name)
        except ValueError:
            hint = "write year-month-day, for example 2026-11-20"
            raise ReproError(Problem("no such date", f"{name}:", hint)) from None
        return Side("date", name)
    clusters = list(dict.fromkeys(run.cluster for run in runs))
    sides = [Side("cluster", name)] if name in clusters else []
    if len(name) >= _SHORTEST_PREFIX:
        commits = {run.git_commit for run in runs if run.git_commit} | set(codes)
        sides += [  # a digest `pretrain-6985e589` also by its last part
            Side("commit", commit)
            for commit in sorted(commits)
            if commit.startswith(name) or commit.rpartition("-")[2].startswith(name)
        ]
        sides += [Side("run", run.id) for run in runs if run.id.startswith(name)]
    sides = [side for side in sides if side.kind != "cluster" and side.name == name] or sides
    if not sides:
        hint = did_you_mean(name, clusters) or f"clusters with jobs: {', '.join(clusters) or 'none'}"
        raise ReproError(Problem("neither a cluster with jobs, nor a date, a commit or a run", f"{name}:", hint))
    if len(sides) > 1:
        more = f" or {len(sides) - 5} more" if len(sides) > 5 else ""
        what = f"could be {', '.join(map(str, sides[:5]))}{more}"
        raise ReproError(Problem(what, f"{name}:", "type more characters of the name"))
    return sides[0]


def rows_of_side(
    ledger: Ledger, side: Side, rows: Sequence[JobRow], runs: Sequence[Run], left_out: Collection[int] = ()
) -> list[JobRow]:
    """Return the jobs of a side, each with its attempt on that side, in order: a later job replaces an earlier one.

    `rows` have the results of the jobs. A cluster has these. A date has the results of the attempts that had ended by
    the end of that day in UTC. A run or a commit has the results of the attempts that it submitted or reused.
    `left_out` are ids of attempts that do not count.
    """
    if side.kind == "cluster":
        return in_order_of_runs((row for row in rows if row.cluster == side.name), runs)
    attempts = {
        job_id: [attempt for attempt in of_job if attempt.attempt_id not in left_out]
        for job_id, of_job in attempts_of_jobs(ledger, {row.job_id for row in rows}).items()
    }
    if side.kind == "date":
        end = datetime.fromisoformat(side.name) + timedelta(days=1)
        chosen = [
            _with_attempt(row, ended)
            for row in rows
            if (ended := [one for one in attempts[row.job_id] if one.ended_at and one.ended_at < end])
        ]
        return sorted(chosen, key=lambda row: row.ended_at or end)
    run_ids = {run.id for run in runs if side.name in (run.id, run.git_commit)}
    requested = cases_asked_for(ledger, run_ids)
    chosen = []
    for row in rows:
        if (row.experiment, row.scale, row.case_name, row.job_id) in requested or row.code == side.name:
            submitted = [attempt for attempt in attempts[row.job_id] if attempt.run_id in run_ids]
            chosen.append(_with_attempt(row, submitted) if submitted else row)
    return in_order_of_runs(chosen, runs)


def compare_sides(
    a: Sequence[JobRow],
    b: Sequence[JobRow],
    metrics: Mapping[int, Mapping[str, MeasuredMetric]],
    metric_of: Callable[[str], str],
    by_cluster: bool,
    output_rows: Mapping[int, Sequence[MeasuredRow]] | None = None,
) -> list[CaseDiff]:
    """Return a row per case, matched by experiment, scale, case and program, and with `by_cluster` by cluster.

    `metrics` and `output_rows` are by attempt; `metric_of` returns the metric of an experiment. Each row of an output
    is a case.
    """

    def combined(rows: Sequence[JobRow]) -> Iterator[tuple[_CaseKey, Combined]]:
        groups: dict[_CaseKey, list[JobRow]] = {}
        for row in rows:
            cluster = row.cluster if by_cluster else None
            key = _CaseKey(row.experiment, row.scale, row.case_name, row.program, cluster)
            groups.setdefault(key, []).append(row)
        for key, jobs in groups.items():
            definitions = definitions_of(jobs[-1].program, jobs[-1].spec.program)
            principal = principal_metric(definitions, metric_of(key.experiment))
            for row_key, of_row in combine_rows(jobs, metrics, output_rows or {}, principal).items():
                names = (key.case, *(f"{axis}={shown_value(value)}" for axis, value in row_key))
                yield key._replace(case=",".join(filter(None, names)), row_key=row_key), of_row

    side_a, side_b = dict(combined(a)), dict(combined(b))
    repeated: dict[RowKey, tuple[list[Combined], list[Combined]]] = {}
    for number, side in enumerate((side_a, side_b)):
        for key, of_case in side.items():
            repeated.setdefault(key.row_key, ([], []))[number].append(of_case)
    absent = Combined()
    return [
        _difference(
            key, side_a.get(key, absent), side_b.get(key, absent), repeated[key.row_key], metric_of(key.experiment)
        )
        for key in dict.fromkeys([*side_a, *side_b])
    ]


def _difference(
    key: _CaseKey, a: Combined, b: Combined, repeated: Sequence[Sequence[Combined]], preferred: str
) -> CaseDiff:
    """Return the difference of a case on two sides; `repeated` are all cases of each side with the same row key."""
    job = next(side.row for side in (b, a) if side.row is not None)
    metrics = definitions_of(job.program, job.spec.program)
    principal = principal_metric(metrics, preferred)
    measured = [side for side in (a, b) if side.metric(principal.name)]
    is_known = preferred in metrics and all(side.metric(preferred) for side in measured)
    metric = metrics[preferred] if is_known else principal
    first, second = a.metric(metric.name), b.metric(metric.name)
    row = row_of(CaseDiff, key, SimpleNamespace(a=first, b=second, job_a=a.row, job_b=b.row), metric=metric.name)
    if first is None or second is None:
        sides = (("A", a, first), ("B", b, second))
        whys = (
            f"in {name}: {side.flag or side.row.verdict_reason or side.row.state}"
            for name, side, number in sides
            if side.row is not None and number is None
        )
        change: Change = "only in A" if first else "only in B" if second else "no number in either"
        if first and b.row is not None and b.row.verdict == FAILED:
            change = "now fails"
        return replace(row, change=change, because=next(whys, None))
    if first.unit != second.unit or not (first.value > 0 and second.value > 0):
        units = [f"{number.value:g} {number.unit}".strip() for number in (first, second)]
        return replace(row, change="not comparable", because=f"{units[0]} in A, {units[1]} in B have no ratio")
    ratio, (noise, noise_from) = second.value / first.value, _noise((a, b), repeated, metric)
    faster = 1 / ratio if metric.better == "lower" else ratio
    change = "improvement" if faster > 1 else "regression"
    if abs(faster - 1) <= noise:
        change = "same within noise"
    because = "; ".join(_unlike(a, b, metric)) or None
    if a.row and b.row and a.row.attempt_id == b.row.attempt_id:
        because = "the same attempt"
    return replace(row, ratio=ratio, noise=noise, noise_from=noise_from, change=change, because=because)


def _unlike(a: Combined, b: Combined, metric: MetricDefinition) -> Iterator[str]:
    """Yield why the numbers of the two sides cannot be compared: other execution modes, a host-bound or noisy side."""
    mode_a, mode_b = (side.execution or "unknown" for side in (a, b))
    if mode_a != mode_b:
        yield f"not comparable: the execution mode is {mode_a} in A, {mode_b} in B"
    for name, side in (("A", a), ("B", b)):
        if metric.is_rate and side.host_bound:
            yield f"host-bound in {name}: {side.host_bound}"
    for name, side in (("A", a), ("B", b)):
        if side.metrics[metric.name].too_noisy:
            yield f"too noisy in {name}: {side.metrics[metric.name].too_noisy}"


def _noise(
    sides: Sequence[Combined], repeated: Sequence[Sequence[Combined]], metric: MetricDefinition
) -> tuple[float, str]:
    """Return the noise of the ratio of two sides that have the metric, and the origin of the larger uncertainty.

    Two clusters have different nodes, and the comparison is about them. For two runs of one cluster other nodes are
    noise.
    """
    rows = [side.rows for side in sides]
    same_nodes = len({row.cluster for of_side in rows for row in of_side}) > 1 or on_same_nodes(rows)
    spreads = [job_spread(filter(None, (case.metric(metric.name) for case in cases)), same_nodes) for cases in repeated]
    uncertainties = [
        uncertainty_of(side.metrics[metric.name], same_nodes, spread, metric.least_uncertainty)
        for side, spread in zip(sides, spreads, strict=True)
    ]
    relative = [uncertainty.relative for uncertainty in uncertainties]
    return math.hypot(*relative), uncertainties[relative.index(max(relative))].origin


def _with_attempt(row: JobRow, attempts: Sequence[AttemptRow]) -> JobRow:
    """Return the job with the result of these attempts, and with the run that made it."""
    result = last_result(attempts)
    return replace(with_attempt(row, result), run_id=result.run_id)
