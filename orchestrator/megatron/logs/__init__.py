"""Parsers of log lines of Megatron-LM and related programs, and the line of an iteration. Pure."""

from __future__ import annotations

from dataclasses import dataclass

ALPA_PROGRAM = "megatron-alpa"
"""Name of the program that runs Alpa's benchmark. It prints a result and no iterations."""


@dataclass(frozen=True, slots=True)
class IterationLine:
    """One interval report: averages over the iterations since the line before it.

    `elapsed_ms` is the time of one iteration. The program's own rates are per GPU: TFLOP/s are Megatron's, whose count
    of FLOPs differs between versions; tokens/s are Megatron-Kwai's. `power_w` is per GPU. `host_wait_ms` is the time
    per iteration for which a GPU waited for the host, as `orchestrator.pretrain` prints it.

    `used`: the line is part of the metrics. `is_finite` is False if an iteration counted as NaN, if a number of the
    line is not plausible, or if it lacks its loss (`reading.statistics`).
    """

    iteration: int
    elapsed_ms: float
    loss: float | None
    grad_norm: float | None
    used: bool = True
    loss_scale: float | None = None
    skipped: int | None = None
    nan: int | None = None
    reported_tflops_per_gpu: float | None = None
    reported_tokens_per_s_per_gpu: float | None = None
    power_w: float | None = None
    is_finite: bool = True
    host_wait_ms: float | None = None
