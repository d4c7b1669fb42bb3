"""The JSON Schema of a profile's file, by which editors complete fields and mark mistakes (`clusters/schema.json`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from orchestrator.clusters.profile import ClusterProfile

_NULL = {"type": "null"}
_SIMPLE = {"type", "pattern", "minLength", "minimum", "maximum", "exclusiveMinimum"}


def profile_schema() -> dict[str, Any]:
    """What one file may hold (draft 2020-12), whether it is a whole profile, extends another or is an overlay.

    Every field may be left to a lower layer, or set to nothing, which takes it away; a list may be added to and taken
    from. What only a whole profile can break, such as scheduler: slurm without slurm:, is left to `find_cluster`.
    """
    schema = _relaxed(ClusterProfile.model_json_schema(by_alias=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A cluster's profile", **schema}


def schema_text() -> str:
    """`clusters/schema.json`."""
    return json.dumps(profile_schema(), indent=2, ensure_ascii=False) + "\n"


def _relaxed(schema: dict[str, Any]) -> dict[str, Any]:
    """Without what a lower layer may have said, and without the titles that repeat the fields' names."""
    result: dict[str, Any] = {}
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


def _field(schema: dict[str, Any]) -> dict[str, Any]:
    """A field of a mapping: its value, nothing, or steps to change the list that it is."""
    relaxed = _relaxed(schema)
    beside: dict[str, Any] = {key: relaxed.pop(key) for key in ("default", "description") if key in relaxed}
    choices = [choice for choice in _choices(relaxed) if choice != _NULL]
    steps = [_steps(choice["items"]) for choice in choices if choice.get("type") == "array"]
    if len(choices) == 1 and not steps and choices[0].keys() <= _SIMPLE:
        kinds = choices[0]["type"] if isinstance(choices[0]["type"], list) else [choices[0]["type"]]
        return {**choices[0], "type": [*kinds, "null"], **beside}
    return {"anyOf": [*choices, *steps, _NULL], **beside}


def _choices(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a field can be, the choices within choices, too."""
    if "anyOf" not in schema:
        yield schema
    for choice in schema.get("anyOf", ()):
        yield from _choices(choice)


def _steps(item: dict[str, Any]) -> dict[str, Any]:
    """`{add: [...], remove: [...]}`; one thing needs no list, and what is removed may be named by its beginning."""
    added = {"anyOf": [item, {"type": "array", "items": item}]}
    named = {"anyOf": [item, {"type": "string"}]}
    removed = {"anyOf": [*named["anyOf"], {"type": "array", "items": named}]}
    return {"type": "object", "properties": {"add": added, "remove": removed}, "additionalProperties": False}
