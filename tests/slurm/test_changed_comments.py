"""Jobs whose comment was changed after the submission, on a real Slurm with and without its accounting."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.launch import refresh as refreshing
from tests.slurm.cluster import SlurmCluster
from tests.slurm.site import SlurmSite, ids_in_queue
from tests.waiting import wait_until

ALONE = ("--where", "pp=1,gbs=4")
ARRAY = ("--where", "pp=1")
COMMENT = "belongs to project X"


@pytest.fixture
def site(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmSite]:  # noqa: ARG001  needs it up
    made = SlurmSite(tmp_path).use_stand_in()
    yield made
    (made.folder / "go").touch()
    made.repro("cancel", "figure-13", "--yes")


@pytest.mark.fault(
    section="Job states",
    fault="The comment of a running job is changed, with accounting and while slurmdbd is stopped",
    promise="The job keeps its state and is not submitted twice. `repro cancel` ends it.",
)
@pytest.mark.parametrize("where", [ALONE, ARRAY], ids=["single job", "array"])
@pytest.mark.parametrize("with_accounting", [True, False], ids=["accounting", "slurmdbd stopped"])
def test_a_running_job_with_another_comment_is_neither_lost_nor_run_twice_and_can_be_cancelled(
    site: SlurmSite,
    slurm_cluster: SlurmCluster,
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[str, ...],
    with_accounting: bool,
) -> None:
    site.behave("gated")
    assert site.submit(*where).returncode == 0
    rows = site.wait_for(lambda rows: all(row["state"] == "RUNNING" for row in rows))
    ids = sorted(row["id"] for row in rows)
    for job_id in ids:
        slurm_cluster.run("scontrol", "update", f"jobid={job_id}", f"comment={COMMENT}")
    monkeypatch.setattr(refreshing, "LOST_AFTER", timedelta(0))
    with contextlib.nullcontext() if with_accounting else slurm_cluster.without_accounting():
        for _ in range(2):
            assert {(row["state"], row["verdict"]) for row in site.status()} == {("RUNNING", None)}
        assert "0 submitted" in site.submit(*where).stderr
        assert sorted(ids_in_queue(slurm_cluster.run, site.folder)) == ids
        done = site.repro("cancel", "figure-13", "--yes")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: not ids_in_queue(slurm_cluster.run, site.folder), what="the jobs are cancelled")


@pytest.mark.fault(
    section="Job states",
    fault="Slurm forgets a job while slurmdbd is stopped",
    promise="The job is not `LOST` before accounting answers.",
)
def test_a_job_that_slurm_has_forgotten_is_not_lost_while_slurmdbd_is_stopped(
    site: SlurmSite, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refreshing, "LOST_AFTER", timedelta(0))
    site.replace_sbatch("echo 49999")  # Slurm has no job of this id
    assert site.submit(*ALONE).returncode == 0
    with slurm_cluster.without_accounting():
        states = [row["state"] for _ in range(3) for row in site.status()]
    assert states == ["PENDING"] * 3
    states = [row["state"] for _ in range(3) for row in site.status()]
    assert states[-1] == "LOST"
