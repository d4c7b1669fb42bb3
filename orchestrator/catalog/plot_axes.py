"""Fields of an experiment about the axes of the paper's plot."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from orchestrator.catalog.axes import AXES, axis_hint
from orchestrator.catalog.claims import MetricName
from orchestrator.config.model import Strict, Text, optional, required


class XAxis(Strict):
    """X axis of the plot."""

    label: Text = required("Label of the axis.", "Number of GPUs")
    of: Annotated[list[Text], Field(min_length=1)] = required(
        "Axes of the cases whose values are drawn: one axis, or several as in (8, 8).", ["gpus"], ["pp", "tp"]
    )
    scale: Literal["even", "linear", "log2"] = optional(
        "Distances of the ticks. even: all are equal, as for texts.", default="even"
    )
    under: list[Text] = optional("Axes whose values are printed below each tick.", ["case"], default=[])

    @field_validator("under")
    @classmethod
    def _are_axes(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in AXES:
                raise ValueError(f"{name}: no such axis; {axis_hint(name)}")
        return names


class YAxis(Strict):
    """Y axis of the plot."""

    label: Text = required("Label of the axis.", "Achieved teraFLOP/s per GPU")
    metric: MetricName = required("Metric that is drawn. Its name has the unit.", "tflops_per_gpu")
    range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = optional(
        "Range of the paper's axis, in the unit of the metric. It applies to scale `paper`.", [0, 200]
    )
    scale: Literal["linear", "log2"] = optional("Scale of the axis.", default="linear")


class Series(Strict):
    """Lines of the plot, one for each value of an axis. Claims are judged for each line."""

    label: Text = required("Title of the legend.", "Schedule")
    of: Text = required("Axis with a line for each of its values.", "vp")
    names: dict[Text, Text] = optional(
        "The paper's names of the lines, in its order, by the value of the axis.",
        {"1": "Non-interleaved", "2": "Interleaved"},
        default={},
    )


class Axes(Strict):
    """Axes of the paper's plot, used at every scale."""

    x: XAxis = required("X axis of the plot.")
    y: YAxis = required("Y axis of the plot. Its metric is the default of claims.")
    also: list[YAxis] = optional(
        "Further metrics of the same cases, each in its own panel below the plot.",
        [{"label": "Aggregate petaFLOP/s", "metric": "aggregate_pflops"}],
        default=[],
    )
    series: Series | None = optional("Lines of the plot. Without it there is one line.")
    marks: Literal["lines", "bars", "points"] = optional(
        "lines: connected points. points: without lines. bars: side by side, at even distances.", default="lines"
    )
