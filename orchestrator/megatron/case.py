"""Cases of the Megatron family: the training of a model in a layout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import RuleError
from orchestrator.catalog.experiment import PublishedPoint, ScaleFields
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import Value
from orchestrator.megatron.axes import AXES, WITHOUT_INFLUENCE, ModelAxes
from orchestrator.megatron.model import Layout, ModelShape, Training, flops_per_iteration, training_days
from orchestrator.text import counted

if TYPE_CHECKING:
    from typing_extensions import Self

_SHAPE = tuple(field.name for field in fields(ModelShape) if field.default is MISSING)
_REQUIRED = (*_SHAPE, "gpus", "mbs", "gbs")
_LAYOUT = [name for name, column in AXES.items() if column.name in {field.name for field in fields(Layout)}]
_SWITCHES = ("recompute", "offload", "scatter_gather", "distributed_optimizer", "cp_comm", "ddp")
_Values = Mapping[str, Any]
_LENGTH_OF_RUN = ("iterations", "warmup_iterations", "log_interval", "evaluation_iterations")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCase(Case):
    """A case of a program of the Megatron family: the training of a model in a layout."""

    model: ModelShape
    layout: Layout
    training: Training
    without_influence = WITHOUT_INFLUENCE

    @property
    def gpus(self) -> int:
        """Number of GPUs, or of processes on CPU cores."""
        return self.layout.gpus

    @property
    def iterations(self) -> int:
        """Number of planned iterations."""
        return self.training.iterations

    @property
    def equation(self) -> str:
        """Equation of the FLOPs behind its rates (`megatron.model.flops_per_iteration`)."""
        return "SC21 eq. 3" if self.training.recompute == "full" else "SC21's appendix, without recomputation"

    def training_days(self, tflops_per_gpu: float) -> float | None:
        """Return the days of the whole training by SC21's equation 4; None without `tokens_billion`."""
        tokens = self.settings.get("tokens_billion")
        if not isinstance(tokens, int) or tflops_per_gpu <= 0:
            return None
        return training_days(self.model.parameters(), tokens * 1e9, self.gpus, tflops_per_gpu)

    @property
    def parameters(self) -> float:
        """Number of parameters of the model."""
        return self.model.parameters()

    def effective(self, name: str) -> Value | None:
        """Return a setting as the job has it: the field of layout, model or training with its name or its column's."""
        names, parts = (AXES[name].name if name in AXES else name, name), (self.layout, self.model, self.training)
        values: Iterator[Value | None] = (getattr(one, each) for each in names for one in parts if hasattr(one, each))
        return next(values)

    @property
    def warmup_iterations(self) -> int:
        """Number of iterations that do not count for metrics."""
        return self.training.warmup_iterations

    @property
    def dtype(self) -> str:
        """Data type of the products."""
        return self.training.dtype

    @property
    def microbatches(self) -> int:
        """Microbatches of an iteration."""
        return self.layout.microbatches

    @property
    def bubble(self) -> float:
        """Share of the pipeline's time in which a GPU waits for another stage."""
        return round(self.layout.bubble(), 4)

    @property
    def work(self) -> float:
        """FLOPs of the job, without recomputation."""
        return flops_per_iteration(self.model, self.layout.global_batch_size, False) * self.iterations

    @property
    def layout_text(self) -> str:
        """GPUs and layout for the head of a script."""
        layout = self.layout
        places = counted(layout.gpus, "process" if self.device == "cpu" else "GPU")
        degrees = f"tensor-parallel {layout.tensor_parallel}, pipeline-parallel {layout.pipeline_parallel}"
        batches = f"{counted(layout.microbatches, 'microbatch')} of {layout.micro_batch_size}"
        return f"{places}: {degrees}, data-parallel {layout.data_parallel}; {batches}"

    def with_iterations(self, iterations: int) -> Self:
        """Return the case with another number of iterations."""
        return replace(self, training=replace(self.training, iterations=iterations))

    def identity_parts(self) -> dict[str, object]:
        """Return the parts of a job's identity that are the settings of the case."""
        return {name: non_default(getattr(self, name)) for name in ("model", "layout", "training")}

    def runs_like(self, other: Case, compared: Collection[str]) -> bool:
        """Return whether both have the same kind of model, and the same training but for `compared` and its length."""
        if not isinstance(other, TrainingCase):
            return False
        if (self.model.family, self.model.positions) != (other.model.family, other.model.positions):
            return False
        free = {field.name for field in fields(Training)} & {*compared, *_LENGTH_OF_RUN}
        return replace(other.training, **{name: getattr(self.training, name) for name in free}) == self.training


