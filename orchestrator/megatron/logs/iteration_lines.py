"""Parser of iteration lines from 2021 to today: one by one, or many similar lines at once."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from orchestrator.megatron.logs.columns import COLUMNS, MISSING, Column, IterationLines
from orchestrator.megatron.logs.scan import NUMBER, occurrences

ITERATION_TOKEN = b"| elapsed time per iteration (ms)"
"""Text that each iteration line contains once. `scan.candidate_lines` needs its bar."""

# Counts have at most 9 digits because the columns have 32 bits.
_COUNT = rb"[0-9]{1,9}"
_VALUE = rb"[-+.0-9eEnaif]{1,40}"

HEAD = re.compile(rb"iteration {1,12}([0-9]{1,9})/ {0,12}([0-9]{1,9}) \|")
"""Beginning of an iteration line: number and planned number."""

# Fields after the head, in the order printed: name, whether every version prints it, column (None: ignored).
FIELDS: tuple[tuple[bytes, bool, str | None], ...] = (
    (b"consumed samples", True, None),
    (b"skipped samples", False, None),
    (b"elapsed time per iteration (ms)", True, "elapsed_ms"),
    (b"host wait per iteration (ms)", False, "host_wait_ms"),
    (b"throughput per GPU (TFLOP/s/GPU)", False, "reported_tflops_per_gpu"),
    (b"tokens per sec per gpu", False, "reported_tokens_per_s_per_gpu"),
    (b"energy per GPU (J/iter/GPU)", False, None),
    (b"power per GPU (W/GPU)", False, "power_w"),
    (b"learning rate", False, None),
    (b"decoupled learning rate", False, None),
    (b"global batch size", False, None),
    (b"lm loss", False, "loss"),
    (b"loss scale", False, "loss_scale"),
    (b"grad norm", False, "grad_norm"),
    (b"num zeros", False, None),
    (b"params norm", False, None),
    (b"number of skipped iterations", True, "skipped"),
    (b"number of nan iterations", True, "nan"),
)
_COUNTS = frozenset(name for name, kind in COLUMNS.items() if kind == "i")
_GROUPS = ("iteration", "train_iterations", *(column for _, _, column in FIELDS if column is not None))
"""Columns in the order printed."""


def _field_pattern(name: bytes, column: str | None) -> bytes:
    """Return the pattern of one field with its bar. A value that has a column is a group."""
    value = _COUNT if column in _COUNTS else _VALUE
    return b" " + re.escape(name) + b": {1,12}" + (b"(" + value + b")" if column is not None else value) + rb" \|"


def _in_order(name: bytes, always: bool, column: str | None) -> bytes:
    return _field_pattern(name, column) if always else b"(?:" + _field_pattern(name, column) + b")?"


_OTHER_FIELDS = rb"(?: (?!lm loss|loss scale|grad norm)[^|/\r\n]{1,200}\|){0,24}?"
"""Fields of a mixture of experts after its loss: more losses, and free text. Not a garbled column, and not the head of
another line, which has a /.
"""

_BEFORE_OTHERS = next(index for index, field in enumerate(FIELDS) if field[0] == b"lm loss") + 1

IN_ORDER = re.compile(
    HEAD.pattern
    + b"".join(_in_order(*field) for field in FIELDS[:_BEFORE_OTHERS])
    + _OTHER_FIELDS
    + b"".join(_in_order(*field) for field in FIELDS[_BEFORE_OTHERS:])
)
"""A whole iteration line. Its groups are the columns in the order printed; a missing field gives an empty group."""

_PIECE_BYTES = 128 * 1024
"""Bytes read at once. A piece and its numbers fit into a core's own cache."""
_HEAD_BYTES, _REST_BYTES = 1000, 4000
"""Bytes before and after the elapsed time in which the rest of a line is searched."""

_NAN_COUNT = re.compile(rb"number of nan iterations: {0,12}([^ |\r\n]{1,24}) ?\|")
_LINE_END = re.compile(rb"[\r\n]")
_ONE_NUMBER = re.compile(NUMBER)
_TIME = re.compile(rb"\[([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8})[.0-9]{0,7}\] \Z")
_TIME_BYTES = 30

_Values = dict[str, "float | None"]
"""Numbers of one line, by column."""


def iteration_lines(log: bytes) -> IterationLines:
    """Return every complete iteration line in the order printed. An incomplete last line is ignored."""
    lines = IterationLines()
    add_iterations(lines, log, 0, len(log))
    return lines


