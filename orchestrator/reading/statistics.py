"""Iteration lines and what else a log says -> metrics: warm-up and first interval dropped, median and spread kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.job_spec import JobSpec
from orchestrator.ledger.measurements import MeasuredIteration, MeasuredMetric
from orchestrator.megatron.flops import (
    computed_flops_per_iteration,
    flops_per_iteration,
    model_flops_utilization,
    tflops_per_gpu,
)
from orchestrator.megatron.logs.iteration import LONGEST_MS, IterationLine
from orchestrator.megatron.model import padded_vocabulary

if TYPE_CHECKING:
    from orchestrator.reading.facts import LogFacts


_REPORTED = (
    ("reported_tflops_per_gpu", "reported_tflops_per_gpu", "TFLOP/s"),
    ("reported_tokens_per_s_per_gpu", "reported_tokens_per_s_per_gpu", "1/s"),
    ("gpu_power_w", "power_w", "W"),
)
"""What programs print in their own interval lines: metric, field of the line, unit."""


def measured_iterations(lines: Sequence[IterationLine], warmup_iterations: int) -> list[MeasuredIteration]:
    """Mark which lines count: none that holds the start-up, none within the warm-up, none without a time."""
    start_up = _lines_with_start_up(lines)
    return [
        MeasuredIteration(
            iteration=line.iteration,
            elapsed_ms=line.elapsed_ms,
            loss=line.loss,
            grad_norm=line.grad_norm,
            used=position >= start_up and line.iteration > warmup_iterations and line.is_finite and line.elapsed_ms > 0,
            is_finite=line.is_finite,
            loss_scale=line.loss_scale,
            skipped=line.skipped,
            nan=line.nan,
            reported_tflops_per_gpu=line.reported_tflops_per_gpu,
            reported_tokens_per_s_per_gpu=line.reported_tokens_per_s_per_gpu,
            power_w=line.power_w,
            host_wait_ms=line.host_wait_ms,
        )
        for position, line in enumerate(lines)
        if math.isfinite(line.elapsed_ms)  # SQL has no such number
    ]


def _lines_with_start_up(lines: Sequence[IterationLine]) -> int:
    """How many lines at the beginning hold the start-up: one, or two where the first is core_v0.16's extra one.

    Since core_v0.16 (c40b6ea070, 2026-01-16) a line follows the very first iteration without the timer being set back,
    so that the whole first interval after it still holds the start-up.
    """
    if len(lines) < 2:
        return 1
    first_step = lines[1].iteration - lines[0].iteration
    later_step = lines[2].iteration - lines[1].iteration if len(lines) > 2 else 1
    is_extra = first_step < later_step or (lines[0].iteration == 1 and first_step > 1)
    return 2 if is_extra else 1


def metrics(
    iterations: Sequence[MeasuredIteration], spec: JobSpec, facts: LogFacts | None = None
) -> list[MeasuredMetric]:
    """Metrics of the used lines; none when no line is used.

    The value is the median over the lines, the spread half the range of their middle half; a line that averages over
    an interval of iterations is one sample. What `facts` say of the whole job (memory, parameters) has no spread.
    """
    used = [line for line in iterations if line.used]
    if not used:
        return []
    timing = _timing(sorted(line.elapsed_ms for line in used), spec)
    found = [*timing, *_host_wait(used), *_reported(used)]
    return [*found, *(_from_facts(facts, spec) if facts is not None else ())]


def _timing(elapsed_ms: Sequence[float], spec: JobSpec) -> Iterator[MeasuredMetric]:
    """Yield the time of an iteration and the rates that follow from it.

    TFLOP/s per GPU are SC21's eq. 3 over the elapsed time (without recomputation: its appendix' count), not what
    Megatron prints, which counts other FLOPs in each version. Eq. 3 counts products that some programs do not compute:
    beside its share of the peak stand the share that was computed, where the job's record has `computes`, and the MFU.
    """
    model, layout, training = spec.model, spec.layout, spec.training
    if model is None or layout is None or training is None:
        return
    gpus, batch, peak = layout.gpus, layout.global_batch_size, spec.peak_tflops
    median, spread, count = statistics.median(elapsed_ms), _half_iqr(elapsed_ms), len(elapsed_ms)

    def rate(name: str, value: float, unit: str) -> MeasuredMetric:
        return MeasuredMetric(name, value, unit, value * spread / median, count)

    flops = flops_per_iteration(model, batch, training.recompute == "full")
    tflops = tflops_per_gpu(flops, median, gpus)
    sequences_per_s = batch / (median / 1e3)
    tokens_per_s = sequences_per_s * model.seq
    yield MeasuredMetric("iteration_ms", median, "ms", spread, count)
    yield rate("tflops_per_gpu", tflops, "TFLOP/s")
    yield rate("sequences_per_s", sequences_per_s, "1/s")
    yield rate("tokens_per_s", tokens_per_s, "1/s")
    yield rate("tokens_per_s_per_gpu", tokens_per_s / gpus, "1/s")
    yield rate("aggregate_pflops", tflops * gpus / 1e3, "PFLOP/s")
    if not peak:
        return
    yield rate("percent_of_peak", 100 * tflops / peak, "%")
    if spec.computes:
        computed = computed_flops_per_iteration(
            model,
            batch,
            training.recompute,
            causal_attention=spec.computes.causal_attention,
            skips_last_product=spec.computes.skips_last_product,
        )
        yield rate("percent_of_peak_computed", 100 * tflops_per_gpu(computed, median, gpus) / peak, "%")
    yield rate("mfu_percent", model_flops_utilization(model, tokens_per_s / gpus, peak), "%")


def _host_wait(used: Sequence[MeasuredIteration]) -> Iterator[MeasuredMetric]:
    """Yield the time per iteration for which a GPU waited for the host, and its share of the median iteration time.

    Yields nothing where the program measures no host wait. A garbled number counts as not measured.
    """
    printed = [line.host_wait_ms for line in used]
    waits_ms = [wait for wait in printed if wait is not None and 0 <= wait <= LONGEST_MS]
    if not waits_ms:
        return
    percent = 100 / statistics.median(line.elapsed_ms for line in used)
    median, spread, count = statistics.median(waits_ms), _half_iqr(waits_ms), len(waits_ms)
    yield MeasuredMetric("host_wait_ms", median, "ms", spread, count)
    yield MeasuredMetric("host_wait_percent", median * percent, "%", spread * percent, count)


def _reported(used: Sequence[MeasuredIteration]) -> Iterator[MeasuredMetric]:
    """The program's own numbers, to stand beside ours: its FLOPs are counted in another way."""
    for name, field, unit in _REPORTED:
        printed = [getattr(line, field) for line in used]
        values = [value for value in printed if value is not None and math.isfinite(value) and value > 0]
        if values:
            yield MeasuredMetric(name, statistics.median(values), unit, _half_iqr(values), len(values))


