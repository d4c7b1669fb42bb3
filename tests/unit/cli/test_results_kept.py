"""Texts and exit codes of commands if a later attempt, another run or a failure is beside a verified result."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.ledger.attempts import job_rows, run_summaries
from orchestrator.ledger.database import Ledger
from tests.recorded_jobs import CRASHED, START, Outcome, new_ledger, record_results
from tests.unit.catalog.entries import figure_13
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

GOOD = {f"pp={pp},tp={4 // pp},gbs={gbs}": gbs / 4 + 4.0 / pp for pp in (1, 2, 4) for gbs in (4, 16)}
CASE = "pp=4,tp=1,gbs=4"
CANCELLED: dict[str, Any] = {"state": "CANCELLED", "phase": "ended", "verdict": "failed", "failure": "cancelled"}
REFUSED = CANCELLED | {"state": "NEVER_SUBMITTED", "failure": "refused", "verdict_reason": "refused"}


@pytest.fixture
def ledger(repro: Caller) -> Ledger:
    ledger = new_ledger(repro.site.folder)
    record_results(ledger, figure_13(), "cpu", GOOD)
    return ledger


def later(ledger: Ledger, columns: dict[str, Any], *names: str, **options: Any) -> str:
    """Record a later attempt of these cases, or of all."""
    outcomes = {name: Outcome(columns=columns) for name in names or GOOD}
    return record_results(ledger, figure_13(), "cpu", outcomes, **{"at": START + timedelta(days=1), **options})


def test_a_cancelled_rerun_is_named_and_every_command_is_exit_0(repro: Caller, ledger: Ledger) -> None:
    before = repro("claims", "figure-13").stdout
    later(ledger, CANCELLED)
    claims = repro("claims", "figure-13")
    assert (claims.returncode, claims.stdout) == (0, before)
    assert "6 cases of figure-13 with a later attempt than the result: " in claims.stderr
    compared = repro("compare", "figure-13")
    assert compared.returncode == 0 and "attempt 2: failed (cancelled)" in compared.stdout
    assert repro("collect", "figure-13").returncode == repro("wait", "figure-13").returncode == 0
    for command in ("compare", "claims", "plot", "collect"):
        refused = repro(command, "figure-13", "--attempt", "7")
        assert refused.returncode == 2
        assert "--attempt 7: no job of figure-13 has such an attempt. Hint: 1 to 2" in refused.stderr
    assert repro("compare", "selene", "eos", "--attempt", "1").returncode == 2


def test_a_long_list_of_failures_is_shortened_with_the_command_that_shows_all(repro: Caller, ledger: Ledger) -> None:
    for repeat in (2, 3):
        later(ledger, CRASHED, repeat=repeat, at=START + timedelta(days=repeat))
    done = repro("claims", "figure-13")
    assert done.returncode == 1 and done.stderr.count("failed: ") == 10
    assert "... and 2 more: repro status figure-13 --failed\n" in done.stderr


def test_status_names_the_changed_arguments_so_that_no_two_rows_look_alike(repro: Caller, ledger: Ledger) -> None:
    later(ledger, REFUSED, CASE, changes=("--arg=--seed=3",))
    done = repro("status", "figure-13")
    assert f"{CASE} --arg --seed=3 " in done.stdout
    assert "figure-13 cpu selene [##########] 6/6 verified" in done.stderr
    assert "figure-13 cpu selene --arg --seed=3 [..........] 0/1 verified, 1 failed (1 refused)" in done.stderr
    unknown = repro("collect", "figure-13", "--arg=--seed=4")
    assert unknown.complaints == [
        "repro: figure-13 with --arg --seed=4 was never submitted. "
        "Hint: repro submit figure-13 --cluster local --arg --seed=4"
    ]


def test_a_bundle_has_the_shown_figure_and_verifies(repro: Caller, ledger: Ledger, tmp_path: Path) -> None:
    later(ledger, REFUSED, CASE, changes=("--arg=--seed=3",))
    file = str(tmp_path / "a.tar.zst")
    assert "no case is verified" not in repro("bundle", "figure-13", "-o", file).stderr
    written = repro("bundle", "figure-13", "-o", file, "--force", "--arg=--seed=3")
    assert "no case is verified" in written.stderr
    # There are no logs, so that the check finds no verified case in any bundle; it judges the same jobs.
    verified = repro("bundle", "verify", file)
    assert "no case is verified" in verified.stdout and "other cases" not in verified.stdout


def test_an_attempt_that_is_left_out_is_named_and_a_wrong_one_is_one_line(repro: Caller, ledger: Ledger) -> None:
    later(ledger, CANCELLED, CASE)
    job = next(row.job_id for row in job_rows(ledger) if row.case_name == CASE)
    done = repro("claims", "figure-13", "--without", f"{job}:1=a slow node")
    assert f"note: left out: {CASE}: attempt 1 of job {job} (verified): a slow node\n" in done.stderr
    for command in ("collect", "claims", "compare", "plot", "bundle"):
        done = repro(command, "figure-13", "--without", f"{job}:3=bad")
        assert (done.returncode, len(done.complaints)) == (2, 1)
        assert done.complaints[0].startswith(f"repro: --without {job}:3: job {job} has 2 attempts. Hint: ")
    runs = sorted(run.id for run in run_summaries(ledger))
    done = repro("compare", "figure-13", *runs, "--without", f"{job}:2=bad")
    assert done.returncode == 0 and "the same attempt" in done.stdout
