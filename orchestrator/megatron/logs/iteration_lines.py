"""Parser of iteration lines from 2021 to today, one by one or by the block."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from orchestrator.megatron.logs.iteration import (
    COUNTS,
    FIELDS,
    GROUPS,
    HEAD,
    IN_ORDER,
    ITERATION,
    ITERATION_WORD,
    MISSING,
    NAN,
    OTHERS,
    PLANNED,
    SCALE,
    SKIPPED,
    IterationLine,
    IterationLines,
    field_pattern,
)
from orchestrator.megatron.logs.scan import NUMBER, occurrences

__all__ = ["IterationLine", "IterationLines", "add_iterations", "iteration_lines"]

_PIECE_BYTES = 128 * 1024
"""What is read at once: it and what is made of it stay in a core's own cache."""
_HEAD_BYTES, _REST_BYTES = 1000, 4000
"""How far before and after the elapsed time the rest of a line is looked for."""

_NAN_COUNT = re.compile(rb"number of nan iterations: {0,12}([^ |\r\n]{1,24}) ?\|")
_LINE_END = re.compile(rb"[\r\n]")
_ONE_NUMBER = re.compile(NUMBER)


def iteration_lines(log: bytes) -> Iterator[IterationLine]:
    """Every complete iteration line, in the order printed; a line cut short at the end is left for the next reading."""
    lines = IterationLines()
    add_iterations(lines, log, 0, len(log))
    return iter(lines)


def add_iterations(lines: IterationLines, log: bytes, start: int, end: int) -> int:
    """Add the complete iteration lines of a part of a log that begins with a line; returns how often `ITERATION_WORD`
    is in it.

    Each line is read for itself: parts of whole lines give the same as the whole.
    """
    alike, words = None, 0
    while start < end:
        stop = log.find(b"\n", min(end, start + _PIECE_BYTES), end) + 1 or end
        count = log.count(ITERATION_WORD, start, stop)
        if count:
            columns, alike = read_alike(log, start, stop, count, alike)
            if columns is not None:
                lines.extend(columns)
            else:
                _read_one_by_one(log, start, stop, lines)
        words, start = words + count, stop
    return words


def _read_one_by_one(log: bytes, start: int, end: int, lines: IterationLines) -> None:
    for at in occurrences(log, ITERATION_WORD, start, end):
        line = _read_one(log, start, at, end)
        if line is not None:
            lines.append(line)


def _read_one(log: bytes, start: int, at: int, end: int) -> IterationLine | None:
    """The line whose `ITERATION_WORD` stands there; None where it is not whole."""
    heads = list(HEAD.finditer(log, max(start, at - _HEAD_BYTES), at + 1))
    if not heads or _LINE_END.search(log, heads[-1].end(), at):
        return None
    head = heads[-1]
    whole = IN_ORDER.match(log, head.start(), end)
    if whole is not None and whole.end() > at:
        try:
            return _line(whole.groups())
        except ValueError:  # no number, such as 1.2.3
            pass
    return _read_loose(log, head, at, end)


def _line(groups: Sequence[bytes]) -> IterationLine:
    """From the groups of `IN_ORDER`; ValueError where something is no number."""
    iteration, planned, elapsed_ms, *others, skipped, nan = groups
    host_wait_ms, tflops, tokens, power, loss, scale, norm = (float(value) if value else None for value in others)
    return IterationLine(
        int(iteration),
        int(planned),
        float(elapsed_ms),
        loss,
        norm,
        int(skipped),
        int(nan),
        scale,
        tflops,
        tokens,
        power,
        host_wait_ms,
    )


def _read_loose(log: bytes, head: re.Match[bytes], at: int, end: int) -> IterationLine | None:
    """Field by field, whichever there are, up to the last one or to where another line runs into this one.

    A loss or norm that is printed and cannot be read is NaN.
    """
    end = min(end, at + _REST_BYTES)
    for stop in (_LINE_END.search(log, at, end), HEAD.search(log, at, end)):
        end = end if stop is None else min(end, stop.start())
    last = _NAN_COUNT.search(log, at, end)
    if last is None:
        return None
    fields = dict(_fields(log[head.end() : last.end()]))
    elapsed_ms, nan = fields.get(b"elapsed time per iteration (ms)"), fields.get(b"number of nan iterations")
    if elapsed_ms is None or nan is None:
        return None
    loss, norm = (
        math.nan if fields.get(name, 0.0) is None else fields.get(name) for name in (b"lm loss", b"grad norm")
    )
    return IterationLine(
        iteration=int(head[1]),
        train_iterations=int(head[2]),
        elapsed_ms=elapsed_ms,
        loss=loss,
        grad_norm=norm,
        skipped=_count(fields.get(b"number of skipped iterations")),
        nan=_count(nan),
        loss_scale=fields.get(b"loss scale"),
        reported_tflops_per_gpu=fields.get(b"throughput per GPU (TFLOP/s/GPU)"),
        reported_tokens_per_s_per_gpu=fields.get(b"tokens per sec per gpu"),
        power_w=fields.get(b"power per GPU (W/GPU)"),
        host_wait_ms=fields.get(b"host wait per iteration (ms)"),
    )


def _fields(text: bytes) -> Iterator[tuple[bytes, float | None]]:
    """The `name: value` pieces of a line, without the others; a value that is no number is None."""
    for piece in text.split(b"|"):
        name, colon, value = piece.strip().rpartition(b":")
        if colon:
            yield name, float(value) if _ONE_NUMBER.fullmatch(value.strip()) else None


def _count(value: float | None) -> int:
    """Of iterations; a NaN or infinity is at least one."""
    if value is None:
        return 0
    return int(min(abs(value), 1e9)) if math.isfinite(value) else 1


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
