"""Printable text, plurals and times."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.text import counted, printable, printable_line, shown_time, utc_stamp, with_symbols

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_901)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\r\ntwo\tthree\u2028four", "one two three four"),
        ("\x1b[31mred\x1b[0m \x07\u202e", "red ??"),
        ("a  b\u00a0µ", "a  b\u00a0µ"),
    ],
)
def test_a_line_has_no_escape_sequences_line_ends_or_tabs(text: str, line: str) -> None:
    assert printable_line(text) == line


@given(text=st.text())
def test_a_printable_line_contains_nothing_that_does_not_print(text: str) -> None:
    line = printable_line(text)
    assert len(line.splitlines()) < 2 and "\t" not in line and printable(line) == line


def test_a_page_shows_a_symbol_for_each_character_that_does_not_print() -> None:
    assert with_symbols("\x1b[0m\r\n\x7f\u200b") == "␛[0m\n␡⟨U+200B⟩"


def test_only_one_is_singular() -> None:
    assert [counted(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]


def test_times_are_utc_in_files_and_without_a_zone_for_people() -> None:
    assert utc_stamp(MOMENT) == "2026-01-02T03:04:05Z" and utc_stamp(None) is None
    assert utc_stamp(MOMENT, "milliseconds") == "2026-01-02T03:04:05.678Z"
    assert shown_time(MOMENT) == "2026-01-02 03:04:05" and shown_time(None) == ""
