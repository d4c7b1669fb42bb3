"""Metrics of a job from its iteration lines and log facts, and the progress of a running job."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from orchestrator.job_spec import JobSpec
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.tables import IterationLine
from orchestrator.megatron.axes import METRICS
from orchestrator.megatron.logs.iteration_lines import (
    LARGEST,
    LONGEST_MS,
    effective_lines,
    iteration_lines,
    plausible_lines,
)
from orchestrator.megatron.logs.parse import LogFacts
from orchestrator.megatron.model import (
    computed_flops_per_iteration,
    flops_per_iteration,
    model_flops_utilization,
    padded_vocabulary,
    tflops_per_gpu,
)
from orchestrator.megatron.spec import training_spec
from orchestrator.reading.gpu_samples import MeanPower
from orchestrator.reading.statistics import ENOUGH_SAMPLES, RunningProgress, is_possible, sample_that_counts

RECENT_LINES = 5
"""Number of lines whose median is the pace of a running job."""

MOST_TFLOPS_PER_GPU = 1e6
"""An exaflop per second: the fastest GPU does not reach a tenth of it at any precision."""

_REPORTED = {
    "reported_tflops_per_gpu": "reported_tflops_per_gpu",
    "reported_tokens_per_s_per_gpu": "reported_tokens_per_s_per_gpu",
    "gpu_power_w": "power_w",
}
"""Metrics that programs print in their iteration lines -> field of the line."""


def measured_metric(name: str, value: float, spread: float | None = None, count: int | None = None) -> MeasuredMetric:
    """Return a number in the unit of its metric."""
    return MeasuredMetric(name, value, METRICS[name].unit, spread, count)


def metric_of_samples(name: str, values: Sequence[float]) -> MeasuredMetric:
    """Return the sample of a metric that counts, as the metric defines."""
    return sample_that_counts(name, METRICS[name].unit, METRICS[name].take, values)


def progress(tail: bytes, iterations: int, spec: JobSpec) -> RunningProgress | None:
    """Return the progress from the end of a log; None without an iteration line. `iterations` is the planned number.

    Unlike in the metrics of a finished job the warm-up counts.
    """
    lines, _ = effective_lines(plausible_lines(iteration_lines(tail))[0], last=None)
    if not lines:
        return None
    last = lines[-1].iteration
    recent = [line for line in with_used(lines, warmup_iterations=0) if line.used][-RECENT_LINES:]
    pace = {metric.name: metric.value for metric in metrics(recent, spec)}
    if not pace:
        return RunningProgress(last)
    left_s = max(0, iterations - last) * pace["iteration_ms"] / 1e3
    return RunningProgress(last, pace["iteration_ms"], pace["tflops_per_gpu"], left_s)


def row_metrics(facts: LogFacts, spec: JobSpec) -> list[MeasuredMetric]:
    """Return the metrics of a program that prints one result row; an empty list without a usable throughput.

    Alpa's benchmark prints its throughput, and not the mean time of its steps. The time is computed back from it: the
    program counts SC21's eq. 3 with recomputation, even if recomputation is off. All rates follow from that time.
    """
    own, tflops = training_spec(spec), facts.alpa.tflops if facts.alpa else None
    model, layout = own.model, own.layout
    if tflops is None or not math.isfinite(tflops) or model is None or layout is None:
        return []
    elapsed_ms = 1e3 * flops_per_iteration(model, layout.global_batch_size, True) / (tflops * 1e12 * layout.gpus)
    reported = measured_metric("reported_tflops_per_gpu", tflops, 0.0, 1)
    return [*_timing([elapsed_ms], spec), reported, *_from_facts(facts, spec)]


def with_used(lines: Sequence[IterationLine], warmup_iterations: int) -> list[IterationLine]:
    """Return the lines with `used` and `is_finite` set.

    Not used are start-up, warm-up, NaN, lines without a time, and lines with a skipped iteration: the optimizer did not
    run in it, so its time is too short. A missing loss is NaN (`_lacks_loss`).
    """
    start_up = _lines_with_start_up(lines)
    interval = _interval(lines, start_up)
    marked = []
    for index, line in enumerate(lines):
        is_finite = line.is_finite and not _lacks_loss(line, interval)
        is_measured = is_finite and line.elapsed_ms > 0 and not line.skipped
        used = index >= start_up and line.iteration > warmup_iterations and is_measured
        is_same = (line.used, line.is_finite) == (used, is_finite)
        marked.append(line if is_same else replace(line, used=used, is_finite=is_finite))
    return marked


def _lacks_loss(line: IterationLine, interval: int) -> bool:
    """Return whether the loss of a line with an iteration that was not skipped is missing.

    Megatron prints the mean loss of the iterations that were not skipped, and only if it is above 0: NaN is not.
    """
    return line.loss is None and (line.skipped or 0) < min(interval, line.iteration)


def _interval(lines: Sequence[IterationLine], start_up: int) -> int:
    """Return the number of iterations that a line reports: the smallest step, as a line may be garbled."""
    numbers = [line.iteration for line in lines[start_up - 1 :]]
    return min((later - number for number, later in pairwise(numbers)), default=numbers[0] if numbers else 0)


def mostly_skipped(lines: Sequence[IterationLine]) -> str | None:
    """Return how many iterations were skipped if they are more than half: `20 of 25 iterations were skipped`.

    Up to half may be the search for a loss scale when the program starts.
    """
    # The line after core_v0.16's extra line counts the skipped iterations of that line, too.
    skipped = sum(line.skipped or 0 for line in lines[_lines_with_start_up(lines) - 1 :])
    last = lines[-1].iteration if lines else 0
    return f"{skipped} of {last} iterations were skipped" if 2 * skipped > last else None


def has_enough(lines: Sequence[IterationLine], planned: int) -> bool:
    """Return whether a job that was ended early has a result: the lines of a complete run, or `ENOUGH_SAMPLES`.

    The lines are those of `with_used`, `planned` is the number of iterations. `templates/gate.sh.j2` has the same rule.
    """
    if not lines or mostly_skipped(lines) or not all(line.is_finite for line in lines):
        return False
    return lines[-1].iteration >= planned or sum(line.used for line in lines) >= ENOUGH_SAMPLES


def is_long_enough(log: bytes, warmup_iterations: int) -> bool:
    """Return whether a job that was ended early has a result, from the end of its log."""
    lines, _ = effective_lines(plausible_lines(iteration_lines(log))[0], last=None)
    return bool(lines) and has_enough(with_used(lines, warmup_iterations), lines.planned[-1])


def _lines_with_start_up(lines: Sequence[IterationLine]) -> int:
    """Return the number of first lines that contain the start-up: one, or two if the first is core_v0.16's extra line.

    Since core_v0.16 (c40b6ea070, 2026-01-16) Megatron prints a line after the first iteration and does not reset the
    timer, so that the next line contains the start-up too.
    """
    if len(lines) < 2:
        return 1
    first_step = lines[1].iteration - lines[0].iteration
    later_step = lines[2].iteration - lines[1].iteration if len(lines) > 2 else 1
    is_extra = first_step < later_step or (lines[0].iteration == 1 and first_step > 1)
    return 2 if is_extra else 1


def metrics(iterations: Sequence[IterationLine], spec: JobSpec, facts: LogFacts | None = None) -> list[MeasuredMetric]:
    """Return the metrics of the used lines; an empty list if no line is used.

    The value is the median over the lines, the spread half the interquartile range. A line that averages over several
    iterations is one sample. Metrics from `facts` (memory, parameters) have no spread.
    """
    used = [line for line in iterations if line.used]
    if not used:
        return []
    timing = _timing(sorted(line.elapsed_ms for line in used), spec)
    of_lines = [*timing, *_host_wait(used), *_reported(used)]
    return [*of_lines, *(_from_facts(facts, spec) if facts is not None else ())]


def can_be_measured(metric: MeasuredMetric) -> bool:
    """Return whether a metric is possible, and no rate above that of any GPU."""
    return is_possible(metric) and (metric.name != "tflops_per_gpu" or metric.value <= MOST_TFLOPS_PER_GPU)


def _timing(elapsed_ms: Sequence[float], spec: JobSpec) -> Iterator[MeasuredMetric]:
    """Yield the time of an iteration and the rates that follow from it.

    TFLOP/s per GPU are SC21's eq. 3 over the elapsed time (without recomputation: its appendix' count). Megatron's
    number counts other FLOPs in each version. Eq. 3 counts products that some programs do not compute. So there are two
    more shares of the peak: the computed share, if the job's record has `computes`, and the MFU.
    """
    own = training_spec(spec)
    model, layout, training = own.model, own.layout, own.training
    if model is None or layout is None or training is None:
        return
    gpus, batch, peak = layout.gpus, layout.global_batch_size, own.peak_tflops
    timing = metric_of_samples("iteration_ms", elapsed_ms)
    median, spread = timing.value, timing.spread or 0.0

    def rate(name: str, value: float) -> MeasuredMetric:
        return measured_metric(name, value, value * spread / median, timing.count)

    flops = flops_per_iteration(model, batch, training.recompute == "full")
    tflops = tflops_per_gpu(flops, median, gpus)
    sequences_per_s = batch / (median / 1e3)
    tokens_per_s = sequences_per_s * model.seq
    yield timing
    yield rate("tflops_per_gpu", tflops)
    yield rate("sequences_per_s", sequences_per_s)
    yield rate("tokens_per_s", tokens_per_s)
    yield rate("tokens_per_s_per_gpu", tokens_per_s / gpus)
    yield rate("aggregate_pflops", tflops * gpus / 1e3)
    if not peak:
        return
    yield rate("percent_of_peak", 100 * tflops / peak)
    if own.computes:
        computed = computed_flops_per_iteration(
            model,
            batch,
            training.recompute,
            causal_attention=own.computes.causal_attention,
            skips_last_product=own.computes.skips_last_product,
        )
        yield rate("percent_of_peak_computed", 100 * tflops_per_gpu(computed, median, gpus) / peak)
    yield rate("mfu_percent", model_flops_utilization(model, tokens_per_s / gpus, peak))


def _host_wait(used: Sequence[IterationLine]) -> Iterator[MeasuredMetric]:
    """Yield the time per iteration for which a GPU waited for the host, and its share of the median iteration time.

    Yields nothing if the program measures no host wait. A garbled number counts as not measured.
    """
    printed = [line.host_wait_ms for line in used]
    waits_ms = [wait for wait in printed if wait is not None and 0 <= wait <= LONGEST_MS]
    if not waits_ms:
        return
    percent = 100 / statistics.median(line.elapsed_ms for line in used)
    wait = metric_of_samples("host_wait_ms", waits_ms)
    yield wait
    yield measured_metric("host_wait_percent", wait.value * percent, (wait.spread or 0.0) * percent, wait.count)


def _reported(used: Sequence[IterationLine]) -> Iterator[MeasuredMetric]:
    """Yield the program's own numbers. They are shown beside ours because programs count FLOPs in other ways."""
    for name, field in _REPORTED.items():
        printed = [getattr(line, field) for line in used]
        values = [value for value in printed if value is not None and 0 < value <= LARGEST]
        if values:
            yield metric_of_samples(name, values)


