"""Tests of `repro claims`: verdicts, the numbers behind them, and the exit code."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.ledger.database import Ledger
from tests.recorded_jobs import CRASHED, START, Outcome, new_ledger, record_results
from tests.unit.catalog.entries import figure_13
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


def test_with_nothing_submitted_there_is_nothing_to_judge(repro: Caller) -> None:
    done = repro("claims")
    assert done.returncode == 2 and done.stderr.startswith(repro.no_jobs)
