"""Tests of `repro compare`: with published numbers, and of two sets of runs."""

from __future__ import annotations

import pytest

from orchestrator.ledger.database import Ledger
from tests.recorded_jobs import Outcome, new_ledger, record_results
from tests.unit.catalog.entries import figure_13, shipped
from tests.unit.cli.calling import Caller


@pytest.fixture
def ledger(repro: Caller) -> Ledger:
    return new_ledger(repro.site.folder)


def line_with(text: str, *words: str) -> str:
    return next(line for line in text.splitlines() if all(word in line for word in words))


def test_on_another_gpu_the_ratio_is_shown_and_nothing_is_judged(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, shipped("table-1"), "paper", {"case=1.7B": 400.0}, gpu="H100")
    done = repro("compare", "table-1")
    assert done.returncode == 0 and "judged number" not in done.stderr
    assert "published for A100, measured on H100" in line_with(done.stdout, "case=1.7B", "2.92")


def test_a_host_bound_case_is_named_with_its_share_and_its_rate_is_not_judged(repro: Caller, ledger: Ledger) -> None:
    outcome = Outcome(50.0, host_wait_percent=31.0, execution="eager")
    record_results(ledger, shipped("table-1"), "paper", {"case=1.7B": outcome})
    done = repro("compare", "table-1")
    assert done.returncode == 0 and "outside" not in done.stderr
    assert "host-bound: 1 case: case=1.7B (its GPUs waited 31 % of the time for the host)" in done.stderr


def test_a_figure_without_published_numbers_shows_the_measured_numbers(looking: Caller) -> None:
    done = looking("compare", "figure-13")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 7 and "no published number: 6 cases" in done.stderr
    assert looking("compare").stdout == done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("figur-13", 'figur-13: no such experiment. Did you mean "figure-13"?'),
        ("selene", "selene: no such experiment. Hint: to compare two runs, use repro compare [EXPERIMENT] A B"),
        (
            "figure-13 selene",
            "figure-13 selene: neither one experiment nor two sides. Hint: repro compare EXPERIMENT, or",
        ),
        ("a b c d", "a b c d: neither one experiment nor two sides. Hint: repro compare EXPERIMENT, or"),
        ("table-1", "table-1 was never submitted. Hint: repro submit table-1 --cluster local"),
        ("selene eos2", 'eos2: neither a cluster with jobs, nor a date, a commit or a run. Did you mean "eos"?'),
        ("selene selene", "selene and selene: both are the cluster selene. Hint: give two that differ"),
        ("selene 2025-10-01", "the cluster selene and the date 2025-10-01 share no case. Hint: repro status shows"),
        (
            "figure-13 selene eos --where pp=1",
            "the cluster selene and the cluster eos share no case of figure-13, pp=1",
        ),
        ("selene eos --program x", "x: "),
    ],
)
def test_a_comparison_that_is_refused_is_one_line(repro: Caller, ledger: Ledger, words: str, complaint: str) -> None:
    record_results(ledger, figure_13(), "cpu", {"pp=2,tp=2,gbs=4": 1.0})
    record_results(ledger, figure_13(), "cpu", {"pp=2,tp=2,gbs=4": 1.0}, cluster="eos")
    done = repro("compare", *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.complaints
    assert line.startswith(f"repro: {complaint}")


def test_with_nothing_submitted_there_is_nothing_to_compare(repro: Caller) -> None:
    for words in ((), ("selene", "eos")):
        done = repro("compare", *words)
        assert done.returncode == 2 and done.stderr.startswith(repro.no_jobs)
