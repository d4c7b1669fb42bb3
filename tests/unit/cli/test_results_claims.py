"""Tests of `repro claims`: verdicts, the numbers behind them, and the exit code."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from orchestrator.catalog.library import find_experiment
from orchestrator.ledger.database import Ledger
from tests.recorded_jobs import CRASHED, START, Outcome, new_ledger, record_results
from tests.unit.catalog.entries import figure_13, shipped
from tests.unit.cli.calling import Caller

GOOD = {f"pp={pp},tp={4 // pp},gbs={gbs}": gbs / 32 + 4.0 / pp for pp in (1, 2, 4) for gbs in (32, 128)}
FLAT = dict.fromkeys(GOOD, 5.0) | {"pp=4,tp=1,gbs=128": 4.0}
"""Rates with which the claims of figure 13 about rates hold at scale quad, and with which they fail."""
NEXT_DAY = START + timedelta(days=1)


@pytest.fixture
def ledger(repro: Caller) -> Ledger:
    return new_ledger(repro.site.folder)


def test_claims_that_hold_are_exit_0(looking: Caller) -> None:
    done = looking("claims", "figure-13")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "figure-13 at scale cpu on here: 1 holds, 5 not judged"
    assert [line.split("  ")[0] for line in lines if not line.startswith((" ", "figure"))] == [
        *["not judged"] * 5,
        "holds",
    ]
    assert not any("tflops_per_gpu" in line for line in lines), "rates of CPU processes judge no claim"
    assert done.stderr.splitlines()[-1].startswith("next: repro compare figure-13")


def test_a_verdict_has_the_numbers_behind_it_with_their_jobs(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, figure_13(), "quad", GOOD)
    done = repro("claims", "figure-13")
    assert done.stdout.startswith("figure-13 at scale quad on selene: 1 holds, 5 not judged")
    numbers = [line for line in done.stdout.splitlines() if "tflops_per_gpu" in line]
    assert len(numbers) == 6 and numbers[0].startswith("            pp=1,tp=4,gbs=32  tflops_per_gpu 5")
    assert all("(job " in line for line in numbers)


def test_a_claim_that_fails_is_exit_1(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, figure_13(), "quad", FLAT)
    done = repro("claims", "figure-13")
    assert done.returncode == 1
    assert done.stdout.startswith("figure-13 at scale quad on selene: 1 fails, 5 not judged")


def test_a_job_that_failed_is_exit_1_and_its_claims_are_not_judged(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, figure_13(), "quad", GOOD | {"pp=1,tp=4,gbs=32": Outcome(columns=CRASHED)})
    done = repro("claims", "figure-13")
    assert done.returncode == 1 and "6 not judged" in done.stdout
    assert "failed: pp=1,tp=4,gbs=32 of sc21/figure-13" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("next: repro logs ")


def test_without_a_name_everything_submitted_is_judged_each_as_it_ran_last(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, figure_13(), "quad", FLAT)
    record_results(ledger, figure_13(), "quad", GOOD, cluster="eos", at=NEXT_DAY)
    record_results(
        ledger, shipped("table-1"), "paper", {"case=1.7B": 137.0, "case=1T": 163.0}, at=START + timedelta(days=2)
    )
    done = repro("claims")
    assert done.returncode == 0, done.stdout
    titles = [line for line in done.stdout.splitlines() if " at scale " in line and not line.startswith(" ")]
    assert [title.partition(":")[0] for title in titles] == [
        "figure-13 at scale quad on eos",
        "table-1 at scale paper on selene",
    ]
    assert repro("claims", "--cluster", "selene").returncode == 1
    assert repro("claims", "--scale", "paper").stdout.count(" at scale ") == 1


def test_the_same_as_json_has_every_number(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, figure_13(), "quad", GOOD)
    done = repro("claims", "--json")
    read = {row["claim"]: row for row in json.loads(done.stdout)["claims"]}
    gain = read["deep-pipeline-needs-batch"]
    assert (gain["experiment"], gain["scale"], gain["cluster"]) == ("sc21/figure-13", "quad", "selene")
    assert (gain["verdict"], gain["kind"]) == ("holds", "gain")
    assert [(one["metric"], one["value"]) for one in gain["used"]] == [
        ("tflops_per_gpu", rate) for rate in GOOD.values()
    ]
    assert all(one["job"] and one["spread"] for one in gain["used"])
    margin = gain["margin"]
    assert (margin["number"], margin["bound"], margin["percent"]) == pytest.approx((2.5, 1.0, 150.0))
    assert margin["low"] < margin["number"] < margin["high"] and margin["uncertainty"]
    assert read["peak-at-node-size"]["margin"] is None


def test_noisy_numbers_judge_no_claim_and_are_exit_0(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, figure_13(), "quad", {case: Outcome(rate, spread=rate / 2) for case, rate in FLAT.items()})
    done = repro("claims", "figure-13")
    assert done.returncode == 0
    assert done.stdout.count("within noise (") == 1 and "± 50 % for each number, spread within one job" in done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("figur-13",), 'figur-13: no such experiment. Did you mean "figure-13"?'),
        (("table-1",), "table-1 was never submitted. Hint: repro submit table-1"),
        (("--cluster", "eos"), "no such jobs were submitted. Hint: repro status shows the jobs"),
        (("--workload", "pretrian"), 'pretrian: no such workload. Did you mean "pretrain"?'),
    ],
)
def test_claims_that_cannot_be_judged_are_one_line(
    repro: Caller, ledger: Ledger, words: tuple[str, ...], complaint: str
) -> None:
    record_results(ledger, figure_13(), "quad", GOOD)
    done = repro("claims", *words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.complaints
    assert line.startswith(f"repro: {complaint}")


def test_an_experiment_whose_file_is_gone_does_not_keep_the_others_from_being_judged(
    repro: Caller, ledger: Ledger
) -> None:
    record_results(ledger, figure_13(), "quad", FLAT)
    own = repro.site.folder / "experiments" / "own"
    own.mkdir(parents=True)
    shipped = repro.site.folders.shipped / "experiments" / "sc21"
    for name in ("paper.yaml", "figure-14.yaml"):
        (own / name).write_text((shipped / name).read_text())
    entry = find_experiment(repro.site.folders, "own/figure-14")
    record_results(ledger, entry, "paper", {"pp=2,dp=32,gbs=32": 1.0}, at=NEXT_DAY)
    (own / "figure-14.yaml").unlink()
    done = repro("claims")
    assert done.returncode == 2 and "figure-13 at scale quad on selene: 1 fails" in done.stdout
    assert done.complaints == [line for line in done.complaints if "own/figure-14: no such experiment" in line]


def test_with_nothing_submitted_there_is_nothing_to_judge(repro: Caller) -> None:
    done = repro("claims")
    assert done.returncode == 2 and done.stderr.startswith(repro.no_jobs)


def test_of_two_runs_in_one_second_the_later_one_is_the_latest(repro: Caller, ledger: Ledger) -> None:
    """The digits at the end of an id say nothing; the time at which the run was written down does."""
    record_results(ledger, figure_13(), "quad", FLAT, cluster="selene", id="20261101-120000-ffff")
    record_results(ledger, figure_13(), "quad", GOOD, cluster="eos", at=NEXT_DAY, id="20261101-120000-0000")
    assert "on eos" in repro("claims").stdout
