"""Iteration lines of Megatron-LM as numbers: one line, many lines by column, and the lines that count."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import lt
from typing import Any, TypeAlias, overload

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


@dataclass(frozen=True, slots=True)
class IterationLine:
    """One interval report: averages over the iterations since the line before it.

    `elapsed_ms` is the time of one iteration. The program's own rates are per GPU: TFLOP/s are Megatron's, whose count
    of FLOPs differs between versions; tokens/s are Megatron-Kwai's. `power_w` is per GPU. `host_wait_ms` is the time
    per iteration for which a GPU waited for the host, as `orchestrator.pretrain` prints it.

    `used`: the line is part of the metrics. `is_finite` is False if an iteration counted as NaN, if a number of the
    line is not plausible, or if it lacks its loss (`reading.statistics`).
    """

    iteration: int
    elapsed_ms: float
    loss: float | None
    grad_norm: float | None
    used: bool = True
    loss_scale: float | None = None
    skipped: int | None = None
    nan: int | None = None
    reported_tflops_per_gpu: float | None = None
    reported_tokens_per_s_per_gpu: float | None = None
    power_w: float | None = None
    is_finite: bool = True
    host_wait_ms: float | None = None


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
    def first_bytes_are_plausible(self) -> bool:
        """False if a time, a loss or a norm may be implausible: a test of exponents, much faster than line by line."""
        if _first_bytes(self._columns["elapsed_ms"]).translate(None, _FIRST_BYTES_OF_TIMES):
            return False
        return not any(
            _first_bytes(column).translate(None, _FIRST_BYTES_OF_NUMBERS) and column.count(MISSING) < len(column)
            for column in (self._columns["loss"], self._columns["grad_norm"])
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


@dataclass(frozen=True, slots=True)
class EffectiveLines:
    """Lines that count after a program may have restarted within its log.

    `is_restarted`: the lines before these do not count any more. `restarts` is the number of restarts.
    """

    lines: IterationLines
    is_restarted: bool
    restarts: int


def effective_lines(lines: IterationLines, last: int | None) -> EffectiveLines:
    """Return the lines that count among the next lines of a log, after iteration `last`.

    A falling iteration number means that a program restarted in the same log: earlier lines do not count any more. If
    several lines have the same number, as several ranks may print it, the last line counts.
    """
    numbers = lines.numbers
    is_restarted = last is not None and bool(numbers) and numbers[0] < last
    if all(map(lt, numbers, islice(numbers, 1, None))):
        return EffectiveLines(lines, is_restarted, int(is_restarted))
    falls = [index for index in range(1, len(numbers)) if numbers[index] < numbers[index - 1]]
    start, end = falls[-1] if falls else 0, len(numbers)
    kept = [index for index in range(start, end) if index + 1 == end or numbers[index] != numbers[index + 1]]
    return EffectiveLines(lines.chosen(kept), is_restarted or bool(falls), is_restarted + len(falls))


@dataclass(frozen=True, slots=True)
class PlausibleLines:
    """Lines whose iteration number is within the plan.

    `odd` is the number of lines, of all lines, with any implausible number; `first_odd` describes the first of them.
    """

    lines: IterationLines
    odd: int = 0
    first_odd: str | None = None


def plausible_lines(lines: IterationLines) -> PlausibleLines:
    """Return the lines whose iteration number is within the plan, and count the lines with implausible numbers.

    A garbled iteration number shows neither progress nor a restart.
    """
    within_plan = _within_plan(lines)
    if within_plan is lines and lines.first_bytes_are_plausible:
        return PlausibleLines(lines)
    odd = [
        f"iteration {line.iteration}: {problem}"
        for line, planned in zip(lines, lines.planned, strict=True)
        if (problem := implausible_number(line.iteration, planned, line.elapsed_ms, line.loss, line.grad_norm))
    ]
    return PlausibleLines(within_plan, len(odd), odd[0] if odd else None)


def _within_plan(lines: IterationLines) -> IterationLines:
    """Return the lines within the plan; the same object if all are."""
    numbers, planned = lines.numbers, lines.planned
    if not lines or (min(numbers) > 0 and max(numbers) <= _least(planned)):
        return lines
    return lines.chosen([index for index in range(len(numbers)) if 0 < numbers[index] <= planned[index]])


def _least(column: array[int]) -> int:
    """Return the minimum. Fast if all numbers are equal, as they usually are."""
    equal = column[:1].tobytes() * len(column)
    return column[0] if column.tobytes() == equal else min(column)


# The first byte of a 64-bit float has its sign and the upper part of its exponent.
_FIRST_BYTES_OF_TIMES = bytes(range(0x3F, 0x42))
"""First bytes of floats from 2^-15 (`SHORTEST_MS`) to below 2^33."""
_FIRST_BYTES_OF_NUMBERS = bytes(range(0x47))
"""First bytes of floats from 0 to 2^113."""


def _first_bytes(column: Column) -> bytes:
    return column.tobytes()[7 if sys.byteorder == "little" else 0 :: 8]


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
