"""Tests of the time limits' parser and printer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.slurm.notation import format_time_limit, parse_time_limit, time_limit_s

LIMITS = [
    ("0:00:01", 1),
    ("30:00", 1800),
    ("00:30:00", 1800),
    ("0:30:00", 1800),
    ("1:02:03", 3723),
    ("23:59:59", 86399),
    ("99:00:00", 356400),
    ("1-02:03:04", 93784),
    ("2-00:00:01", 172801),
    ("365-00:00:00", 31536000),
    (" 12:00:01\n", 43201),
    ("UNLIMITED", None),
    ("NONE", None),
    ("Partition_Limit", None),
    ("", None),
    ("1:2:3", None),
    ("٣:00", None),
]


def test_a_time_limit_is_read_in_seconds_and_no_limit_as_none() -> None:
    assert [(text, parse_time_limit(text)) for text, _ in LIMITS] == LIMITS


def test_a_text_that_is_no_time_limit_is_an_error_where_one_is_required() -> None:
    with pytest.raises(ValueError, match="not a time limit: UNLIMITED"):
        time_limit_s("UNLIMITED")


@given(st.integers(0, 10**9))
def test_a_printed_time_limit_reads_back(seconds: int) -> None:
    assert time_limit_s(format_time_limit(seconds)) == seconds


@given(st.text() | st.text("0123456789-:"))
def test_no_text_breaks_the_parser(text: str) -> None:
    assert (parse_time_limit(text) or 0) >= 0
