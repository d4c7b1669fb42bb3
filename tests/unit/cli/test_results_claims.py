"""Tests of `repro claims`: verdicts, the numbers behind them, and the exit code."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.ledger.database import Ledger
from tests.recorded_jobs import START, Outcome, new_ledger, record_results
from tests.unit.catalog.entries import figure_13
from tests.unit.cli.calling import Caller

GOOD = {f"pp={pp},tp={4 // pp},gbs={gbs}": gbs / 32 + 4.0 / pp for pp in (1, 2, 4) for gbs in (32, 128)}
FLAT = dict.fromkeys(GOOD, 5.0) | {"pp=4,tp=1,gbs=128": 4.0}
"""Rates with which the claims of figure 13 about rates hold at scale quad, and with which they fail."""
NEXT_DAY = START + timedelta(days=1)


@pytest.fixture
def ledger(repro: Caller) -> Ledger:
    return new_ledger(repro.site.folder)


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
        (("--program", "pretrian"), 'pretrian: no such program. Did you mean "pretrain"?'),
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