def add_iterations(lines: IterationLines, log: bytes, start: int, end: int) -> int:
    """Add the complete iteration lines of a part of a log, and return the number of `ITERATION_TOKEN` in it.

    The part begins at the beginning of a line. Each line is read by itself, so that parts of whole lines give the same
    result as the whole log.
    """
    similar, total = None, 0
    while start < end:
        stop = log.find(b"\n", min(end, start + _PIECE_BYTES), end) + 1 or end
        count = log.count(ITERATION_TOKEN, start, stop)
        if count:
            columns, similar = _read_at_once(log, start, stop, count, similar)
            if columns is not None:
                lines.extend(columns)
            else:
                _read_one_by_one(log, start, stop, lines)
        total, start = total + count, stop
    return total


def line_time(log: bytes, iteration: int, start: int, end: int, *, first: bool) -> str | None:
    """Return the time of the first or last complete line of an iteration: `2026-01-16 15:22:22`, the node's local time.

    None if the line has no time. Megatron-LM prints times since core_v0.6.0.
    """
    heads = [match.start() for match in re.finditer(b"iteration {1,12}%d/" % iteration, log[start:end])]
    for head in heads if first else reversed(heads):
        at = log.find(ITERATION_TOKEN, start + head, min(end, start + head + _HEAD_BYTES))
        values = _read_one(log, start + head, at, end) if at >= 0 else None
        if values is not None and values["iteration"] == iteration <= (values["train_iterations"] or 0):
            return _time_before(log, start, start + head)
    return None


def last_line_time(log: bytes, start: int, end: int) -> str | None:
    """Return the time of the last line with `ITERATION_TOKEN`, as `line_time` does."""
    at = log.rfind(ITERATION_TOKEN, start, end)
    start = max(start, at - _HEAD_BYTES, log.rfind(b"\n", start, at) + 1)
    head = log.rfind(b"iteration ", start, at) if at >= 0 else -1
    return _time_before(log, start, head) if head >= 0 else None


def _time_before(log: bytes, start: int, head: int) -> str | None:
    match = _TIME.search(log, max(start, head - _TIME_BYTES), head)
    return match[1].decode() if match is not None else None


def _read_one_by_one(log: bytes, start: int, end: int, lines: IterationLines) -> None:
    for at in occurrences(log, ITERATION_TOKEN, start, end):
        values = _read_one(log, start, at, end)
        if values is not None:
            lines.append(values)


def _read_one(log: bytes, start: int, at: int, end: int) -> _Values | None:
    """Return the numbers of the line whose `ITERATION_TOKEN` is at `at`; None if the line is not complete."""
    heads = list(HEAD.finditer(log, max(start, at - _HEAD_BYTES), at + 1))
    if not heads or _LINE_END.search(log, heads[-1].end(), at):
        return None
    head = heads[-1]
    whole = IN_ORDER.match(log, head.start(), end)
    if whole is not None and whole.end() > at:
        try:
            return _values(whole.groups())
        except ValueError:  # not a number, such as 1.2.3
            pass
    return _read_by_fields(log, head, at, end)


def _values(groups: Sequence[bytes]) -> _Values:
    """Convert the groups of `IN_ORDER`. Raise ValueError if one is not a number."""
    return {
        column: int(text) if column in _COUNTS else float(text)
        for column, text in zip(_GROUPS, groups, strict=True)
        if text
    }


def _read_by_fields(log: bytes, head: re.Match[bytes], at: int, end: int) -> _Values | None:
    """Read a line field by field, up to its last field or to the head of another line within it.

    A loss or norm that is printed and is not a number becomes NaN.
    """
    end = min(end, at + _REST_BYTES)
    for stop in (_LINE_END.search(log, at, end), HEAD.search(log, at, end)):
        end = end if stop is None else min(end, stop.start())
    last = _NAN_COUNT.search(log, at, end)
    if last is None:
        return None
    fields = dict(_fields(log[head.end() : last.end()]))
    if fields.get(b"elapsed time per iteration (ms)") is None or fields.get(b"number of nan iterations") is None:
        return None
    values: _Values = {"iteration": int(head[1]), "train_iterations": int(head[2])}
    for name, _, column in FIELDS:
        if column is None or name not in fields:
            continue
        value = fields[name]
        if column in _COUNTS:
            values[column] = _count(value)
        else:
            values[column] = math.nan if value is None and column in ("loss", "grad_norm") else value
    return values


