"""Iteration lines by column: storage, lines that count, and implausible numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.ledger.tables import IterationLine
from orchestrator.megatron.logs.iteration_lines import (
    COLUMNS,
    LARGEST,
    LONGEST_MS,
    IterationLines,
    effective_lines,
    implausible_number,
    plausible_lines,
)

NUMBERS = st.none() | st.floats(width=32)
COUNTS = st.integers(0, 999_999_999)

ROWS = st.lists(
    st.tuples(COUNTS, COUNTS, st.floats(), NUMBERS, NUMBERS, COUNTS, COUNTS, *[NUMBERS] * 5),
    max_size=8,
)


def by_column(rows: Sequence[Sequence[float | None]]) -> IterationLines:
    columns = IterationLines()
    for row in rows:
        columns.append(dict(zip(COLUMNS, row, strict=True)))
    return columns


def lines_of(*lines: IterationLine) -> IterationLines:
    return IterationLines.of(lines, train_iterations=100)


def line(number: int, elapsed_ms: float = 100.0, loss: float | None = 6.9, norm: float | None = 1.5) -> IterationLine:
    return lines_of(IterationLine(number, elapsed_ms, loss, norm, skipped=0, nan=0))[0]


def lines(*numbers: int) -> IterationLines:
    """Return lines with their position as time, so that lines of the same number differ."""
    return lines_of(*(line(number, float(place)) for place, number in enumerate(numbers, 1)))


def shown(values: object) -> str:
    return repr(values)  # where NaN is NaN


@given(ROWS)
def test_lines_by_column_equal_a_list_of_lines(rows: list[tuple[float | None, ...]]) -> None:
    columns = by_column(rows)
    lines = list(columns)
    in_log = [name for name in COLUMNS if name != "train_iterations"]
    numbers = [row[:1] + row[2:] for row in rows]
    assert [shown(tuple(getattr(item, name) for name in in_log)) for item in lines] == [shown(row) for row in numbers]
    assert list(columns.planned) == [row[1] for row in rows]
    assert [shown(columns[at]) for at in range(-len(rows), len(rows))] == [shown(item) for item in [*lines, *lines]]
    assert shown(list(columns[1:3])) == shown(lines[1:3])
    assert columns == by_column(rows) and columns[:0] == IterationLines()


def test_columns_are_named_like_fields_of_a_line() -> None:
    names = {field.name for field in fields(IterationLine)}
    assert names ^ set(COLUMNS) == {"used", "is_finite", "train_iterations"}


def test_an_index_without_a_line_raises_index_error() -> None:
    with pytest.raises(IndexError):
        lines(1, 2)[2]
    assert lines(1) != [line(1, 1.0)] and lines(1) != lines(2)


def test_a_later_line_replaces_the_last_line_with_the_same_number() -> None:
    earlier = lines(1, 2)
    earlier.append_later(lines_of(line(2, 9.0), line(3, 9.0)))
    assert [(item.iteration, item.elapsed_ms) for item in earlier] == [(1, 1.0), (2, 9.0), (3, 9.0)]


@pytest.mark.parametrize(
    ("numbers", "last", "kept", "restarts"),
    [
        ((1, 2, 3), None, [1, 2, 3], 0),
        ((4, 5), 3, [1, 2], 0),
        ((3, 4), 3, [1, 2], 0),
        ((1, 2), 3, [1, 2], 1),
        ((4, 5, 1, 2), 3, [3, 4], 1),
        ((1, 1, 2, 2, 2), None, [2, 5], 0),
        ((2, 1, 2, 1, 1, 3), 5, [5, 6], 3),
        ((), 3, [], 0),
    ],
    ids=[
        "rising",
        "going on",
        "the same again",
        "begun anew",
        "begun anew in between",
        "two ranks print",
        "three times",
        "none",
    ],
)
def test_only_lines_since_the_last_start_count(
    numbers: tuple[int, ...], last: int | None, kept: list[float], restarts: int
) -> None:
    effective, count = effective_lines(lines(*numbers), last)
    assert ([line.elapsed_ms for line in effective], count) == (kept, restarts)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (line(2, -3.0), "iteration 2: -3 ms per iteration"),
        (line(2, 0.0), "iteration 2: 0 ms per iteration"),
        (line(2, math.nan), "iteration 2: nan ms per iteration"),
        (line(2, math.inf), "iteration 2: inf ms per iteration"),
        (line(2, 2 * LONGEST_MS), "iteration 2: 2e+10 ms per iteration"),
        (line(2, loss=math.nan), "iteration 2: loss nan"),
        (line(2, loss=-math.inf), "iteration 2: loss -inf"),
        (line(2, norm=1e300), "iteration 2: gradient norm 1e+300"),
        (line(2, norm=-1e300), "iteration 2: gradient norm -1e+300"),
        (line(101), "iteration 101: iteration 101 of 100"),
        (line(0), "iteration 0: iteration 0 of 100"),
    ],
)
def test_a_line_with_an_implausible_number_is_not_finite(odd: IterationLine, message: str) -> None:
    assert not odd.is_finite
    together = lines_of(line(1), odd, odd, line(3))
    plausible, texts = plausible_lines(together)
    assert (len(texts), texts[0]) == (2, message)
    assert plausible == (together if odd.iteration == 2 else lines_of(line(1), line(3)))


@pytest.mark.parametrize(
    "fine",
    [line(1), line(1, LONGEST_MS), line(1, 1e-3), line(1, loss=None), line(1, loss=LARGEST), line(1, norm=-1.0)],
)
def test_an_unusual_number_is_plausible(fine: IterationLine) -> None:
    together = lines_of(line(1), fine)
    assert fine.is_finite and plausible_lines(together) == (together, [])


@given(ROWS)
def test_the_fast_check_of_columns_agrees_with_each_line(rows: list[tuple[Any, ...]]) -> None:
    plausible, odd = plausible_lines(by_column(rows))
    assert len(odd) == sum(implausible_number(*row[:5]) is not None for row in rows)
    assert plausible == by_column([row for row in rows if 0 < row[0] <= row[1]])
