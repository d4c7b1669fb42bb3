"""Iteration lines from 2021 to today: parser, one by one or many similar lines at once, and numbers by column."""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from operator import lt
from typing import Any, TypeAlias, overload

from orchestrator.ledger.tables import IterationLine
from orchestrator.megatron.logs.fact_lines import NUMBER, occurrences

LARGEST = 3.4028234663852886e38
"""The largest 32-bit float. Losses and norms are computed in 32 bits, so a larger number was never computed."""
SHORTEST_MS = 2.0**-15
"""30 ns: no GPU starts a kernel as fast."""
LONGEST_MS = 1e10
"""Nearly four months: no iteration takes as long."""

MISSING = -sys.float_info.max
"""Column value of a number that was not printed. No program prints this number."""

COLUMNS: Mapping[str, str] = {
    "iteration": "i",
    "train_iterations": "i",
    "elapsed_ms": "d",
    "loss": "d",
    "grad_norm": "d",
    "skipped": "i",
    "nan": "i",
    "loss_scale": "d",
    "reported_tflops_per_gpu": "d",
    "reported_tokens_per_s_per_gpu": "d",
    "power_w": "d",
    "host_wait_ms": "d",
}
"""Array type of each column: 32-bit counts and 64-bit floats. All but `train_iterations`, the planned number, are named
like fields of `IterationLine`."""

Column: TypeAlias = "array[Any]"  # of int or of float, see COLUMNS
_Row = tuple[int, int, float, float, float, int, int, float, float, float, float, float]


def implausible_number(
    iteration: int, train_iterations: int, elapsed_ms: float, loss: float | None, grad_norm: float | None
) -> str | None:
    """Return the first implausible number of a line, with its name; None if all are plausible."""
    if not SHORTEST_MS <= elapsed_ms <= LONGEST_MS:
        return f"{elapsed_ms:g} ms per iteration"
    if loss is not None and not abs(loss) <= LARGEST:
        return f"loss {loss:g}"
    if grad_norm is not None and not abs(grad_norm) <= LARGEST:
        return f"gradient norm {grad_norm:g}"
    if not 0 < iteration <= train_iterations:
        return f"iteration {iteration} of {train_iterations}"
    return None


