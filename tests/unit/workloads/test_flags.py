"""Flags as the words of a command line, and what has none."""

from __future__ import annotations

import pytest

from orchestrator.errors import ReproError
from orchestrator.workloads.base import refuse, words
from tests.unit.catalog.entries import find_case


def test_a_switch_that_is_off_leaves_no_word_and_a_zero_stays() -> None:
    flags = {"--on": True, "--off": False, "--none": None, "--zero": 0, "--share": 0.0, "--one": 1}
    assert words(flags) == ["--on", "--zero", "0", "--share", "0.0", "--one", "1"]


def test_all_that_a_program_has_no_words_for_is_said_at_once_in_one_line() -> None:
    case = find_case("figure-13", "pp=8,tp=8,gbs=32")
    refuse(case, "the program has no", ())
    with pytest.raises(ReproError) as caught:
        refuse(case, "the program has no", iter(("wings", "wheels")))
    assert str(caught.value) == "pp=8,tp=8,gbs=32: the program has no wings, no wheels"
