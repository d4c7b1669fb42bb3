"""Fields of an experiment's YAML file. The top level is the published figure; `scales` are smaller versions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from orchestrator.catalog.axes import AXES, Matrix, ModelAxes, Rules, Settings, axis_hint
from orchestrator.catalog.claims import Claim, HowStated, Metric
from orchestrator.config.model import Count, Hardware, NonNegative, Positive, Strict, Text, TimeLimit
from orchestrator.megatron.model import Attention, Dtype, Family, Recompute

PAPER = "paper"
"""Name of the published scale, the top level of the file."""

SEARCHES = "searches"
"""Folder of the experiments that `repro search` writes, below `experiments/`."""

LossScale = Annotated[int, Field(strict=True, ge=1, le=2**64)]


class ModelFields(ModelAxes):
    """Shape of a model, or the part of it that all cases share. Matrix, rows or rules contain the rest."""

    family: Family | None = None


class TrainingFields(Strict):
    """Training options of the cases. A field that is not given has the workload's default."""

    dtype: Dtype | None = None
    loss_scale: LossScale | None = None
    recompute: Recompute | None = None
    sequence_parallel: bool | None = None
    distributed_optimizer: bool | None = None
    attention: Attention | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    iterations: Count | None = None
    warmup_iterations: NonNegative | None = None
    log_interval: Count | None = None
    evaluation_iterations: NonNegative | None = None


class CaseFields(Settings):
    """One row of a table: its settings and the paper's numbers.

    `published_as` names the source of the `published` numbers; `expect: oom` is a declared outcome. A row with
    `reference_only`, the reason, has published numbers and no job. `script` is the published script with its arguments.
    """

    published: dict[Metric, Positive] = {}
    expect: Literal["oom"] | None = None
    reference_only: Text | None = None
    script: Text | None = None
    note: Text | None = None
    arguments: list[Text] = []


class ScaleFields(Strict):
    """One scale of an experiment. A smaller scale has only the fields that differ from the published figure.

    Cases are all combinations of `matrix`, or the rows of `cases`; `rules` derive further settings of each. With
    `device: cpu` each of the `gpus` is a process on CPU cores. `arguments` are passed to the program unchanged.
    """

    about: Text | None = None
    device: Literal["gpu", "cpu"] | None = None
    gpus: Count | None = None
    gpu_memory_gb: Count | None = None
    workload: Text | None = None
    model: ModelFields = ModelFields()
    training: TrainingFields = TrainingFields()
    fixed: Settings = Settings()
    matrix: Matrix | None = None
    cases: Annotated[list[CaseFields], Field(min_length=1)] | None = None
    rules: Rules | None = None
    arguments: list[Text] | None = None
    time_limit: TimeLimit | None = None

    @model_validator(mode="after")
    def _has_one_source_of_cases(self) -> ScaleFields:
        if self.matrix is not None and self.cases is not None:
            raise ValueError("both matrix and cases: keep one of them")
        return self


