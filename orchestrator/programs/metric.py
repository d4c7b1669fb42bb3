"""Definition of a metric: its name, unit and meaning, and how it is compared; and the metrics of GPU samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """Definition of a metric.

    `is_rate` is true for times and rates, which depend on how long a GPU waits for the host. `take` is the sample that
    counts. `least_uncertainty` is the smallest relative uncertainty of a metric that is neither a time nor a rate. A
    `published` metric is one that papers report: experiments can name it. `is_principal` is true for the metric that
    orders repeats and is shown with every figure. `beside` is the metric that it is shown beside, with `label` as the
    head of a table and `phrase` as text.
    `names_unit`: the name contains the unit.
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
    names_unit: bool = False

    def with_unit(self, number: str) -> str:
        """Return a number with the unit, unless the name contains it."""
        return f"{number} {self.unit}" if self.unit and not self.names_unit else number


def with_units_in_names(*definitions: MetricDefinition) -> Mapping[str, MetricDefinition]:
    """Return definitions by name. Each name contains the unit of its metric."""
    return {definition.name: replace(definition, names_unit=True) for definition in definitions}


_Of = MetricDefinition  # one line for each short definition
SAMPLED: Mapping[str, MetricDefinition] = with_units_in_names(
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


def principal_metric(metrics: Mapping[str, MetricDefinition], own: str) -> MetricDefinition:
    """Return the metric that orders repeats: the principal one of the program, else a figure's own, else the first."""
    principal = (metric for metric in metrics.values() if metric.is_principal)
    return next(principal, None) or metrics.get(own) or next(iter(metrics.values()))


def shares_beside(metrics: Mapping[str, MetricDefinition], name: str) -> list[MetricDefinition]:
    """Return the shares in percent that are shown beside a metric, as those of the peak beside TFLOP/s."""
    return [metric for metric in metrics.values() if metric.beside == name and metric.unit == "%"]
