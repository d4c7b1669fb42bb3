"""The iteration lines that Megatron-LM prints, from 2021 to today; its relatives and `orchestrator.pretrain` print the
same.

Many lines that are alike are read at once, by column. Whatever does not fit (a field of no known version, lines of
two ranks run into one another) is read line by line and field by field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from orchestrator.megatron.iteration_fields import HEAD, IN_ORDER, ITERATION_WORD
from orchestrator.megatron.iterations import IterationLine, IterationLines
from orchestrator.megatron.log_columns import read_alike
from orchestrator.megatron.searching import NUMBER, occurrences

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
