"""Parts of a Markdown page that GitHub and MyST read in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import yaml

_CODE = re.compile(r"(`[^`]*`)")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(text: str) -> str:
    """Return the text in one line, without characters that end the cell or begin HTML."""
    parts = _CODE.split(" ".join(text.split()))
    outside = (part if part.startswith("`") else part.replace("<", "&lt;").replace("*", r"\*") for part in parts)
    return "".join(outside).replace("|", r"\|")


def code(text: str) -> str:
    """Return the text as inline code."""
    assert "`" not in text
    return f"`{text}`"


def flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def block(value: Any) -> Iterator[str]:
    """Yield a code block with a value as YAML, whose innermost lists and mappings are in one line."""
    yield "```yaml"
    text: str = yaml.safe_dump(value, default_flow_style=None, sort_keys=False, width=100, allow_unicode=True)
    yield from text.splitlines()
    yield "```"
