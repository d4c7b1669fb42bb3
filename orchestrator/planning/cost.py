"""Predicted cost of a case: memory, seconds per iteration, GPU-hours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.catalog.case import Case
from orchestrator.megatron.memory import MemoryEstimate
from orchestrator.megatron.model import Training
from orchestrator.planning.target import Target
from orchestrator.planning.time_model import Duration, predict
from orchestrator.workloads import find_workload

Fit = Literal["fits", "OOM expected", "OOM unexpected", "fits, OOM published"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted cost of a case. None is unknown: on CPU cores, or if the profile does not describe the GPU.

    `usable_bytes` is the GPU memory that tensors can use. `job_s` includes the start-up; for a job that runs out of
    memory it is the start-up alone, and `duration` is the time that it would take with enough memory.
    """

    nodes: int
    memory: MemoryEstimate | None
    usable_bytes: float | None
    fit: Fit | None
    duration: Duration | None
    job_s: float | None
    gpu_hours: float | None


def cost_of(case: Case, target: Target) -> Cost:
    """Return the cost of a case that the target does not refuse."""
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
    """Return the seconds of a complete job: start-up, iterations and evaluation."""
    runs = training.iterations + training.evaluation_iterations / 3  # forward only: a third of the work
    return find_workload(program).time.start_up_s + runs * iteration_ms / 1e3


def memory_of(case: Case) -> MemoryEstimate:
    """Return the memory by the closed form for the case's workload."""
    return find_workload(case.workload).estimate_memory(case)


def fit_of(case: Case, needed_bytes: float, usable_bytes: float) -> Fit:
    """Compare the needed memory with the usable memory and with the outcome that the source reports."""
    published_oom = case.expected is not None and case.expected.outcome == "oom"
    if needed_bytes <= usable_bytes:
        return "fits, OOM published" if published_oom else "fits"
    return "OOM expected" if published_oom else "OOM unexpected"
