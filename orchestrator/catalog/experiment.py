"""Fields of YAML files: an experiment, the axes of its plot, the numbers of its source, and `paper.yaml`.

The top level of an experiment is the published figure; `scales` are smaller versions.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.catalog.claims import Claim, HowStated
from orchestrator.config.model import Count, Hardware, Positive, Strict, Text, TimeLimit, optional, required
from orchestrator.job_spec import Value
from orchestrator.programs.axes import Matrix, MetricName, ModelGroup, Rules, Settings, TrainingGroup, checked_settings
from orchestrator.programs.program import ProgramFields


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

    label: Text | None = optional("Title of the legend. Without it: the name of the axis.", "Schedule")
    of: Text = required("Axis with a line for each of its values.", "vp")
    names: dict[Text, Text] = optional(
        "The paper's names of the lines, in its order, by the value of the axis.",
        {"1": "Non-interleaved", "2": "Interleaved"},
        default={},
    )

    @property
    def title(self) -> str:
        """Title of the legend."""
        return self.label or self.of


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


_EXAMPLE = {
    "command": ["python3", "train_toy.py", "--width", "{width}"],
    "output": {"iterations": "step={iteration} loss={loss}"},
    "metrics": {"loss": {"better": "lower"}},
}
"""Example of a program."""
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
        fields = self.model_dump(exclude={"gpu_memory_in"})
        return PublishedPoint(where={}, metric=metric, value=value, **fields)


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
    where: Settings = optional("Cases that have the difference. Without it: all.", {"case": "1T"}, default={})


class SourceNumber(Strict):
    """Number of a source that no experiment has."""

    what: Text = required("Meaning of the number.", "size of a checkpoint")
    value: Positive = required("The number, in `unit`: a number of any unit.", 13.8)
    unit: Text = required("Unit of the number.", "TB")
    how: HowObtained = required(_HOW)
    confirmed: bool = optional(_CONFIRMED, default=True)


PAPER = "paper"
"""Name of the published scale, the top level of the file."""

GROUPS = ("model", "training")
"""Keys of an experiment and of its scales with groups of axes, if its program has them."""

SEARCHES = "searches"
"""Folder of the experiments that `repro search` writes, below `experiments/`."""


def is_search(name: str) -> bool:
    """Return whether the cases of the experiment are candidates of `repro search`, of which most need no job."""
    return name.startswith(f"{SEARCHES}/")


class CaseFields(Strict):
    """One row of a table: its settings, by axis, and the paper's numbers."""

    model_config = ConfigDict(extra="allow")

    published: dict[MetricName, Positive] = optional(
        "The paper's numbers of the row, in the unit of each metric. `published_as` has their source.",
        {"tflops_per_gpu": 137},
        default={},
    )
    expect: Literal["oom"] | None = optional("oom: the row runs out of memory according to the source.")
    reference_only: Text | None = optional(
        "Reason why the row has published numbers and no job.", "the program of this row is not public"
    )
    script: Text | None = optional(
        "Published script of the row, with its arguments. Without it: that of the experiment.",
        "examples/run_table_1.sh 1.7B",
    )
    note: Text | None = optional(
        "Remark about the row, such as the reason why it may need more memory than a GPU has.",
        "the source has no batch size; 8 is ours",
    )
    arguments: list[Text] = optional("Further arguments of the program, one word each.", ["--lr", "1.5e-4"], default=[])

    @property
    def settings(self) -> dict[str, Value]:
        """Values on axes."""
        return self.model_extra or {}

    @model_validator(mode="after")
    def _has_axes_of_the_program(self, info: ValidationInfo) -> CaseFields:
        given = self.settings
        checked = checked_settings({**given}, info)
        assert isinstance(checked, dict)
        given.clear()
        given.update(checked)
        return self


ProgramReference = Annotated[
    Annotated[ProgramFields, Tag("block")] | Annotated[Text, Tag("name")],
    Discriminator(lambda value: "name" if isinstance(value, str) else "block"),
]


