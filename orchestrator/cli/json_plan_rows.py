"""Rows of JSON documents about plans: checked cases, and the jobs of a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict  # pydantic cannot read the one of Python 3.10


class CheckedCase(TypedDict):
    """A case with its predicted memory, time and cost; null where nothing is predicted, or nothing was asked.

    `tasks` are the processes of a case on CPU cores. `iterations` and `run_s` are those of a budget, `exact_...` those
    of --exact, and the alphas those of --solve-alpha. The parts of an iteration's time are in ms. `uncertainty` is a
    share of the time. `time_basis` is the class of the prediction: program, GPU and site measured (or a node of
    the same kind), another site or network, another program of the family on a measured GPU, or no similar case. `fit`
    is `tight` if a case needs more than the usable memory and at most the whole memory of a GPU.
    """

    experiment: str
    case: str
    nodes: int
    tasks: int | None
    gpus: int
    microbatches: int
    bubble: float
    parameters_per_gpu_b: float | None
    memory_gb: float | None
    usable_gb: float | None
    fit: Literal["fits", "tight", "OOM"] | None
    pinned_gb_per_node: float | None
    iteration_s: float | None
    uncertainty: float | None
    time_basis: Literal["measured", "other site", "other program", "not compared"] | None
    job_min: float | None
    gpu_hours: float | None
    cost: float | None
    currency: str | None
    same_job_as: str | None
    time_limit_s: int
    compute_ms: float | None
    tensor_parallel_ms: float | None
    context_parallel_ms: float | None
    expert_parallel_ms: float | None
    pipeline_bubble_ms: float | None
    pipeline_transfer_ms: float | None
    data_parallel_ms: float | None
    iterations: int | None
    run_s: float | None
    exact_gb: float | None
    exact_stage: int | None
    exact_parameters_per_gpu_b: float | None
    alpha: float | None
    solved_alpha: float | None


class PlannedJob(TypedDict):
    """A job of a dry run, with the program that it would run."""

    job: str
    experiment: str
    scale: str
    cluster: str
    case: str
    repeat: int
    nodes: int
    tasks: int
    gpus: int
    microbatches: int
    bubble: float
    iterations: int
    time_limit_s: int | None
    warnings: Sequence[str]
    workload: str
    code: str
    image: str | None
    image_digest: str | None
    data: str | None
