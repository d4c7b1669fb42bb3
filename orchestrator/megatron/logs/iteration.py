"""Iteration lines of Megatron-LM: their fields and patterns, and storage by columns."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import lt
from typing import Any, overload

LARGEST = 3.4028234663852886e38
"""The largest number of 32 bits, in which losses and norms are computed: what is larger was never computed."""
LONGEST_MS = 1e10
"""Nearly four months: no iteration takes as long."""

MISSING = -sys.float_info.max
"""Stands in a column for a number that was not printed; no program prints it."""


@dataclass(frozen=True, slots=True)
class IterationLine:
    """One interval report: averages over the iterations since the line before it.

    `elapsed_ms` is of one iteration. The program's own rates are per GPU: TFLOP/s are Megatron's, whose count of FLOPs
    differs from version to version; tokens/s are Megatron-Kwai's. `host_wait_ms` is the time per iteration for which a
    GPU waited for the host, as `orchestrator.pretrain` prints it.
    """

    iteration: int
    train_iterations: int
    elapsed_ms: float
    loss: float | None
    grad_norm: float | None
    skipped: int
    nan: int
    loss_scale: float | None = None
    reported_tflops_per_gpu: float | None = None
    reported_tokens_per_s_per_gpu: float | None = None
    power_w: float | None = None
    host_wait_ms: float | None = None

    @property
    def is_finite(self) -> bool:
        """False when an iteration was counted as NaN, or a number of the line is none or absurd."""
        return self.nan == 0 and self.oddity is None

    @property
    def oddity(self) -> str | None:
        """What of the line cannot be true: a number that is none, a time that is no time, an iteration of no plan."""
        if not 0 < self.elapsed_ms <= LONGEST_MS:
            return f"{self.elapsed_ms:g} ms per iteration"
        for name, value in (("loss", self.loss), ("gradient norm", self.grad_norm)):
            if value is not None and not abs(value) <= LARGEST:
                return f"{name} {value:g}"
        if not 0 < self.iteration <= self.train_iterations:
            return f"iteration {self.iteration} of {self.train_iterations}"
        return None


class IterationLines(Sequence[IterationLine]):
    """Lines by column, as a sequence of `IterationLine` of which each is made when it is asked for.

    Two that hold the same numbers are equal, NaN included.
    """

    __slots__ = ("_columns",)

    TYPES = "iidddiiddddd"
    """Of the fields of `IterationLine`, in their order: counts of 32 bits, and numbers of 64."""

    def __init__(self, columns: Sequence[array[Any]] | None = None) -> None:
        self._columns = tuple(columns) if columns is not None else tuple(array(kind) for kind in self.TYPES)

    @classmethod
    def of(cls, lines: Iterable[IterationLine]) -> IterationLines:
        """From lines one by one."""
        made = cls()
        for line in lines:
            made.append(line)
        return made

    def append(self, line: IterationLine) -> None:
        """One line more."""
        for column, name in zip(self._columns, IterationLine.__slots__, strict=True):
            value = getattr(line, name)
            column.append(MISSING if value is None else value)

    def extend(self, columns: Sequence[array[Any]]) -> None:
        """Many lines more, by column and of `TYPES`; `MISSING` stands for what was not printed."""
        for column, values in zip(self._columns, columns, strict=True):
            column.extend(values)

    def go_on(self, later: IterationLines) -> None:
        """The lines after these, of the same program; the first of them may be this last one's number again."""
        if self and later and later.numbers[0] == self.numbers[-1]:
            for column in self._columns:
                column.pop()
        self.extend(later._columns)

    def chosen(self, places: Sequence[int]) -> IterationLines:
        """Those at the places, in that order."""
        return IterationLines([array(column.typecode, map(column.__getitem__, places)) for column in self._columns])

    @property
    def numbers(self) -> array[int]:
        """Of the iterations that the lines end."""
        return self._columns[0]

    @property
    def planned(self) -> array[int]:
        """How many iterations each line says that there will be."""
        return self._columns[1]

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, index: int) -> IterationLine: ...
    @overload
    def __getitem__(self, index: slice) -> IterationLines: ...
    def __getitem__(self, index: int | slice) -> IterationLine | IterationLines:
        if isinstance(index, slice):
            return IterationLines([column[index] for column in self._columns])
        return _line([column[index] for column in self._columns])

    def __iter__(self) -> Iterator[IterationLine]:
        return map(_line, zip(*self._columns, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IterationLines):
            return NotImplemented
        return all(a.tobytes() == b.tobytes() for a, b in zip(self._columns, other._columns, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IterationLines.of({list(self)!r})"


def counting(lines: IterationLines, last: int | None) -> tuple[IterationLines, bool, int]:
    """Of the next lines of a log, after iteration `last`: those that count, whether they void all before them, and how
    often the program was started again.

    Where numbers fall, a program began anew in the same log, and what it did before counts no longer. Of lines with the
    same number, as several ranks may print it, the last one counts.
    """
    numbers = lines.numbers
    voids = last is not None and bool(numbers) and numbers[0] < last
    if all(map(lt, numbers, islice(numbers, 1, None))):
        return lines, voids, int(voids)
    falls = [at for at in range(1, len(numbers)) if numbers[at] < numbers[at - 1]]
    begin, end = falls[-1] if falls else 0, len(numbers)
    kept = [at for at in range(begin, end) if at + 1 == end or numbers[at] != numbers[at + 1]]
    return lines.chosen(kept), voids or bool(falls), voids + len(falls)


def drop_implausible(lines: IterationLines) -> tuple[IterationLines, int, str | None]:
    """The lines without those whose number no plan has; how many lines have a number that cannot be true, in whichever
    field; and the first of these in words.

    A garbled number of an iteration says neither how far a program is nor that it began anew.
    """
    possible = _of_the_plan(lines)
    if possible is lines and not _may_be_odd(lines):
        return lines, 0, None
    odd = [(line.iteration, oddity) for line in lines if (oddity := line.oddity) is not None]
    return possible, len(odd), f"iteration {odd[0][0]}: {odd[0][1]}" if odd else None


def _of_the_plan(lines: IterationLines) -> IterationLines:
    """The lines themselves where all are."""
    numbers, planned = lines.numbers, lines.planned
    if not lines or (min(numbers) > 0 and max(numbers) <= _least(planned)):
        return lines
    return lines.chosen([at for at in range(len(numbers)) if 0 < numbers[at] <= planned[at]])


def _may_be_odd(lines: IterationLines) -> bool:
    """Told from the columns, much faster than line by line; sometimes there is nothing odd after all."""
    columns: Sequence[array[Any]] = lines._columns
    _, _, elapsed_ms, loss, grad_norm, *_ = columns
    if _first_bytes(elapsed_ms).translate(None, _OF_TIMES):
        return True
    return any(
        _first_bytes(column).translate(None, _OF_NUMBERS) and column.count(MISSING) < len(column)
        for column in (loss, grad_norm)
    )


def _least(column: array[int]) -> int:
    """The least of numbers that are mostly all the same."""
    alike = column[:1].tobytes() * len(column)
    return column[0] if column.tobytes() == alike else min(column)


# The first byte of a number of 64 bits is its sign and the upper part of its exponent.
_OF_TIMES = bytes(range(0x01, 0x42))
"""Of numbers above 0 and below 2^33."""
_OF_NUMBERS = bytes(range(0x47))
"""Of numbers from 0 to 2^113."""


def _first_bytes(column: array[Any]) -> bytes:
    return column.tobytes()[7 if sys.byteorder == "little" else 0 :: 8]


def _line(values: Sequence[Any]) -> IterationLine:
    iteration, planned, elapsed_ms, loss, norm, skipped, nan, *others = values
    return IterationLine(iteration, planned, elapsed_ms, _told(loss), _told(norm), skipped, nan, *map(_told, others))


def _told(value: float) -> float | None:
    return None if value == MISSING else value


ITERATION_WORD = b"| elapsed time per iteration (ms)"
"""Stands once in every iteration line, and is quick to search for. Its bar is one of those that `telling` goes by."""

ITERATION, PLANNED, ELAPSED, LOSS, GRAD_NORM, SKIPPED, NAN, SCALE, TFLOPS, TOKENS, POWER, HOST_WAIT = range(12)
"""Columns of `IterationLines`."""

# Counts of at most 9 digits: they are kept in 32 bits.
_COUNT = rb"[0-9]{1,9}"
_VALUE = rb"[-+.0-9eEnaif]{1,40}"

HEAD = re.compile(rb"iteration {1,12}([0-9]{1,9})/ {0,12}([0-9]{1,9}) \|")
"""What a line begins with."""

# What follows, in the order printed: the field's name, whether every version has it, and which column of
# `IterationLines` it is; None for those that are passed over.
FIELDS: tuple[tuple[bytes, bool, int | None], ...] = (
    (b"consumed samples", True, None),
    (b"skipped samples", False, None),
    (b"elapsed time per iteration (ms)", True, ELAPSED),
    (b"host wait per iteration (ms)", False, HOST_WAIT),
    (b"throughput per GPU (TFLOP/s/GPU)", False, TFLOPS),
    (b"tokens per sec per gpu", False, TOKENS),
    (b"energy per GPU (J/iter/GPU)", False, None),
    (b"power per GPU (W/GPU)", False, POWER),
    (b"learning rate", False, None),
    (b"decoupled learning rate", False, None),
    (b"global batch size", False, None),
    (b"lm loss", False, LOSS),
    (b"loss scale", False, SCALE),
    (b"grad norm", False, GRAD_NORM),
    (b"num zeros", False, None),
    (b"params norm", False, None),
    (b"number of skipped iterations", True, SKIPPED),
    (b"number of nan iterations", True, NAN),
)
COUNTS = (ITERATION, PLANNED, SKIPPED, NAN)
GROUPS = (ITERATION, PLANNED, *(column for _, _, column in FIELDS if column is not None))
"""The columns in the order printed."""


def field_pattern(name: bytes, column: int | None) -> bytes:
    """Of one field with its bar; what is a column is a group."""
    value = _COUNT if column in COUNTS else _VALUE
    return b" " + re.escape(name) + b": {1,12}" + (b"(" + value + b")" if column is not None else value) + rb" \|"


def _in_order(name: bytes, always: bool, column: int | None) -> bytes:
    return field_pattern(name, column) if always else b"(?:" + field_pattern(name, column) + b")?"


OTHERS = rb"(?: (?!lm loss|loss scale|grad norm)[^|/\r\n]{1,200}\|){0,24}?"
"""What a mixture of experts says behind its loss: more losses, and free text. Not a column that is garbled, and not
another line's head, which has a /.
"""

_BEFORE_OTHERS = next(place for place, field in enumerate(FIELDS) if field[0] == b"lm loss") + 1

IN_ORDER = re.compile(
    HEAD.pattern
    + b"".join(_in_order(*field) for field in FIELDS[:_BEFORE_OTHERS])
    + OTHERS
    + b"".join(_in_order(*field) for field in FIELDS[_BEFORE_OTHERS:])
)
"""A whole iteration line; its groups are `GROUPS`, empty where a field is missing."""
