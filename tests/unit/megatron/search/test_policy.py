"""Tests of the order of a search and of its pruning."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.model import Layout, ModelShape, Training
from orchestrator.megatron.search.candidates import (
    AS_LARGE,
    HEAVIER,
    OUT_OF_MEMORY,
    SLOWER,
    Candidate,
    Decision,
    Reason,
    decide,
    simulate,
)

MODEL = ModelShape(24, 2048, 16, 1024, 51200)


def candidate(
    name: str,
    predicted_ms: float,
    *,
    tp: int = 1,
    pp: int = 1,
    mbs: int = 1,
    gb: float | None = None,
    uncertainty: float = 0.1,
    training: Training | None = None,
    gpu_hours: float | None = 1.0,
) -> Candidate:
    layout = Layout(16, tp, pp, mbs, 512)
    case = TrainingCase(
        experiment="searches/a",
        scale="paper",
        point=(("case", name),),
        program="pretrain",
        model=MODEL,
        layout=layout,
        training=training or Training("bf16"),
    )
    return Candidate(name, case, predicted_ms, uncertainty, gb * 1e9 if gb is not None else None, gpu_hours)


def names(decision: Decision) -> list[str]:
    return [one.candidate.name for one in decision.order]


def test_without_measurements_the_fastest_prediction_is_first() -> None:
    assert names(decide([candidate("b", 200), candidate("a", 100), candidate("c", 300)], {})) == ["a", "b", "c"]


def test_of_two_layouts_that_the_host_limits_the_one_with_less_time_on_the_gpu_is_first() -> None:
    limited = [replace(candidate(name, ms), gpu_ms=gpu) for name, ms, gpu in (("a", 100, 60), ("b", 100.001, 40))]
    assert names(decide(limited, {})) == ["b", "a"]
    assert names(decide([limited[0], replace(limited[1], iteration_ms=100.2)], {})) == ["a", "b"], "no tie"


def test_a_case_that_cannot_win_within_its_uncertainty_is_pruned_with_the_winner_as_reason() -> None:
    decision = decide([candidate("a", 100), candidate("b", 105, tp=2), candidate("c", 150, tp=4)], {"a": 100.0})
    assert names(decision) == ["b"]
    assert decision.pruned == {"c": Reason(SLOWER, "a")}


def test_a_slow_measurement_moves_similar_layouts_behind_different_ones() -> None:
    cases = [candidate("a", 100, tp=8), candidate("like a", 104, tp=8, mbs=2), candidate("other", 106, pp=8)]
    cases = [replace(one, uncertainty=0.4) for one in cases]
    assert names(decide(cases, {}))[1:] == ["like a", "other"]
    assert names(decide(cases, {"a": 130.0})) == ["other", "like a"]


def test_a_machine_that_is_slower_than_assumed_slows_all_predictions_by_half_of_the_error() -> None:
    cases = [candidate("a", 100, uncertainty=0.4), candidate("other", 120, tp=8, pp=8, uncertainty=0.4)]
    (other,) = decide(cases, {"a": 150.0}).order
    assert math.isclose(other.iteration_ms, 120 * math.sqrt(1.5), rel_tol=0.01)


def without_unit(name: str, ratio: float, mbs: int) -> Candidate:
    return candidate(name, ratio, mbs=mbs, uncertainty=0.5, gpu_hours=None)


def test_the_first_measurement_sets_the_scale_of_predictions_without_a_unit() -> None:
    cases = [without_unit("a", 1.0, 1), without_unit("twin", 0.9, 1), without_unit("slow", 4.0, 1)]
    decision = decide(cases, {"a": 800.0})
    assert names(decision) == ["twin"] and "slow" in decision.pruned
    assert math.isclose(decision.order[0].iteration_ms, 720, rel_tol=0.02)


def test_without_a_unit_the_effect_of_a_size_is_learned_from_measurements() -> None:
    cases = [without_unit(str(mbs), 1.0, mbs) for mbs in (1, 2, 4, 8, 16)]
    decision = decide(cases, {"1": 800.0, "4": 400.0})
    assert names(decision) == ["16", "8"] and "2" in decision.pruned


def test_more_memory_than_a_case_that_ran_out_is_not_tried() -> None:
    cases = [candidate("a", 100, gb=70), candidate("larger", 101, tp=2, gb=71), candidate("smaller", 130, tp=4, gb=60)]
    decision = decide(cases, {"a": OUT_OF_MEMORY})
    assert names(decision) == ["smaller"]
    assert decision.pruned["larger"] == Reason(AS_LARGE, "a")


def test_recomputation_is_tried_only_when_the_same_layout_without_it_ran_out_of_memory() -> None:
    plain, full = Training("bf16", recompute="none"), Training("bf16", recompute="full")
    cases = [candidate("plain", 100, gb=70, training=plain), candidate("full", 130, gb=30, training=full)]
    assert decide(cases, {}).pruned == {"full": Reason(HEAVIER, "plain may fit")}
    assert names(decide(cases, {"plain": OUT_OF_MEMORY})) == ["full"]


@given(
    st.lists(
        st.tuples(st.floats(10, 1000), st.floats(0.9, 1.1), st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4))),
        min_size=1,
        max_size=12,
    )
)
def test_a_search_measures_no_case_twice_and_ends_with_a_measured_case(
    cases: list[tuple[float, float, int, int]],
) -> None:
    made = [candidate(str(i), ms, tp=tp, mbs=mbs) for i, (ms, _, tp, mbs) in enumerate(cases)]
    known = {str(i): ms * factor for i, (ms, factor, _, _) in enumerate(cases)}
    simulated = simulate(made, known)
    assert 1 <= len(simulated.measured_ms) <= len(cases)
    assert simulated.measured_ms[simulated.found] == min(simulated.measured_ms.values())
    # A time within the uncertainty of all others is found up to that uncertainty.
    assert simulated.measured_ms[simulated.found] <= 1.25 * simulated.best_ms
    assert math.isfinite(simulated.best_ms)
