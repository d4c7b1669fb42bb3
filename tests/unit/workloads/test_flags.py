"""Flags as the words of a command line."""

from __future__ import annotations

from orchestrator.workloads.flags import words


def test_a_switch_that_is_off_leaves_no_word_and_a_zero_stays() -> None:
    flags = {"--on": True, "--off": False, "--none": None, "--zero": 0, "--share": 0.0, "--one": 1}
    assert words(flags) == ["--on", "--zero", "0", "--share", "0.0", "--one", "1"]
