"""Fields of an experiment about its source: published numbers, outcomes and differences."""

from __future__ import annotations

from typing import Literal

from orchestrator.catalog.axes import Settings
from orchestrator.catalog.claims import HowStated, MetricName
from orchestrator.config.model import Positive, Strict, Text, optional, required

_CONFIRMED = "false: the number is not checked in the source. It is drawn, and decides no claim."
_GPU = "Part of the name of the GPU that was measured. Without it: the GPU of the paper's machine."
_HOW = (
    "Origin: printed in the source, derived from printed numbers, traced from the plot (coordinates of its vector "
    "graphics), or read off the plot (by eye)."
)

HowObtained = Literal["printed", "derived", "traced from the plot", "read off the plot"]


class PublishedAs(Strict):
    """Source of the numbers in `cases`."""

    how: HowStated = required("printed: the source prints the numbers. derived: from printed numbers.")
    source: Text = required("Place of the numbers in the source.", "table 1")
    confirmed: bool = optional(_CONFIRMED, default=True)
    gpu: Text | None = optional(_GPU, "A800")
    gpu_memory_in: Literal["10^9 bytes", "1000 MiB"] = optional(
        "Unit in which the source has `gpu_memory_used_gb`. nvidia-smi calls 1 MiB 1 MB.", default="10^9 bytes"
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

    where: Settings = required("Settings of the cases that have the number.", {"pp": 2, "gbs": 32})
    metric: MetricName = required("Metric of the number. Its name has the unit.", "tflops_per_gpu")
    value: Positive = required("The number, in the unit of the metric.", 103)
    how: HowObtained = required(_HOW)
    confirmed: bool = required(_CONFIRMED)
    source: Text = required("Place of the number in the source.", "figure 13")
    gpu: Text | None = optional(_GPU, "A800")
    error: Positive | None = optional(
        "Largest error of a number from a plot, in the unit of the metric. Without it such a number decides nothing.",
        0.5,
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

    where: Settings = required("Settings of the cases with this outcome.", {"tp": 1})
    outcome: Literal["oom"] = required("oom: the cases run out of memory.")
    confirmed: bool = required("false: the outcome is not checked in the source.")
    source: Text = required("Place of the outcome in the source.", "section 5.4")


class Difference(Strict):
    """Difference between the paper and its published scripts."""

    what: Text = required("The difference, as a sentence.", "The script sets no seed.")
    follows: Literal["script", "paper", "neither"] = required(
        "Side that the cases follow. neither: the jobs differ from the published ones."
    )
    because: Text = required("Reason for the choice.", "500 iterations exceed the time limit")
    where: Settings = optional("Cases that have the difference. Without it: all.", {"case": "1T"}, default=Settings())


class SourceNumber(Strict):
    """Number of a source that no experiment has."""

    what: Text = required("Meaning of the number.", "size of a checkpoint")
    value: Positive = required("The number, in `unit`: a number of any unit.", 13.8)
    unit: Text = required("Unit of the number.", "TB")
    how: HowObtained = required(_HOW)
    confirmed: bool = optional(_CONFIRMED, default=True)
