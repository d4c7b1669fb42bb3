"""Lines by column: the same as a list of them, which of them count, and which cannot be true."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.megatron.logs.iteration import (
    LARGEST,
    LONGEST_MS,
    IterationLine,
    IterationLines,
    counting,
    drop_implausible,
)

NUMBERS = st.none() | st.floats(width=32)
COUNTS = st.integers(0, 999_999_999)
LINES = st.lists(
    st.builds(IterationLine, COUNTS, COUNTS, st.floats(), NUMBERS, NUMBERS, COUNTS, COUNTS, NUMBERS, NUMBERS, NUMBERS),
    max_size=8,
)


def line(number: int, elapsed_ms: float = 100.0, loss: float | None = 6.9, norm: float | None = 1.5) -> IterationLine:
    return IterationLine(number, 100, elapsed_ms, loss, norm, 0, 0)


def lines(*numbers: int) -> IterationLines:
    """Each with its place as its time, so that two of the same number differ."""
    return IterationLines.of(line(number, float(place)) for place, number in enumerate(numbers, 1))


def shown(values: object) -> str:
    return repr(values)  # where NaN is NaN


@given(LINES)
def test_lines_by_column_are_the_lines(made: list[IterationLine]) -> None:
    columns = IterationLines.of(made)
    assert shown(list(columns)) == shown(made) and len(columns) == len(made)
    assert [shown(columns[at]) for at in range(-len(made), len(made))] == [shown(one) for one in [*made, *made]]
    assert shown(list(columns[1:3])) == shown(made[1:3])
    assert columns == IterationLines.of(made) and columns[:0] == IterationLines()
    assert repr(columns) == f"IterationLines.of({made!r})"


def test_the_columns_have_an_order_that_is_the_fields() -> None:
    assert len(IterationLines.TYPES) == len(fields(IterationLine)) == len(IterationLine.__slots__)
    assert IterationLine.__slots__ == tuple(field.name for field in fields(IterationLine))


def test_what_is_no_line_is_not_there() -> None:
    with pytest.raises(IndexError):
        lines(1, 2)[2]
    assert lines(1) != [line(1, 1.0)] and lines(1) != lines(2)


def test_lines_that_go_on_take_the_place_of_the_last_with_the_same_number() -> None:
    known = lines(1, 2)
    known.go_on(IterationLines.of([line(2, 9.0), line(3, 9.0)]))
    assert [(one.iteration, one.elapsed_ms) for one in known] == [(1, 1.0), (2, 9.0), (3, 9.0)]


@pytest.mark.parametrize(
    ("numbers", "last", "kept", "voids", "restarts"),
    [
        ((1, 2, 3), None, [1, 2, 3], False, 0),
        ((4, 5), 3, [1, 2], False, 0),
        ((3, 4), 3, [1, 2], False, 0),
        ((1, 2), 3, [1, 2], True, 1),
        ((4, 5, 1, 2), 3, [3, 4], True, 1),
        ((1, 1, 2, 2, 2), None, [2, 5], False, 0),
        ((2, 1, 2, 1, 1, 3), 5, [5, 6], True, 3),
        ((), 3, [], False, 0),
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
def test_what_counts_is_what_the_program_did_since_it_began_last(
    numbers: tuple[int, ...], last: int | None, kept: list[float], voids: bool, restarts: int
) -> None:
    found = counting(lines(*numbers), last)
    assert ([one.elapsed_ms for one in found[0]], *found[1:]) == (kept, voids, restarts)


@pytest.mark.parametrize(
    ("odd", "said"),
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
def test_a_number_that_cannot_be_true_is_found_and_its_line_is_not_finite(odd: IterationLine, said: str) -> None:
    assert not odd.is_finite
    made = IterationLines.of([line(1), odd, odd, line(3)])
    kept, count, first = drop_implausible(made)
    assert (count, first) == (2, said)
    assert kept == (made if odd.iteration == 2 else IterationLines.of([line(1), line(3)]))


@pytest.mark.parametrize(
    "fine",
    [line(1), line(1, LONGEST_MS), line(1, 1e-3), line(1, loss=None), line(1, loss=LARGEST), line(1, norm=-1.0)],
)
def test_a_number_that_is_only_unusual_is_not_odd(fine: IterationLine) -> None:
    made = IterationLines.of([line(1), fine])
    assert fine.is_finite and drop_implausible(made) == (made, 0, None)


@given(LINES)
def test_what_the_columns_tell_at_once_is_what_each_line_tells(made: list[IterationLine]) -> None:
    kept, count, _ = drop_implausible(IterationLines.of(made))
    assert count == sum(one.oddity is not None for one in made)
    assert kept == IterationLines.of(one for one in made if 0 < one.iteration <= one.train_iterations)
