"""Metrics of a case: their names, units, meanings, and how they are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """Definition of a metric.

    `is_rate` is true for times and rates, which depend on how long a GPU waits for the host. `take` is the sample that
    counts. `least_uncertainty` is the smallest relative uncertainty of a metric that is neither a time nor a rate. A
    `published` metric is one that papers report: experiments can name it. `is_principal` is true for the metric that
    orders repeats and is shown with every figure. `beside` is the metric that it is shown beside, with `label` as the
    head of a table and `phrase` as text. `is_stored` is false for a metric that results compute from others.
    """

    name: str
    unit: str
    meaning: str
    better: Literal["higher", "lower"] = "higher"
    is_rate: bool = True
    take: Literal["median", "largest", "smallest", "last"] = "median"
    least_uncertainty: float | None = None
    published: bool = False
    is_principal: bool = False
    beside: str | None = None
    label: str | None = None
    phrase: str = "{}"
    is_stored: bool = True

    def with_unit(self, number: str) -> str:
        """Return a number with the unit, which the names of METRICS contain."""
        return f"{number} {self.unit}" if self.unit and METRICS.get(self.name) is not self else number


def _by_name(*definitions: MetricDefinition) -> Mapping[str, MetricDefinition]:
    return {definition.name: definition for definition in definitions}


_Of = MetricDefinition  # one line for each short definition
SAMPLED: Mapping[str, MetricDefinition] = _by_name(
    _Of(
        "gpu_memory_used_gb",
        "GB",
        "peak memory use of a whole GPU, in 10^9 bytes",
        "lower",
        is_rate=False,
        take="largest",
        least_uncertainty=0.01,
        published=True,
    ),
    _Of("gpu_power_w", "W", "power of a busy GPU", "lower"),
    _Of("gpu_clock_mhz", "MHz", "clock of a busy GPU"),
    _Of("gpu_temperature_c", "degC", "highest temperature of a GPU", "lower", take="largest"),
    _Of("gpu_power_capped_percent", "%", "share of time in which the power limit slowed a busy GPU", "lower"),
    _Of(
        "gpu_slowed_percent",
        "%",
        "share of time in which heat, power supply or hardware slowed a busy GPU: 0 on a healthy machine",
        "lower",
    ),
)
"""Metrics of the GPU samples of any program."""

METRICS: Mapping[str, MetricDefinition] = _by_name(
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
        is_stored=False,
    ),
)
"""Metric by name, in the order of the columns.

Least uncertainties: the allocator repeats its bytes exactly; 22 cases that ran again, on the same or on another
machine, had the same peak. The memory of the whole GPU differed by up to 0.6 % between machines. The number of
parameters is counted.
"""


def principal_metric(metrics: Mapping[str, MetricDefinition], own: str) -> MetricDefinition:
    """Return the metric that orders repeats: the principal one of the program, else a figure's own, else the first."""
    principal = (metric for metric in metrics.values() if metric.is_principal)
    return next(principal, None) or metrics.get(own) or next(iter(metrics.values()))


def shares_beside(metrics: Mapping[str, MetricDefinition], name: str) -> list[MetricDefinition]:
    """Return the shares in percent that are shown beside a metric, as those of the peak beside TFLOP/s."""
    return [metric for metric in metrics.values() if metric.beside == name and metric.unit == "%"]
