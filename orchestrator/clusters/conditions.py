"""What of a profile holds only for some jobs, and the few names that are filled in when a job is made or runs."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field

from orchestrator.documents.model import Strict, Text

When = Literal["nodes > 1", "nodes == 1"]
"""Several nodes need what connects them; one node is often slower, or broken, with it."""

_NAME = re.compile(r"\{([^{}]*)\}")


def holds(when: When | None, nodes: int) -> bool:
    return when is None or (nodes > 1) == (when == "nodes > 1")


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

    value: Annotated[str, Field(pattern=r"^[^\n\r\x00]*$")] | Annotated[int, Field(strict=True)]
    when: When


def filled_names(text: str, known: Collection[str]) -> str:
    """`text`, which may name these in braces; ValueError for another."""
    for name in _NAME.findall(text):
        if name not in known:
            there = ", ".join(f"{{{one}}}" for one in known)
            raise ValueError(f"{{{name}}} is not known here, only {there}")
    return text
