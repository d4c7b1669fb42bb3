"""Node names in Slurm's short form, such as `n[1-3,07],login`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

MOST_NODES = 65_536
"""Nodes of a list; Slurm clusters have fewer."""

_ITEM = re.compile(r"(?:[A-Za-z0-9_.\-]|\[[0-9,\-]+\])+")
_PART = re.compile(r"\[([0-9,\-]+)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand_node_names(names: str | None) -> tuple[str, ...]:
    """Return every node name of a list, in its order; empty where the text is not a list of node names."""
    if not names or not re.fullmatch(rf"{_ITEM.pattern}(?:,{_ITEM.pattern})*", names):
        return ()
    expanded = (name for item in _ITEM.findall(names) for name in _expand(item))
    try:
        found = tuple(itertools.islice(expanded, MOST_NODES + 1))
    except ValueError:
        return ()
    return found if len(found) <= MOST_NODES else ()


def _expand(item: str) -> Iterator[str]:
    """Yield the names of one item, which may have several brackets; ValueError where a bracket has no range."""
    found = _PART.match(item)
    if found is None:
        yield ""
        return
    for begin in [found[2]] if found[2] else _numbers(found[1]):
        for end in _expand(item[found.end() :]):
            yield begin + end


def _numbers(ranges: str) -> Iterator[str]:
    """Yield the numbers of a bracket; the first number of a range sets the width."""
    for piece in ranges.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise ValueError(f"{piece}: not a range of node numbers")
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            yield f"{number:0{len(match[1])}d}"
