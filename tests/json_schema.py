"""JSON Schema of the documents that commands print with --json, generated from `orchestrator/cli/documents.py`.

python -m tests.json_schema    # writes docs/reference/json.schema.json
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from pydantic import TypeAdapter

from orchestrator.cli.documents import DOCUMENTS, Envelope
from orchestrator.cli.json_output import SCHEMA_VERSION

FILE = Path(__file__).parent.parent / "docs" / "reference" / "json.schema.json"


def schema() -> dict[str, Any]:
    """Return the schema: a document for each command, and the rows in `$defs`."""
    documents = list(dict.fromkeys(DOCUMENTS.values()))
    adapters: list[TypeAdapter[Any]] = [
        TypeAdapter(document) for document in dict.fromkeys((Envelope, *DOCUMENTS.values()))
    ]
    inputs = [(str(number), "serialization", adapter) for number, adapter in enumerate(adapters)]
    _, defs = TypeAdapter.json_schemas(inputs)  # type: ignore[arg-type]
    types: dict[str, dict[str, Any]] = defs["$defs"]
    for one in types.values():
        one.pop("title", None)
        for field in one.get("properties", {}).values():
            field.pop("title", None)
        if "properties" in one:
            one["required"] = list(one["properties"])  # null is written, too
    envelope = types.pop(Envelope.__name__)["properties"]
    for document in documents:
        commands = [command for command, its in DOCUMENTS.items() if its is document]
        fields = {"schema_version": {"const": SCHEMA_VERSION}, "command": {"enum": commands}}
        own = types[document.__name__]
        rest = {name: envelope[name] for name in ("errors", "exit_code")}
        own["properties"] = fields | own["properties"] | rest
        own["required"] = list(own["properties"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Documents that commands of repro print with --json",
        "oneOf": [{"$ref": f"#/$defs/{document.__name__}"} for document in documents],
        "$defs": dict(sorted(types.items())),
    }


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
        name = DOCUMENTS[document["command"]].__name__
        _validator(name).validate(document)
    assert document["exit_code"] == exit_code, document
    assert exit_code in (0, 1) or document["errors"], document


if __name__ == "__main__":
    FILE.write_text(schema_text())
