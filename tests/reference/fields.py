"""Tables of the keys of a YAML file, from its pydantic model and its JSON Schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from orchestrator.catalog.claims import ClaimFields
from orchestrator.catalog.experiment import CaseFields, Experiment
from orchestrator.config.model import LARGEST_COUNT
from orchestrator.megatron.axes import MEGATRON, MegatronSettings
from tests.pages import anchor_of
from tests.reference.markdown import block, code, flow, table

_LONGEST_EXAMPLE = 40
_METRICS = "metrics"
_AXES = "Axes of a case"
_ANY = ["integer", "number", "boolean", "string"]


@dataclass
class Section:
    """Heading and table of the keys of one mapping. `paths` are the places of the mapping in the file."""

    title: str
    model: type[BaseModel]
    paths: list[str] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """Anchor of the heading."""
        return anchor_of(self.title)


class Keys:
    """Sections with the keys of one or more files. A model has one section, to which all its places link."""

    def __init__(self) -> None:
        self.sections: dict[type[BaseModel], Section] = {}

    def of(self, model: type[BaseModel], title: str) -> Iterator[str]:
        """Yield the lines about a file: its top level, then the mappings inside, in the order of the fields."""
        before = set(self.sections)
        self._add(model, "", title)
        if model is Experiment:
            self._add(MegatronSettings, "", _AXES)
        for section in [section for key, section in self.sections.items() if key not in before]:
            yield from self._lines(section)

    def _add(self, model: type[BaseModel], path: str, title: str) -> None:
        if issubclass(model, ClaimFields) and model is not ClaimFields:
            if ClaimFields not in self.sections:
                self._add(ClaimFields, path, code(path))
            title = f"{code(path)} of kind {code(flow(get_args(model.model_fields['kind'].annotation)[0]))}"
        if model in self.sections:
            self.sections[model].paths.append(path)
            return
        self.sections[model] = Section(_AXES if model is MegatronSettings else title, model, [path])
        # A mapping that repeats keys of this one, such as a scale, is explained after them.
        infos = {name: model.model_fields[name] for name in self._names(model)}
        repeats = {name for name, info in infos.items() for _, inner in _models_of(info) if inner in model.__mro__}
        for name, info in sorted(infos.items(), key=lambda item: item[0] in repeats):
            below = f"{path}.{info.alias or name}".removeprefix(".")
            for suffix, inner in _models_of(info):
                self._add(inner, below + suffix, code(below + suffix))

    def _names(self, model: type[BaseModel]) -> list[str]:
        """Return the fields of a section: its own ones before inherited ones, without those of another section."""
        own = [name for name in vars(model).get("__annotations__", {}) if name in model.model_fields]
        names = dict.fromkeys([*own, *model.model_fields])
        elsewhere = {
            name for base in (MegatronSettings, ClaimFields) if model is not base for name in base.model_fields
        }
        is_part = issubclass(model, ClaimFields) or _has_axes(model)
        return [name for name in names if not (is_part and name in elsewhere)]

    def _lines(self, section: Section) -> Iterator[str]:
        model = section.model
        depth = "##" if section.paths[0] == "" and model is not MegatronSettings else "###"
        yield from ("", f"{depth} {section.title}", "", " ".join((model.__doc__ or "").split()))
        if len(section.paths) > 1 and model is not MegatronSettings:
            yield from ("", f"Also: {', '.join(map(code, section.paths[1:]))}.")
        known = next((other for other in self.sections if other is not model and issubclass(other, model)), None)
        if known is not None and not issubclass(model, ClaimFields) and not issubclass(MegatronSettings, model):
            above = self.sections[known]
            keys = ", ".join(code(info.alias or name) for name, info in model.model_fields.items())
            yield from ("", f"The keys are those of [{above.title}](#{above.anchor}): {keys}.")
            return
        names = self._names(model)
        yield ""
        yield from table(("key", "type", "default", "description", "example"), self._rows(model, names))
        inherited = [code(name) for name in model.model_fields if name not in names]
        if model is CaseFields:
            yield from ("", f"A key can also be every axis of [a case](#{anchor_of(_AXES)}).")
        elif _has_axes(model) and inherited:
            yield from ("", f"A key can also be the axes {', '.join(inherited)} of [a case](#{anchor_of(_AXES)}).")
        elif inherited:
            yield from ("", f"Further keys are those of [every claim](#{self.sections[ClaimFields].anchor}).")
        for name in names:
            info = model.model_fields[name]
            for example in info.examples or ():
                if len(flow(example)) > _LONGEST_EXAMPLE:
                    yield from (
                        "",
                        f"Example of {code(info.alias or name)}:",
                        "",
                        *block({info.alias or name: example}),
                    )

    def _rows(self, model: type[BaseModel], names: Iterable[str]) -> Iterator[tuple[str, ...]]:
        schema = model.model_json_schema(by_alias=True)
        models = {each.__name__: section for each, section in self.sections.items()}
        for name in names:
            info = model.model_fields[name]
            examples = [code(flow(example)) for example in info.examples or ()]
            yield (
                code(info.alias or name),
                _type_of(schema["properties"][info.alias or name], models),
                _default(info.get_default() if not info.is_required() else PydanticUndefined),
                info.description or "",
                ", ".join(text for text in examples if len(text) <= _LONGEST_EXAMPLE + 2),
            )


def _has_axes(model: type[BaseModel]) -> bool:
    """Return whether some keys of the model are axes, which have a section of their own."""
    axes = set(MegatronSettings.model_fields)
    return model is not MegatronSettings and len(axes & set(model.model_fields)) > 5


def _models_of(info: FieldInfo) -> Iterator[tuple[str, type[BaseModel]]]:
    for part in (info.annotation, *info.metadata):
        yield from _models_in(part)


def _models_in(annotation: Any, suffix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield each model of a field with its place: `[]` in a list, `.NAME` in a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield suffix, annotation
    if isinstance(annotation, WithJsonSchema) and annotation.json_schema is not None:
        group = MEGATRON.groups.get(annotation.json_schema.get("format", ""))
        yield from [(suffix, group)] if group is not None else []
    origin: Any = get_origin(annotation)
    parts = get_args(annotation)
    for part in parts[1:] if origin is dict else parts:
        yield from _models_in(part, suffix + {list: "[]", dict: ".NAME"}.get(origin, ""))


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None or isinstance(value, BaseModel) or value in ([], {}):
        return ""
    return code(flow(value))


def _type_of(schema: dict[str, Any], models: dict[str, Section]) -> str:
    """Return the type of a value in words, with links to the sections of mappings."""
    if "$ref" in schema:
        section = models[schema["$ref"].rpartition("/")[2]]
        return f"[{'axes' if section.model is MegatronSettings else 'mapping'}](#{section.anchor})"
    if schema.get("format") in MEGATRON.groups:
        return f"[mapping](#{models[MEGATRON.groups[schema['format']].__name__].anchor})"
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        if [choice.get("type") for choice in choices] == _ANY:
            return "any value"
        kinds = [_type_of(choice, models) for choice in choices if choice.get("type") != "null"]
        claims = [section for section in models.values() if section.model is ClaimFields]
        if claims and all("#claims" in kind for kind in kinds):
            return f"[mapping](#{claims[0].anchor})"
        return " or ".join(dict.fromkeys(kinds))
    if schema.get("format") == "metric":
        return f"[metric](#{_METRICS})"
    if schema.get("format") == "axis":
        return f"[axis](#{anchor_of(_AXES)})"
    if "enum" in schema or "const" in schema:
        return ", ".join(code(flow(value)) for value in schema.get("enum", [schema.get("const")]))
    kind: Any = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_type_of(schema['items'], models)}"
    if kind == "object":
        keys = schema.get("propertyNames", {})
        of = f"from {_type_of(keys, models)} " if {"enum", "format"} & keys.keys() else ""
        values = schema.get("additionalProperties") or next(iter(schema["patternProperties"].values()))
        return f"mapping {of}to {_type_of(values, models)}"
    if isinstance(kind, list):
        return " or ".join(_type_of({"type": each}, models) for each in kind)
    words = {"string": "text", "boolean": "true or false"}
    return f"{words.get(kind, kind)}{_range(schema)}"


def _range(schema: dict[str, Any]) -> str:
    lowest, above, highest, below = (
        schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    )
    text = f" from {lowest:g}" if lowest is not None else f" above {above:g}" if above is not None else ""
    if below is not None:
        return f"{text} and below {below:g}"
    return (
        f"{text} to {highest}"
        if highest is not None and highest <= LARGEST_COUNT and highest != LARGEST_COUNT
        else text
    )