class XAxis(Strict):
    """X axis of the plot. The values of a case on the axes `under` are printed below its tick."""

    label: Text
    of: Annotated[list[Text], Field(min_length=1)]
    scale: Literal["even", "linear", "log2"] = "even"
    under: list[Text] = []

    @field_validator("under")
    @classmethod
    def _are_axes(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in AXES:
                raise ValueError(f"{name}: no such axis; {axis_hint(name)}")
        return names


class YAxis(Strict):
    """Y axis of the plot."""

    label: Text
    metric: Metric
    range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    scale: Literal["linear", "log2"] = "linear"


class Series(Strict):
    """Lines of the plot, one for each value of an axis. `names` are the paper's names of the lines, in order."""

    label: Text
    of: Text
    names: dict[Text, Text] = {}


class Axes(Strict):
    """Axes of the paper's plot, used at every scale.

    `also` are further metrics of the same cases, each in its own panel below. Bars have even distances, whatever the
    scale of x; points are lines without connections.
    """

    x: XAxis
    y: YAxis
    also: list[YAxis] = []
    series: Series | None = None
    marks: Literal["lines", "bars", "points"] = "lines"


class PublishedAs(Strict):
    """Source of the numbers in `cases`. `gpu` is a part of the name of the GPU that was measured.

    `gpu_memory_in` is the unit in which the source has `gpu_memory_used_gb`.
    """

    how: HowStated
    source: Text
    confirmed: bool = True
    gpu: Text | None = None
    gpu_memory_in: Literal["10^9 bytes", "1000 MiB"] = "10^9 bytes"

    def point(self, metric: Metric, value: float) -> PublishedPoint:
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


HowObtained = Literal["printed", "derived", "traced from the plot", "read off the plot"]
_FROM_PLOTS = ("traced from the plot", "read off the plot")


class PublishedPoint(Strict):
    """A number that the paper prints or that comes from its plot: from its vector graphics, or read by eye.

    `error` is the largest difference from the number behind the plot, in the unit of the metric. Without it a plotted
    number decides no comparison.
    """

    where: Settings
    metric: Metric
    value: Positive
    how: HowObtained
    confirmed: bool
    source: Text
    gpu: Text | None = None
    error: Positive | None = None

    @property
    def origin(self) -> str:
        """How the number was obtained, with its error: `traced from the plot, ±0.5, unconfirmed`."""
        error = [] if self.error is None else [f"±{self.error:g}"]
        return ", ".join([self.how, *error, *([] if self.confirmed else ["unconfirmed"])])

    @property
    def doubt(self) -> str:
        """Reason why a comparison with the number can stay open."""
        return "its error is unknown" if self.error is None else f"the published number is known to ±{self.error:g}"

    def agrees(self, value: float, tolerance: float) -> bool | None:
        """Return whether a value is within a relative tolerance; None if the error of the number leaves it open."""
        if self.error is None and self.how in _FROM_PLOTS:
            return None
        distance, allowed, error = abs(value - self.value), tolerance * self.value, self.error or 0.0
        if distance <= allowed - error:
            return True
        return False if distance > allowed + error else None


class ExpectedOutcome(Strict):
    """Outcome of some cases in the source."""

    where: Settings
    outcome: Literal["oom"]
    confirmed: bool
    source: Text


class Difference(Strict):
    """Difference between the paper and its published scripts, with the one that the cases follow and the reason.

    If the cases follow `neither`, their jobs differ from the published ones.
    """

    what: Text
    follows: Literal["script", "paper", "neither"]
    because: Text
    where: Settings = Settings()


class Experiment(ScaleFields):
    """A table or figure of a paper, as published.

    `script` is the published script of all cases, as a path in the repository of their workload.
    """

    figure: Text
    title: Text
    workload: Text
    axes: Axes
    named_by: list[Text] = ["case"]
    reference_only: Text | None = None
    script: Text | None = None
    notes: list[Text] = []
    differences: list[Difference] = []
    claims: list[Claim] = []
    published_as: PublishedAs | None = None
    published: list[PublishedPoint] = []
    expected: list[ExpectedOutcome] = []
    scales: dict[Annotated[str, Field(pattern=r"^[a-z0-9-]+$")], ScaleFields] = {}

    @model_validator(mode="before")
    @classmethod
    def _no_scale_named_paper(cls, value: object) -> object:
        if isinstance(value, dict) and isinstance(value.get("scales"), dict) and PAPER in value["scales"]:
            raise ValueError("the scale `paper` is the top level of the file; remove its block")
        return value

    @model_validator(mode="after")
    def _has_cases(self) -> Experiment:
        if self.matrix is None and self.cases is None:
            raise ValueError("neither matrix nor cases: add one of them")
        if self.published_as is None and any(row.published for row in self.cases or []):
            raise ValueError("cases have published numbers: add published_as with their source")
        return self


def scale_names(experiment: Experiment) -> list[str]:
    """Return the scales, largest first: the published figure, then the order of the file."""
    return [PAPER, *experiment.scales]


class SourceNumber(Strict):
    """Number of a source that no experiment has."""

    what: Text
    value: Positive
    unit: Text
    how: HowObtained
    confirmed: bool = True


class NotRun(Strict):
    """Part of a paper that no experiment runs: what it says, its numbers, and the reason."""

    part: Text
    says: Text
    because: Text
    numbers: list[SourceNumber] = []


class CodeFields(Strict):
    """Commit of a workload's source code. `scripts` is the place of the published scripts, if it is another one."""

    repository: Text
    commit: Text
    scripts: Text | None = None

    @property
    def place_of_scripts(self) -> str:
        """Return `NVIDIA/Megatron-LM at 6985e58938`."""
        short = self.commit[:10] if len(self.commit) == 40 else self.commit
        return self.scripts or f"{self.repository} at {short}"


class Paper(Strict):
    """Contents of experiments/FOLDER/paper.yaml, shared by all experiments of a paper.

    `machine` is the machine of the paper: the target of a plan without a cluster. `differences` belong to all cases
    that have a script.
    """

    title: Text
    venue: Text
    arxiv: Text | None = None
    doi: Text | None = None
    code: dict[str, CodeFields] = {}
    images: dict[str, Text] = {}
    hardware: Text | None = None
    machine: Hardware | None = None
    models: dict[str, ModelFields] = {}
    differences: list[Difference] = []
    not_run: list[NotRun] = []
    notes: list[Text] = []
