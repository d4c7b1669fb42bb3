"""Claims compare like with like: no host-bound case, and no two execution modes, decide a verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.library import Entry
from orchestrator.reading.statistics import HOST_BOUND_PERCENT
from orchestrator.results.cases import Result
from orchestrator.results.claims import judge_claims
from tests.recorded_jobs import measured_results
from tests.unit.catalog.entries import THREE_METHODS, entry_of, figure_13, of_cpus, with_claims

pytestmark = pytest.mark.slow

PP1, PP2, PP4 = "pp=1,tp=4,gbs=4", "pp=2,tp=2,gbs=4", "pp=4,tp=1,gbs=4"
PP1_16, PP2_16, PP4_16 = "pp=1,tp=4,gbs=16", "pp=2,tp=2,gbs=16", "pp=4,tp=1,gbs=16"
RATES = {PP1: 80.0, PP2: 60.0, PP4: 50.0, PP1_16: 100.0, PP2_16: 100.0, PP4_16: 99.9}

PEAK: dict[str, Any] = {"kind": "peak", "at": {"pp": 1}}
SPREAD: dict[str, Any] = {"kind": "spread", "at_least": 1.5}
GAIN: dict[str, Any] = {"kind": "gain", "along": "gbs", "where_largest": "pp"}
TREND: dict[str, Any] = {"kind": "trend", "along": "pp", "direction": "falls", "tolerance": 0.01}
RATIO: dict[str, Any] = {"kind": "ratio", "of": {"gbs": 16}, "over": {"gbs": 4}, "at_least": 1.2}
CLOSES: dict[str, Any] = {"kind": "closes", "of": {"pp": 4}, "over": {"pp": 1}, "along": "gbs"}
CLAIMS = [PEAK, SPREAD, GAIN, TREND, RATIO, CLOSES]


def judge(entry: Entry, claim: dict[str, Any], found: list[Result]) -> tuple[str, str]:
    (verdict,) = judge_claims(of_cpus(with_claims(entry, claim)), found[0].case.scale, found, gpus_per_node=8)
    return verdict.verdict, verdict.because


def judged(folder: Path, claim: dict[str, Any], rates: dict[str, float] = RATES, **how: Any) -> tuple[str, str]:
    how = {"repeats": 1 if "noise" in how else 3, **how}
    return judge(figure_13(), claim, measured_results(folder, figure_13(), "cpu", rates, **how))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["kind"])
def test_cases_of_one_mode_that_did_not_wait_are_judged_as_cases_of_which_nothing_is_known(
    tmp_path: Path, claim: dict[str, Any]
) -> None:
    unknown = judged(tmp_path, claim)
    assert unknown[0] == "holds"
    for mode in ("graph", "eager"):
        how: dict[str, Any] = {"modes": dict.fromkeys(RATES, mode), "waits": dict.fromkeys(RATES, HOST_BOUND_PERCENT)}
        (tmp_path / mode).mkdir()
        assert judged(tmp_path / mode, claim, **how) == unknown


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["kind"])
def test_a_claim_that_compares_a_host_bound_case_is_not_judged_and_names_it(
    tmp_path: Path, claim: dict[str, Any]
) -> None:
    said = f"{PP4} is host-bound (its GPUs waited 31 % of the time for the host)"
    assert judged(tmp_path, claim, waits={PP4: 31.0}) == ("not judged", said)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["kind"])
def test_a_claim_that_compares_two_modes_is_not_judged_and_names_them(tmp_path: Path, claim: dict[str, Any]) -> None:
    modes = dict.fromkeys(RATES, "graph") | {PP4: "eager"}
    verdict, because = judged(tmp_path, claim, modes=modes)
    assert verdict == "not judged"
    assert because.startswith("it compares ") and " with " in because and f"eager ({PP4})" in because


def test_the_reason_names_both_sides(tmp_path: Path) -> None:
    modes = dict.fromkeys(RATES, "graph") | {PP4: "eager"}
    assert judged(tmp_path, SPREAD, modes=modes)[1] == f"it compares graph ({PP1}; {PP2}) with eager ({PP4})"


def test_several_host_bound_cases_are_named_together(tmp_path: Path) -> None:
    said = f"{PP2}; {PP4} are host-bound (their GPUs waited 12.5 to 31 % of the time for the host)"
    assert judged(tmp_path, SPREAD, waits={PP2: 12.5, PP4: 31.0}) == ("not judged", said)


def test_a_case_that_the_verdict_does_not_use_may_be_host_bound_or_of_another_mode(tmp_path: Path) -> None:
    clean = judged(tmp_path, GAIN)
    (tmp_path / "other").mkdir()
    modes = dict.fromkeys(RATES, "graph") | {PP1: "eager"}
    assert judged(tmp_path / "other", GAIN, waits={PP1: 50.0, PP2: 50.0}, modes=modes) == clean  # compares pp=4 alone


def test_lines_of_different_modes_are_not_compared_with_each_other(tmp_path: Path) -> None:
    clean = judged(tmp_path, PEAK)
    (tmp_path / "other").mkdir()
    modes = {name: "eager" if name.endswith("gbs=4") else "graph" for name in RATES}
    assert judged(tmp_path / "other", PEAK, modes=modes) == clean


def test_one_line_that_shows_the_claimed_spread_is_enough(tmp_path: Path) -> None:
    rates = RATES | {PP4_16: 25.0}
    assert judged(tmp_path, SPREAD, rates, waits={PP4: 50.0}) == (
        "holds",
        "best over worst is 4.000 at gbs=16; at least 1.5 asked",
    )


@pytest.mark.parametrize(
    ("claim", "because"),
    [
        (PEAK, "gbs=16 peaks at pp=2,tp=2,gbs=16"),
        (TREND, "gbs=16: 100 at pp=1, then 200 at pp=2"),
        (
            RATIO | {"at_most": 2.5},
            "gbs=16 over gbs=4 is 1.250 at pp=1 to 3.333 at pp=2; at least 1.200 and at most 2.500",
        ),
    ],
    ids=["peak", "trend", "ratio"],
)
def test_a_comparison_of_like_cases_that_goes_wrong_fails_a_claim_about_all(
    tmp_path: Path, claim: dict[str, Any], because: str
) -> None:
    verdict, said = judged(tmp_path, claim, RATES | {PP2_16: 200.0}, waits={PP4: 50.0})
    assert verdict == "fails" and said.startswith(because)


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        ({"pick": "largest", "at_least": 1.6}, "holds"),  # 1.667 at pp=2
        ({"pick": "largest", "at_least": 1.9}, "not judged"),  # 2.000 at pp=4, which is host-bound
        ({"pick": "largest", "at_least": None, "at_most": 1.5}, "fails"),
        ({"pick": "largest", "at_least": None, "at_most": 1.9}, "not judged"),
        ({"pick": "smallest", "at_least": None, "at_most": 1.3}, "holds"),  # 1.250 at pp=1
        ({"pick": "smallest", "at_least": 1.2}, "not judged"),
        ({"pick": "smallest", "at_least": 1.3}, "fails"),
        ({"pick": "best", "at_least": 1.2}, "not judged"),
        ({"pick": "each", "at_least": 1.2}, "not judged"),
        ({"pick": "each", "at_least": 1.3}, "fails"),
    ],
)
def test_a_ratio_is_judged_where_the_pairs_that_can_be_compared_decide_it(
    tmp_path: Path, asked: dict[str, Any], verdict: str
) -> None:
    claim = {name: value for name, value in (RATIO | asked).items() if value is not None}
    assert judged(tmp_path, claim, waits={PP4: 50.0})[0] == verdict


def test_memory_is_compared_whatever_the_wait_but_not_between_modes(tmp_path: Path) -> None:
    claim = RATIO | {"metric": "max_memory_allocated_bytes"}
    how: dict[str, Any] = {"metric": "max_memory_allocated_bytes", "waits": dict.fromkeys(RATES, 50.0)}
    assert judged(tmp_path, claim, **how)[0] == "holds"
    (tmp_path / "modes").mkdir()
    modes = dict.fromkeys(RATES, "graph") | {PP4: "eager"}
    found = judged(tmp_path / "modes", claim, **how, modes=modes)
    assert found == ("not judged", f"it compares graph ({PP4_16}) with eager ({PP4})")


def test_outcomes_and_losses_are_judged_whatever_the_wait_and_the_mode(tmp_path: Path) -> None:
    how: dict[str, Any] = {"waits": dict.fromkeys(RATES, 50.0), "modes": {PP1: "graph", PP4: "eager"}}
    assert judged(tmp_path, {"kind": "outcome", "outcome": "ok"}, **how)[0] == "holds"
    curve = [(iteration, 10.0 - iteration) for iteration in range(1, 9)]
    claim: dict[str, Any] = {"kind": "loss curves", "of": {"pp": 4, "gbs": 4}, "over": {"pp": 1, "gbs": 4}}
    claim |= {"from_iteration": 2, "smoothed_over": 2, "tolerance": 0.05}
    (tmp_path / "losses").mkdir()
    assert judged(tmp_path / "losses", claim, losses={PP1: curve, PP4: curve}, **how)[0] == "holds"


PUBLISHED: dict[str, Any] = {"kind": "published", "metrics": ["tokens_per_s"], "tolerance": 0.05}
THEIRS, OURS = "case=theirs", "case=ours"


@pytest.mark.parametrize(
    ("rates", "waits", "expected"),
    [
        ({THEIRS: 100.0, OURS: 130.0}, {}, "holds"),
        ({THEIRS: 100.0, OURS: 130.0}, {OURS: 10.0}, "holds"),
        ({THEIRS: 100.0, OURS: 130.0}, {OURS: 10.1}, "not judged"),
        ({THEIRS: 100.0, OURS: 50.0}, {OURS: 31.0}, "not judged"),
        ({THEIRS: 50.0, OURS: 130.0}, {OURS: 31.0}, "fails"),
    ],
)
def test_a_published_rate_is_not_judged_by_a_host_bound_case(
    tmp_path: Path, rates: dict[str, float], waits: dict[str, float], expected: str
) -> None:
    entry = entry_of(tmp_path, THREE_METHODS)
    how: dict[str, Any] = {"metric": "tokens_per_s", "gpu": "H800", "waits": waits}
    verdict, because = judge(entry, PUBLISHED, measured_results(tmp_path, entry, "paper", rates, **how))
    assert verdict == expected
    if verdict == "not judged":
        assert because == f"{OURS} is host-bound (its GPUs waited {waits[OURS]:.3g} % of the time for the host)"


def test_an_unknown_mode_is_not_compared_with_a_known_one_of_the_same_program(tmp_path: Path) -> None:
    found = measured_results(tmp_path, figure_13(), "cpu", RATES, modes={PP1: "graph", PP2: "graph"})
    assert judge(figure_13(), SPREAD, found) == (
        "not judged",
        f"it compares graph ({PP1}; {PP2}) with an unknown mode ({PP4})",
    )


def test_an_unknown_mode_of_another_program_is_compared_as_before(tmp_path: Path) -> None:
    found = measured_results(tmp_path, figure_13(), "cpu", RATES, modes={PP1: "graph", PP2: "graph"})
    other = [one if one.modes else replace(one, case=replace(one.case, program="megatron-core")) for one in found]
    assert judge(figure_13(), SPREAD, other)[0] == "holds"


def test_repeats_of_different_modes_are_not_compared_either(tmp_path: Path) -> None:
    found = measured_results(tmp_path, figure_13(), "cpu", RATES, modes=dict.fromkeys(RATES, "graph"))
    (mixed,) = [one for one in found if one.case.name == PP4]
    rows = (*mixed.rows, replace(mixed.rows[0], execution="eager", repeat=2))
    changed = [replace(one, rows=rows) if one is mixed else one for one in found]
    assert replace(mixed, rows=rows).modes == ("eager", "graph")
    assert judge(figure_13(), SPREAD, changed)[0] == "not judged"


def test_only_a_verified_case_is_host_bound_and_one_that_was_not_measured_is_neither(tmp_path: Path) -> None:
    found = measured_results(tmp_path, figure_13(), "cpu", RATES, failed=(PP2,), waits={PP1: 9.0, PP2: 31.0, PP4: 31.0})
    by_name = {one.case.name: one for one in found}
    states = [by_name[name].is_host_bound for name in (PP1, PP2, PP4, PP1_16)]
    assert states == [False, None, True, None]
    assert by_name[PP4].host_bound == "its GPUs waited 31 % of the time for the host"
    assert by_name[PP1].host_bound is None


def test_noise_that_could_turn_the_deciding_comparison_leaves_the_claim_unjudged(tmp_path: Path) -> None:
    rates = RATES | {PP4_16: 65.0}  # 1.54 at gbs=16, and 1.5 is asked
    noise = {PP4_16: 0.12}
    assert judged(tmp_path, SPREAD, rates, waits={PP4: 50.0})[0] == "holds"
    (tmp_path / "noisy").mkdir()
    assert judged(tmp_path / "noisy", SPREAD, rates, waits={PP4: 50.0}, noise=noise)[0] == "not judged"
