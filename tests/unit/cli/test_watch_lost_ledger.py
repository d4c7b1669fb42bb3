"""Tests of a lost ledger and of a home that was moved: run folders name the open jobs, and logs are found."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from orchestrator.ledger.attempts import job_rows
from tests.recorded_jobs import new_ledger
from tests.stand_in_site import Site
from tests.unit.cli.calling import Caller, Done
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")
SMALL = ("--where", "gbs=4")


def submit(repro: Caller, *words: str) -> Done:
    return repro("submit", *HERE, *words)


def lose_the_ledger(site: Site) -> Path:
    """Keep it elsewhere, so that what still runs can be cancelled."""
    return (site.folder / "results.db").rename(site.folder / "kept.db")


# ---- results.db is deleted --------------------------------------------------------------------------------------


@pytest.mark.fault(
    section="Ledger",
    fault="The ledger is deleted while jobs run",
    promise="The run folders name the jobs: `submit` refuses with folder and job, `--rerun` submits.",
)
def test_jobs_that_run_are_not_submitted_again_when_the_ledger_is_lost(repro: Caller) -> None:
    repro.site.behave("hang")
    assert submit(repro, *SMALL).returncode == 0
    wait_until(repro.site.sleepers)
    kept = lose_the_ledger(repro.site)
    done = submit(repro, *SMALL)
    assert done.returncode == 2, done.stderr
    (line,) = done.complaints
    assert re.fullmatch(
        r"repro: .*/runs/[^/]+/pp1-tp4-gbs4: pp=1,tp=4,gbs=4 has not ended as job \d+_0, and the ledger does not "
        r"contain that run \(3 such jobs\)\. Hint: wait for the end, or cancel the job; --rerun submits it anyway",
        line,
    ), line
    assert len(repro.site.started()) == 1 and job_rows(new_ledger(repro.site.folder)) == []
    # One that waits behind it, alone.
    waiting = submit(repro, "--where", "pp=4,gbs=4")
    assert waiting.returncode == 2 and "pp=4,tp=1,gbs=4 has not ended, and the ledger" in waiting.stderr
    # Another case is nobody's.
    other = submit(repro, "--where", "pp=1,gbs=16")
    assert other.returncode == 0 and "1 submitted" in other.stderr
    anyway = submit(repro, *SMALL, "--rerun")
    assert anyway.returncode == 0 and "note: " in anyway.stderr and "3 submitted" in anyway.stderr
    for database in (kept, repro.site.folder / "results.db"):
        assert repro("cancel", "figure-13", "--database", str(database)).returncode == 0


@pytest.mark.fault(
    section="Ledger",
    fault="The ledger is deleted after its jobs were cancelled",
    promise="They are submitted.",
    count=0,
)
def test_cancelled_or_killed_jobs_are_submitted_again_when_the_ledger_is_lost(repro: Caller) -> None:
    repro.site.behave("hang")
    submit(repro, *SMALL)
    wait_until(repro.site.sleepers)
    assert repro("cancel", "figure-13").returncode == 0
    wait_until(lambda: repro("status", "figure-13", "--json").stdout.count('"CANCELLED"') == 3)
    lose_the_ledger(repro.site)
    repro.site.behave("well")
    done = submit(repro, *SMALL, "--wait")
    assert done.returncode == 0 and "3 submitted" in done.stderr, done.stderr
    assert "does not contain" not in done.stderr


@pytest.mark.fault(
    section="Ledger",
    fault="The ledger is deleted after its jobs were verified",
    promise="`submit` names a folder and the number of verified jobs.",
)
def test_verified_results_of_a_lost_ledger_are_reported(repro: Caller) -> None:
    assert submit(repro, *SMALL, "--wait").returncode == 0
    lose_the_ledger(repro.site)
    done = submit(repro, *SMALL, "--wait")
    assert done.returncode == 0, done.stderr
    (note,) = [line for line in done.complaints if "does not contain" in line]
    assert "/pp1-tp4-gbs4: pp=1,tp=4,gbs=4 is verified there" in note and "(3 such jobs)" in note
    assert len(repro.site.started()) == 6
    again = submit(repro, *SMALL)
    assert "does not contain" not in again.stderr and "3 done, 0 submitted" in again.stderr


# ---- home is moved ----------------------------------------------------------------------------------------------


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caller:
    """A home that was renamed after its jobs had ended; the folder that it was made in exists no more."""
    made = Site.create(tmp_path / "first")
    assert made.submit("--where", "gbs=4", "--wait").returncode in (0, 1)
    monkeypatch.delenv("REPRO_DATABASE", raising=False)
    return Caller(Site(Path(shutil.move(made.folder, tmp_path / "home2"))), monkeypatch, capsys)


@pytest.mark.fault(
    section="Ledger",
    fault="The home is moved with ledger and runs",
    promise="`logs`, `status`, `collect`, `bundle` and `history` find the run folders in the new place.",
)
def test_logs_status_collect_and_bundle_find_the_runs_of_a_home_that_was_moved(moved: Caller, tmp_path: Path) -> None:
    rows = job_rows(new_ledger(moved.site.folder))
    assert [Path(row.folder).is_relative_to(moved.site.folder) for row in rows] == [True] * 3
    logs = moved("logs", rows[0].job_id)
    assert logs.returncode == 0 and "elapsed time per iteration" in logs.stdout, logs.stderr
    assert json.loads(moved("status", "figure-13", "--json").stdout)["jobs"][0]["verdict"] == "verified"
    collected = moved("collect", "figure-13", "-o", str(tmp_path / "out.csv"))
    assert collected.returncode in (0, 1) and (tmp_path / "out.csv").read_text().count("verified") == 3
    bundle = moved("bundle", "figure-13", "-o", str(tmp_path / "figure.tar.zst"))
    assert bundle.returncode == 0 and "is gone" not in bundle.stderr, bundle.stderr
    history = moved("history", rows[0].job_id)
    assert history.returncode == 0 and not (tmp_path / "first").exists()


@pytest.mark.fault(
    section="Ledger",
    fault="The home is moved before the logs were read",
    promise="The jobs get their verdicts in the new place.",
)
def test_a_home_that_was_moved_before_its_logs_were_read_is_judged_where_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("REPRO_DATABASE", raising=False)
    made = Site.create(tmp_path / "first")
    assert made.submit("--where", "pp=1,gbs=4").returncode == 0
    wait_until(lambda: list((made.folder / "runs").glob("*/pp1-tp4-gbs4/end")))
    moved = Caller(Site(Path(shutil.move(made.folder, tmp_path / "home2"))), monkeypatch, capsys)
    (row,) = json.loads(moved("status", "figure-13", "--json").stdout)["jobs"]
    assert (row["state"], row["verdict"]) == ("COMPLETED", "verified")


def test_a_run_that_lies_where_it_was_recorded_is_read_there(moved: Caller, tmp_path: Path) -> None:
    shutil.copytree(moved.site.folder, tmp_path / "first")
    rows = job_rows(new_ledger(moved.site.folder))
    assert all(Path(row.folder).is_relative_to(tmp_path / "first") for row in rows)
