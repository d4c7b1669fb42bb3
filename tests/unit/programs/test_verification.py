"""Conditions of a verified output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.programs.verification import Row, condition_of

VALUES = {"rows": 32, "out_of_bounds": 0.0, "steps": 10, "name": "Triad"}
ROWS = [Row("size=8", 3, {"wrong": 0.0, "size": 8.0}), Row("size=16", 4, {"wrong": 3.0, "size": 16.0})]


def problems(text: str) -> list[str]:
    return [part.why for part in condition_of(text).unmet(VALUES, ROWS)]


@pytest.mark.parametrize(
    "text",
    [
        "out_of_bounds == 0 and rows == 32",
        "rows < 10 or rows > 30",
        "not rows == 31",
        "all(size >= 8)",
        "any(wrong == 3)",
        "all(wrong == 0 or size == 16)",
        "name == 'Triad'",
        "out_of_bounds > -1",
        "all(size < rows)",
    ],
)
def test_a_condition_that_holds_has_no_problem(text: str) -> None:
    assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rows == 31", ["rows == 31: rows is 32"]),
        ("rows == 31 and out_of_bounds == 1", ["rows == 31: rows is 32", "out_of_bounds == 1: out_of_bounds is 0"]),
        ("rows == 31 or rows == 30", ["rows == 31: rows is 32", "rows == 30: rows is 32"]),
        ("not rows == 32", ["rows == 32, and must not"]),
        ("all(wrong == 0)", ["wrong == 0: wrong is 3 at size=16 (line 4)"]),
        ("any(wrong == 1)", ["wrong == 1 in none of 2 rows"]),
        ("loss < 3", ["loss < 3: loss was not found"]),
        ("name < 3", ["name < 3: 'Triad' and 3 cannot be compared"]),
    ],
)
def test_a_condition_that_does_not_hold_says_which_number_is_wrong(text: str, found: list[str]) -> None:
    assert problems(text) == found


def test_all_of_no_rows_does_not_hold() -> None:
    (part,) = condition_of("all(wrong == 0)").unmet(VALUES, ())
    assert part.why == "all(wrong == 0): the output has no row"


def test_a_part_that_does_not_hold_has_its_names_and_the_line_of_its_first_row() -> None:
    (count,) = condition_of("rows == 31").unmet(VALUES, ROWS)
    assert count.names == {"rows"} and count.line == 0
    (row,) = condition_of("all(wrong == 0)").unmet(VALUES, ROWS)
    assert row.names == {"wrong"} and row.line == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rows",
        "rows = 3",
        "rows == 3 == 3",
        "__import__('os').system('true') == 0",
        "rows.real == 3",
        "all(x == 0 for x in rows)",
        "all(any(wrong == 0))",
        "sum(rows) == 3",
        "rows in [3]",
        "rows == True",
        "rows + 1 == 33",
        "(" * 500 + "rows == 1" + ")" * 500,
        "lambda: 0",
    ],
)
def test_more_than_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a condition|is neither a name nor a number"):
        condition_of(text)


def test_a_keyword_of_python_is_a_name() -> None:
    values = {"from": 1, "to": 2, "in": "is not", "is": 3}
    condition = condition_of("from == 1 and to >= from and in == 'is not' and not is < 3")
    assert condition.names() == ({"from", "to", "in", "is"}, set())
    assert condition.unmet(values, ()) == []
    assert condition.unmet({**values, "from": 4}, ())[0].why == "from == 1: from is 4"


@pytest.mark.parametrize("text", ["all == 1", "rows == 1 and any < 2", "1 == not", "and >= 3"])
def test_a_word_of_the_grammar_cannot_be_compared(text: str) -> None:
    with pytest.raises(ValueError, match=r"(all|any|not|and) is a word of the grammar"):
        condition_of(text)


def test_a_missing_number_of_all_rows_is_one_problem() -> None:
    assert problems("all(wrong == limit)") == [
        "wrong == limit: limit was not found at size=8 (line 3) and in 1 more row"
    ]


def test_names_of_rows_and_of_the_output_are_told_apart() -> None:
    assert condition_of("out == 0 and all(wrong == limit)").names() == ({"out"}, {"wrong", "limit"})


@given(st.text())
def test_any_text_is_a_condition_or_is_refused(text: str) -> None:
    try:
        condition = condition_of(text)
    except ValueError:
        return
    assert isinstance(condition.unmet(VALUES, ROWS), list)
