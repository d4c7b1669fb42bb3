"""Validation of YAML documents by pydantic models. Each error has file, line and column."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from orchestrator.config.yaml import Document, KeyPath, YamlValue, children, dotted
from orchestrator.errors import Problem, ReproError, did_you_mean, names_hint


class Strict(BaseModel):
    """Base class of models that are read from YAML: frozen, and without unknown fields."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False, defer_build=True
    )


_TIME = r"^([0-9]{1,4}-)?[0-9]{1,2}:[0-9]{2}:[0-9]{2}$"


def _time(value: str) -> str:
    if not re.fullmatch(_TIME, value, re.ASCII):
        raise ValueError('must be a time such as "4:00:00" or "1-00:00:00"')
    if not value.strip("0:-"):
        raise ValueError("must not be zero, which Slurm reads as no limit")
    return value


def required(description: str, *examples: object) -> Any:
    """Return the declaration of a field without a default. The documentation and the JSON Schema have the examples."""
    return Field(description=description, examples=list(examples) or None)


def optional(description: str, *examples: object, default: object = None) -> Any:
    """Return the declaration of a field with a default."""
    return Field(default=default, description=description, examples=list(examples) or None)


# Counts are strict, because pydantic would otherwise accept "08" and true as numbers.
# The limit keeps arithmetic with counts within the range of a float.
LARGEST_COUNT = 10**9
Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST_COUNT)]
NonNegative = Annotated[int, Field(strict=True, ge=0, le=LARGEST_COUNT)]
Positive = Annotated[float, Field(gt=0, le=1e15)]
Text = Annotated[str, Field(min_length=1)]
TimeLimit = Annotated[str, AfterValidator(_time), WithJsonSchema({"type": "string", "pattern": _TIME})]
"""Time limit in the syntax of Slurm: `[D-]H:MM:SS`."""

_LONGEST_QUOTED = 100

M = TypeVar("M", bound=BaseModel)

_PLACEHOLDER = re.compile(r"<(?! )[^<>]*(?<! )>")  # does not match the redirections of `sort <in >out`


def read_model(
    model: type[M], document: Document, at: Callable[[KeyPath], str] | None = None, context: object = None
) -> M:
    """Return the model of a document. ReproError has one problem for each wrong, missing or unknown field.

    `at` returns the location of a path if the value was merged from several files. `context` is that of the validators.
    """
    if not isinstance(document.value, dict):
        raise ReproError(Problem("must be fields and values, `name: value`", str(document.place(()))))
    try:
        return model.model_validate(document.value, context=context)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = [_problem(model, document, detail, at) for detail in _without_misspelled(model, details)]
        raise ReproError(*dict.fromkeys(problems)) from None  # a union reports the same error once per member


def _without_misspelled(model: type[BaseModel], details: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Yield the errors without those of missing fields that the hint of an unknown one names."""
    locations = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
    meant = {(*loc[:-1], _name_hint(model, loc)) for loc in locations}
    for detail in details:
        loc = detail["loc"]
        if detail["type"] != "missing" or (*loc[:-1], f'did you mean "{loc[-1]}"?') not in meant:
            yield detail


def placeholders(value: YamlValue, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path and the text of each open value, `<what to write here>`."""
    if isinstance(value, str) and _PLACEHOLDER.search(value):
        yield path, value
    for key, item in children(value):
        yield from placeholders(item, (*path, key))


def _problem(
    model: type[BaseModel], document: Document, detail: ErrorDetails, at: Callable[[KeyPath], str] | None
) -> Problem:
    context = detail.get("ctx", {})
    path, value = _existing_part(document.value, (*detail["loc"], *context.get("field", ())))
    name = str(detail["loc"][-1]) if detail["loc"] else ""
    # pydantic marks the key of a mapping as "[key]".
    of_document = document.key_place if detail["type"] == "extra_forbidden" or name == "[key]" else document.place
    location = at(path) if at else str(of_document(path))
    if detail["type"] == "extra_forbidden":
        return Problem(f"{name}: unknown field", location, context.get("hint") or hint_of(model, detail))
    if detail["type"] == "missing":
        meaning = _meaning(model, detail["loc"])
        return Problem(f"{name}: missing", location, f"add {name}: ({meaning})" if meaning else f"add {name}:")
    if detail["type"] == "union_tag_invalid":
        kind = (*path, "kind")
        near = names_hint(str(context["tag"]), re.findall(r"'([^']+)'", context["expected_tags"]))
        location = at(kind) if at else str(document.place(kind))
        return Problem(f"{dotted(kind)}: no such kind, {shortened(context['tag'])}", location, near)
    message, field = fault_of(detail), dotted(path) or "file"
    if name == "[key]":
        hint = context.get("hint")
        return Problem(f"{field}: {message if hint else f'invalid name: {message}'}", location, hint)
    if detail["type"] == "string_type" and isinstance(value, dict) and list(value.values()) == [None]:
        return Problem(f"{field}: {message}", location, f'quote it: "{{{next(iter(value))}}}"')  # {width} in a list
    got = "" if isinstance(value, (dict, list)) else f", got {shortened(value)}"
    hint = None if detail["type"] == "literal_error" else context.get("hint")
    return Problem(f"{field}: {message}{got}", location, hint or hint_of(model, detail))


def hint_of(model: type[BaseModel], detail: ErrorDetails) -> str | None:
    """Return the names of fields for an unknown one, the nearest allowed value, or the meaning of a field."""
    if detail["type"] == "extra_forbidden":
        return _name_hint(model, detail["loc"])
    if detail["type"] == "literal_error":
        allowed = re.findall(r"'([^']+)'", detail["ctx"]["expected"])
        return did_you_mean(detail["input"], allowed) if isinstance(detail["input"], str) else None
    has_meaning = detail["type"] in _FAULTS and not detail["type"].startswith("bool_")
    return _meaning(model, detail["loc"]) if has_meaning else None


_FAULTS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a mapping"),
    "string_type": "must be text",
    "list_type": "must be a list",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have {min_length} or more items",
    "too_long": "must have {max_length} or fewer items",
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be below {lt}",
}
"""Type of a pydantic error -> message. Types have the names of docs/reference/profiles.md and experiments.md."""


