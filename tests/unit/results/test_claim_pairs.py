"""Claims that compare two settings: which cases are held against each other, and which of the ratios counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.results.claims import ClaimVerdict, judge_claims
from tests.recorded_jobs import measured_results
from tests.unit.catalog.entries import THREE_METHODS, entry_of, figure_13, of_cpus, with_claims

pytestmark = pytest.mark.slow

BATCHES: dict[str, Any] = {"kind": "ratio", "of": {"gbs": 16}, "over": {"gbs": 4}}
SWITCH = """\
figure: Figure 1
title: t
program: pretrain
gpus: 4
model: {layers: 8, hidden: 64, heads: 8, seq: 16, vocab: 64}
matrix:
  recompute: [full, none]
  gbs: [2, 8, 4]
fixed: {mbs: 1}
plot:
  x: {label: Batch size, of: [gbs]}
  y: {label: y, metric: tflops_per_gpu}
  series: {label: Recomputation, of: recompute}
expected:
  - {where: {recompute: none, gbs: 8}, outcome: oom, confirmed: true, source: the plot}
"""
RECOMPUTE: dict[str, Any] = {"kind": "ratio", "of": {"recompute": "full"}, "over": {"recompute": "none"}}


def judged(
    folder: Path, entry: Entry, scale: str, claim: dict[str, Any], rates: dict[str, float], **how: Any
) -> ClaimVerdict:
    claimed = of_cpus(with_claims(entry, claim))
    folder.mkdir(exist_ok=True)
    results = measured_results(folder, claimed, scale, rates, **{"repeats": 3} | how)
    (verdict,) = judge_claims(claimed, scale, results, gpus_per_node=8)
    return verdict


def at_batch_4(pp1: float, pp2: float, pp4: float) -> dict[str, float]:
    """Figure 13 on the CPU: so many TFLOP/s at batch 4, and 100 at batch 16."""
    small = {"pp=1,tp=4,gbs=4": pp1, "pp=2,tp=2,gbs=4": pp2, "pp=4,tp=1,gbs=4": pp4}
    return small | {name.replace("gbs=4", "gbs=16"): 100.0 for name in small}


@pytest.fixture
def switch(tmp_path: Path) -> Entry:
    return entry_of(tmp_path, SWITCH)


@pytest.fixture
def rows(tmp_path: Path) -> Entry:
    return entry_of(tmp_path, THREE_METHODS)


@pytest.mark.parametrize(
    ("pick", "asked", "verdict", "because"),
    [
        ("each", {"at_least": 1.2}, "holds", "1.250 at pp=1 to 2.000 at pp=4; at least 1.200"),
        ("each", {"at_least": 1.3}, "fails", "1.250 at pp=1 to 2.000 at pp=4; at least 1.300"),
        ("each", {"at_most": 1.9}, "fails", "1.250 at pp=1 to 2.000 at pp=4; at most 1.900"),
        (
            "each",
            {"at_most": 1.92, "tolerance": 0.05},
            "holds",
            "1.250 at pp=1 to 2.000 at pp=4; at most 2.016",
        ),
        ("largest", {"at_least": 1.9}, "holds", "2.000 at pp=4, the largest of 3; at least 1.900"),
        ("largest", {"at_most": 1.9}, "fails", "2.000 at pp=4, the largest of 3; at most 1.900"),
        ("smallest", {"at_least": 1.3}, "fails", "1.250 at pp=1, the smallest of 3; at least 1.300"),
        ("smallest", {"at_least": 1.3, "tolerance": 0.05}, "holds", "1.250 at pp=1, the smallest of 3; at least 1.235"),
        ("smallest", {"at_most": 1.3}, "holds", "1.250 at pp=1, the smallest of 3; at most 1.300"),
        ("smallest", {"at_most": 1.2}, "fails", "1.250 at pp=1, the smallest of 3; at most 1.200"),
        (
            "largest",
            {"at_least": 1.9, "at_most": 1.95},
            "fails",
            "2.000 at pp=4, the largest of 3; at least 1.900 and at most 1.950",
        ),
        (
            "smallest",
            {"at_least": 1.1, "at_most": 1.2},
            "fails",
            "1.250 at pp=1, the smallest of 3; at least 1.100 and at most 1.200",
        ),
        ("best", {"at_least": 1.2, "at_most": 1.3}, "holds", "1.250 best to best; at least 1.200 and at most 1.300"),
    ],
)
def test_the_ratio_that_counts_is_the_one_that_the_claim_picks(
    tmp_path: Path, pick: str, asked: dict[str, float], verdict: str, because: str
) -> None:
    found = judged(tmp_path, figure_13(), "cpu", BATCHES | {"pick": pick} | asked, at_batch_4(80, 60, 50))
    assert (found.verdict, found.because) == (verdict, f"gbs=16 over gbs=4 is {because} asked")


@pytest.mark.parametrize("pick", ["each", "largest", "smallest", "best"])
def test_the_ratio_of_one_pair_is_not_called_a_choice(tmp_path: Path, pick: str) -> None:
    claim = BATCHES | {"pick": pick, "at_least": 1.2, "where": {"pp": 1}}
    found = judged(tmp_path, figure_13(), "cpu", claim, at_batch_4(80, 60, 50))
    assert (found.verdict, found.because) == ("holds", "gbs=16 over gbs=4 is 1.250; at least 1.200 asked")


def test_a_ratio_is_that_of_the_numbers_themselves_and_the_best_the_fastest(tmp_path: Path) -> None:
    claim = BATCHES | {"metric": "iteration_ms", "at_most": 1.0}
    each = judged(tmp_path, figure_13(), "cpu", claim, at_batch_4(80, 60, 50))
    assert each.because.startswith("gbs=16 over gbs=4 is 0.500 at pp=4 to 0.800 at pp=1;")
    best = judged(tmp_path, figure_13(), "cpu", claim | {"pick": "best"}, at_batch_4(80, 60, 50))
    assert best.because == "gbs=16 over gbs=4 is 0.800 best to best; at most 1.000 asked"


def test_what_a_rule_derives_from_the_compared_setting_parts_no_pair(tmp_path: Path) -> None:
    text = SWITCH.replace("recompute: [full, none]", "scatter_gather: [true, false]").replace(
        "of: recompute", "of: gbs"
    )
    entry = entry_of(tmp_path, text.partition("expected:")[0] + "rules: {sequence_parallel: scatter_gather}\n")
    rates = {case.name: 120.0 if case.value("sequence_parallel") else 100.0 for case in expand(entry)}
    claim = {"kind": "ratio", "of": {"scatter_gather": True}, "over": {"scatter_gather": False}, "at_least": 1.1}
    found = judged(tmp_path, entry, "paper", claim, rates)
    assert (found.verdict, found.because.partition(";")[0]) == (
        "holds",
        "scatter_gather=true over scatter_gather=false is 1.200 at gbs=2 to 1.200 at gbs=4",
    )


def test_a_case_that_runs_out_of_memory_as_published_is_not_waited_for(tmp_path: Path, switch: Entry) -> None:
    rates = {case.name: float(case.number("gbs")) for case in expand(switch) if case.expected is None}
    each = judged(tmp_path, switch, "paper", RECOMPUTE | {"at_least": 1.0}, rates)
    assert (
        each.because == "recompute=full over recompute=none is 1.000 at gbs=2 to 1.000 at gbs=4; at least 1.000 asked"
    )
    best = judged(tmp_path, switch, "paper", RECOMPUTE | {"pick": "best", "at_least": 2.0}, rates)
    assert (best.verdict, best.because.split(" is ")[1]) == ("holds", "2.000 best to best; at least 2.000 asked")


def test_where_the_memory_suffices_after_all_the_case_counts(tmp_path: Path, switch: Entry) -> None:
    rates = {case.name: float(case.number("gbs")) for case in expand(switch)}
    best = judged(tmp_path, switch, "paper", RECOMPUTE | {"pick": "best", "at_least": 2.0}, rates)
    assert best.verdict == "fails" and "is 1.000 best" in best.because


def test_only_the_compared_cases_are_waited_for(tmp_path: Path, rows: Entry) -> None:
    claim = {"kind": "ratio", "of": {"case": "ours"}, "over": {"case": "theirs"}, "at_least": 1.1}
    found = judged(tmp_path, rows, "paper", claim, {"case=theirs": 100.0, "case=ours": 130.0}, metric="tokens_per_s")
    assert (found.verdict, found.because) == ("holds", "case=ours over case=theirs is 1.300; at least 1.100 asked")
    half = judged(tmp_path / "x", rows, "paper", claim, {"case=theirs": 100.0}, metric="tokens_per_s")
    assert (half.verdict, half.because) == ("not judged", "1 of 2 cases not verified")


@pytest.mark.parametrize(
    ("claim", "because"),
    [
        ({"over": {"case": "nobody's"}}, "no case has case=nobody's"),
        ({"metric": "training_days"}, "training_days was not measured"),
        ({"of": {"case": "plain"}}, "a case of every pair runs out of memory as published"),
        (
            {"of": {"gbs": 8}, "over": {"recompute": "ours"}},
            "no two cases differ in nothing but gbs=8 and recompute=ours",
        ),
    ],
)
def test_a_ratio_that_nothing_can_be_said_of_is_not_judged(
    tmp_path: Path, rows: Entry, claim: dict[str, Any], because: str
) -> None:
    given: dict[str, Any] = {"kind": "ratio", "of": {"case": "ours"}, "over": {"case": "theirs"}, "at_least": 1.1}
    rates = {"case=theirs": 100.0, "case=ours": 130.0}
    found = judged(tmp_path, rows, "paper", given | claim, rates, metric="tokens_per_s")
    assert (found.verdict, found.because) == ("not judged", because)


@pytest.mark.parametrize(("last", "verdict"), [(105.0, "holds"), (95.0, "holds"), (115.0, "fails"), (110.0, "fails")])
def test_a_gap_closes_from_either_side(tmp_path: Path, switch: Entry, last: float, verdict: str) -> None:
    rates = {case.name: 100.0 for case in expand(switch)}
    rates |= {"recompute=full,gbs=2": 110.0, "recompute=full,gbs=4": 500.0, "recompute=full,gbs=8": last}
    found = judged(tmp_path, switch, "paper", RECOMPUTE | {"kind": "closes", "along": "gbs"}, rates)
    assert (found.verdict, found.because) == (verdict, f"gap 10.0 % at gbs=2 and {abs(last - 100):.1f} % at gbs=8")


def test_a_gap_must_close_wherever_else_the_cases_differ(tmp_path: Path) -> None:
    claim = {"kind": "closes", "of": {"gbs": 16}, "over": {"gbs": 4}, "along": "pp"}
    found = judged(tmp_path, figure_13(), "cpu", claim, at_batch_4(80, 60, 90))
    assert (found.verdict, found.because) == ("holds", "gap 25.0 % at pp=1 and 11.1 % at pp=4")
    by_depth = claim | {"of": {"pp": 4}, "over": {"pp": 1}, "along": "gbs"}
    open_gap = judged(tmp_path, figure_13(), "cpu", by_depth, at_batch_4(80, 60, 60) | {"pp=4,tp=1,gbs=16": 70.0})
    assert (open_gap.verdict, open_gap.because) == ("fails", "gap 25.0 % at gbs=4 and 30.0 % at gbs=16")
    fixed = claim | {"where": {"pp": 2}}
    alone = judged(tmp_path, figure_13(), "cpu", fixed, at_batch_4(80, 60, 90))
    assert (alone.verdict, alone.because) == ("not judged", "no two of its pairs differ in pp")


CURVES = {"kind": "loss curves", "of": {"case": "ours"}, "over": {"case": "theirs"}, "tolerance": 0.05}
LONG = [(iteration, 10.0 - iteration / 10) for iteration in range(1, 41)]


def curves(
    folder: Path, entry: Entry, ours: Sequence[tuple[int, float]], start: int = 20, over: int = 10
) -> ClaimVerdict:
    claim = CURVES | {"from_iteration": start, "smoothed_over": over}
    rates = {"case=theirs": 100.0, "case=ours": 130.0}
    return judged(folder, entry, "paper", claim, rates, losses={"case=ours": ours, "case=theirs": LONG})


def test_losses_are_compared_from_the_iteration_on_and_smoothed(tmp_path: Path, rows: Entry) -> None:
    early = [(iteration, loss * (3.0 if iteration < 11 else 1.0)) for iteration, loss in LONG]
    assert curves(tmp_path, rows, early).because == "losses differ by at most 0.00 %, at iteration 20; 5 % allowed"
    # One loss of 1.4 times 6.0, at iteration 40, in a mean of 31 to 40 that is 6.45: 2.4 / 10 / 6.45.
    late = [*LONG[:-1], (40, 8.4)]
    found = curves(tmp_path, rows, late)
    assert (found.verdict, found.because) == ("holds", "losses differ by at most 3.72 %, at iteration 40; 5 % allowed")
    assert str(found.margin) == "stays below 0.05 by 26 %: 0.03721; exact"
    sharp = curves(tmp_path, rows, late, over=1)
    assert (sharp.verdict, sharp.because) == ("fails", "losses differ by at most 40.00 %, at iteration 40; 5 % allowed")


def test_a_mean_of_losses_has_no_later_iteration(tmp_path: Path, rows: Entry) -> None:
    ahead = curves(tmp_path, rows, [*LONG, (41, 99.0)])
    assert ahead.because == "losses differ by at most 0.00 %, at iteration 20; 5 % allowed"


def test_losses_that_stay_alike_because_neither_falls_are_no_evidence(tmp_path: Path, rows: Entry) -> None:
    flat = [(iteration, 10.0) for iteration in range(1, 41)]
    claim = CURVES | {"from_iteration": 20, "smoothed_over": 10}
    losses = {"case=ours": flat, "case=theirs": flat}
    found = judged(tmp_path, rows, "paper", claim, {"case=theirs": 100.0, "case=ours": 130.0}, losses=losses)
    said = "the loss of case=ours does not fall: 10 at iteration 1, 10 at 40"
    assert (found.verdict, found.because) == ("fails", said)


def test_a_loss_of_zero_differs_from_every_other_one_and_the_tolerance_itself_is_allowed(
    tmp_path: Path, rows: Entry
) -> None:
    claim = CURVES | {"from_iteration": 2, "smoothed_over": 1}
    losses = {"case=ours": [(1, 5.0), (2, 1.0)], "case=theirs": [(1, 5.0), (2, 0.0)]}
    found = judged(tmp_path, rows, "paper", claim, {"case=theirs": 100.0, "case=ours": 130.0}, losses=losses)
    assert (found.verdict, found.because) == ("fails", "losses differ by at most inf %, at iteration 2; 5 % allowed")
    losses = {"case=ours": [(1, 5.0), (2, 1.5)], "case=theirs": [(1, 5.0), (2, 1.0)]}
    exactly = judged(
        tmp_path, rows, "paper", claim | {"tolerance": 0.5}, {"case=theirs": 1.0, "case=ours": 1.0}, losses=losses
    )
    assert (exactly.verdict, exactly.because.partition(",")[0]) == ("holds", "losses differ by at most 50.00 %")


def test_losses_that_are_not_there_are_not_judged(tmp_path: Path, rows: Entry) -> None:
    assert curves(tmp_path, rows, []).because == "losses were not read"
    one_side = judged(
        tmp_path,
        rows,
        "paper",
        CURVES | {"from_iteration": 20, "smoothed_over": 10},
        {"case=theirs": 100.0, "case=ours": 130.0},
        losses={"case=ours": LONG},
    )
    assert (one_side.verdict, one_side.because) == ("not judged", "losses were not read")
    short = curves(tmp_path, rows, LONG[:19])
    assert (short.verdict, short.because) == ("not judged", "no iteration from 20 on has a loss in both")


def test_losses_of_a_job_that_was_not_verified_are_not_compared(tmp_path: Path, rows: Entry) -> None:
    claim = CURVES | {"from_iteration": 1, "smoothed_over": 1}
    losses = {"case=ours": LONG, "case=theirs": LONG}
    found = judged(tmp_path, rows, "paper", claim, {"case=ours": 1.0}, failed=("case=theirs",), losses=losses)
    assert (found.verdict, found.because) == ("not judged", "1 of 2 cases not verified")


def test_a_figure_may_be_given_without_its_losses(tmp_path: Path, rows: Entry) -> None:
    claimed = with_claims(rows, CURVES | {"from_iteration": 1, "smoothed_over": 1})
    found = measured_results(tmp_path, claimed, "paper", {"case=theirs": 1.0, "case=ours": 1.0})
    bare = [replace(result, losses=()) for result in found]
    (verdict,) = judge_claims(claimed, "paper", bare, 8)
    assert verdict.because == "losses were not read"
