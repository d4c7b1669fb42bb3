"""Uncertainty of numbers: where it comes from, and which verdicts it leaves open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.catalog.library import Entry
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.megatron.axes import METRICS
from orchestrator.results.cases import CaseMetric, Result, mean_metric
from orchestrator.results.claims import ClaimVerdict, judge_claims
from orchestrator.results.comparison import compare_sides
from orchestrator.results.evidence import (
    Margin,
    Number,
    Part,
    Uncertainty,
    job_spread,
    largest,
    number_of,
    published_part,
    uncertainty_of,
)
from tests.recorded_jobs import measured_results
from tests.unit.catalog.entries import THREE_METHODS, entry_of, figure_13, of_cpus, with_claims

Nodes = Mapping[str, str | None]
SPREAD: dict[str, Any] = {"kind": "spread", "at_least": 1.15}
FALLS: dict[str, Any] = {"kind": "trend", "along": "pp", "direction": "falls"}
PP1, PP2, PP4 = "pp=1,tp=4,gbs=4", "pp=2,tp=2,gbs=4", "pp=4,tp=1,gbs=4"


def rate(value: float, *others: float, nodes: Sequence[str | None] = ("n1", "n1", "n1"), name: str = "") -> CaseMetric:
    jobs = [MeasuredMetric(name or "tflops_per_gpu", one, "", 0.001 * one, 6) for one in (value, *others)]
    return mean_metric(jobs, nodes[: len(jobs)])


def judged(
    folder: Path, entry: Entry, claim: dict[str, Any], rates: dict[str, float], nodes: Nodes | None = None, **how: Any
) -> ClaimVerdict:
    """Judge one claim about CPU processes; `nodes` are those of the jobs of a case, `n1` without them."""
    claimed = of_cpus(with_claims(entry, claim))
    scale = "cpu" if "cpu" in claimed.experiment.scales else "paper"
    results = measured_results(folder, claimed, scale, rates, **{"noise": dict.fromkeys(rates, 0.001)} | how)
    (verdict,) = judge_claims(claimed, scale, [_on_nodes(result, nodes or {}) for result in results], 8)
    return verdict


def _on_nodes(result: Result, nodes: Nodes) -> Result:
    if result.row is None or result.case.name not in nodes:
        return result
    row = replace(result.row, nodes=nodes[result.case.name])
    return replace(result, row=row, rows=(row,))


def at_batch_4(pp1: float, pp2: float, pp4: float) -> dict[str, float]:
    numbers = {PP1: pp1, PP2: pp2, PP4: pp4}
    return numbers | {name.replace("gbs=4", "gbs=16"): value for name, value in numbers.items()}


# ---- one number -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "same_nodes", "relative", "origin"),
    [
        (rate(100), True, 0.02, "assumed between jobs on the same nodes"),
        (rate(100), False, 0.04, "assumed between jobs on different nodes"),
        (CaseMetric("iteration_ms", 100, "ms", 12.0, 6), True, 0.12, "spread within one job"),
        (rate(99.9, 100, 100.1), True, 0.0024842, "95 % interval of 3 jobs"),
        (rate(99.9, 100, 100.1), False, 0.04, "assumed between jobs on different nodes"),  # all of them on one node
        (rate(99, 100, 101, nodes=("n1", "n2", "n3")), False, 0.024842, "95 % interval of 3 jobs"),
        (CaseMetric("max_memory_allocated_bytes", 7e10, "B"), False, 0.0, "exact"),
        (CaseMetric("parameters_billion", 1.7, ""), False, 0.0, "exact"),
        (CaseMetric("gpu_memory_used_gb", 70, "GB"), False, 0.01, "memory of the whole GPU"),
        (rate(70, 70, 70, name="gpu_memory_used_gb"), True, 0.01, "memory of the whole GPU"),
    ],
)
def test_a_number_has_the_uncertainty_of_its_repeats_else_the_assumed_one(
    metric: CaseMetric, same_nodes: bool, relative: float, origin: str
) -> None:
    found = uncertainty_of(metric, same_nodes, least=METRICS[metric.name].least_uncertainty)
    assert found.relative == pytest.approx(relative, rel=1e-4) and found.origin == origin


def test_a_single_job_has_the_spread_of_other_repeats_on_the_same_nodes() -> None:
    # deviations of -1, 0 and 1 % twice: 4 degrees of freedom, and a standard deviation of 1 %
    spread = job_spread([rate(99, 100, 101), rate(198, 200, 202), rate(50)], same_nodes=True)
    assert spread is not None and spread.relative == pytest.approx(2.776 * 0.01)
    assert spread.origin == "spread of repeats on the same nodes"
    assert uncertainty_of(rate(100), True, spread) == spread


def test_repeats_on_different_nodes_measure_the_spread_between_nodes() -> None:
    apart = rate(96, 100, 104, nodes=("n1", "n2", "n3"))
    spread = job_spread([apart], same_nodes=False)
    assert spread is not None and spread.relative == pytest.approx(4.303 * 0.04)
    assert job_spread([apart], same_nodes=True) is None
    assert job_spread([rate(99, 100, 101)], same_nodes=False) is None


def test_two_jobs_are_too_few_to_measure_the_spread_of_others() -> None:
    assert job_spread([rate(99, 101)], same_nodes=True) is None


def test_a_ratio_has_the_ends_of_the_worst_case_of_both_numbers() -> None:
    ratio = number_of(rate(110), True) / number_of(rate(100), True)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.1, 1.1 / 1.02**2, 1.1 * 1.02**2))
    best = largest([Number(1, 0.8, 1.2), Number(1.1, 1.05, 1.15)])
    assert (best.value, best.low, best.high) == (1.1, 1.05, 1.2)


# ---- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slowest", "verdict"), [(100 / 1.135, "not judged"), (100 / 1.16, "not judged"), (80, "holds"), (95, "fails")]
)
def test_a_ratio_that_noise_can_carry_over_its_bound_is_not_judged(
    tmp_path: Path, slowest: float, verdict: str
) -> None:
    found = judged(tmp_path, figure_13(), SPREAD, at_batch_4(100, 100, slowest))
    assert found.verdict == verdict
    if slowest == 100 / 1.135:
        assert found.because == "within noise (1.135 ± 0.045, at least 1.15 asked): best over worst at gbs=4"


def test_a_step_of_a_trend_that_is_smaller_than_the_noise_is_not_judged(tmp_path: Path) -> None:
    assert judged(tmp_path, figure_13(), FALLS, at_batch_4(120, 110, 100)).verdict == "holds"
    found = judged(tmp_path, figure_13(), FALLS, at_batch_4(120, 101, 100))
    assert (found.verdict, found.because.partition(":")[0]) == (
        "not judged",
        "within noise (0.9901 ± 0.039, below 1 asked)",
    )
    assert judged(tmp_path, figure_13(), FALLS, at_batch_4(100, 101, 120)).verdict == "fails"


def test_a_trend_that_ends_where_it_began_fails_whatever_its_tolerance(tmp_path: Path) -> None:
    rates = at_batch_4(100, 97, 100.5)
    falls = FALLS | {"tolerance": 0.2}
    assert judged(tmp_path, figure_13(), falls, rates, repeats=3).verdict == "fails"
    assert judged(tmp_path, figure_13(), falls, at_batch_4(100, 101, 99), repeats=3).verdict == "holds"


def test_a_bound_that_every_ratio_must_keep_fails_also_if_noise_leaves_the_other_one_open(tmp_path: Path) -> None:
    claim = {"kind": "ratio", "of": {"pp": 2}, "over": {"pp": 1}, "pick": "largest", "at_least": 1.2, "at_most": 1.21}
    assert judged(tmp_path, figure_13(), claim, at_batch_4(100, 120.5, 1)).verdict == "not judged"
    one_beyond = at_batch_4(100, 120.5, 1) | {"pp=2,tp=2,gbs=16": 200.0}
    assert judged(tmp_path, figure_13(), claim, one_beyond).verdict == "fails"


def test_a_peak_without_the_claimed_case_is_not_judged(tmp_path: Path) -> None:
    claim = {"kind": "peak", "at": {"pp": 8}}
    found = judged(tmp_path, figure_13(), claim, at_batch_4(100, 90, 80))
    assert (found.verdict, found.because) == ("not judged", "gbs=4 has no case with pp=8")


def test_cases_on_different_nodes_need_a_larger_difference(tmp_path: Path) -> None:
    rates = at_batch_4(100, 100, 82)  # 1.22 over 1.15 is more than 1.02 squared and less than 1.04 squared
    assert judged(tmp_path, figure_13(), SPREAD, rates).verdict == "holds"
    apart = {name: f"n{number}" for number, name in enumerate(rates)}
    found = judged(tmp_path, figure_13(), SPREAD, rates, apart)
    assert found.verdict == "not judged" and found.margin is not None
    assert found.margin.uncertainty == "± 4 % for each number, assumed between jobs on different nodes"
    unknown = dict.fromkeys(rates, None)
    assert judged(tmp_path, figure_13(), SPREAD, rates, unknown).verdict == "not judged"


def test_only_the_nodes_of_cases_that_are_compared_count(tmp_path: Path) -> None:
    rates = at_batch_4(100, 100, 82)
    by_batch = {name: name.rpartition(",")[2] for name in rates}  # a series compares its own cases only
    assert judged(tmp_path, figure_13(), SPREAD, rates, by_batch).verdict == "holds"


def test_memory_is_judged_to_the_byte(tmp_path: Path) -> None:
    name = "max_memory_allocated_bytes"
    claim = FALLS | {"metric": name}
    rates = at_batch_4(70_000_000_001, 70_000_000_000, 69_999_999_999)
    assert judged(tmp_path, figure_13(), claim, rates, metric=name, noise=dict.fromkeys(rates, 0.0)).verdict == "holds"


def test_claims_and_compare_have_the_same_uncertainty(tmp_path: Path) -> None:
    case = expand(figure_13(), "cpu")[0].name
    first, second = (
        measured_results(tmp_path, figure_13(), "cpu", {case: value}, noise={case: 0.0})[0] for value in (100, 105)
    )
    assert first.row is not None and second.row is not None
    for nodes, same_nodes in (("n1", True), ("n2", False)):
        rows = [first.row, replace(second.row, nodes=nodes, attempt_id=2)]
        metrics = {1: first.metrics, 2: second.metrics}
        (row,) = compare_sides(rows[:1], rows[1:], metrics, lambda _: "tflops_per_gpu", by_cluster=True)
        own = uncertainty_of(first.metrics["tflops_per_gpu"], same_nodes)
        assert row.noise == pytest.approx(own.relative * 2**0.5) and row.noise_from == own.origin


# ---- margins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "least", "most", "text", "percent"),
    [
        (1.135, 1.15, math.inf, "misses 1.15 by 1.3 %: 1.135; exact", -1.304),
        (1.242, 1.15, math.inf, "exceeds 1.15 by 8 %: 1.242; exact", 8.0),
        (0.55, -math.inf, 0.525, "exceeds 0.525 by 4.8 %: 0.55; exact", -4.762),
        (0.84, -math.inf, 1.0, "stays below 1 by 16 %: 0.84; exact", 16.0),
        (0.9, 0.5, 1.0, "stays below 1 by 10 %: 0.9; exact", 10.0),
        (110, 100, 100, "exceeds 100 by 10 %: 110; exact", -10.0),
        (1e-7, -math.inf, 0.0005, "stays below 0.0005 by 100 %: 1e-07; exact", 99.98),
    ],
)
def test_a_margin_is_the_distance_from_the_bound_that_decides(
    number: float, least: float, most: float, text: str, percent: float
) -> None:
    margin = Part("it", [], METRICS["tflops_per_gpu"], Number(number, number, number), least, most).margin
    assert margin is not None and str(margin) == text and margin.percent == pytest.approx(percent, abs=0.001)


def test_a_verdict_has_its_margin_and_the_origin_of_its_uncertainty(tmp_path: Path) -> None:
    found = judged(tmp_path, figure_13(), SPREAD, at_batch_4(100, 100, 80))
    uncertainty = "± 2 % for each number, assumed between jobs on the same nodes"
    assert isinstance(found.margin, Margin) and found.margin.uncertainty == uncertainty
    assert (found.margin.low, found.margin.high) == pytest.approx((1.25 / 1.02**2, 1.25 * 1.02**2))
    assert str(found.margin) == f"exceeds 1.15 by 8.7 %: 1.25 ± 0.05; {uncertainty}"


def test_an_outcome_has_no_margin(tmp_path: Path) -> None:
    claim = {"kind": "outcome", "where": {"case": "ours"}, "outcome": "ok"}
    found = judged(tmp_path, entry_of(tmp_path, THREE_METHODS), claim, {"case=ours": 1.0}, metric="tokens_per_s")
    assert (found.verdict, found.margin) == ("holds", None)


def test_ends_at_different_distances_are_printed_as_a_range() -> None:
    margin = Part(
        "it", [], METRICS["tflops_per_gpu"], Number(0.24, 0.1, 0.44, Uncertainty(0.02, "assumed")), most=1.0
    ).margin
    assert margin is not None and margin.interval == "0.24 (0.1 to 0.44)"


def point(**fields: Any) -> PublishedPoint:
    given = {"where": {}, "metric": "tflops_per_gpu", "value": 100, "how": "printed", "confirmed": True, "source": "x"}
    return PublishedPoint.model_validate(given | fields)


@pytest.mark.parametrize(
    ("fields", "value", "holds"),
    [
        ({}, 90, True),
        ({}, 110, True),
        ({}, 110.1, False),
        ({"how": "traced from the plot"}, 100, None),
        ({"how": "read off the plot"}, 300, None),
        ({"how": "traced from the plot", "error": 1.5}, 100, True),
        ({"how": "traced from the plot", "error": 1.5}, 109, None),
        ({"how": "traced from the plot", "error": 1.5}, 112, False),
        ({"how": "traced from the plot", "error": 1.5}, 88, False),
    ],
)
def test_the_error_of_a_published_number_leaves_comparisons_at_the_edge_open(
    tmp_path: Path, fields: dict[str, Any], value: float, holds: bool | None
) -> None:
    case = expand(figure_13(), "cpu")[0].name
    result = measured_results(tmp_path, figure_13(), "cpu", {case: value})[0]
    part = published_part(result, point(**fields), METRICS["tflops_per_gpu"], Number(value, value, value), 0.1)
    assert part.holds is holds
    assert holds is not None or (part.open_because or "").endswith(point(**fields).doubt)
