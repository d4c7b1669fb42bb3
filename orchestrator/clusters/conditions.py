"""What of a profile holds only for some jobs, and the few names that are filled in when a job is made or runs."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Tag, WithJsonSchema

from orchestrator.config.model import Strict, Text

When = Literal["nodes > 1", "nodes == 1"]
"""Several nodes need what connects them; one node is often slower, or broken, with it."""

_NAME = re.compile(r"\{([^{}]*)\}")


def holds(when: When | None, nodes: int) -> bool:
    return when is None or (nodes > 1) == (when == "nodes > 1")


def _kind(value: Any) -> str:
    if isinstance(value, (dict, BaseModel)):
        return "fields"
    return "list" if isinstance(value, list) else "plain"


# Which of its forms a value has is seen from its kind, so that a fault is one complaint and not one for each form.
BY_KIND = Discriminator(_kind)


def _text(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and any(character in value for character in "\n\r\0"):
        raise ValueError("must be one line of text")
    return value


class MountFields(Strict):
    """A mount that only some jobs have: `SOURCE`, `SOURCE:TARGET` or `SOURCE:TARGET:FLAGS`."""

    mount: Text
    when: When


class SetupFields(Strict):
    """A line of the script that only some jobs have."""

    run: Text
    when: When


class VariableFields(Strict):
    """A variable that only some jobs have."""

    value: Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": ["string", "integer"]})]
    when: When


SetupLine = Annotated[Annotated[Text, Tag("plain")] | Annotated[SetupFields, Tag("fields")], BY_KIND]


def filled_names(text: str, known: Collection[str]) -> str:
    """`text`, which may name these in braces; ValueError for another."""
    for name in _NAME.findall(text):
        if name not in known:
            there = ", ".join(f"{{{one}}}" for one in known)
            raise ValueError(f"{{{name}}} is not known here, only {there}")
    return text