class IterationLines(Sequence[IterationLine]):
    """Lines by column. An `IterationLine` is created when it is read from the sequence.

    Two objects with the same numbers are equal, NaN included.
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, Column] | None = None) -> None:
        empty: dict[str, Column] = {name: array(kind) for name, kind in COLUMNS.items()}
        self._columns = empty if columns is None else columns

    @classmethod
    def of(cls, lines: Iterable[IterationLine], train_iterations: int) -> IterationLines:
        """Create columns from single lines of a program that runs this number of iterations."""
        columns = cls()
        for line in lines:
            columns.append({name: getattr(line, name, train_iterations) for name in COLUMNS})
        return columns

    def append(self, values: Mapping[str, float | None]) -> None:
        """Append one line, as values by column. A column without a value has none in this line."""
        for name, column in self._columns.items():
            value = values.get(name)
            missing = 0 if column.typecode == "i" else MISSING
            column.append(missing if value is None else value)

    def extend(self, columns: Mapping[str, Column]) -> None:
        """Append many lines by column. `MISSING` marks numbers that were not printed."""
        for name, column in self._columns.items():
            column.extend(columns[name])

    def append_later(self, later: IterationLines) -> None:
        """Append lines of the same program. Their first line replaces the last one if it has the same number."""
        if self and later and later.numbers[0] == self.numbers[-1]:
            for column in self._columns.values():
                column.pop()
        self.extend(later._columns)

    def chosen(self, indices: Sequence[int]) -> IterationLines:
        """Return the lines with these indices, in that order."""
        return IterationLines(
            {name: array(column.typecode, map(column.__getitem__, indices)) for name, column in self._columns.items()}
        )

    @property
    def numbers(self) -> array[int]:
        """Iteration number of each line."""
        return self._columns["iteration"]

    @property
    def planned(self) -> array[int]:
        """Planned number of iterations, as each line has it."""
        return self._columns["train_iterations"]

    @property
    def are_plausible(self) -> bool:
        """False if a time, a loss or a norm may be implausible: a test of columns, much faster than line by line."""
        times = self._columns["elapsed_ms"], SHORTEST_MS, LONGEST_MS
        others = ((self._columns[name], -LARGEST, LARGEST) for name in ("loss", "grad_norm"))
        return all(
            column.count(MISSING) == len(column)
            or (least <= min(column) and max(column) <= largest and not math.isnan(sum(column)))
            for column, least, largest in (times, *others)
        )

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> IterationLine: ...
    @overload
    def __getitem__(self, index: slice) -> IterationLines: ...
    def __getitem__(self, index: int | slice) -> IterationLine | IterationLines:
        if isinstance(index, slice):
            return IterationLines({name: column[index] for name, column in self._columns.items()})
        return _line(tuple(column[index] for column in self._columns.values()))

    def __iter__(self) -> Iterator[IterationLine]:
        return map(_line, zip(*self._columns.values(), strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IterationLines):
            return NotImplemented
        return all(column.tobytes() == other._columns[name].tobytes() for name, column in self._columns.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IterationLines({list(self)!r})"


def effective_lines(lines: IterationLines, last: int | None) -> tuple[IterationLines, int]:
    """Return the lines that count among the next lines of a log, after iteration `last`, and the number of restarts.

    A falling iteration number means that a program restarted in the same log: earlier lines do not count any more. If
    several lines have the same number, as several ranks may print it, the last line counts.
    """
    numbers = lines.numbers
    restarts = int(last is not None and bool(numbers) and numbers[0] < last)
    if all(map(lt, numbers, islice(numbers, 1, None))):
        return lines, restarts
    falls = [index for index in range(1, len(numbers)) if numbers[index] < numbers[index - 1]]
    start, end = falls[-1] if falls else 0, len(numbers)
    kept = [index for index in range(start, end) if index + 1 == end or numbers[index] != numbers[index + 1]]
    return lines.chosen(kept), restarts + len(falls)


def plausible_lines(lines: IterationLines) -> tuple[IterationLines, list[str]]:
    """Return the lines whose iteration number is within the plan, and the implausible lines as texts.

    A garbled iteration number shows neither progress nor a restart.
    """
    numbers, planned = lines.numbers, lines.planned
    if not lines or (min(numbers) > 0 and max(numbers) <= min(planned)):
        within_plan = lines
    else:
        within_plan = lines.chosen([index for index in range(len(numbers)) if 0 < numbers[index] <= planned[index]])
    if within_plan is lines and lines.are_plausible:
        return lines, []
    odd = [
        f"iteration {line.iteration}: {problem}"
        for line, plan in zip(lines, planned, strict=True)
        if (problem := implausible_number(line.iteration, plan, line.elapsed_ms, line.loss, line.grad_norm))
    ]
    return within_plan, odd


def _line(row: _Row) -> IterationLine:
    """Return the line with the values of all columns."""
    number, planned, elapsed_ms, loss, norm, skipped, nan, scale, tflops, tokens, power, host_wait = row
    printed_loss, printed_norm = _printed(loss), _printed(norm)
    is_finite = nan == 0 and implausible_number(number, planned, elapsed_ms, printed_loss, printed_norm) is None
    return IterationLine(
        number,
        elapsed_ms,
        printed_loss,
        printed_norm,
        is_finite,  # used, unless it is part of the start-up or the warm-up
        _printed(scale),
        skipped,
        nan,
        _printed(tflops),
        _printed(tokens),
        _printed(power),
        is_finite,
        _printed(host_wait),
    )


def _printed(value: float) -> float | None:
    return None if value == MISSING else value


ITERATION_TOKEN = b"| elapsed time per iteration (ms)"
"""Text that each iteration line contains once. `fact_lines.candidate_lines` needs its bar."""

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
_ONE_NUMBER = re.compile(rb"(" + NUMBER + rb")(?:/" + NUMBER + rb")?")  # Primus adds a mean
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
                for at in occurrences(log, ITERATION_TOKEN, start, stop):
                    values = _read_one(log, start, at, stop)
                    if values is not None:
                        lines.append(values)
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


def _read_one(log: bytes, start: int, at: int, end: int) -> _Values | None:
    """Return the numbers of the line whose `ITERATION_TOKEN` is at `at`; None if the line is not complete."""
    heads = list(HEAD.finditer(log, max(start, at - _HEAD_BYTES), at + 1))
    if not heads or _LINE_END.search(log, heads[-1].end(), at):
        return None
    return _read_by_fields(log, heads[-1], at, end)


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
            number = _ONE_NUMBER.fullmatch(value.strip())
            yield name, float(number[1]) if number else None


def _count(value: float | None) -> int:
    """Return a number of iterations. NaN and infinity count as one."""
    if value is None:
        return 0
    return int(min(abs(value), 1e9)) if math.isfinite(value) else 1


@dataclass(frozen=True, slots=True)
class _LinePattern:
    """A pattern for lines with the same fields, and with the same values where values hardly ever change.

    `same` has these values by column, `groups` the columns of the pattern's groups. For a line that the pattern
    matches, `IN_ORDER` gives the same numbers.
    """

    pattern: re.Pattern[bytes]
    same: dict[str, float]
    groups: Sequence[str]

    @classmethod
    def of(cls, line: re.Match[bytes]) -> _LinePattern | None:
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
        texts = chain.from_iterable(rows)
        numbers = list(map(float, texts if self is not _ANY_LINE else (text or MISSING for text in texts)))
        columns: dict[str, Column] = {}
        for column, kind in COLUMNS.items():
            if column in self.groups:
                values = numbers[self.groups.index(column) :: len(self.groups)]
                columns[column] = array(kind, list(map(int, values)) if column in _COUNTS else values)
            else:
                value = self.same.get(column, MISSING)
                columns[column] = array(kind, [int(value) if column in _COUNTS else value]) * len(rows)
        return columns


_ANY_LINE = _LinePattern(IN_ORDER, {}, _GROUPS)


def _read_at_once(
    log: bytes, start: int, end: int, count: int, similar: _LinePattern | None
) -> tuple[dict[str, Column] | None, _LinePattern | None]:
    """Return the columns of the `count` lines of a piece, and the pattern to try first on the next piece.

    `similar` is the pattern from the piece before. The columns are None if any line fits no pattern.
    """
    for lines in _patterns(log, start, end, similar):
        similar = similar if lines is _ANY_LINE else lines
        rows = lines.pattern.findall(log, start, end)
        if len(rows) == count:
            with suppress(ValueError):  # not a number, such as 1.2.3
                return lines.columns(rows), similar
    return None, similar


def _patterns(log: bytes, start: int, end: int, similar: _LinePattern | None) -> Iterator[_LinePattern]:
    """Yield the patterns to try on a piece, the fastest first."""
    if similar is not None:
        yield similar
    first = IN_ORDER.search(log, start, end)
    own = _LinePattern.of(first) if first is not None else None
    if own is not None:
        yield own
    yield _ANY_LINE