def _from_facts(facts: LogFacts, spec: JobSpec) -> Iterator[MeasuredMetric]:
    sizes = {
        "max_memory_allocated_bytes": facts.max_allocated_bytes,
        "max_memory_reserved_bytes": facts.max_reserved_bytes,
        "theoretical_memory_bytes": facts.theoretical_memory_bytes,
    }
    for name, size in sizes.items():
        if size:
            yield measured_metric(name, float(size))
    if facts.device_used_bytes:
        yield measured_metric("gpu_memory_used_gb", facts.device_used_bytes / 1e9)
    parameters = _parameters(facts, spec)
    if parameters:
        yield measured_metric("parameters_billion", parameters / 1e9)


def _parameters(facts: LogFacts, spec: JobSpec) -> int | None:
    """Return the sum of the parameters that the ranks print; None unless all ranks print them.

    An output layer that shares the embedding has its own copy on the last stage, which is not counted again. Tensors
    that all tensor-parallel ranks hold (norms, some biases, learned positions) are counted on each rank: under 1 % in
    the papers' models. Experts that are spread over data-parallel ranks are printed only in part, so the sum is None.
    """
    own = training_spec(spec)
    layout, model = own.layout, own.model
    if layout is None or model is None:
        return None
    tensor, pipeline = layout.tensor_parallel, layout.pipeline_parallel
    all_ranks = {(t, p) for t in range(tensor) for p in range(pipeline)}
    if facts.parameters.keys() != all_ranks or layout.expert_parallel > 1:
        return None
    total = sum(facts.parameters.values())
    untied = facts.settings.get("untie_embeddings_and_output_weights")
    shares = model.family == "gpt" if untied is None else untied != "True"
    if shares and pipeline > 1:
        total -= (facts.padded_vocab or padded_vocabulary(model.vocab, tensor)) * model.hidden
    return total


def joules(power: MeanPower, numbers: Sequence[MeasuredMetric]) -> list[MeasuredMetric]:
    """Return the energy of an iteration and of a token in J: the mean power times the times behind the throughput."""
    by_name = {metric.name: metric for metric in numbers}
    timing, rate = by_name.get("iteration_ms"), by_name.get("tokens_per_s")
    if power.power_w is None or timing is None:
        return []
    per_iteration = power.power_w * timing.value / 1e3
    energy = [measured_metric("joules_per_iteration", per_iteration, count=power.samples)]
    if rate is not None and rate.value:
        energy.append(measured_metric("joules_per_token", power.power_w / rate.value, count=power.samples))
    return energy
