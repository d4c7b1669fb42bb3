"""Patterns of output lines."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.programs import output
from orchestrator.programs.output import LONGEST_LINE, line_text, nearest_line, number, pattern_of


@pytest.mark.parametrize(
    ("printed", "value"),
    [("480", 480), ("-1.5", -1.5), (".5", 0.5), ("2e-05", 2e-5), ("1,234.5", 1234.5), ("5,762", 5762), ("12.", 12)],
)
def test_a_number_in_a_common_form_is_read(printed: str, value: float) -> None:
    assert pattern_of("tps: {tps}").find(f"step 3  tps: {printed}  mfu") == {"tps": value}


def test_a_number_is_read_whole_and_not_from_its_middle() -> None:
    assert pattern_of("{busbw}$").find("size 272.71  480") == {"busbw": 480}
    assert pattern_of("72{busbw}").find("272.71") is None
    assert pattern_of("{busbw}, ").find("1,234, 5") == {"busbw": 1234}


def test_numbers_beside_units_are_read() -> None:
    assert pattern_of("time={ms}ms").find("time=12.5ms") == {"ms": 12.5}


def test_nan_is_read_so_that_it_can_be_refused() -> None:
    found = pattern_of("loss={loss}").find("loss=nan")
    assert found is not None
    assert math.isnan(found["loss"])


def test_a_count_in_braces_stays_a_count() -> None:
    assert pattern_of("a{3} {x}").find("aaa 7") == {"x": 7}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step", "has no {name}"),
        ("{loss} {loss}", "has a name twice"),
        ("({loss}", "is not a regular expression"),
    ],
)
def test_a_pattern_that_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pattern_of(text)


def test_a_catastrophic_pattern_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SLOWEST_S", 0.05)
    pattern = pattern_of("(a|a|aa)+$ {x}")
    start = time.process_time()
    with pytest.raises(TimeoutError):
        pattern.find("a" * 5000 + "! 1")
    assert time.process_time() - start < 20  # without the limit it takes years


@given(
    st.text("ab.\\\\*+?{2,}^$dx ", max_size=8),
    st.lists(st.text("ab2d .x1", max_size=8), max_size=4),
)
def test_lines_without_the_literal_of_a_pattern_do_not_match(text: str, lines: list[str]) -> None:
    try:
        pattern = pattern_of(text, of_numbers=False)
    except ValueError:
        return
    assert all(pattern.literal in line for line in lines if pattern.find(line) is not None)


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("step={iteration} loss={loss}", " loss="),
        ("Out of bounds values *: *{number}", "Out of bounds values"),
        ("(?i)loss {loss}", ""),
        ("a|b {loss}", ""),
        (r"\x41bcd {loss}", ""),
        (r"v\. 1 {loss}", " 1 "),
        ("ab?c{2}de {loss}", "de "),
    ],
)
def test_a_pattern_has_the_longest_text_that_each_line_contains(text: str, literal: str) -> None:
    assert pattern_of(text).literal == literal


def test_colours_and_earlier_states_of_a_progress_bar_are_not_seen() -> None:
    assert line_text(b"10%\r50%\r\x1b[32mloss=\x1b[0m2.5\n") == "loss=2.5"


def test_a_long_line_is_shortened() -> None:
    assert len(line_text(b"x" * 10 * LONGEST_LINE)) == LONGEST_LINE


def test_the_nearest_line_shares_words_with_the_pattern() -> None:
    lines = [(1, "starting up"), (2, "# Out of bound values : 0 OK"), (3, "# Avg bus bandwidth : 159")]
    assert nearest_line("Out of bounds values *: *{number}", lines) == (2, "# Out of bound values : 0 OK")
    assert nearest_line("{x}", lines) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_each_number_that_python_prints_is_read_again(value: float) -> None:
    assert number(repr(value)) == value
    assert pattern_of("v={v};").find(f"v={value!r};") == {"v": value}


@given(st.text())
def test_no_line_breaks_a_pattern(text: str) -> None:
    pattern_of("loss={loss}").find(line_text(text.encode("utf-8", "surrogatepass")))
