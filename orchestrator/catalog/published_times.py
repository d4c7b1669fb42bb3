"""Published times of an iteration."""

from __future__ import annotations

from orchestrator.catalog.case import Case
from orchestrator.catalog.published import PublishedPoint
from orchestrator.megatron.model import flops_per_iteration

_METRICS = (
    "iteration_ms",
    "aggregate_pflops",
    "tflops_per_gpu",
    "tokens_per_s_per_gpu",
    "tokens_per_s",
    "sequences_per_s",
)
"""Metrics that give the time of an iteration, the one with the most digits first."""


def published_time(case: Case, gpu: str | None) -> tuple[PublishedPoint, float] | None:
    """Return the published number that gives the time of an iteration most exactly, and that time in ms.

    Numbers of another GPU than `gpu` are left out. None if no number gives the time.
    """
    points = {point.metric: point for point in case.published if point.gpu is None or point.gpu in (gpu or "")}
    point = next((points[name] for name in _METRICS if name in points), None)
    return None if point is None else (point, time_ms(case, point.metric, point.value))


def time_ms(case: Case, metric: str, value: float) -> float:
    """Return the time of an iteration in ms from a rate; FLOPs are those of SC21 eq. 3."""
    batch, gpus = case.layout.global_batch_size, case.layout.gpus
    flops = flops_per_iteration(case.model, batch, case.training.recompute == "full")
    return {
        "iteration_ms": value,
        "aggregate_pflops": flops / (value * 1e12),
        "tflops_per_gpu": flops / gpus / (value * 1e9),
        "tokens_per_s_per_gpu": 1e3 * batch * case.model.seq / (value * gpus),
        "tokens_per_s": 1e3 * batch * case.model.seq / value,
        "sequences_per_s": 1e3 * batch / value,
    }[metric]
