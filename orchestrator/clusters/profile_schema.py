"""JSON Schema of cluster profiles, for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic.json_schema import JsonSchemaValue

from orchestrator.clusters.profile import ClusterProfile

_NULL = {"type": "null"}
_ADD = "Elements to add at the end of the list of the lower layers: one element, or a list."
_REMOVE = "Elements to remove from the list of the lower layers, each complete or by the option before its `=`."
_SIMPLE = {"type", "pattern", "minLength", "minimum", "maximum", "exclusiveMinimum"}


def profile_schema() -> JsonSchemaValue:
    """Return the JSON Schema (draft 2020-12) of one file: a profile, an extension or an overlay.

    No field is required, because a lower layer may contain it. Each field may be null, which removes it, and each list
    may be changed by `add` and `remove`. `find_cluster` checks the rules for whole profiles, such as `scheduler: slurm`
    without `slurm:`.
    """
    schema = _relaxed(ClusterProfile.model_json_schema(by_alias=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A cluster's profile", **schema}


def schema_text() -> str:
    """Return the content of `clusters/schema.json`."""
    return json.dumps(profile_schema(), indent=2, ensure_ascii=False) + "\n"


def _relaxed(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema without required fields, null and container defaults, and titles."""
    result: JsonSchemaValue = {}
    for key, item in schema.items():
        if key in ("required", "title") or (key == "default" and (item is None or isinstance(item, (dict, list)))):
            continue
        if key in ("properties", "patternProperties"):
            result[key] = {name: _field(field) for name, field in item.items()}
        elif key == "$defs":
            result[key] = {name: _relaxed(model) for name, model in item.items()}
        elif key == "additionalProperties" and isinstance(item, dict):
            result[key] = _field(item)
        elif key == "items":
            result[key] = _relaxed(item)
        elif key in ("anyOf", "oneOf"):
            result["anyOf"] = [_relaxed(choice) for choice in item]
        elif key == "description":
            result[key] = " ".join(item.split())
        else:
            result[key] = item
    if "patternProperties" in result:
        result.setdefault("additionalProperties", False)
    return result


def _field(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a field: its value, null, or the steps that change a list."""
    relaxed = _relaxed(schema)
    notes: JsonSchemaValue = {key: relaxed.pop(key) for key in ("default", "description", "examples") if key in relaxed}
    choices = [choice for choice in _choices(relaxed) if choice != _NULL]
    steps = [_steps(choice["items"]) for choice in choices if choice.get("type") == "array"]
    if len(choices) == 1 and not steps and choices[0].keys() <= _SIMPLE:
        kinds = choices[0]["type"] if isinstance(choices[0]["type"], list) else [choices[0]["type"]]
        return {**choices[0], "type": [*kinds, "null"], **notes}
    return {"anyOf": [*choices, *steps, _NULL], **notes}


def _choices(schema: JsonSchemaValue) -> Iterator[JsonSchemaValue]:
    """Yield all alternatives of a field, including nested ones."""
    if "anyOf" not in schema:
        yield schema
    for choice in schema.get("anyOf", ()):
        yield from _choices(choice)


def _steps(item: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of `{add: [...], remove: [...]}`. A single item needs no list. `remove` also accepts text."""
    added = {"anyOf": [item, {"type": "array", "items": item}], "description": _ADD}
    named = {"anyOf": [item, {"type": "string"}]}
    removed = {"anyOf": [*named["anyOf"], {"type": "array", "items": named}], "description": _REMOVE}
    return {"type": "object", "properties": {"add": added, "remove": removed}, "additionalProperties": False}
