"""JSON Schemas of experiments and of `paper.yaml`, for editors."""

from __future__ import annotations

import json

from pydantic.json_schema import JsonSchemaValue

from orchestrator.catalog.axes import Settings
from orchestrator.catalog.experiment import Experiment
from orchestrator.catalog.paper import Paper

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NULL = {"type": "null"}


def experiment_schema() -> JsonSchemaValue:
    """Return the JSON Schema (draft 2020-12) of an experiment.

    `find_experiment` also checks rules about several fields, such as an axis in both `matrix` and `fixed`.
    """
    schema = _without_titles(Experiment.model_json_schema(by_alias=True))
    models = schema["$defs"]
    for owner in (schema, models["ScaleFields"]):
        for name in ("matrix", "rules"):
            _name_axes(owner["properties"][name]["anyOf"][0], is_list=name == "matrix")
    _name_axes(models["PeakClaim"]["properties"]["at"])
    return {"$schema": _DRAFT, "title": "An experiment", **schema}


def paper_schema() -> JsonSchemaValue:
    """Return the JSON Schema (draft 2020-12) of `paper.yaml`."""
    return {"$schema": _DRAFT, "title": "A paper", **_without_titles(Paper.model_json_schema(by_alias=True))}


def experiment_schema_text() -> str:
    """Return the content of `experiments/schema.json`."""
    return _text(experiment_schema())


def paper_schema_text() -> str:
    """Return the content of `experiments/paper.schema.json`."""
    return _text(paper_schema())


def _text(schema: JsonSchemaValue) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _name_axes(by_axis: JsonSchemaValue, *, is_list: bool = False) -> None:
    """Replace the values of any key by a property for each axis. With `is_list`, it is a list of values of the axis."""
    value = by_axis.pop("additionalProperties")
    del by_axis["propertyNames"]
    by_axis |= {"additionalProperties": False, "properties": {}}
    for axis, field in Settings.model_json_schema()["properties"].items():
        by_axis["properties"][axis] = {**value, "description": field["description"]}
        if is_list:
            items = {"anyOf": [kind for kind in field["anyOf"] if kind != _NULL]}
            by_axis["properties"][axis] |= {"items": items, "minItems": 1}


def _without_titles(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema without the titles that pydantic derives from names, and without defaults that are null."""
    result: JsonSchemaValue = {}
    for key, item in schema.items():
        if key in ("properties", "$defs"):
            result[key] = {name: _without_titles(field) for name, field in item.items()}
        elif key == "title" or (key == "default" and item is None):
            continue
        elif key == "description":
            result[key] = " ".join(item.split())
        elif isinstance(item, dict) and key not in ("default", "mapping"):
            result[key] = _without_titles(item)
        elif isinstance(item, list) and key in ("anyOf", "oneOf"):
            result[key] = [_without_titles(choice) for choice in item]
        else:
            result[key] = item
    return result
