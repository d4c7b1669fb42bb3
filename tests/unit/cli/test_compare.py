"""Tests of `repro compare`: with published numbers, and of two sets of runs."""

from __future__ import annotations

import pytest

from orchestrator.ledger.database import Ledger
from tests.recorded_jobs import CRASHED, Outcome, new_ledger, record_results
from tests.unit.catalog.entries import figure_13, shipped
from tests.unit.cli.calling import Caller

# SC21 table 1 as printed.
TABLE_1 = {"case=1.7B": 137.0, "case=3.6B": 138.0, "case=7.5B": 142.0}


@pytest.fixture
def ledger(repro: Caller) -> Ledger:
    return new_ledger(repro.site.folder)


def line_with(text: str, *words: str) -> str:
    return next(line for line in text.splitlines() if all(word in line for word in words))


def test_numbers_as_published_are_exit_0_with_their_ratio_tolerance_and_source(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, shipped("table-1"), "paper", TABLE_1)
    done = repro("compare", "table-1")
    assert done.returncode == 0, done.stderr
    head, first = done.stdout.splitlines()[:2]
    assert head.split()[:6] == ["CASE", "METRIC", "MEASURED", "SPREAD", "PUBLISHED", "RATIO"]
    assert first.split()[:6] == ["case=1.7B", "tflops_per_gpu", "137", "1.37", "137", "1"]
    assert "±10 % (ours, claim rates-as-printed)" in first and "yes" in first and "printed (table 1)" in first
    assert "3 of 3 judged numbers within tolerance" in done.stderr
    assert "by SC21 eq. 3, from the time of an iteration" in done.stderr
    assert line_with(done.stderr, "not submitted: 7 cases: case=18B; case=39B")
    assert done.stderr.splitlines()[-1].startswith("next: repro claims table-1")


def test_a_number_outside_its_tolerance_is_named_and_exit_1(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, shipped("table-1"), "paper", TABLE_1 | {"case=3.6B": 100.0})
    done = repro("compare", "table-1")
    assert done.returncode == 1
    assert line_with(done.stdout, "case=3.6B", "tflops_per_gpu", "no")
    expected = (
        "outside tolerance: tflops_per_gpu of case=3.6B is 0.725 of the published number, "
        "±10 % (ours, claim rates-as-printed) allowed"
    )
    assert expected in done.stderr
    assert repro("compare", "table-1", "--where", "case=1.7B").returncode == 0


def test_a_failed_job_is_named_and_exit_1(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, shipped("table-1"), "paper", TABLE_1 | {"case=7.5B": Outcome(columns=CRASHED)})
    done = repro("compare", "table-1")
    assert done.returncode == 1
    assert "failed: 1 case: case=7.5B (FAILED with exit code 7)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("next: repro logs ")


def test_on_another_gpu_the_ratio_is_shown_and_nothing_is_judged(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, shipped("table-1"), "paper", {"case=1.7B": 400.0}, gpu="H100")
    done = repro("compare", "table-1")
    assert done.returncode == 0 and "judged number" not in done.stderr
    assert "published for A100, measured on H100" in line_with(done.stdout, "case=1.7B", "2.92")


def test_a_noisy_case_is_named(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, shipped("table-1"), "paper", {"case=1.7B": Outcome(137.0, spread=0.12 * 137.0)})
    done = repro("compare", "table-1")
    assert done.returncode == 0
    assert "too noisy: 1 case: case=1.7B (spread 12 % of the median)" in done.stderr


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
        ("selene eos --workload x", "x: "),
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


BEFORE = {"pp=1,tp=4,gbs=4": 10.0, "pp=2,tp=2,gbs=4": 10.0, "pp=4,tp=1,gbs=4": 10.0, "pp=1,tp=4,gbs=16": 10.0}
AFTER: dict[str, Outcome | float] = {
    "pp=1,tp=4,gbs=4": 10.1,
    "pp=2,tp=2,gbs=4": 9.0,
    "pp=4,tp=1,gbs=4": Outcome(columns=CRASHED),
    "pp=2,tp=2,gbs=16": 10.0,
}


def test_two_clusters_are_compared_by_case_and_regressions_are_named(repro: Caller, ledger: Ledger) -> None:
    record_results(ledger, figure_13(), "cpu", BEFORE)
    record_results(ledger, figure_13(), "cpu", AFTER, cluster="eos")
    done = repro("compare", "figure-13", "selene", "eos")
    assert done.returncode == 1
    changes = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    for case, change in {
        "pp=1,tp=4,gbs=4": "same within noise",
        "pp=2,tp=2,gbs=4": "regression",
        "pp=4,tp=1,gbs=4": "now fails",
        "pp=1,tp=4,gbs=16": "only in A",
        "pp=2,tp=2,gbs=16": "only in B",
    }.items():
        assert change in changes[case]
    assert "A is the cluster selene, B is the cluster eos" in done.stderr
    noise = "noise 2.8 % (assumed between jobs on the same nodes)"
    expected = f"regression: figure-13 cpu pp=2,tp=2,gbs=4: tflops_per_gpu is 0.9 of A, {noise}"
    assert expected in done.stderr
    assert "now fails: figure-13 cpu pp=4,tp=1,gbs=4: in B: FAILED with exit code 7" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("next: repro history ")
    assert repro("compare", "selene", "eos").stdout == done.stdout
    back = repro("compare", "eos", "selene", "--where", "pp=2", "--scale", "cpu")
    assert back.returncode == 0 and "improvement" in back.stdout
