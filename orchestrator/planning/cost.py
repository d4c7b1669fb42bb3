"""What a case takes before anything is queued: memory against the GPU's, seconds per iteration, GPU-hours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.catalog.case import Case
from orchestrator.megatron.memory import MemoryEstimate
from orchestrator.megatron.training import Training
from orchestrator.planning.target import Target
from orchestrator.planning.time_model import Duration, predict
from orchestrator.workloads import find_workload

Fit = Literal["fits", "OOM expected", "OOM unexpected", "fits, OOM published"]


@dataclass(frozen=True, slots=True)
class Cost:
    """A prediction. None is what cannot be said: of processes on CPU cores, or of a GPU that the profile leaves open.

    `usable_bytes` is what tensors can have of the GPU's memory; `job_s` has start-up in it, and of a job that runs out
    of memory nothing else. `duration` is then what it would take if it fitted.
    """

    nodes: int
    memory: MemoryEstimate | None
    usable_bytes: float | None
    fit: Fit | None
    duration: Duration | None
    job_s: float | None
    gpu_hours: float | None


def cost_of(case: Case, target: Target) -> Cost:
    """The cost of a case that the target does not refuse."""
    nodes = target.nodes_of(case)
    if case.device == "cpu":
        return Cost(nodes, None, None, None, None, None, None)
    hardware = target.hardware
    memory = memory_of(case)
    share = find_workload(case.workload).usable_share
    usable = None if hardware.gpu_memory_gb is None else hardware.gpu_memory_gb * 1e9 * share
    fit = None if usable is None else fit_of(case, memory.total_bytes, usable)
    duration = predict(case.model, case.layout, case.training, hardware, case.workload)
    if duration is None:
        return Cost(nodes, memory, usable, fit, None, None, None)
    if fit in ("OOM expected", "OOM unexpected"):
        job_s = find_workload(case.workload).time.start_up_s
    else:
        job_s = run_s(case.training, duration.iteration_ms, case.workload)
    return Cost(nodes, memory, usable, fit, duration, job_s, case.layout.gpus * job_s / 3600)


def run_s(training: Training, iteration_ms: float, program: str) -> float:
    """Seconds of a job that comes to its end: its start, its iterations, and its evaluation."""
    runs = training.iterations + training.evaluation_iterations / 3  # forward only: a third of the work
    return find_workload(program).time.start_up_s + runs * iteration_ms / 1e3


def memory_of(case: Case) -> MemoryEstimate:
    """By the closed form of the program that the case runs."""
    return find_workload(case.workload).estimate_memory(case)


def fit_of(case: Case, needed_bytes: float, usable_bytes: float) -> Fit:
    """Whether it fits, held against what the source says of the case."""
    published_oom = case.expected is not None and case.expected.outcome == "oom"
    if needed_bytes <= usable_bytes:
        return "fits, OOM published" if published_oom else "fits"
    return "OOM expected" if published_oom else "OOM unexpected"
