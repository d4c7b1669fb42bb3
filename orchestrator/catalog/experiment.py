"""What a figure's YAML file may say. The file's top level is the figure as published; `scales` shrink it."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

from pydantic import Field, model_validator

from orchestrator.documents.model import Count, NonNegative, Strict, Text, TimeLimit

Axis = Literal["pp", "tp", "dp", "cp", "vp", "mbs", "gbs"]
AXES: tuple[Axis, ...] = get_args(Axis)
"""Names of what a case may vary: pipeline-, tensor-, data- and context-parallel size, virtual stages, microbatch and
global batch size (in sequences)."""

PAPER = "paper"
"""The scale that every experiment has: the file's top level."""

Metric = Literal["tflops_per_gpu", "iteration_ms", "sequences_per_s"]


class ModelFields(Strict):
    layers: Count
    hidden: Count
    heads: Count
    seq: Count
    vocab: Count


class TrainingFields(Strict):
    """How a case is trained; every field that is not given keeps the workload's meaning of its default."""

    dtype: Literal["fp32", "fp16", "bf16"] | None = None
    loss_scale: Count | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    sequence_parallel: bool | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    iterations: Count | None = None
    warmup_iterations: NonNegative | None = None
    log_interval: Count | None = None
    evaluation_iterations: NonNegative | None = None


T = TypeVar("T")


class ByAxis(Strict, Generic[T]):
    """Something for some of the axes."""

    pp: T | None = None
    tp: T | None = None
    dp: T | None = None
    cp: T | None = None
    vp: T | None = None
    mbs: T | None = None
    gbs: T | None = None

    def given(self) -> dict[str, T]:
        return {name: getattr(self, name) for name in AXES if getattr(self, name) is not None}


class AxisValues(ByAxis[list[Count]]):
    """The matrix: every combination of these values is one case."""

    @model_validator(mode="after")
    def _has_values(self) -> AxisValues:
        if not self.given():
            raise ValueError("names no axis")
        for name, values in self.given().items():
            if not values:
                raise ValueError(f"{name} has no values")
            if len(set(values)) != len(values):
                raise ValueError(f"{name} names a value twice")
        return self


class AxisValue(ByAxis[Count]):
    """Axes that have one value in every case."""


class AxisRules(ByAxis[Text]):
    """Axes that follow from others: `tp: gpus / pp`."""


class ScaleFields(Strict):
    """One size of an experiment. A smaller scale names only what differs from the published figure.

    With `device: cpu` each of the `gpus` is a process on CPU cores.
    """

    about: Text | None = None
    device: Literal["gpu", "cpu"] | None = None
    gpus: Count | None = None
    gpu_memory_gb: Count | None = None
    workload: Text | None = None
    model: ModelFields | None = None
    training: TrainingFields = TrainingFields()
    fixed: AxisValue = AxisValue()
    matrix: AxisValues | None = None
    rules: AxisRules | None = None
    time_limit: TimeLimit | None = None


class XAxis(Strict):
    label: Text
    of: Annotated[list[Axis], Field(min_length=1)]


class YAxis(Strict):
    label: Text
    metric: Metric
    range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None


class Series(Strict):
    label: Text
    of: Axis


class Axes(Strict):
    """The paper's own axes: the picture at any scale is drawn on them."""

    x: XAxis
    y: YAxis
    series: Series | None = None


class ClaimFields(Strict):
    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    says: Text
    source: Text
    stated: Literal["printed", "derived"]
    judged_at: Annotated[list[Text], Field(min_length=1)]
    not_judged_because: Text | None = None


class PeakClaim(ClaimFields):
    """The best case of each series has this axis value; a text names a fact of the cluster."""

    kind: Literal["peak"]
    at: dict[Axis, Count | Literal["gpus_per_node"]]


class SpreadClaim(ClaimFields):
    """Within some series the best case is at least this many times as fast as the worst."""

    kind: Literal["spread"]
    at_least: Annotated[float, Field(gt=1)]
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0


class GainClaim(ClaimFields):
    """Where the given axis is at its largest, the metric grows along another axis, smallest to largest value."""

    kind: Literal["gain"]
    along: Axis
    where_largest: Axis


Claim = Annotated[PeakClaim | SpreadClaim | GainClaim, Field(discriminator="kind")]


class PublishedPoint(Strict):
    """A number the paper gives, or that somebody read off its plot."""

    where: AxisValue
    metric: Metric
    value: Annotated[float, Field(gt=0)]
    how: Literal["printed", "derived", "read off the plot"]
    confirmed: bool
    source: Text


class Experiment(ScaleFields):
    """A table or figure of a paper, as published."""

    figure: Text
    title: Text
    gpus: Count
    workload: Text
    model: ModelFields
    matrix: AxisValues
    axes: Axes
    notes: list[Text] = []
    claims: list[Claim] = []
    published: list[PublishedPoint] = []
    scales: dict[Annotated[str, Field(pattern=r"^[a-z0-9-]+$")], ScaleFields] = {}

    @model_validator(mode="before")
    @classmethod
    def _no_scale_called_paper(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("scales"), dict) and PAPER in value["scales"]:
            raise ValueError("the scale `paper` is the file's top level; give it no block of its own")
        return value


def scale_names(experiment: Experiment) -> list[str]:
    """Largest first: the published figure, then as the file lists them."""
    return [PAPER, *experiment.scales]


class CodeFields(Strict):
    repository: Text
    commit: Text


class Paper(Strict):
    """experiments/FOLDER/paper.yaml: what all of a paper's experiments share."""

    title: Text
    venue: Text
    arxiv: Text | None = None
    doi: Text | None = None
    code: dict[str, CodeFields] = {}
    images: dict[str, Text] = {}
    hardware: Text | None = None
    notes: list[Text] = []
