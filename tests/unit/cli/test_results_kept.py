"""Tests of verified results that a later attempt does not hide, and of cancelled jobs that fail no figure."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import Attempt
from tests.recorded_jobs import CRASHED, START, Outcome, new_ledger, record_results
from tests.unit.catalog.entries import figure_13
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

GOOD = {f"pp={pp},tp={4 // pp},gbs={gbs}": gbs / 4 + 4.0 / pp for pp in (1, 2, 4) for gbs in (4, 16)}
CANCELLED: dict[str, Any] = {
    "state": "CANCELLED",
    "phase": "ended",
    "verdict": "failed",
    "failure": "cancelled",
    "verdict_reason": "CANCELLED",
}
REFUSED = CANCELLED | {"state": "NEVER_SUBMITTED", "failure": "refused", "verdict_reason": "refused"}
RUNNING: dict[str, Any] = {"state": "RUNNING", "phase": "running", "verdict": None}


@pytest.fixture
def ledger(repro: Caller) -> Ledger:
    ledger = new_ledger(repro.site.folder)
    record_results(ledger, figure_13(), "cpu", GOOD)
    return ledger


def again(ledger: Ledger, columns: dict[str, Any], names: list[str] | None = None, **options: Any) -> None:
    """Record another attempt of these cases with this outcome."""
    outcomes = {name: Outcome(columns=columns) for name in names or GOOD}
    record_results(ledger, figure_13(), "cpu", outcomes, **{"at": START + timedelta(days=1), **options})


def add_attempts(ledger: Ledger, outcome: dict[str, Any]) -> None:
    """Add an attempt with this outcome to each job of the ledger, as `submit --rerun` and `cancel` do."""
    columns = [column.key for column in sa.inspect(Attempt).columns if column.key != "id"]
    with ledger.writing() as session:
        for attempt in session.scalars(sa.select(Attempt)).all():
            values = {name: getattr(attempt, name) for name in columns}
            other = {"number": attempt.number + 1, "token": "", "folder": f"{attempt.folder}-2"}
            other |= {"file": None, "iteration": None, "execution": None}
            session.add(Attempt(**{**values, **outcome, **other}))


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Verified cases are run again, and the new attempts are cancelled",
    promise="The verified attempts stay the results of every command. The exit codes are 0.",
)
def test_a_cancelled_rerun_leaves_the_verified_attempts_as_results_of_every_command(
    repro: Caller, ledger: Ledger
) -> None:
    before = repro("claims", "figure-13").stdout
    again(ledger, CANCELLED)
    claims = repro("claims", "figure-13")
    assert (claims.returncode, claims.stdout) == (0, before)
    assert "6 cases of figure-13 with a later attempt than the result: " in claims.stderr
    collected = repro("collect", "figure-13")
    rows = list(csv.DictReader(io.StringIO(collected.stdout)))
    assert collected.returncode == 0 and {row["verdict"] for row in rows} == {"verified"}
    assert {(row["attempt"], row["newer"]) for row in rows} == {("1", "attempt 2: failed (cancelled)")}
    compared = repro("compare", "figure-13")
    assert compared.returncode == 0 and "attempt 2: failed (cancelled)" in compared.stdout
    status = json.loads(repro("status", "figure-13", "--json").stdout)["jobs"]
    assert {(row["attempt"], row["verdict"], row["newer"]) for row in status} == {
        (1, "verified", "attempt 2: failed (cancelled)")
    }
    assert "6/6 verified" in repro("status", "figure-13").stderr
    results = json.loads(repro("sql", "select verdict, attempt from v_results", "--json").stdout)["rows"]
    assert results == [{"verdict": "verified", "attempt": 1}] * 6


@pytest.mark.parametrize("outcome", [CANCELLED, REFUSED], ids=["cancelled", "refused"])
def test_a_rerun_that_did_not_run_hides_no_result_of_any_command(repro: Caller, outcome: dict[str, Any]) -> None:
    assert repro.site.submit("--wait").returncode == 0
    add_attempts(new_ledger(repro.site.folder), outcome)
    status = repro("status", "figure-13")
    assert status.returncode == 0 and "6/6 verified" in status.stderr
    for command in ("collect", "claims", "compare"):
        assert repro(command, "figure-13").returncode == (outcome is REFUSED), command  # it is reported as a failure
    document = json.loads(repro("collect", "figure-13", "--json").stdout)
    assert {(row["attempt"], row["verdict"]) for row in document["cases"]} == {(1, "verified")}
    repro("report", "-o", "report")
    assert "All 6 cases are verified" in (repro.site.folder / "report" / "index.html").read_text()
    assert repro("bundle", "figure-13", "-o", "figure.tar.zst").returncode == 0
    verified = repro("bundle", "verify", "figure.tar.zst")
    assert verified.returncode == 0 and "no case is verified" not in verified.stdout, verified.stdout
    assert "no verified case" not in repro("plot", "figure-13").stderr


def test_a_canary_that_was_verified_before_its_cancelled_rerun_stops_nothing(repro: Caller) -> None:
    assert repro.site.submit("--wait").returncode == 0
    add_attempts(new_ledger(repro.site.folder), CANCELLED)
    done = repro.site.submit("--canary")
    assert done.returncode == 0 and "6 done, 0 submitted" in done.stderr, done.stderr


def test_a_running_rerun_is_shown_beside_the_verified_result(repro: Caller, ledger: Ledger, monkeypatch: Any) -> None:
    monkeypatch.setattr("orchestrator.api.jobs.anything_to_refresh", lambda _: False)
    again(ledger, RUNNING, ["pp=1,tp=4,gbs=4"])
    status = repro("status", "figure-13", "--json")
    newer = [row["newer"] for row in json.loads(status.stdout)["jobs"] if row["newer"]]
    assert newer == ["attempt 2: RUNNING 0/8"]
    assert "6/6 verified, 1 running" in repro("status", "figure-13").stderr
    assert repro("claims", "figure-13").returncode == 0


def test_a_rerun_that_failed_keeps_the_result_and_is_a_failure(repro: Caller, ledger: Ledger) -> None:
    again(ledger, CRASHED)
    claims = repro("claims", "figure-13")
    assert claims.returncode == 1 and "not verified" not in claims.stdout
    assert "failed: pp=1,tp=4,gbs=4 of sc21/figure-13" in claims.stderr
    assert len(json.loads(repro("status", "--failed", "--json").stdout)["jobs"]) == 6


def test_attempt_selects_another_attempt_and_an_unknown_one_is_refused(repro: Caller, ledger: Ledger) -> None:
    again(ledger, CANCELLED)
    claims = repro("claims", "figure-13", "--attempt", "2")
    assert claims.returncode == 1 and "6 not judged" in claims.stdout
    collected = repro("collect", "figure-13", "--attempt", "2")
    assert {row["verdict"] for row in csv.DictReader(io.StringIO(collected.stdout))} == {"failed"}
    assert repro("compare", "figure-13", "--attempt", "2").returncode == 1
    assert repro("plot", "figure-13", "--attempt", "2").stderr.startswith("repro: figure-13 at scale cpu: no verified")
    for command in ("compare", "claims", "plot", "collect"):
        refused = repro(command, "figure-13", "--attempt", "7")
        assert refused.returncode == 2
        assert "--attempt 7: no job of figure-13 has such an attempt. Hint: 1 to 2" in refused.stderr
    assert repro("compare", "selene", "eos", "--attempt", "1").returncode == 2


def test_cancelled_repeats_of_a_verified_case_fail_nothing(repro: Caller, ledger: Ledger) -> None:
    for repeat in range(2, 5):
        again(ledger, CANCELLED, repeat=repeat, at=START + timedelta(days=repeat))
    for command in ("claims", "collect", "compare", "wait"):
        assert repro(command, "figure-13").returncode == 0, command


def test_cancelled_jobs_of_a_case_without_a_result_are_failures(repro: Caller, ledger: Ledger) -> None:
    again(ledger, CANCELLED, cluster="eos")
    for command in ("claims", "collect", "compare", "wait"):
        cluster = () if command == "wait" else ("--cluster", "eos")
        assert repro(command, "figure-13", *cluster).returncode == 1, command


def test_a_long_list_of_failures_is_shortened_with_the_command_that_shows_all(repro: Caller, ledger: Ledger) -> None:
    for repeat in (2, 3):
        again(ledger, CRASHED, repeat=repeat, at=START + timedelta(days=repeat))
    stderr = repro("claims", "figure-13").stderr
    assert stderr.count("failed: ") == 10 and "... and 2 more: repro status figure-13 --failed\n" in stderr
    assert len(json.loads(repro("status", "figure-13", "--failed", "--json").stdout)["jobs"]) == 12


def test_a_run_that_failed_is_compared_as_such_with_an_earlier_one(repro: Caller, ledger: Ledger) -> None:
    again(ledger, CRASHED)
    dates = [f"{START + timedelta(days=days):%Y-%m-%d}" for days in (0, 1)]
    runs = [
        row["run"]
        for row in json.loads(repro("sql", "select id as run from runs order by id", "--json").stdout)["rows"]
    ]
    assert repro("compare", "figure-13", *runs).returncode == 1
    same = repro("compare", "figure-13", *dates, "--json")
    assert {case["because"] for case in json.loads(same.stdout)["cases"]} == {"the same attempt"}


def test_a_verified_case_is_done_for_submit_after_a_cancelled_rerun(repro: Caller) -> None:
    assert repro.site.submit("--wait").returncode == 0
    ledger = new_ledger(repro.site.folder)
    add_attempts(ledger, CANCELLED)
    done = repro.site.submit()
    assert "6 done, 0 submitted" in done.stderr, done.stderr
