"""An experiment at a scale -> its cases. Pure: the same file gives the same cases, in the same order."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.catalog import consistency
from orchestrator.catalog.experiment import AXES, PAPER, AxisRules, ScaleFields, scale_names
from orchestrator.catalog.library import Entry
from orchestrator.catalog.rules import RuleError, evaluate
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.megatron.layout import Layout
from orchestrator.megatron.model import ModelShape

_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Training:
    """How long and in what arithmetic a case trains. Counts are iterations."""

    dtype: str = "fp32"
    loss_scale: int | None = None
    recompute: str = "none"
    dropout: float = 0.1
    iterations: int = 20
    warmup_iterations: int = 2
    log_interval: int = 1
    evaluation_iterations: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """One point of an experiment, at one scale. `point` has its value on every axis that is varied or follows."""

    experiment: str
    scale: str
    point: tuple[tuple[str, int], ...]
    workload: str
    model: ModelShape
    layout: Layout
    training: Training
    device: str = "gpu"
    time_limit: str | None = None
    gpu_memory_gb: int | None = None

    @property
    def name(self) -> str:
        """As a person filters for it: `pp=8,tp=8,gbs=32`."""
        return ",".join(f"{axis}={value}" for axis, value in self.point)

    @property
    def slug(self) -> str:
        """The same for file names: `pp8-tp8-gbs32`."""
        return "-".join(f"{axis}{value}" for axis, value in self.point)

    def value(self, axis: str) -> int:
        return dict(self.point)[axis]


def expand(entry: Entry, scale: str = PAPER) -> list[Case]:
    """Every case of the experiment at this scale; ReproError names every rule that gives no whole number."""
    fields = scale_fields(entry, scale)
    disagreements = list(consistency.problems(entry.document, entry.experiment, scale, fields))
    if disagreements:
        raise ReproError(*disagreements)
    assert fields.matrix is not None
    matrix = fields.matrix.given()
    cases: list[Case] = []
    problems: list[Problem] = []
    for values in itertools.product(*matrix.values()):
        varied = dict(zip(matrix, values, strict=True))
        try:
            cases.append(_case(entry, scale, fields, varied))
        except RuleError as error:
            at = ",".join(f"{axis}={value}" for axis, value in varied.items())
            problems.append(Problem(f"{entry.short_name} {at}: {error}", _rules_place(entry, scale)))
    if problems:
        raise ReproError(*problems)
    return cases


def scale_fields(entry: Entry, scale: str) -> ScaleFields:
    """The published figure with what this scale changes laid over it."""
    experiment = entry.experiment
    if scale != PAPER and scale not in experiment.scales:
        known = scale_names(experiment)
        mend = did_you_mean(scale, known) or f"{entry.short_name} has: {', '.join(known)}"
        raise ReproError(Problem(f"{scale}: no such scale", mend=mend))
    base = {name: getattr(experiment, name) for name in ScaleFields.model_fields}
    if scale == PAPER:
        return ScaleFields.model_construct(None, **base)
    smaller = experiment.scales[scale]
    over = {name: getattr(smaller, name) for name in ScaleFields.model_fields if getattr(smaller, name) is not None}
    merged = base | over
    merged["training"] = experiment.training.model_copy(update=smaller.training.model_dump(exclude_none=True))
    merged["fixed"] = experiment.fixed.model_copy(update=smaller.fixed.model_dump(exclude_none=True))
    return ScaleFields.model_construct(None, **merged)


def parse_where(text: str | None) -> dict[str, int]:
    """`pp=8,gbs=32` -> {"pp": 8, "gbs": 32}."""
    wanted: dict[str, int] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in AXES:
            mend = did_you_mean(name, AXES) or f"known: {', '.join(AXES)}"
            raise ReproError(Problem(f"--where {part.strip()}: no such axis", mend=mend))
        if not equals or not _NUMBER.fullmatch(value):
            raise ReproError(Problem(f"--where {part.strip()}: must be axis=number", mend="for example pp=8,gbs=32"))
        if wanted.get(name, int(value)) != int(value):
            raise ReproError(Problem(f"--where {part.strip()}: {name} is given twice", mend="one value for each axis"))
        wanted[name] = int(value)
    return wanted


def select(cases: list[Case], wanted: Mapping[str, int]) -> list[Case]:
    """The cases with these values; ReproError says which values there are when none is left."""
    axes = [axis for axis, _ in cases[0].point] if cases else []
    strange = [name for name in wanted if name not in axes]
    if strange:
        raise ReproError(Problem(f"--where {strange[0]}: not an axis here", mend=f"it has {', '.join(axes)}"))
    chosen = [case for case in cases if all(case.value(axis) == value for axis, value in wanted.items())]
    if not chosen:
        there = "; ".join(
            f"{axis}: {', '.join(str(v) for v in sorted({case.value(axis) for case in cases}))}" for axis in wanted
        )
        asked = ",".join(f"{axis}={value}" for axis, value in wanted.items())
        raise ReproError(Problem(f"--where {asked}: no such case", mend=f"there are {there}"))
    return chosen


def _case(entry: Entry, scale: str, fields: ScaleFields, varied: dict[str, int]) -> Case:
    assert fields.gpus and fields.model and fields.workload
    fixed = fields.fixed.given()
    derived = _derived(fields.rules, {"gpus": fields.gpus, **fixed, **varied})
    point = varied | derived
    return Case(
        experiment=entry.name,
        scale=scale,
        point=tuple((axis, point[axis]) for axis in AXES if axis in point),
        workload=fields.workload,
        model=ModelShape(**fields.model.model_dump()),
        layout=_layout(fields, fixed | point),
        training=Training(**_training(fields)),
        device=fields.device or "gpu",
        time_limit=fields.time_limit,
        gpu_memory_gb=fields.gpu_memory_gb,
    )


def _rules_place(entry: Entry, scale: str) -> str:
    own = ("scales", scale, "rules")
    return str(entry.document.place(own if own in entry.document.keys else ("rules",)))


def _training(fields: ScaleFields) -> dict[str, Any]:
    values: dict[str, Any] = fields.training.model_dump(exclude_none=True)
    values.pop("sequence_parallel", None)
    return values


def _derived(rules: AxisRules | None, known: dict[str, int]) -> dict[str, int]:
    derived: dict[str, int] = {}
    for axis, text in (rules.given() if rules else {}).items():
        derived[axis] = evaluate(text, known | derived)
    return derived


def _layout(fields: ScaleFields, values: Mapping[str, int]) -> Layout:
    assert fields.gpus is not None
    for needed in ("mbs", "gbs"):
        if needed not in values:
            raise RuleError(f"{needed} is neither in matrix, nor fixed, nor given by a rule")
    layout = Layout(
        gpus=fields.gpus,
        tensor_parallel=values.get("tp", 1),
        pipeline_parallel=values.get("pp", 1),
        context_parallel=values.get("cp", 1),
        virtual_stages=values.get("vp", 1),
        micro_batch_size=values["mbs"],
        global_batch_size=values["gbs"],
        sequence_parallel=bool(fields.training.sequence_parallel),
    )
    if "dp" in values and values["dp"] != layout.data_parallel:
        raise RuleError(f"dp={values['dp']} but {fields.gpus} GPUs leave data-parallel {layout.data_parallel}")
    return layout