def _fields(text: bytes) -> Iterator[tuple[bytes, float | None]]:
    """Yield name and value of each `name: value` field. A value that is not a number is None."""
    for piece in text.split(b"|"):
        name, colon, value = piece.strip().rpartition(b":")
        if colon:
            yield name, float(value) if _ONE_NUMBER.fullmatch(value.strip()) else None


def _count(value: float | None) -> int:
    """Return a number of iterations. NaN and infinity count as one."""
    if value is None:
        return 0
    return int(min(abs(value), 1e9)) if math.isfinite(value) else 1


@dataclass(frozen=True, slots=True)
class _SimilarLines:
    """A pattern for lines with the same fields, and with the same values where values hardly ever change.

    `same` has these values by column, `groups` the columns of the pattern's groups. For a line that the pattern
    matches, `IN_ORDER` gives the same numbers.
    """

    pattern: re.Pattern[bytes]
    same: dict[str, float]
    groups: list[str]

    @classmethod
    def to(cls, line: re.Match[bytes]) -> _SimilarLines | None:
        """Create the pattern from a match of `IN_ORDER`; None if the line's text contains a field's name twice."""
        text, by_column = line[0], dict(zip(_GROUPS, line.groups(), strict=True))
        same = {column: float(by_column[column]) for column in ("skipped", "nan") if int(by_column[column]) == 0}
        same |= {column: float(by_column[column]) for column in ("train_iterations", "loss_scale") if by_column[column]}
        patterns = [rb"iteration {1,12}([0-9]{1,9})", re.escape(text[text.index(b"/") : text.index(b"|") + 1])]
        groups = ["iteration"]
        at = text.index(b"|") + 1
        for name, _, column in FIELDS:
            begin = text.find(b"| " + name + b": ", at - 1) + 1
            if not begin:
                continue
            if begin != at:
                patterns.append(_OTHER_FIELDS)
            at = text.index(b"|", begin) + 1
            if column in same:
                patterns.append(re.escape(text[begin:at]))
            else:
                patterns.append(_field_pattern(name, column))
                groups += [] if column is None else [column]
        pattern = re.compile(b"".join(patterns))
        match = pattern.fullmatch(text)
        matches_itself = match is not None and match.groups() == tuple(by_column[column] for column in groups)
        return cls(pattern, same, groups) if matches_itself else None

    def columns(self, rows: Sequence[Sequence[bytes]]) -> dict[str, Column]:
        """Convert the pattern's matches to columns. Raise ValueError if a value is not a number."""
        numbers = list(map(float, chain.from_iterable(rows)))
        columns: dict[str, Column] = {}
        for column, kind in COLUMNS.items():
            if column in self.groups:
                values = numbers[self.groups.index(column) :: len(self.groups)]
                columns[column] = array(kind, list(map(int, values)) if column in _COUNTS else values)
            else:
                value = self.same.get(column, MISSING)
                columns[column] = array(kind, [int(value) if column in _COUNTS else value]) * len(rows)
        return columns


def _columns(rows: Sequence[Sequence[bytes]]) -> dict[str, Column]:
    """Convert matches of `IN_ORDER` to columns. Raise ValueError if a value is not a number."""
    columns: dict[str, Column] = {}
    for column, texts in zip(_GROUPS, zip(*rows, strict=True), strict=True):
        if column in _COUNTS:
            columns[column] = array(COLUMNS[column], list(map(int, texts)))
        else:
            columns[column] = array(COLUMNS[column], [float(text) if text else MISSING for text in texts])
    return columns


def _read_at_once(
    log: bytes, start: int, end: int, count: int, similar: _SimilarLines | None
) -> tuple[dict[str, Column] | None, _SimilarLines | None]:
    """Return the columns of the `count` lines of a piece, and the pattern to try first on the next piece.

    `similar` is the pattern from the piece before. The columns are None if any line fits no pattern.
    """
    try:
        rows = similar.pattern.findall(log, start, end) if similar is not None else []
        if similar is None or len(rows) != count:
            first = IN_ORDER.search(log, start, end)
            if first is None:
                return None, similar
            similar = _SimilarLines.to(first)
            rows = similar.pattern.findall(log, start, end) if similar is not None else []
        if similar is not None and len(rows) == count:
            return similar.columns(rows), similar
        rows = IN_ORDER.findall(log, start, end)
        return (_columns(rows) if len(rows) == count else None), similar
    except ValueError:  # not a number, such as 1.2.3
        return None, similar
