"""Claims that compare an experiment with another one of the same paper: their files and verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.library import Entry, find_experiment
from orchestrator.errors import ReproError
from orchestrator.megatron.case import training_cases
from orchestrator.paths import Folders
from orchestrator.results.cases import Result
from orchestrator.results.claims import ClaimVerdict, judge_claims
from tests.cases import expand
from tests.recorded_jobs import measured_results
from tests.unit.catalog.entries import BASE, shipped, short, write_experiment

CLAIM = """\
claims:
  - id: first-against-second
    kind: ratio
    says: the first is faster
    source: section 1
    stated: printed
    of: {pp: 1, tp: 8}
    over: {pp: 2, tp: 4}
    experiment: figure-2
    at_least: 1.0
    judged_at: [paper]
"""
BACK = CLAIM.replace("figure-2", "figure-1")
FIGURE_12 = "default-schedule-wins-without-scatter-gather"


def read(folder: Path, first: str, second: str = BASE) -> Entry:
    write_experiment(folder, second, "figure-2")
    write_experiment(folder, first)
    return find_experiment(Folders(folder, folder), "p/figure-1")


def complaints(folder: Path, first: str, second: str = BASE) -> list[str]:
    with pytest.raises(ReproError) as caught:
        expand(read(folder, first, second))
    return [short(problem) for problem in caught.value.problems]


# ---- the files ------------------------------------------------------------------------------------------------------


def test_a_claim_reads_the_other_experiment_of_the_paper(tmp_path: Path) -> None:
    entry = read(tmp_path, BASE.replace("rules:\n  tp: gpus / pp\n", "") + CLAIM, BASE)
    assert {name: other.name for name, other in entry.others.items()} == {"figure-2": "p/figure-2"}


@pytest.mark.parametrize(
    ("claim", "second", "expected"),
    [
        (
            CLAIM.replace("experiment: figure-2", "experiment: figure-3"),
            BASE,
            'figure-1.yaml:24:17 figure-3: no such experiment of p. Did you mean "figure-2"?',
        ),
        (
            CLAIM.replace("experiment: figure-2", "experiment: figure-1"),
            BASE,
            "figure-1.yaml:24:17 figure-1: the experiment of the claim itself. "
            "Hint: remove `experiment`, or name another experiment",
        ),
        (
            CLAIM,
            BASE + BACK,
            "figure-2.yaml:24:17 figure-1: claims refer in a circle, from figure-1 to figure-2 to figure-1. "
            "Hint: move the claims about both experiments into one of the files",
        ),
        (
            CLAIM.replace("over: {pp: 2, tp: 4}", "over: {pp: 3}"),
            BASE,
            "figure-1.yaml:23:11 pp=3: figure-2 has no such case at scale paper. "
            "Hint: repro show figure-2 --scale paper has its cases",
        ),
        (
            CLAIM.replace("of: {pp: 1, tp: 8}", "of: {pp: 1, gbs: 7}"),
            BASE,
            "figure-1.yaml:22:9 pp=1,gbs=7: figure-1 has no such case at scale paper. "
            "Hint: repro show figure-1 --scale paper has its cases",
        ),
        (
            CLAIM.replace("[paper]", "[paper, cpu]") + "scales: {cpu: {device: cpu}}\n",
            BASE,
            None,  # at scale paper the claim is as it should be
        ),
        (
            CLAIM,
            BASE.replace("hidden: 64", "hidden: 128"),
            "figure-1.yaml:24:17 figure-2: no case of it differs from a case of figure-1 only in the compared "
            "settings. Hint: compare cases that differ in nothing but pp, tp",
        ),
        (CLAIM, BASE.replace("gpus: 8", "gpus: eight"), "figure-2.yaml:4:7 gpus: must be an integer"),
    ],
    ids=["unknown", "itself", "circle", "no over", "no of", "scale", "not alike", "broken"],
)
def test_a_claim_about_an_experiment_that_cannot_be_compared_is_one_line(
    tmp_path: Path, claim: str, second: str, expected: str | None
) -> None:
    if expected is None:
        entry = read(tmp_path, BASE + claim, second)
        assert expand(entry)
        with pytest.raises(ReproError) as caught:
            expand(entry, "cpu")
        expected = "figure-1.yaml:26:24 cpu: figure-2 has no such scale. Hint: it has: paper"
        assert [short(problem) for problem in caught.value.problems] == [expected]
        return
    (complaint,) = complaints(tmp_path, BASE + claim, second)
    assert complaint.startswith(expected)


# ---- the verdict ----------------------------------------------------------------------------------------------------


def judged(folder: Path, of: float | None, over: float | None, **other: Any) -> ClaimVerdict:
    """Figure 12's claim with these rates at batch 60."""
    entry = shipped("figure-12")
    (folder / "of").mkdir()
    (folder / "over").mkdir()
    numbers, repeats = {} if of is None else {"vp=1,gbs=60": of}, 1 if "noise" in other else 3
    own = measured_results(folder / "of", entry, "paper", numbers, gpu="A100", repeats=repeats)
    rates = {} if over is None else {"scatter_gather=false,gbs=60": over}
    beside = measured_results(
        folder / "over", entry.others["figure-18"], "paper", rates, gpu="A100", repeats=repeats, **other
    )
    verdicts = judge_claims(entry, "paper", own, 8, {"figure-18": beside})
    return next(verdict for verdict in verdicts if verdict.claim.id == FIGURE_12)


