"""Iteration lines by the hundred: a piece of a log that is hardly anything else becomes columns of numbers at once.

Lines of one program are alike: after the first one, a pattern without what may be and is not takes half the time.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from orchestrator.megatron.iteration_fields import (
    COUNTS,
    FIELDS,
    GROUPS,
    IN_ORDER,
    ITERATION,
    NAN,
    OTHERS,
    PLANNED,
    SCALE,
    SKIPPED,
    field_pattern,
)
from orchestrator.megatron.iterations import MISSING, IterationLines

Columns = list["array[Any]"]


@dataclass(frozen=True, slots=True)
class Alike:
    """A pattern for lines with the same fields, and the same values where these hardly ever change: these by column,
    and the columns of the pattern's groups. A line that it fits `IN_ORDER` fits alike.
    """

    pattern: re.Pattern[bytes]
    same: dict[int, float]
    groups: list[int]

    @classmethod
    def to(cls, line: re.Match[bytes]) -> Alike | None:
        """From a match of `IN_ORDER`; None where the name of a field stands in its text as well."""
        text, told = line[0], dict(zip(GROUPS, line.groups(), strict=True))
        same = {column: float(told[column]) for column in (SKIPPED, NAN) if int(told[column]) == 0}
        same |= {column: float(told[column]) for column in (PLANNED, SCALE) if told[column]}
        patterns = [rb"iteration {1,12}([0-9]{1,9})", re.escape(text[text.index(b"/") : text.index(b"|") + 1])]
        groups = [ITERATION]
        at = text.index(b"|") + 1
        for name, _, column in FIELDS:
            begin = text.find(b"| " + name + b": ", at - 1) + 1
            if not begin:
                continue
            if begin != at:
                patterns.append(OTHERS)
            at = text.index(b"|", begin) + 1
            if column in same:
                patterns.append(re.escape(text[begin:at]))
            else:
                patterns.append(field_pattern(name, column))
                groups += [] if column is None else [column]
        pattern = re.compile(b"".join(patterns))
        itself = pattern.fullmatch(text)
        is_alike = itself is not None and itself.groups() == tuple(told[column] for column in groups)
        return cls(pattern, same, groups) if is_alike else None

    def columns(self, rows: Sequence[Sequence[bytes]]) -> Columns:
        """From what the pattern finds; ValueError where something is no number."""
        numbers = list(map(float, chain.from_iterable(rows)))
        made: Columns = []
        for column, kind in enumerate(IterationLines.TYPES):
            if column in self.groups:
                values: list[Any] = numbers[self.groups.index(column) :: len(self.groups)]
                made.append(array(kind, list(map(int, values)) if column in COUNTS else values))
            else:
                value = self.same.get(column, MISSING)
                made.append(array(kind, [int(value) if column in COUNTS else value]) * len(rows))
        return made


def columns(rows: Sequence[Sequence[bytes]]) -> Columns:
    """From what `IN_ORDER` finds; ValueError where something is no number."""
    by_column = dict(zip(GROUPS, zip(*rows, strict=True), strict=True))
    made: Columns = []
    for column, kind in enumerate(IterationLines.TYPES):
        values: tuple[bytes, ...] = by_column[column]
        if column in COUNTS:
            made.append(array(kind, list(map(int, values))))
        else:
            made.append(array(kind, [float(value) if value else MISSING for value in values]))
    return made


def read_alike(
    log: bytes, start: int, end: int, count: int, alike: Alike | None
) -> tuple[Columns | None, Alike | None]:
    """The `count` lines of a piece, and what they are alike to, for the next one; None where one fits no pattern.

    `alike` is what the piece before gave.
    """
    try:
        rows = alike.pattern.findall(log, start, end) if alike is not None else []
        if alike is None or len(rows) != count:
            first = IN_ORDER.search(log, start, end)
            if first is None:
                return None, alike
            alike = Alike.to(first)
            rows = alike.pattern.findall(log, start, end) if alike is not None else []
        if alike is not None and len(rows) == count:
            return alike.columns(rows), alike
        rows = IN_ORDER.findall(log, start, end)
        return (columns(rows) if len(rows) == count else None), alike
    except ValueError:  # no number, such as 1.2.3
        return None, alike