def fault_of(detail: ErrorDetails) -> str:
    """Return what is wrong with a value."""
    if detail["type"] in _FAULTS:
        limits = {
            name: f"{value:g}" if isinstance(value, float) else value for name, value in detail.get("ctx", {}).items()
        }
        return _FAULTS[detail["type"]].format_map(limits)
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message.replace("Input should be", "must be", 1)
    return message[:1].lower() + message[1:]


def _meaning(model: type[BaseModel], loc: KeyPath) -> str | None:
    """Return the first sentence of the description of the field at `loc`, or around it, as a part of a sentence."""
    _, field = _walk(model, loc)
    text = (field.description or "").partition(". ")[0].removesuffix(".") if field is not None else ""
    is_word = text[1:2].islower()
    return (text[:1].lower() + text[1:] if is_word else text) or None


def _existing_part(value: YamlValue, loc: KeyPath) -> tuple[KeyPath, YamlValue]:
    """Return the part of pydantic's location that the document contains, and the value there.

    A document does not contain the names of union members. One that is the `kind` of a mapping is not its field, also
    if the mapping has a field of this name.
    """
    path: list[str | int] = []
    is_kind = False
    for part in loc:
        parts = dict(children(value))
        is_kind = not is_kind and parts.get("kind") == part
        if part in parts and not is_kind:
            value = parts[part]
            path.append(part)
    return tuple(path), value


def shortened(value: object) -> str:
    """Return the value for a message, shortened to one line."""
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}..."


def _name_hint(model: type[BaseModel], loc: KeyPath) -> str | None:
    """Return the hint for an unknown field: the most similar field name, or all field names."""
    models, _ = _walk(model, loc[:-1])
    fields = sorted({field.alias or name for candidate in models for name, field in candidate.model_fields.items()})
    if not fields:
        return None
    return did_you_mean(str(loc[-1]), fields) or f"known fields: {', '.join(fields)}"


def _walk(model: type[BaseModel], loc: KeyPath) -> tuple[list[type[BaseModel]], FieldInfo | None]:
    """Return the models at `loc` and the last field on the way. Follow lists, mappings and unions."""
    current: list[type[BaseModel]] = [model]
    last: FieldInfo | None = None
    for part in loc:
        if any(tag == part for candidate in current for tag in _tags(candidate)):
            current = [candidate for candidate in current if part in _tags(candidate)]
            continue
        fields = [each for candidate in current for each in candidate.model_fields.items()]
        below = [field for name, field in fields if part == (field.alias or name)]
        if below:
            current = [submodel for field in below for submodel in _models_in(field.annotation)]
            last = below[0]
    return current, last


def _tags(model: type[BaseModel]) -> tuple[object, ...]:
    field = model.model_fields.get("kind")
    return get_args(field.annotation) if field is not None else ()


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [submodel for part in get_args(annotation) for submodel in _models_in(part)]


class Hardware(Strict):
    """Hardware of the nodes, which are of one kind. A missing value is unknown."""

    nodes: Count = required("Number of nodes.", 384)
    gpus_per_node: Count = required("Number of GPUs of a node.", 8)
    gpu: Text | None = optional("Name of the GPU.", "A100-SXM4-80GB")
    gpu_memory_gb: Count | None = optional("Memory of a GPU, in units of 10^9 bytes.", 80)
    peak_tflops: dict[Literal["fp32", "fp16", "bf16"], Positive] = optional(
        "Dense peak of a GPU in TFLOP/s, for each dtype that the GPU supports.",
        {"fp16": 312, "bf16": 312, "fp32": 19.5},
        default={},
    )
    nvlink_gb_s: Positive | None = optional("Bandwidth of a GPU inside a node in GB/s, in one direction.", 300)
    network_gb_s: Positive | None = optional("Bandwidth of a GPU between nodes in GB/s, in one direction.", 25)
    network_cards: Count | None = optional("Number of network cards of a node, if several GPUs share one.", 4)

    def peak(self, dtype: str) -> float | None:
        """Return the dense peak in TFLOP/s; None if it is unknown."""
        return next((peak for name, peak in self.peak_tflops.items() if name == dtype), None)
