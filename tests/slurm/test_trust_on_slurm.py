"""Shared ledger on a real Slurm with a real second user, a lost ledger, and a folder with the claim of another job."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.accounting import OTHER_USER
from tests.slurm.cluster import SlurmCluster
from tests.slurm.site import SlurmSite, ids_in_queue
from tests.slurm.test_submission_faults import PLACES, killed_submit

EDIT = "import sqlite3, sys; ledger = sqlite3.connect(sys.argv[1]); ledger.executescript(sys.argv[2])"
SMALL = ("--where", "gbs=4")


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder that all users may write to."""
    folder = Path(tempfile.mkdtemp(prefix="repro-shared-"))
    folder.chmod(0o777)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def by_other_user(*argv: str) -> None:
    command = ["setpriv", "--reuid", OTHER_USER, "--regid", "nogroup", "--clear-groups", *argv]
    subprocess.run(command, cwd="/tmp", check=True, capture_output=True)


def edit(ledger: Path, *statements: str) -> None:
    """Run SQL as the other user, who may write to the ledger."""
    by_other_user(sys.executable, "-c", EDIT, str(ledger), ";".join(statements))


@pytest.mark.fault(
    section="Safety",
    fault="A second user edits the script or the profile of a row, on a real Slurm",
    promise="Nothing of it is submitted. `wait` and `retry` print the reason.",
)
@pytest.mark.parametrize("edited", ["file", "profile_file"])
def test_a_user_who_edits_a_shared_ledger_runs_nothing_as_another_user(
    edited: str, shared: Path, paused_cluster: SlurmCluster
) -> None:
    mine, ledger = SlurmSite(shared / "mine").use_stand_in(), shared / "results.db"
    mine.variables["REPRO_DATABASE"] = str(ledger)
    killed_submit(mine, *PLACES["before the claim"], *SMALL)
    ledger.chmod(0o666)
    evil = shared / "evil"
    evil.mkdir()
    evil.chmod(0o777)
    script, profile = evil / "evil.sh", evil / "site.yaml"
    own = (mine.folder / "site.yaml").read_text()
    by_other_user("sh", "-c", f"printf '#!/bin/sh\\ntouch {evil}/ran\\n' >{script}")
    by_other_user("sh", "-c", f"cat >{profile} <<'END'\n{own}setup: ['touch {evil}/ran']\nEND")
    if edited == "file":
        edit(ledger, f"UPDATE attempts SET file = '{script}'")
        done = mine.repro("wait")
        assert done.returncode == 1 and done.stderr.count(f"{script}: is not in a run folder") == 1, done.stderr
        assert {row["state"] for row in mine.status()} == {"NEVER_SUBMITTED"}
    else:
        failed = "phase = 'ended', state = 'NODE_FAIL', verdict = 'failed', failure = 'node-fail'"
        edit(ledger, f"UPDATE attempts SET {failed}", f"UPDATE runs SET profile_file = '{profile}'")
        done = mine.repro("retry", "figure-13")
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(f"repro: {profile}: belongs to {OTHER_USER}, so the profile"), done.stderr
    assert ids_in_queue(paused_cluster.run, shared) == [] and not (evil / "ran").exists()


@pytest.mark.fault(
    section="Ledger",
    fault="The ledger is deleted while jobs are pending in a real Slurm",
    promise="Slurm is asked for the recorded tokens. No job is submitted again before it has ended.",
)
def test_queued_jobs_are_not_submitted_again_after_the_ledger_is_lost(
    tmp_path: Path, paused_cluster: SlurmCluster
) -> None:
    site = SlurmSite(tmp_path).use_stand_in()
    assert site.submit(*SMALL).returncode == 0
    queued = ids_in_queue(paused_cluster.run, tmp_path)
    assert len(queued) == 3
    ledger = (tmp_path / "results.db").rename(tmp_path / "kept.db")
    try:
        done = site.submit(*SMALL)
        assert done.returncode == 2, done.stderr
        assert f"has not ended as job {sorted(queued)[0]}, and the ledger does not contain that run" in done.stderr
        assert ids_in_queue(paused_cluster.run, tmp_path) == queued
    finally:
        ledger.rename(tmp_path / "results.db")
        assert site.repro("cancel", "figure-13", "--yes").returncode == 0
    # Slurm reports that they have ended, so that new ones can be submitted.
    site.wait_until_ended()
    (tmp_path / "results.db").unlink()
    again = site.submit(*SMALL)
    assert again.returncode == 0 and "3 submitted" in again.stderr, again.stderr
    site.repro("cancel", "figure-13", "--yes")


@pytest.mark.fault(
    section="Safety",
    fault="A job's folder has the claim of another job before the job starts, on a real Slurm",
    promise="The job does not run. Its reason names the other job.",
)
def test_a_job_whose_folder_has_another_claim_does_not_run(tmp_path: Path, paused_cluster: SlurmCluster) -> None:
    site = SlurmSite(tmp_path).use_stand_in()
    assert site.submit(*SMALL).returncode == 0
    (folder,) = (tmp_path / "runs").glob("*/pp2-tp2-gbs4")
    (folder / "claimed").write_text("77\n")
    paused_cluster.run("scontrol", "update", "partitionname=batch", "state=up")
    site.wait_until_ended()
    cases = site.by_case()
    claimed = cases.pop("pp=2,tp=2,gbs=4")
    assert {row["verdict"] for row in cases.values()} == {"verified"} and "pp=2,tp=2,gbs=4" not in site.started()
    assert (claimed["state"], claimed["verdict"]) == ("FAILED", "failed"), claimed
    assert "job 77 runs it already" in claimed["why"], claimed
