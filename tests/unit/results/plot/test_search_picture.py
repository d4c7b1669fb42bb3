"""Tests of the picture of a search."""

from __future__ import annotations

from orchestrator.megatron.search.picture import Trial, best_so_far, pareto_front


def trial(name: str, rate: float, memory_gb: float | None) -> Trial:
    return Trial(name, rate, 0.0, memory_gb)


def test_the_front_has_every_trial_that_is_fastest_for_its_memory() -> None:
    trials = [
        trial("a", 5, 70),
        trial("b", 3, 40),
        trial("slow", 2, 60),
        trial("same", 2.5, 40),
        trial("none", 9, None),
    ]
    assert [each.name for each in pareto_front(trials)] == ["b", "a"]


def test_the_line_of_the_fastest_so_far_never_falls() -> None:
    assert best_so_far([trial("a", 3, 1), trial("b", 2, 1), trial("c", 4, 1)]) == [3, 3, 4]