def _from_facts(facts: LogFacts, spec: JobSpec) -> Iterator[MeasuredMetric]:
    sizes = {
        "max_memory_allocated_bytes": facts.max_allocated_bytes,
        "max_memory_reserved_bytes": facts.max_reserved_bytes,
        "theoretical_memory_bytes": facts.theoretical_memory_bytes,
    }
    for name, size in sizes.items():
        if size:
            yield MeasuredMetric(name, float(size), "B")
    if facts.device_used_bytes:
        yield MeasuredMetric("gpu_memory_used_gb", facts.device_used_bytes / 1e9, "GB")
    parameters = _parameters(facts, spec)
    if parameters:
        yield MeasuredMetric("parameters_billion", parameters / 1e9, "10^9")


def _parameters(facts: LogFacts, spec: JobSpec) -> int | None:
    """The sum of what the ranks print; None unless all of them did.

    An output layer that shares the embedding has its own copy of it on the last stage, which is not counted again.
    What all tensor-parallel ranks hold alike (norms, some biases, learned positions) is counted on each of them, under
    1 % in the papers' models. Of experts that are spread over data-parallel ranks only a part is printed.
    """
    layout, model = spec.layout, spec.model
    if layout is None or model is None:
        return None
    tensor, pipeline = layout.tensor_parallel, layout.pipeline_parallel
    wanted = {(t, p) for t in range(tensor) for p in range(pipeline)}
    if facts.parameters.keys() != wanted or layout.expert_parallel > 1:
        return None
    total = sum(facts.parameters.values())
    untied = facts.settings.get("untie_embeddings_and_output_weights")
    shares = model.family == "gpt" if untied is None else untied != "True"
    if shares and pipeline > 1:
        total -= (facts.padded_vocab or padded_vocabulary(model.vocab, tensor)) * model.hidden
    return total


def _half_iqr(values: Sequence[float]) -> float:
    """Half the distance of the quartiles; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2
