"""Cases with another program: dropped values, and cases that would become one job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.case import replacement_notes, select, with_program
from orchestrator.catalog.expand import expand
from orchestrator.errors import ReproError
from tests.unit.catalog.entries import BASE, entry_of, shipped


def test_a_case_keeps_all_but_its_program_so_that_the_two_can_be_compared() -> None:
    own = expand(shipped())
    others = with_program(own, "pretrain")
    assert [replace(case, program="megatron-2021") for case in others] == own
    assert [case.name for case in others] == [case.name for case in own]
    assert {case.program for case in others} == {"pretrain"}
    assert [case.published for case in others] == [case.published for case in own]
    assert sum(len(case.published) for case in others) == 10


def test_where_finds_the_cases_by_the_program_that_runs_and_the_own_ones_stay_as_they_were() -> None:
    own = expand(shipped())
    others = with_program(own, "pretrain")
    assert select(others, {"program": "pretrain"}) == others
    assert select(own, {"program": "megatron-2021"}) == own


def test_that_the_source_ran_out_of_memory_excuses_no_other_program() -> None:
    own = expand(shipped("core-dp"))
    assert any(case.expected for case in own)
    assert not any(case.expected for case in with_program(own, "pretrain"))
    assert with_program(own, "megatron-core-0.14") == own  # its own: nothing goes


def test_a_figure_that_compares_programs_is_refused_and_not_run_twice_as_one() -> None:
    with pytest.raises(ReproError) as caught:
        with_program(expand(shipped("atc-demo")), "megatron-kwai")
    assert str(caught.value) == (
        "--program megatron-kwai: atc-demo at scale paper compares programs (megatron-kwai, megatron-jan-2024), "
        "which would become one. Hint: leave --program out"
    )
    assert {case.program for case in with_program(expand(shipped("atc-demo"), "quad"), "megatron-kwai")} == {
        "megatron-kwai"
    }


def test_a_case_named_by_its_program_is_not_run_by_another_under_that_name(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, BASE.replace("  pp: [1, 2, 4]\n", "  pp: [1, 2, 4]\n  program: [megatron-2021]\n"))
    cases = expand(entry)
    assert cases[0].name == "program=megatron-2021,pp=1,tp=8,gbs=8"
    with pytest.raises(ReproError, match=r"--program pretrain: figure-1 at scale paper compares programs"):
        with_program(cases, "pretrain")


def test_another_program_is_named_beside_the_experiments_own_at_that_scale() -> None:
    entry = shipped()
    assert with_program(expand(entry), "pretrain")[0].instead_of == "megatron-2021"
    assert expand(entry)[0].instead_of is None
    assert with_program(expand(entry, "cpu"), "pretrain")[0].instead_of is None
    assert expand(shipped("atc-demo"))[2].instead_of is None
    assert replacement_notes(with_program(expand(entry), "pretrain")) == [
        "figure-13 with pretrain instead of megatron-2021"
    ]
    assert replacement_notes(expand(entry)) == []


def test_arguments_that_were_written_for_the_own_program_are_pointed_out() -> None:
    entry = shipped("core-cp")
    assert replacement_notes(with_program(expand(entry), "pretrain")) == [
        "core-cp with pretrain instead of megatron-core-0.14",
        "arguments for megatron-core-0.14, passed to pretrain unchanged: --eval-interval 25",
    ]
