"""Metrics of a training: their names, units and meanings, and how they are compared."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.programs.metric import SAMPLED, MetricDefinition, with_units_in_names

_Of = MetricDefinition  # one line for each short definition
METRICS: Mapping[str, MetricDefinition] = with_units_in_names(
    _Of(
        "iteration_ms",
        "ms",
        "time of an iteration",
        "lower",
        published=True,
        is_principal=True,
        label="Iteration time (ms)",
    ),
    _Of("host_wait_ms", "ms", "time per iteration for which a GPU waited for the host, maximum over ranks", "lower"),
    _Of("host_wait_percent", "%", "host wait as a share of the iteration time", "lower"),
    _Of("tflops_per_gpu", "TFLOP/s", "FLOPs per second and GPU, by SC21's equation 3", published=True),
    _Of(
        "percent_of_peak",
        "%",
        "FLOPs by SC21's equation 3 as a share of the GPU's dense peak",
        published=True,
        beside="tflops_per_gpu",
        label="% of peak, eq. 3",
        phrase="{} of the peak by equation 3",
    ),
    _Of(
        "percent_of_peak_computed",
        "%",
        "computed matrix products as a share of the GPU's dense peak",
        beside="tflops_per_gpu",
        label="% of peak, computed",
        phrase="{} computed",
    ),
    _Of(
        "aggregate_pflops",
        "PFLOP/s",
        "FLOPs per second of all GPUs, by SC21's equation 3",
        published=True,
        beside="tflops_per_gpu",
    ),
    _Of(
        "mfu_percent",
        "%",
        "model FLOPs utilization: 6 FLOPs per matrix weight and token, and causal attention by half; no recomputation",
        published=True,
        beside="tflops_per_gpu",
        label="MFU (%)",
        phrase="MFU {}",
    ),
    _Of("sequences_per_s", "1/s", "sequences per second", published=True),
    _Of("tokens_per_s", "1/s", "tokens per second", published=True),
    _Of("tokens_per_s_per_gpu", "1/s", "tokens per second and GPU", published=True),
    _Of("reported_tflops_per_gpu", "TFLOP/s", "rate that the program prints; its FLOP count differs by version"),
    _Of("reported_tokens_per_s_per_gpu", "1/s", "rate that the program prints"),
    _Of(
        "max_memory_allocated_bytes",
        "B",
        "peak memory that the framework allocated, maximum over ranks",
        "lower",
        is_rate=False,
        take="largest",
        least_uncertainty=0.0,
        published=True,
    ),
    _Of(
        "max_memory_reserved_bytes",
        "B",
        "peak memory that the framework reserved, maximum over ranks",
        "lower",
        is_rate=False,
        take="largest",
    ),
    _Of("theoretical_memory_bytes", "B", "memory that the program predicts", "lower", is_rate=False),
    *SAMPLED.values(),
    _Of(
        "joules_per_iteration", "J", "energy of an iteration: mean power of all GPUs times the iteration time", "lower"
    ),
    _Of(
        "joules_per_token",
        "J",
        "energy of a token: mean power of all GPUs divided by the tokens per second",
        "lower",
        published=True,
    ),
    _Of("parameters_billion", "10^9", "parameters, from the log", is_rate=False, least_uncertainty=0.0, published=True),
    _Of(
        "training_days",
        "days",
        "time to train the whole model, by SC21's equation 4, if the case has `tokens_billion`",
        "lower",
        published=True,
    ),
)
"""Metric by name, in the order of the columns.

Least uncertainties: the allocator repeats its bytes exactly; 22 cases that ran again, on the same or on another
machine, had the same peak. The memory of the whole GPU differed by up to 0.6 % between machines. The number of
parameters is counted.
"""