@pytest.mark.parametrize(("of", "over", "verdict"), [(136.0, 131.0, "holds"), (120.0, 131.0, "fails")])
def test_both_sides_are_measured_and_each_number_names_its_experiment(
    tmp_path: Path, of: float, over: float, verdict: str
) -> None:
    found = judged(tmp_path, of, over)
    assert found.verdict == verdict
    assert found.because == (
        f"vp=1 over vp=4,scatter_gather=false of figure-18 is {of / over:.3f}; at least 1.000 asked"
    )
    assert [(used.experiment, used.case, used.value) for used in found.used] == [
        ("sc21/figure-12", "vp=1,gbs=60", of),
        ("sc21/figure-18", "scatter_gather=false,gbs=60", over),
    ]


def test_the_plotted_numbers_agree_with_section_5_3_2() -> None:
    def reading(name: str, where: dict[str, object]) -> float:
        points = shipped(name).experiment.published
        return next(point.value for point in points if point.where == where)

    plain = reading("figure-12", {"vp": 1, "gbs": 60})
    assert plain / reading("figure-18", {"scatter_gather": False, "gbs": 60}) == pytest.approx(1.031, abs=0.001)


@pytest.mark.parametrize(
    ("of", "over", "how", "because"),
    [
        (136.0, None, {}, "vp=4,scatter_gather=false of figure-18 has no job at scale paper on this cluster"),
        (None, 131.0, {}, "1 of 2 cases not verified"),
        (
            132.0,
            131.0,
            {"noise": {"scatter_gather=false,gbs=60": 0.2}},
            "within noise (1.008 (0.82 to 1.2), at least 1 asked): vp=1 over vp=4,scatter_gather=false of figure-18",
        ),
        (
            132.0,
            131.0,
            {"waits": {"scatter_gather=false,gbs=60": 30.0}},
            "scatter_gather=false,gbs=60 is host-bound (its GPUs waited 30 % of the time for the host)",
        ),
        (
            132.0,
            131.0,
            {"modes": {"scatter_gather=false,gbs=60": "graph"}},
            "it compares graph (scatter_gather=false,gbs=60) with an unknown mode (vp=1,gbs=60)",
        ),
    ],
    ids=["not run", "own not run", "noise", "host-bound", "modes"],
)
def test_a_side_that_cannot_be_compared_judges_nothing(
    tmp_path: Path, of: float | None, over: float | None, how: dict[str, Any], because: str
) -> None:
    found = judged(tmp_path, of, over, **how)
    assert (found.verdict, found.because) == ("not judged", because)


def test_repeats_of_the_other_experiment_show_how_much_jobs_differ(tmp_path: Path) -> None:
    """Its three jobs are equal, so one job of the own case is exact. Without repeats 2 % are assumed."""
    entry, verdicts = shipped("figure-12"), []
    (tmp_path / "other").mkdir()
    for repeats in (3, 1):
        name, rates = "scatter_gather=false,gbs=60", {"vp=1,gbs=60": 132.0}
        own = measured_results(tmp_path, entry, "paper", rates, gpu="A100", noise={"vp=1,gbs=60": 0.0})
        how: dict[str, Any] = {"gpu": "A100", "noise": {name: 0.0}, "repeats": repeats}
        beside = measured_results(tmp_path / "other", entry.others["figure-18"], "paper", {name: 131.0}, **how)
        found = judge_claims(entry, "paper", own, 8, {"figure-18": beside})
        verdicts.append(next(verdict.verdict for verdict in found if verdict.claim.id == FIGURE_12))
    assert verdicts == ["holds", "not judged"]


def test_cases_that_differ_elsewhere_are_no_pair(tmp_path: Path) -> None:
    entry = shipped("figure-12")
    own = measured_results(tmp_path, entry, "paper", {"vp=1,gbs=60": 136.0})
    (tmp_path / "other").mkdir()
    beside = measured_results(
        tmp_path / "other", entry.others["figure-18"], "paper", {"scatter_gather=false,gbs=60": 131.0}
    )

    def with_dropout(result: Result) -> Result:
        [case] = training_cases([result.case])
        return replace(result, case=replace(case, training=replace(case.training, dropout=0.0)))

    verdicts = judge_claims(entry, "paper", own, 8, {"figure-18": [with_dropout(result) for result in beside]})
    (found,) = (verdict for verdict in verdicts if verdict.claim.id == FIGURE_12)
    assert (found.verdict, found.because) == (
        "not judged",
        "no two cases differ in nothing but vp=1 and vp=4,scatter_gather=false of figure-18",
    )
