"""JSON Schema of the documents that commands print with --json, generated from the rows that
`orchestrator/cli/output.py` names.

python -m tests.json_schema    # writes docs/reference/json.schema.json
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import jsonschema
from pydantic import TypeAdapter
from typer.main import get_command

from orchestrator import api
from orchestrator.cli.main import app
from orchestrator.cli.output import DOCUMENTS as OF_CORE
from orchestrator.cli.output import VERSION
from orchestrator.fields import Column, TableRow, columns_of
from orchestrator.megatron.search import api as search_api
from orchestrator.megatron.search import command as search_command
from orchestrator.results.export.rows import CaseRow, case_columns
from tests.reference.commands import command_names
from tests.unit.catalog.entries import figure_13

FILE = Path(__file__).parent.parent / "docs" / "reference" / "json.schema.json"


DOCUMENTS = OF_CORE | search_command.DOCUMENTS

_ERROR = {
    "type": "object",
    "description": "What is wrong, where, and how to correct it.",
    "properties": {"location": {"type": ["string", "null"]}, "problem": {"type": "string"}}
    | {"hint": {"type": ["string", "null"]}},
    "required": ["location", "problem", "hint"],
}
_TYPES = {"text": "string", "integer": "integer", "number": "number", "boolean": "boolean", "time": "string"}


def schema() -> dict[str, Any]:
    """Return the schema: a document for each command, and the rows in `$defs`."""
    names = sorted({name for document in DOCUMENTS.values() for name in document.values()} - {"str", "object"})
    types = {"Error": _ERROR} | _types(
        [getattr(search_api if name in search_api.__all__ else api, name) for name in names]
    )
    about = _help_texts()
    for command, document in DOCUMENTS.items():
        head = {"version": {"const": VERSION}, "command": {"const": command}}
        lists = {name: {"type": "array", "items": _items(row)} for name, row in document.items()}
        errors = {"errors": {"type": "array", "items": _items("Error")}, "exit_code": {"type": "integer"}}
        fields = head | lists | errors
        text = about.get(command) or about[command.partition(" ")[0]]  # `bundle verify` is `bundle` with a word
        description = {"type": "object", "description": text}
        types[_name(command)] = {**description, "properties": fields, "required": list(fields)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Documents that commands of repro print with --json",
        "oneOf": [{"$ref": f"#/$defs/{_name(command)}"} for command in DOCUMENTS],
        "$defs": dict(sorted(types.items())),
    }


def _help_texts() -> dict[str, str]:
    """Return the first paragraph of the help of each command."""
    root = get_command(app)
    names = command_names(root, root.context_class(root, info_name="repro"))
    return {name: " ".join(command.help.partition("\n\n")[0].split()) for name, command, _ in names}


def _name(command: str) -> str:
    return command.replace(" ", "-")


def _items(row: str) -> dict[str, Any]:
    return {"str": {"type": "string"}, "object": {}}.get(row, {"$ref": f"#/$defs/{row}"})


def _columns(row: type[TableRow]) -> tuple[Column, ...]:
    """Return the columns of a row; of a case those of the Megatron family."""
    return case_columns(figure_13()) if row is CaseRow else columns_of(row)


def _types(rows: list[type]) -> dict[str, Any]:
    """Return the schemas of rows and of the types of their fields. Null is written, too."""
    plain = [row for row in rows if not issubclass(row, TableRow)]
    inputs: list[Any] = [(row.__name__, "serialization", TypeAdapter(row)) for row in plain]
    tables = [row for row in rows if issubclass(row, TableRow)]
    for row in tables:
        hints, names = get_type_hints(row, include_extras=True), {column.name for column in _columns(row)}
        inputs += [
            (f"{row.__name__}.{name}", "serialization", TypeAdapter(hint))
            for name, hint in hints.items()
            if name in names
        ]
    schemas, defs = TypeAdapter.json_schemas(inputs)
    types: dict[str, dict[str, Any]] = defs["$defs"]
    of_programs: dict[str, set[str]] = {}
    fields = {key: schema for (key, _), schema in schemas.items()}
    for row in tables:
        properties = {
            column.name: fields.get(f"{row.__name__}.{column.name}") or _column(column) for column in _columns(row)
        }
        types[row.__name__] = {"type": "object", "description": row.__doc__, "properties": properties}
        of_programs[row.__name__] = set(properties) - set(get_type_hints(row))
    for name, one in types.items():
        one.pop("title", None)
        for field in one.get("properties", {}).values():
            field.pop("title", None)
        if "properties" in one:
            one["required"] = [each for each in one["properties"] if each not in of_programs.get(name, ())]
    return {name: types[name] for name in _used(types, [row.__name__ for row in rows])}


def _column(column: Column) -> dict[str, Any]:
    """Return the schema of a column of a mapping."""
    text = ", ".join(filter(None, [column.meaning, column.unit]))
    return {"type": [_TYPES[column.kind], "null"], "description": text}


def _used(types: dict[str, Any], names: list[str]) -> list[str]:
    """Return the names of these types and of the types that they refer to."""
    used: dict[str, None] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in used:
            used[name] = None
            todo += re.findall(r"#/\$defs/([\w-]+)", json.dumps(types[name]))
    return list(used)


def schema_text() -> str:
    """Return the contents of the file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


@cache
def _validator(document: str) -> jsonschema.Draft202012Validator:
    types = json.loads(FILE.read_text())["$defs"]
    closed = {
        name: one | ({"additionalProperties": False} if "properties" in one else {}) for name, one in types.items()
    }
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{document}", "$defs": closed})


def require_valid(text: str, exit_code: int) -> None:
    """Raise an error unless the output of a command is one valid document, or one on each line for --watch."""
    lines = text.splitlines()
    is_series = len(lines) > 1 and all(line.startswith("{") and line.endswith("}") for line in lines)
    for document in map(json.loads, lines) if is_series else [json.loads(text)]:
        _validator(_name(document["command"])).validate(document)
    assert document["exit_code"] == exit_code, document
    assert exit_code in (0, 1) or document["errors"], document


if __name__ == "__main__":
    FILE.write_text(schema_text())