class ScaleFields(Strict):
    """One scale of an experiment. A smaller scale has only the fields that differ from the published figure."""

    about: Text | None = optional("Size of the scale, in one line.", "3.4 million parameters on 4 CPU cores")
    device: Literal["gpu", "cpu"] | None = optional(
        "cpu: each of the `gpus` is a process on CPU cores. Without it: gpu."
    )
    gpus: Count | None = optional("Number of GPUs of each case, unless the axis `gpus` is set.", 64)
    gpu_memory_gb: Count | None = optional(
        "Memory that each GPU must have, in units of 10^9 bytes. Without it: any.", 80
    )
    program: ProgramReference | None = optional(
        "Program of the cases: the name of a known one (`repro programs list`), the name of one in `programs` of "
        "`paper.yaml`, or the block of one that this file describes. Without it at a scale: that of the experiment.",
        "pretrain",
        _EXAMPLE,
    )
    model: ModelGroup = optional(
        "Model of all cases, or the part of it that they share.",
        {"layers": 8, "hidden": 1024, "heads": 8, "seq": 1024, "vocab": 51200},
        default={},
    )
    training: TrainingGroup = optional(
        "Training options of all cases.",
        {"dtype": "bf16", "iterations": 25, "warmup_iterations": 5},
        default={},
    )
    fixed: Settings = optional("Axes that have the same value in every case.", {"mbs": 1}, default={})
    matrix: Matrix | None = optional(
        "Values of axes: every combination is a case. Either `matrix` or `cases` is required.",
        {"pp": [1, 2, 4], "gbs": [8, 16]},
    )
    cases: Annotated[list[CaseFields], Field(min_length=1)] | None = optional(
        "Rows of a table: each row is a case.", [{"case": "1.7B", "gpus": 32, "mbs": 16, "gbs": 512}]
    )
    rules: Rules | None = optional(
        "Axes that follow from others, by + - * / on whole numbers, or as the value of another axis.",
        {"tp": "gpus / pp"},
    )
    arguments: list[Text] | None = optional(
        "Further arguments of the program for all cases, one word each, passed unchanged.", ["--lr", "1.5e-4"]
    )
    time_limit: TimeLimit | None = optional(
        "Time limit of a job, as `[D-]H:MM:SS`. Without it: the one of the cluster profile.", "0:30:00"
    )

    @model_validator(mode="after")
    def _has_one_source_of_cases(self) -> ScaleFields:
        if self.matrix is not None and self.cases is not None:
            raise ValueError("both matrix and cases: keep one of them")
        return self


class Experiment(ScaleFields):
    """A table or figure of a paper, as published."""

    figure: Text = required("Name of the table or figure in the paper.", "Figure 13")
    title: Text = required(
        "Subject of the table or figure, for all scales: without sizes. `about` has the published size.",
        "Pipeline against tensor parallelism",
    )
    plot: Axes = required("Axes of the paper's plot, used at every scale.")
    named_by: list[Text] = optional("Axes that name the rows of `cases`.", ["case", "gpus"], default=["case"])
    reference_only: Text | None = optional(
        "Reason why the experiment has published numbers and no jobs.", "the machine no longer exists"
    )
    script: Text | None = optional(
        "Published script of all cases, as a path in the repository of their program.",
        "examples/sc21/run_figure_13.sh",
    )
    notes: list[Text] = optional("Further remarks.", ["The figure has no grid."], default=[])
    differences: list[Difference] = optional(
        "Differences between the paper and its published scripts.",
        [{"what": "The script sets no seed.", "follows": "script", "because": "the paper names no seed"}],
        default=[],
    )
    claims: list[Claim] = optional(
        "Statements of the paper about the figure, as predicates.",
        [{"id": "best-is-2", "kind": "peak", "says": "The best size is 2.", "stated": "printed", "at": {"mbs": 2}}],
        default=[],
    )
    published_as: PublishedAs | None = optional(
        "Source of the numbers in the rows of `cases`, required if rows have `published`.",
        {"how": "printed", "source": "table 1"},
    )
    published_program: Text | None = optional(
        "Program of the published numbers, if it is not the experiment's. The numbers are drawn beside measured ones, "
        "and decide no claim.",
        "Megatron-LM at f772743329",
    )
    published: list[PublishedPoint] = optional(
        "Numbers of the source, for cases selected by their settings.",
        [
            {
                "where": {"pp": 2, "gbs": 32},
                "metric": "tflops_per_gpu",
                "value": 103,
                "how": "traced from the plot",
                "confirmed": True,
                "source": "figure 13",
                "error": 0.5,
            }
        ],
        default=[],
    )
    expected: list[ExpectedOutcome] = optional(
        "Outcomes of cases in the source.",
        [{"where": {"tp": 1}, "outcome": "oom", "confirmed": True, "source": "section 5.4"}],
        default=[],
    )
    scales: dict[Annotated[str, Field(pattern=r"^[a-z0-9-]+$")], ScaleFields] = optional(
        "Smaller sizes of the figure by name, the largest first, each with the fields that differ.",
        {"cpu": {"device": "cpu", "gpus": 4, "matrix": {"pp": [1, 2]}}},
        default={},
    )

    def about_scale(self, scale: str) -> str | None:
        """Return the size of a scale in words: that of the published figure is at the top level."""
        if scale == PAPER:
            return self.about
        return self.scales[scale].about if scale in self.scales else None

    @model_validator(mode="before")
    @classmethod
    def _no_scale_named_paper(cls, value: object) -> object:
        if isinstance(value, dict) and isinstance(value.get("scales"), dict) and PAPER in value["scales"]:
            raise ValueError("the scale `paper` is the top level of the file; remove its block")
        return value

    @model_validator(mode="after")
    def _has_a_program(self) -> Experiment:
        if self.program is None:
            raise ValueError("no program: add the name of a known one, or the block of your own")
        for name, scale in self.scales.items():
            if isinstance(scale.program, ProgramFields):
                field = {"field": ("scales", name, "program"), "hint": "describe it at the top of a file of its own"}
                raise PydanticCustomError("program_of_scale", "a scale cannot describe a program", field)
        return self

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


