"""Tests of `repro forget`: hidden attempts, their return, and what is refused."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import Attempt, Job, RunJob
from tests.recorded_jobs import START, new_ledger, record_results
from tests.unit.catalog.entries import figure_13
from tests.unit.cli.calling import Caller
from tests.unit.cli.test_results_bundle import content
from tests.unit.cli.test_results_kept import CANCELLED, GOOD, RUNNING, again

pytestmark = pytest.mark.slow


@pytest.fixture
def ledger(repro: Caller) -> Ledger:
    """Return a ledger with six verified jobs and twelve cancelled repeats of the current user."""
    ledger = new_ledger(repro.site.folder)
    record_results(ledger, figure_13(), "cpu", GOOD)
    for repeat in (2, 3):
        again(ledger, CANCELLED, repeat=repeat, at=START + timedelta(days=repeat))
    own(ledger)
    return ledger


def own(ledger: Ledger, user: str | None = None) -> None:
    """Make all attempts those of this user; None is the current one if nobody else can write to the ledger."""
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(user=user))


def cases(repro: Caller) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(repro("status", "figure-13", "--json").stdout)["jobs"]
    return rows


def test_forgotten_attempts_are_in_no_table_and_come_back_with_undo(repro: Caller, ledger: Ledger) -> None:
    job = next(row["job"] for row in cases(repro) if row["repeat"] == 2)
    done = repro("forget", "figure-13", "--failed")
    assert done.returncode == 0 and "12 attempts forgotten" in done.stderr
    assert "... and 2 more: " in done.stderr
    assert [row["repeat"] for row in cases(repro)] == [1] * 6
    assert "6/6 verified" in repro("status", "figure-13").stderr
    assert json.loads(repro("sql", "select count(*) as n from v_attempts", "--json").stdout)["rows"] == [{"n": 6}]
    assert json.loads(repro("sql", "select count(*) as n from attempts", "--json").stdout)["rows"] == [{"n": 18}]
    hidden = repro("history", job)
    assert hidden.returncode == 2 and f"repro history {job} --all" in hidden.stderr
    shown = json.loads(repro("history", job, "--all", "--json").stdout)["attempts"]
    assert shown[0]["forgotten_at"] is not None and shown[0]["events"][-1]["event"] == "forgotten"
    back = repro("forget", "figure-13", "--undo")
    assert back.returncode == 0 and "12 attempts shown again" in back.stderr
    assert len(cases(repro)) == 18
    assert "no attempt shown again" in repro("forget", "figure-13", "--undo").stderr
    assert ledger is not None


def test_a_verified_attempt_is_forgotten_only_after_a_confirmation(repro: Caller, ledger: Ledger) -> None:
    refused = repro("forget", "figure-13", "--where", "gbs=4")
    assert refused.returncode == 2 and "3 attempts with a result would be forgotten" in refused.stderr
    assert len(cases(repro)) == 18
    done = repro("forget", "figure-13", "--where", "gbs=4", "--yes", "--json")
    assert len(json.loads(done.stdout)["attempts"]) == 9 and len(cases(repro)) == 9
    assert ledger is not None


def test_one_attempt_of_a_job_is_forgotten_by_its_number(repro: Caller, ledger: Ledger) -> None:
    again(ledger, CANCELLED, at=START + timedelta(days=5))
    own(ledger)
    job = next(row["job"] for row in cases(repro) if row["repeat"] == 1)
    assert repro("forget", job, "--attempt", "2").returncode == 0
    (row,) = [row for row in cases(repro) if row["job"] == job]
    assert (row["attempt"], row["newer"]) == (1, None)
    unknown = repro("forget", job, "--attempt", "7")
    assert unknown.returncode == 2 and "--attempt 7: no such attempt. Hint: 1 to 2" in unknown.stderr


def test_running_jobs_and_jobs_of_other_users_are_refused(
    repro: Caller, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.api.jobs.anything_to_refresh", lambda _: False)
    again(ledger, RUNNING, ["pp=1,tp=4,gbs=4"], at=START + timedelta(days=5))
    own(ledger)
    running = repro("forget", "figure-13", "--where", "pp=1,gbs=4", "--failed")
    assert running.returncode == 1 and "2 attempts forgotten" in running.stderr
    assert "attempt 2 is RUNNING. Hint: cancel it first: repro cancel " in running.stderr
    own(ledger, "ann")
    others = repro("forget", "figure-13", "--failed")
    assert others.returncode == 1 and "belongs to ann" in others.stderr and "no attempt" in others.stderr


def test_an_unknown_job_changes_nothing(repro: Caller, ledger: Ledger) -> None:
    unknown = repro("forget", "no-such-job", "figure-13", "--yes")
    assert unknown.returncode == 2 and "no-such-job: no experiment or job of this name" in unknown.stderr
    assert len(cases(repro)) == 18
    assert ledger is not None


def test_a_ledger_that_cannot_be_written_is_an_error_in_one_line(
    repro: Caller, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ledger.writing() as session:
        session.execute(sa.text("CREATE TRIGGER full BEFORE UPDATE ON attempts BEGIN SELECT RAISE(FAIL, 'full'); END"))
    done = repro("forget", "figure-13", "--failed")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert len(cases(repro)) == 18 and monkeypatch is not None


def test_a_job_whose_attempts_are_forgotten_is_submitted_under_the_next_number(repro: Caller) -> None:
    assert repro.site.submit("--wait").returncode == 0
    assert repro("forget", "figure-13", "--where", "pp=1,gbs=4", "--yes").returncode == 0
    done = repro.site.submit("--wait")
    assert "5 done, 1 submitted" in done.stderr, done.stderr
    assert {row["attempt"] for row in cases(repro)} == {1, 2}


@pytest.mark.fault(
    section="Safety",
    fault="Slow or failed repeats are forgotten before a bundle is written",
    promise="The bundle names them. `bundle` and `bundle verify` print them.",
)
def test_a_bundle_names_the_attempts_that_were_forgotten(repro: Caller) -> None:
    assert repro.site.submit("--wait", "--repeat", "2").returncode == 0
    ledger = new_ledger(repro.site.folder)
    with ledger.reading() as session:
        forgotten = session.scalars(sa.select(Attempt.job_id).join(Job).where(Job.repeat == 2).limit(1)).one()
        case = session.scalars(sa.select(RunJob.case_name).where(RunJob.job_id == forgotten).limit(1)).one()
    assert repro("forget", forgotten, "--yes").returncode == 0
    written = repro("bundle", "figure-13", "-o", "figure.tar.zst")
    name = f"left out, because it was forgotten: {case} #2: attempt 1 of job {forgotten} (verified)"
    assert written.returncode == 0 and f"note: {name}\n" in written.stderr
    verified = repro("bundle", "verify", "figure.tar.zst")
    assert verified.returncode == 0 and f"note: {name}\n" in verified.stdout
    files = content(repro.site.folder / "figure.tar.zst")
    row = {"case": f"{case} #2", "job": forgotten, "attempt": 1, "outcome": "verified"}
    assert json.loads(files["bundle.json"])["forgotten"] == [row]
    assert f"    {case} #2: attempt 1 of job {forgotten} (verified)\n" in files["README.txt"].decode()
    assert not any(forgotten in path for path in files)
