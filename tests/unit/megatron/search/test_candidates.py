"""Tests of the candidates of a search: which cases of a space are left, and why the others are not."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.library import find_experiment
from orchestrator.megatron.search.candidates import HEAVIER, TOO_LARGE
from orchestrator.megatron.search.prepare import PreparedSearch, prepare_search, write_experiment
from orchestrator.paths import find_folders


@pytest.fixture(scope="module")
def prepared() -> PreparedSearch:
    return prepare_search("gpt-6.7b", "selene", gpus=16, global_batch_size=512, where="tp=1,cp=1,vp=1")


def test_a_layout_has_at_most_three_variants_of_which_each_saves_memory(prepared: PreparedSearch) -> None:
    by_layout: dict[object, list[float]] = {}
    for one in sorted(prepared.candidates, key=lambda each: -(each.memory_bytes or 0)):
        assert one.memory_bytes is not None
        by_layout.setdefault(one.case.layout, []).append(one.memory_bytes)
    for needed in by_layout.values():
        assert len(needed) <= 3
        assert all(less <= 0.98 * more for more, less in itertools.pairwise(needed))
    assert max(len(needed) for needed in by_layout.values()) == 3


def test_every_case_of_the_space_is_a_candidate_or_left_out_with_a_reason(prepared: PreparedSearch) -> None:
    cases = [*(one.case for one in prepared.candidates), *(one.case for one in prepared.left_out)]
    layouts = {case.layout for case in cases}
    assert len(cases) == 7 * len(layouts), "no recomputation, ATC'24's with five offloaded shares, full"
    assert {one.reason.kind for one in prepared.left_out} == {TOO_LARGE, HEAVIER}


def test_the_written_experiment_has_the_candidates_as_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_HOME", str(tmp_path))
    made = prepare_search("gpt-1.3b", "selene", gpus=4, global_batch_size=8, where="pp=2,mbs=1,vp=1")
    write_experiment(made)
    written = find_experiment(find_folders(), made.entry.name)
    assert cases_to_run(written) == [one.case for one in made.candidates]
