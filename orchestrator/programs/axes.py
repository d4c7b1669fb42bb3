"""Names that an experiment may use: the axes and metrics of its program, with the type of each axis' values.

The models of an experiment's file check settings by the `ProgramNames` in pydantic's validation context.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ValidationError, ValidationInfo, WithJsonSchema
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from orchestrator.config.model import M, Strict, Text, fault_of, hint_of, shortened
from orchestrator.errors import names_hint
from orchestrator.fields import Column
from orchestrator.job_spec import Value


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


T = TypeVar("T")

_WHOLE = re.compile(r"-?[0-9]{1,9}")
_DECIMAL = re.compile(r"-?[0-9]{1,9}\.[0-9]{1,9}")


@dataclass(frozen=True, eq=False)
class ProgramAxes:
    """Axes of a program, in the order in which they name a case. `model` has a field for each and checks its values.

    The name of an axis is the alias of its field, if the field has one.
    """

    model: type[Strict]
    columns: Mapping[str, Column]

    def checked(self, values: Mapping[str, object]) -> dict[str, Value]:
        """Return the values that are not null, in the order of the axes. ValidationError has every wrong one."""
        known = {name: value for name, value in values.items() if name in self.columns}
        problems = [self._unknown(name) for name in values if name not in self.columns]
        try:
            found = self.model.model_validate(known)
        except ValidationError as error:
            problems += self._with_meanings(error)
        if problems:
            raise ValidationError.from_exception_data("settings", problems)
        fields = self.model.model_fields.items()
        read: dict[str, Value | None] = {field.alias or name: getattr(found, name) for name, field in fields}
        return {name: value for name in self.columns if (value := read[name]) is not None}

    def value(self, axis: str, value: object) -> Value:
        """Return the value if the axis can have it; ValueError names the values that it can have."""
        try:
            return self.checked({axis: value})[axis]
        except ValidationError as error:
            raise ValueError(f"{fault_of(error.errors()[0])}, got {shortened(value)}") from None

    def read(self, axis: str, text: str) -> Value:
        """Parse `text`, as typed after `axis=`; ValueError names the values that the axis can have."""
        number = int(text) if _WHOLE.fullmatch(text) else float(text) if _DECIMAL.fullmatch(text) else None
        value: Value = number if number is not None else {"true": True, "false": False}.get(text, text)
        try:
            return self.value(axis, value)
        except ValueError:
            if value == text:
                raise
            return self.value(axis, text)  # a row may be called 301

    def ordered(self, values: Mapping[str, T]) -> dict[str, T]:
        """Return values by axis in the order of the axes. ValidationError has every unknown axis."""
        problems = [self._unknown(name) for name in values if name not in self.columns]
        if problems:
            raise ValidationError.from_exception_data("axes", problems)
        return {name: values[name] for name in self.columns if name in values}

    def _unknown(self, name: str) -> InitErrorDetails:
        kind = PydanticCustomError("no_such_axis", "no such axis", {"hint": names_hint(name, self.columns)})
        return InitErrorDetails(type=kind, loc=(name, "[key]"), input=name)

    def _with_meanings(self, error: ValidationError) -> Iterator[InitErrorDetails]:
        for detail in error.errors():
            meaning = self.columns[str(detail["loc"][0])].meaning.partition(". ")[0]
            yield _moved(detail, detail["loc"], hint=meaning)


DEVICE = Column("device", "text", "`gpu` or `cpu`")
GPUS = Column("gpus", "integer", "GPUs; processes if the device is `cpu`")
"""Columns in exports of the settings that cases of all programs have."""


@dataclass(frozen=True, eq=False)
class ProgramNames:
    """Names that an experiment may use. A figure or a claim can be about the published ones of the `metrics`.

    `given` are the axes to which the experiment of a described program gives values. `groups` are the models of
    `model:` and `training:`, if the program has them. `shown` are the settings that `repro show` prints, by name.
    `exported` are the columns of settings in exports; without them each axis with a value is a column.
    """

    axes: ProgramAxes
    metrics: Mapping[str, MetricDefinition]
    given: frozenset[str] = frozenset()
    groups: Mapping[str, type[Strict]] = field(default_factory=dict)
    shown: tuple[Column, ...] = ()
    exported: tuple[Column, ...] = ()


def _names(info: ValidationInfo) -> ProgramNames | None:
    return info.context if isinstance(info.context, ProgramNames) else None


def checked_settings(values: object, info: ValidationInfo) -> object:
    """Return settings that were checked by the axes of the validation's program; without one, unchanged."""
    names = _names(info)
    if not isinstance(values, dict) or names is None:
        return values
    return names.axes.checked(values)


