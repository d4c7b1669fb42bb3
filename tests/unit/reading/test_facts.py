"""Tests of stored facts, and of merged facts of several files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrator.megatron.logs.alpa import AlpaRow
from orchestrator.megatron.logs.fact_lines import WorldLine
from orchestrator.megatron.logs.parse import LogFacts, Unfinished, merged_facts

FULL = LogFacts(
    world=WorldLine(64, 2, 8, 4, 1),
    says_done=True,
    settings={"lr": "0.1"},
    padded_vocab=51200,
    parameters={(0, 0): 5, (7, 11): 6},
    max_allocated_bytes=1,
    max_reserved_bytes=2,
    device_used_bytes=3,
    memory_is_of_all=True,
    theoretical_memory_bytes=4,
    measured_from="2026-01-01 00:00:03",
    measured_until="2026-01-01 00:00:08",
    restarts=1,
    last_iteration=25,
    odd_lines=2,
    first_odd="iteration 2: loss nan",
    code_commit="5e0f373",
    software="torch",
    programs={"pretrain-0123456789ab": "/copy"},
    execution="graph",
    alpa=AlpaRow("e2e", "p3.16", 1, 4, "gpt", "megatron", "{'tflops': nan}", "1"),
    unfinished=Unfinished(4, True, {(0, 1, 2): 3}, 0),
)


@pytest.mark.parametrize("facts", [FULL, LogFacts()], ids=["all", "none"])
def test_facts_survive_storage(facts: LogFacts) -> None:
    stored = json.dumps(facts.as_json(), allow_nan=False)
    assert LogFacts.from_json(json.loads(stored)) == facts


def test_example_sets_every_fact() -> None:
    nothing = LogFacts().as_json()
    assert [name for name, value in FULL.as_json().items() if value == nothing[name]] == ["version"]


@pytest.mark.parametrize("stored", [{}, {"version": 0}, {"version": 2}, {"version": "3"}])
def test_facts_of_another_version_are_refused(stored: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="facts of version"):
        LogFacts.from_json(stored)


def test_largest_sizes_of_several_rank_files_count() -> None:
    first = LogFacts(
        world=FULL.world,
        programs={"pretrain-aaaaaaaaaaaa": "/first"},
        max_allocated_bytes=5,
        max_reserved_bytes=9,
        parameters={(0, 0): 1},
        restarts=1,
    )
    last = LogFacts(
        programs={"pretrain-bbbbbbbbbbbb": "/last"},
        says_done=True,
        max_allocated_bytes=7,
        parameters={(0, 1): 2},
        last_iteration=25,
        odd_lines=3,
    )
    both = merged_facts([first, last])
    assert (both.world, both.says_done, both.last_iteration) == (FULL.world, True, 25)
    assert (both.max_allocated_bytes, both.max_reserved_bytes, both.parameters) == (7, 9, {(0, 0): 1, (0, 1): 2})
    assert (both.restarts, both.odd_lines) == (1, 3)
    assert both.programs == {"pretrain-aaaaaaaaaaaa": "/first", "pretrain-bbbbbbbbbbbb": "/last"}
    compared = replace(first, memory_is_of_all=True)
    assert merged_facts([last, compared]).max_allocated_bytes == 5


def test_one_file_is_unchanged_and_no_file_has_no_facts() -> None:
    assert merged_facts([FULL]) == FULL and merged_facts([]) == LogFacts()
    assert replace(merged_facts([LogFacts(), FULL]), unfinished=FULL.unfinished) == FULL
