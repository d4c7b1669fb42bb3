"""Rows of JSON documents about experiments, cases and jobs that have no type in `api`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from typing_extensions import TypedDict  # pydantic cannot read the one of Python 3.10

from orchestrator import api


class ErrorRow(TypedDict):
    """What is wrong, where, and how to correct it."""

    location: str | None
    problem: str
    hint: str | None


class ShownPaper(TypedDict):
    """A paper. `code` and `images` are by workload; `not_run` are parts that no experiment runs."""

    paper: str
    title: str
    venue: str
    arxiv: str | None
    doi: str | None
    hardware: str | None
    code: Mapping[str, Any]
    images: Mapping[str, str]
    differences: Sequence[api.Difference]
    not_run: Sequence[Any]
    notes: Sequence[str]


class ShownExperiment(TypedDict):
    """An experiment. `axes` are those of the paper's plot, `differences` those between paper, scripts and jobs."""

    experiment: str
    figure: str
    title: str
    scales: Sequence[str]
    reference_only: str | None
    axes: Mapping[str, Any]
    differences: Sequence[api.Difference]
    notes: Sequence[str]


class CaseSettings(TypedDict):
    """Settings of a case. `parameters_billion` are those of the whole model."""

    case: str
    label: str | int | float | None
    gpus: int
    tp: int
    pp: int
    cp: int
    dp: int
    ep: int
    vp: int
    mbs: int
    gbs: int
    microbatches: int
    layers: int
    hidden: int
    heads: int
    seq: int
    vocab: int
    dtype: str
    recompute: str
    offload: float | None
    scatter_gather: bool
    sequence_parallel: bool
    distributed_optimizer: bool | None
    ddp: str | None
    arguments: str | None
    parameters_billion: float
    workload: str


class ShownCase(CaseSettings):
    """A case with its published numbers. `expected` is an outcome that the source reports, such as `oom`."""

    experiment: str
    scale: str
    published: Sequence[api.PublishedPoint]
    expected: str | None
    expected_confirmed: bool | None
    reference_only: str | None
    script: str | None


class StatedClaim(TypedDict):
    """A statement of the paper, and the scales that can judge it. `tolerance` is relative."""

    experiment: str
    claim: str
    kind: str
    stated: str
    judged_at: Sequence[str]
    source: str
    says: str
    tolerance: float
    tolerance_because: str | None
    not_met_by_source: str | None


class JudgedClaim(TypedDict):
    """Verdict of a claim: `holds`, `fails` or `not judged`, its distance from the bound, and the numbers behind it."""

    experiment: str
    scale: str
    cluster: str
    claim: str
    kind: str
    says: str
    source: str
    verdict: str
    because: str
    margin: api.Margin | None
    used: Sequence[api.Used]


class JobRef(TypedDict):
    """A job that a command has changed or started. `id` is the one of the scheduler; `reused` is an origin and age."""

    job: str
    experiment: str
    scale: str
    cluster: str
    case: str
    repeat: int
    attempt: int
    state: str
    verdict: str | None
    id: str | None
    reused: str | None
    origin: str | None
    why: str | None


class RetriedJob(TypedDict):
    """A failed job that was submitted again."""

    job: str
    experiment: str
    case: str
    attempt: int


class CaseOutcome(TypedDict):
    """Result of a case. `value` is the figure's metric `metric`; `used` is the number of logged lines behind it."""

    experiment: str
    scale: str
    cluster: str
    case: str
    workload: str
    job: str | None
    state: str
    verdict: str | None
    iteration_ms: float | None
    spread_ms: float | None
    used: int | None
    repeats: int | None
    metric: str
    value: float | None
    percent_of_peak: float | None
    percent_of_peak_computed: float | None
    mfu_percent: float | None
    published: float | None
    execution: str | None
    host_wait_percent: float | None
    host_bound: bool | None
    why: str | None
    newer: str | None
    reused: str | None


class ComparedNumber(TypedDict):
    """A measured number, and the published one. `missing` is the kind of number that is missing."""

    experiment: str
    scale: str
    cluster: str
    case: str
    metric: str
    measured: float | None
    spread: float | None
    published: float | None
    published_how: str | None
    published_confirmed: bool | None
    published_error: float | None
    published_source: str | None
    published_gpu: str | None
    ratio: float | None
    tolerance: float | None
    tolerance_from: str | None
    within: bool | None
    missing: str | None
    because: str | None
    interval_low: float | None
    interval_high: float | None
    repeats: int | None
    gpu: str | None
    execution: str | None
    host_wait_percent: float | None
    host_bound: bool | None
    job: str | None
    attempt: int | None
    newer: str | None
    measured_for: str | None
    reused: str | None
    percent_of_peak: float | None
    percent_of_peak_computed: float | None
    mfu_percent: float | None
    aggregate_pflops: float | None
    flops: str


class ChangedCase(TypedDict):
    """A case in two sets of runs, A and B. `ratio` is B over A; a difference below `noise` is not a change."""

    experiment: str
    scale: str
    case: str
    workload: str
    metric: str
    a: float | None
    a_spread: float | None
    a_repeats: int | None
    a_job: str | None
    b: float | None
    b_spread: float | None
    b_repeats: int | None
    b_job: str | None
    ratio: float | None
    noise: float | None
    noise_from: str | None
    change: str
    because: str | None


class EventRow(TypedDict):
    """An event of an attempt."""

    at: datetime
    event: str
    detail: str | None


class AttemptRow(TypedDict):
    """An attempt of a job, with its measurements by name, and its events."""

    job: str
    experiment: str
    scale: str
    cluster: str
    case: str
    repeat: int
    workload: str
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
    metrics: Mapping[str, api.MeasuredMetric]
    events: Sequence[EventRow]


class SearchedCase(TypedDict):
    """A case of a search; `state` is measured, out of memory, failed or not run, `why` the reason.

    A case of the space that is no candidate has no `predicted_ms`. `detail` is the part of the reason that other cases
    do not share.
    """

    case: str
    state: str
    job: str | None
    iterations: int | None
    iteration_ms: float | None
    spread_ms: float | None
    sequences_per_s: float | None
    predicted_ms: float | None
    memory_gb: float | None
    why: str | None
    detail: str | None


class SearchSummary(TypedDict):
    """A search so far. `stopped` is the reason why no more cases are measured, null in a dry run.

    `hours` are those of GPUs, or of processes on CPU cores. `exhaustive_hours` are those of complete jobs of all
    candidates: predicted, on CPU cores at the mean time of the complete jobs.
    """

    experiment: str
    cluster: str
    candidates: int
    measured: int
    jobs: int
    hours: float
    exhaustive_hours: float | None
    stopped: str | None


class NotRunReason(TypedDict):
    """A reason why cases were not run, and their number."""

    reason: str
    cases: int


class SearchWinner(TypedDict):
    """The fastest measured candidate, with its arguments by program.

    `margin` is how much longer the second one takes, as a share.
    """

    case: str
    iteration_ms: float | None
    spread_ms: float | None
    sequences_per_s: float | None
    margin: float | None
    arguments: Mapping[str, Sequence[str]]


class SimulatedCase(TypedDict):
    """A case that a simulated search measured, with its known time.

    `over_fastest` is how much longer it takes than the fastest case of the list, as a share: 0 for that case.
    """

    case: str
    iteration_ms: float
    over_fastest: float