class NotRun(Strict):
    """Part of a paper that no experiment runs: what it says, its numbers, and the reason."""

    part: Text = required("Part of the paper.", "Section 5.10")
    says: Text = required("Content of the part, as a sentence.", "Loading of checkpoints.")
    because: Text = required("Reason why no experiment runs it.", "the published jobs save no checkpoints")
    numbers: list[SourceNumber] = optional(
        "Numbers of the part.",
        [{"what": "size of a checkpoint", "value": 13.8, "unit": "TB", "how": "printed"}],
        default=[],
    )


class CodeFields(Strict):
    """Commit of a program's source code."""

    repository: Text = required("Repository on GitHub, `OWNER/NAME`.", "NVIDIA/Megatron-LM")
    commit: Text = required("Commit of the paper's jobs.", "6985e58938d40ad91ac07b0fddcfad8132e1447e")
    scripts: Text | None = optional(
        "Place of the published scripts. Without it: the repository at the commit.", "the artifact of the paper"
    )

    @property
    def place_of_scripts(self) -> str:
        """Return `NVIDIA/Megatron-LM at 6985e58938`."""
        short = self.commit[:10] if len(self.commit) == 40 else self.commit
        return self.scripts or f"{self.repository} at {short}"


class Paper(Strict):
    """Contents of experiments/FOLDER/paper.yaml, shared by all experiments of a paper."""

    title: Text = required("Title of the paper.", "Reducing Activation Recomputation")
    venue: Text | None = optional("Conference or journal.", "SC21")
    arxiv: Text | None = optional("Number of the paper on arXiv.", "2104.04473")
    doi: Text | None = optional("DOI of the paper.", "10.1145/3458817.3476209")
    code: dict[str, CodeFields] = optional(
        "Source code of the paper's jobs, by the name of the program.",
        {"megatron-2021": {"repository": "NVIDIA/Megatron-LM", "commit": "6985e58938"}},
        default={},
    )
    images: dict[str, Text] = optional(
        "Name of the container image of each program. The cluster profile has its location.",
        {"megatron-2021": "nvidia/pytorch:20.12-py3"},
        default={},
    )
    programs: dict[Text, ProgramFields] = optional(
        "Programs of several experiments, by name.",
        {"train": _EXAMPLE},
        default={},
    )
    hardware: Text | None = optional("Machine of the paper, in words.", "nodes of 8 A100-SXM4-80GB")
    machine: Hardware | None = optional("Machine of the paper, in numbers: plans without `--cluster` use it.")
    models: dict[str, ModelGroup] = optional(
        "Models of the paper, by the name that the axis `model` selects.",
        {"gpt-1.7b": {"layers": 24, "hidden": 2304, "heads": 24}},
        default={},
    )
    differences: list[Difference] = optional(
        "Differences between the paper and its scripts, for all cases that have a `script`.",
        [{"what": "The script sets no seed.", "follows": "script", "because": "the paper names no seed"}],
        default=[],
    )
    not_run: list[NotRun] = optional(
        "Parts of the paper that no experiment runs.",
        [{"part": "Section 5.10", "says": "Checkpoints.", "because": "the published jobs save none"}],
        default=[],
    )
    notes: list[Text] = optional("Further remarks.", ["The text and table 2 differ."], default=[])