def training_view(case: Case, entry: Entry, scale: ScaleFields) -> TrainingCase:
    """Return the case of a program of the Megatron family with model, layout and training."""
    settings = case.settings
    for needed in _REQUIRED:
        if needed not in settings:
            raise RuleError(f"{needed} is neither in matrix, nor fixed, nor set by a rule")
    layout = _layout(settings)
    training = _training(scale, settings)
    model = _model(entry, scale, settings)
    own = {field.name: getattr(case, field.name) for field in fields(case)}
    own["settings"] = {**_effective(model, layout, training), **settings}
    return TrainingCase(**own, model=model, layout=layout, training=training)


def _model(entry: Entry, scale: ScaleFields, settings: _Values) -> ModelShape:
    fields_of_model: _Values = entry.paper.models.get(str(settings.get("model")), {}) | scale.model
    family, positions = fields_of_model.get("family", "gpt"), fields_of_model.get("positions", "learned")
    given = {name: settings[name] for name in ModelAxes.model_fields if name in settings}
    return ModelShape(**given, family=family, positions=positions)


def _training(scale: ScaleFields, settings: _Values) -> Training:
    values: dict[str, Any] = {name: value for name, value in scale.training.items() if name != "sequence_parallel"}
    return Training(**values | {name: settings[name] for name in _SWITCHES if name in settings})


def _layout(settings: _Values) -> Layout:
    given = {AXES[name].name: settings[name] for name in _LAYOUT if name in settings}
    layout = Layout(**{"tensor_parallel": 1, "pipeline_parallel": 1} | given)
    if "dp" in settings and settings["dp"] != layout.data_parallel:
        raise RuleError(
            f"dp={settings['dp']} but data-parallel is {layout.data_parallel} on {counted(layout.gpus, 'GPU')}"
        )
    return layout


def _effective(model: ModelShape, layout: Layout, training: Training) -> dict[str, Value]:
    """Return the values on axes that have a default."""
    sizes = ("tp", "pp", "dp", "cp", "ep", "vp", "sequence_parallel")
    return {
        **{name: getattr(layout, AXES[name].name) for name in sizes},
        "kv_groups": model.kv_groups or model.heads,
        "ffn": model.ffn_hidden,
        **{name: getattr(training, name) for name in _SWITCHES if getattr(training, name) is not None},
    }


def training_case(case: Case) -> TrainingCase:
    """Return the case; ReproError if its program is not of the Megatron family."""
    if not isinstance(case, TrainingCase):
        what = f"{case.program}: no program of the Megatron family"
        raise ReproError(Problem(what, hint="only those have layouts to search"))
    return case


def training_cases(cases: Iterable[Case]) -> list[TrainingCase]:
    """Return the cases; ReproError if the program of one is not of the Megatron family."""
    return [training_case(case) for case in cases]


def non_default(value: ModelShape | Layout | Training) -> dict[str, object]:
    """Return the fields whose value is not the field's default, without the warm-up: it changes no job."""
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if field.name != "warmup_iterations" and getattr(value, field.name) != field.default
    }


def published_time(case: TrainingCase, gpu: str | None) -> tuple[PublishedPoint, float] | None:
    """Return the published number that gives the time of an iteration most exactly, and that time in ms.

    Numbers of another GPU than `gpu` are left out. None if no number gives the time.
    """
    points = {point.metric: point for point in case.published if point.gpu is None or point.gpu in (gpu or "")}
    metric = next((name for name in _times_ms(case, 1.0) if name in points), None)
    return None if metric is None else (points[metric], _times_ms(case, points[metric].value)[metric])


def _times_ms(case: TrainingCase, value: float) -> dict[str, float]:
    """Return the time of an iteration in ms by the metric whose value is given, the one with the most digits first.

    FLOPs are those of SC21 eq. 3.
    """
    batch, gpus = case.layout.global_batch_size, case.gpus
    flops = flops_per_iteration(case.model, batch, case.training.recompute == "full")
    return {
        "iteration_ms": value,
        "aggregate_pflops": flops / (value * 1e12),
        "tflops_per_gpu": flops / gpus / (value * 1e9),
        "tokens_per_s_per_gpu": 1e3 * batch * case.model.seq / (value * gpus),
        "tokens_per_s": 1e3 * batch * case.model.seq / value,
        "sequences_per_s": 1e3 * batch / value,
    }
