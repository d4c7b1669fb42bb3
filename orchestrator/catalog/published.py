"""Fields of an experiment about its source: published numbers, outcomes and differences."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestrator.catalog.axes import Settings
from orchestrator.catalog.claims import HowStated, MetricName
from orchestrator.config.model import Positive, Strict, Text

_CONFIRMED = "false: the number is not checked in the source. It is drawn, and decides no claim."
_GPU = "Part of the name of the GPU that was measured. Without it: the GPU of the paper's machine."
_HOW = (
    "Origin: printed in the source, derived from printed numbers, traced from the plot (coordinates of its vector "
    "graphics), or read off the plot (by eye)."
)

HowObtained = Literal["printed", "derived", "traced from the plot", "read off the plot"]


class PublishedAs(Strict):
    """Source of the numbers in `cases`."""

    how: HowStated = Field(description="printed: the source prints the numbers. derived: from printed numbers.")
    source: Text = Field(description="Place of the numbers in the source.", examples=["table 1"])
    confirmed: bool = Field(default=True, description=_CONFIRMED)
    gpu: Text | None = Field(default=None, description=_GPU, examples=["A800"])
    gpu_memory_in: Literal["10^9 bytes", "1000 MiB"] = Field(
        default="10^9 bytes",
        description="Unit in which the source has `gpu_memory_used_gb`. nvidia-smi calls 1 MiB 1 MB.",
    )

    def point(self, metric: MetricName, value: float) -> PublishedPoint:
        """Return a number of a row of `cases`, in the unit of the metric."""
        if metric == "gpu_memory_used_gb" and self.gpu_memory_in == "1000 MiB":
            value = round(value * 1000 * 2**20 / 1e9, 1)
        return PublishedPoint(
            where=Settings(),
            metric=metric,
            value=value,
            how=self.how,
            confirmed=self.confirmed,
            source=self.source,
            gpu=self.gpu,
        )


FROM_PLOTS = ("traced from the plot", "read off the plot")
"""Origins of numbers that have an error."""


class PublishedPoint(Strict):
    """A number of the source, for the cases with these settings."""

    where: Settings = Field(description="Settings of the cases that have the number.", examples=[{"pp": 2, "gbs": 32}])
    metric: MetricName = Field(description="Metric of the number. Its name has the unit.", examples=["tflops_per_gpu"])
    value: Positive = Field(description="The number, in the unit of the metric.", examples=[103])
    how: HowObtained = Field(description=_HOW)
    confirmed: bool = Field(description=_CONFIRMED)
    source: Text = Field(description="Place of the number in the source.", examples=["figure 13"])
    gpu: Text | None = Field(default=None, description=_GPU, examples=["A800"])
    error: Positive | None = Field(
        default=None,
        description="Largest error of a number from a plot, in the unit of the metric. Without it such a number "
        "decides nothing.",
        examples=[0.5],
    )

    @property
    def origin(self) -> str:
        """How the number was obtained, with its error: `traced from the plot, ±0.5, unconfirmed`."""
        error = [] if self.error is None else [f"±{self.error:g}"]
        return ", ".join([self.how, *error, *([] if self.confirmed else ["unconfirmed"])])

    @property
    def doubt(self) -> str:
        """Reason why a comparison with the number can stay open."""
        return "its error is unknown" if self.error is None else f"the published number is known to ±{self.error:g}"


class ExpectedOutcome(Strict):
    """Outcome of some cases in the source."""

    where: Settings = Field(description="Settings of the cases with this outcome.", examples=[{"tp": 1}])
    outcome: Literal["oom"] = Field(description="oom: the cases run out of memory.")
    confirmed: bool = Field(description="false: the outcome is not checked in the source.")
    source: Text = Field(description="Place of the outcome in the source.", examples=["section 5.4"])


class Difference(Strict):
    """Difference between the paper and its published scripts."""

    what: Text = Field(description="The difference, as a sentence.", examples=["The script sets no seed."])
    follows: Literal["script", "paper", "neither"] = Field(
        description="Side that the cases follow. neither: the jobs differ from the published ones."
    )
    because: Text = Field(description="Reason for the choice.", examples=["500 iterations exceed the time limit"])
    where: Settings = Field(
        default=Settings(), description="Cases that have the difference. Without it: all.", examples=[{"case": "1T"}]
    )


class SourceNumber(Strict):
    """Number of a source that no experiment has."""

    what: Text = Field(description="Meaning of the number.", examples=["size of a checkpoint"])
    value: Positive = Field(description="The number, in `unit`: a number of any unit.", examples=[13.8])
    unit: Text = Field(description="Unit of the number.", examples=["TB"])
    how: HowObtained = Field(description=_HOW)
    confirmed: bool = Field(default=True, description=_CONFIRMED)
