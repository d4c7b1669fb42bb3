"""Megatron-LM's timers: one line until 2022, then a block of lines in one of three shapes.

Sources: megatron/timers.py at 6985e58938 (2021), 77efcccb93 (2022-08-10) and core_v0.16. What is wanted are the timers
of an iteration, so a block counts from its line of the forward pass on, which comes first; set-up and saving have
blocks of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from orchestrator.megatron.logs.scan import last_match, line_end

BLOCK_BYTES = 8192
"""Of a block, with what other ranks print in between: a hundred lines."""

_TIME = rb"([0-9]{1,15}(?:\.[0-9]{0,6})?)"
_NAME = rb"([a-z][A-Za-z0-9_/-]{0,80})"
_IN_A_LINE = re.compile(rb"time \(ms\)((?: \| [A-Za-z0-9_/-]{1,80}: [0-9]{1,15}(?:\.[0-9]{0,6})?)+)")
# `    NAME ....: (LEAST, MOST)`, `    NAME ....: MOST`, `  NAME:`, and below that `     rank  N: TIME`.
_LINE = re.compile(
    rb"  (?:" + _NAME + rb" \.{0,48}: \(?" + _TIME + rb"(?:, " + _TIME + rb"\))?"
    rb"|" + _NAME + rb":(?=[\r\n])|   rank {1,6}[0-9]{1,6}: " + _TIME + rb")"
)
# Where a block begins, and what must stand there.
_BEGINNINGS = (
    (b"time (ms) | forward-", _IN_A_LINE),
    (b"  forward-backward ", _LINE),
    (b"  forward-backward:", re.compile(rb"  forward-backward:(?=[\r\n]|$)")),
)


@dataclass(frozen=True, slots=True)
class Timers:
    """Milliseconds by name, the least and the most over the ranks where both are printed. Of a block that is being
    read: how many more bytes it may have, and whose ranks come next.
    """

    ms: dict[str, tuple[float, float]] = field(default_factory=dict)
    bytes_left: int = 0
    name: str = ""


def last_block(log: bytes, start: int, end: int) -> int | None:
    """Where the last block begins."""
    found = [last_match(log, word, pattern, start, end) for word, pattern in _BEGINNINGS]
    return max((match.start() for match in found if match is not None), default=None)


def begin_block(log: bytes, start: int, end: int) -> Timers:
    """Read the block that begins there."""
    in_a_line = _IN_A_LINE.match(log, start, line_end(log, start, end))
    if in_a_line is None:
        return read_block(log, start, end, Timers(bytes_left=BLOCK_BYTES))
    pieces = (piece.split(b": ") for piece in in_a_line[1].split(b" | ")[1:])
    return Timers({name.decode(): (float(ms), float(ms)) for name, ms in pieces})


def read_block(log: bytes, start: int, end: int, timers: Timers) -> Timers:
    """Read on in a block; lines of other kinds are passed over."""
    end = min(end, start + timers.bytes_left)
    ms, current = dict(timers.ms), timers.name
    for match in _LINE.finditer(log, start, end):
        name, first, second, heading, of_rank = match.groups()
        if name:
            ms[name.decode()] = float(first), float(second or first)
        elif heading:
            current = heading.decode()
        elif current:
            least_and_most = *ms.get(current, ()), float(of_rank)
            ms[current] = min(least_and_most), max(least_and_most)
    return Timers(ms, timers.bytes_left - (end - start), current)
