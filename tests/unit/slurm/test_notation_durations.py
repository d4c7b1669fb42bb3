"""Tests of durations with a unit, which every option for a time takes."""

from __future__ import annotations

import pytest

from orchestrator.launch.retry import changed_limit
from orchestrator.slurm.notation import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("600s", 600), ("10m", 600), ("1h", 3600), ("1", None), ("h", None), ("1:00:00", None)]
)
def test_a_duration_has_a_number_and_a_unit(text: str, seconds: int | None) -> None:
    assert parse_duration(text) == seconds


def test_a_retry_takes_a_new_or_an_additional_duration() -> None:
    assert changed_limit("2h")("0:10:00") == "2:00:00" and changed_limit("+5m")("0:10:00") == "0:15:00"
