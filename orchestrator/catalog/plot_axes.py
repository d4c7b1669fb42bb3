"""Fields of an experiment about the axes of the paper's plot."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from orchestrator.catalog.axes import AXES, axis_hint
from orchestrator.catalog.claims import MetricName
from orchestrator.config.model import Strict, Text


class XAxis(Strict):
    """X axis of the plot."""

    label: Text = Field(description="Label of the axis.", examples=["Number of GPUs"])
    of: Annotated[list[Text], Field(min_length=1)] = Field(
        description="Axes of the cases whose values are drawn: one axis, or several as in (8, 8).",
        examples=[["gpus"], ["pp", "tp"]],
    )
    scale: Literal["even", "linear", "log2"] = Field(
        default="even", description="Distances of the ticks. even: all are equal, as for texts."
    )
    under: list[Text] = Field(
        default=[], description="Axes whose values are printed below each tick.", examples=[["case"]]
    )

    @field_validator("under")
    @classmethod
    def _are_axes(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in AXES:
                raise ValueError(f"{name}: no such axis; {axis_hint(name)}")
        return names


class YAxis(Strict):
    """Y axis of the plot."""

    label: Text = Field(description="Label of the axis.", examples=["Achieved teraFLOP/s per GPU"])
    metric: MetricName = Field(description="Metric that is drawn. Its name has the unit.", examples=["tflops_per_gpu"])
    range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        default=None,
        description="Range of the paper's axis, in the unit of the metric. It applies to scale `paper`.",
        examples=[[0, 200]],
    )
    scale: Literal["linear", "log2"] = Field(default="linear", description="Scale of the axis.")


class Series(Strict):
    """Lines of the plot, one for each value of an axis. Claims are judged for each line."""

    label: Text = Field(description="Title of the legend.", examples=["Schedule"])
    of: Text = Field(description="Axis with a line for each of its values.", examples=["vp"])
    names: dict[Text, Text] = Field(
        default={},
        description="The paper's names of the lines, in its order, by the value of the axis.",
        examples=[{"1": "Non-interleaved", "2": "Interleaved"}],
    )


class Axes(Strict):
    """Axes of the paper's plot, used at every scale."""

    x: XAxis = Field(description="X axis of the plot.")
    y: YAxis = Field(description="Y axis of the plot. Its metric is the default of claims.")
    also: list[YAxis] = Field(
        default=[],
        description="Further metrics of the same cases, each in its own panel below the plot.",
        examples=[[{"label": "Aggregate petaFLOP/s", "metric": "aggregate_pflops"}]],
    )
    series: Series | None = Field(default=None, description="Lines of the plot. Without it there is one line.")
    marks: Literal["lines", "bars", "points"] = Field(
        default="lines",
        description="lines: connected points. points: without lines. bars: side by side, at even distances.",
    )
