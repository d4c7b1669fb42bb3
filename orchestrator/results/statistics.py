"""Iteration lines -> metrics: warm-up and first interval dropped, median and spread kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from orchestrator.ledger.measurements import MeasuredIteration, MeasuredMetric
from orchestrator.megatron.flops import flops_per_iteration, model_flops_utilization, tflops_per_gpu
from orchestrator.megatron.log_lines import IterationLine
from orchestrator.megatron.model import ModelShape


def measured_iterations(lines: Sequence[IterationLine], warmup_iterations: int) -> list[MeasuredIteration]:
    """Mark which lines count: not the first (it holds start-up), none within the warm-up, none without a time."""
    return [
        MeasuredIteration(
            iteration=line.iteration,
            elapsed_ms=line.elapsed_ms,
            loss=line.loss,
            grad_norm=line.grad_norm,
            used=position > 0 and line.iteration > warmup_iterations and line.is_finite and line.elapsed_ms > 0,
        )
        for position, line in enumerate(lines)
        if math.isfinite(line.elapsed_ms)  # SQL has no such number
    ]


def metrics(iterations: Sequence[MeasuredIteration], configuration: dict[str, Any]) -> list[MeasuredMetric]:
    """Metrics of the used lines; none when no line is used.

    TFLOP/s per GPU follow from the elapsed time by SC21 eq. 3 (without recomputation: its appendix' count), not
    from what Megatron prints, which counts other FLOPs in each version. MFU is ATC'24's, of its own family of
    models alone.
    """
    elapsed = sorted(line.elapsed_ms for line in iterations if line.used)
    if not elapsed:
        return []
    model = ModelShape(**configuration["model"])
    layout, training = configuration["layout"], configuration["training"]
    flops = flops_per_iteration(model, layout["global_batch_size"], training["recompute"] == "full")
    median, spread, count = statistics.median(elapsed), _half_iqr(elapsed), len(elapsed)
    rate = tflops_per_gpu(flops, median, layout["gpus"])
    relative = spread / median
    tokens = layout["global_batch_size"] * model.seq / (median / 1e3)
    tokens_per_gpu, aggregate = tokens / layout["gpus"], rate * layout["gpus"] / 1e3
    result = [
        MeasuredMetric("iteration_ms", median, "ms", spread, count),
        MeasuredMetric("tflops_per_gpu", rate, "TFLOP/s", rate * relative, count),
        MeasuredMetric("sequences_per_s", layout["global_batch_size"] / (median / 1e3), "1/s", None, count),
        MeasuredMetric("tokens_per_s", tokens, "1/s", tokens * relative, count),
        MeasuredMetric("tokens_per_s_per_gpu", tokens_per_gpu, "1/s", tokens_per_gpu * relative, count),
        MeasuredMetric("aggregate_pflops", aggregate, "PFLOP/s", aggregate * relative, count),
    ]
    peak = configuration.get("peak_tflops")
    if peak:
        percent = 100 * rate / peak
        result.append(MeasuredMetric("percent_of_peak", percent, "%", percent * relative, count))
    if peak and model.family == "llama":
        utilization = model_flops_utilization(model, tokens_per_gpu, peak)
        result.append(MeasuredMetric("mfu_percent", utilization, "%", utilization * relative, count))
    return result


def _half_iqr(values: Sequence[float]) -> float:
    """Half the distance of the quartiles; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2