def _in_order(values: dict[str, T], info: ValidationInfo) -> dict[str, T]:
    names = _names(info)
    return values if names is None else names.axes.ordered(values)


def _matrix(values: dict[str, list[Value]], info: ValidationInfo) -> dict[str, list[Value]]:
    """Return the values as their axes have them. ValidationError has every wrong one."""
    names = _names(info)
    checked = values if names is None else _checked_lists(names.axes, values)
    if not checked:
        raise ValueError("must have an axis")
    for name, listed in checked.items():
        if not listed:
            raise ValueError(f"{name} has no values")
        if len(set(listed)) != len(listed):
            raise ValueError(f"{name} has a value twice")
    return checked


def _checked_lists(axes: ProgramAxes, values: Mapping[str, list[Value]]) -> dict[str, list[Value]]:
    checked: dict[str, list[Value]] = {}
    problems: list[InitErrorDetails] = []
    for axis, listed in axes.ordered(values).items():
        checked[axis] = []
        for place, value in enumerate(listed):
            try:
                checked[axis] += axes.checked({axis: value}).values()
            except ValidationError as error:
                problems += [_moved(detail, (axis, place)) for detail in error.errors()]
    if problems:
        raise ValidationError.from_exception_data("matrix", problems)
    return checked


def _moved(detail: ErrorDetails, loc: tuple[str | int, ...], **context: object) -> InitErrorDetails:
    """Return a problem of a value at another location."""
    known = {"message": detail["msg"], **context, **detail.get("ctx", {})}
    kind = PydanticCustomError(detail["type"], "{message}", known)
    return InitErrorDetails(type=kind, loc=loc, input=detail["input"])


def checked_part(model: type[M], value: object, context: object = None) -> M:
    """Return the model of a part of a file whose type follows from a name. ValidationError with hints of the model."""
    try:
        return model.model_validate(value, context=context)
    except ValidationError as error:
        hinted = [_moved(detail, detail["loc"], hint=hint_of(model, detail)) for detail in error.errors()]
        raise ValidationError.from_exception_data(model.__name__, hinted) from None


def _metric(name: str, info: ValidationInfo) -> str:
    names = _names(info)
    published = [metric.name for metric in names.metrics.values() if metric.published] if names is not None else [name]
    if name not in published:
        raise PydanticCustomError("no_such_metric", "no such metric", {"hint": names_hint(name, published)})
    return name


def _checked_group(group: str) -> Callable[[object, ValidationInfo], object]:
    """Return a validator that returns the given values of a group; none if the program lacks the group."""

    def checked(value: object, info: ValidationInfo) -> object:
        names = _names(info)
        if names is None:
            return value
        if (model := names.groups.get(group)) is None:
            return {}
        return checked_part(model, value).model_dump(exclude_none=True)

    return checked


AxisName = Annotated[str, WithJsonSchema({"type": "string", "format": "axis"})]
Settings = Annotated[dict[AxisName, Value], BeforeValidator(checked_settings)]
"""Values on axes: the settings of a case, or a selection of cases."""
ByAxis = Annotated[dict[AxisName, T], AfterValidator(_in_order)]
"""A value for some of the axes, in the order of the axes."""
Rules = ByAxis[Text]
"""Axes that follow from others: `tp: gpus / pp`."""
Matrix = Annotated[dict[AxisName, list[Value]], AfterValidator(_matrix)]
"""Values of each axis: each combination is one case."""
MetricName = Annotated[str, AfterValidator(_metric), WithJsonSchema({"type": "string", "format": "metric"})]
"""Name of a metric of the program."""
ModelGroup = Annotated[
    dict[str, Value], BeforeValidator(_checked_group("model")), WithJsonSchema({"type": "object", "format": "model"})
]
"""Values of the program's group `model`, by name. Without a program, they are not checked."""
TrainingGroup = Annotated[
    dict[str, Value],
    BeforeValidator(_checked_group("training")),
    WithJsonSchema({"type": "object", "format": "training"}),
]
"""Values of the program's group `training`, by name."""
