"""How far a running job is and how fast, from the end of its log alone: a log of any length costs the same."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.job_spec import JobSpec
from orchestrator.megatron.logs.iteration import IterationLines, counting, drop_implausible
from orchestrator.megatron.logs.iteration_lines import iteration_lines
from orchestrator.reading.statistics import measured_iterations, metrics

TAIL_BYTES = 64 * 1024
"""Of a log's end: some 200 interval lines, or several among the warnings of many ranks."""

RECENT = 5
"""Intervals that the pace is the median of."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`iteration_ms` is the median of the last few intervals; None while there is none but the first, which holds the
    start-up. `tflops_per_gpu` is computed from it as for a finished job; `left_s` is what remains at this pace.
    """

    iteration: int
    iteration_ms: float | None = None
    tflops_per_gpu: float | None = None
    left_s: float | None = None


def progress(tail: bytes, iterations: int, spec: JobSpec) -> Progress | None:
    """What the end of a log says of a job of so many iterations; None where it has no interval line.

    Unlike in the metrics of a finished job the warm-up counts: it is what is running now.
    """
    possible, _, _ = drop_implausible(IterationLines.of(iteration_lines(tail)))
    lines, _, _ = counting(possible, last=None)
    if not lines:
        return None
    last = lines[-1].iteration
    recent = [line for line in measured_iterations(lines, warmup_iterations=0) if line.used][-RECENT:]
    now = {metric.name: metric.value for metric in metrics(recent, spec)}
    if not now:
        return Progress(last)
    left_s = max(0, iterations - last) * now["iteration_ms"] / 1e3
    return Progress(last, now["iteration_ms"], now["tflops_per_gpu"], left_s)
