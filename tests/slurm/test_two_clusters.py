"""Two Slurm clusters with one slurmdbd: jobs of a profile with `--clusters`, and jobs that a federation moves."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.launch import refresh as refreshing
from tests.slurm.cluster import SlurmCluster
from tests.slurm.configuration import Shape
from tests.slurm.site import SlurmSite, ids_in_queue
from tests.waiting import wait_until

OTHER = "other"


@pytest.fixture(scope="module")
def other_cluster(slurm_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Yield a second cluster that uses the accounting of the first one. SLURM_CONF names the first one."""
    shape = Shape(
        nodes=2,
        name=OTHER,
        database_of=str(slurm_cluster.folder),
        shared_accounting_port=slurm_cluster.shape.accounting_port,
    )
    cluster = SlurmCluster(Path(tempfile.mkdtemp(prefix="repro-slurm-")), shape)
    cluster.up()
    yield cluster
    cluster.down()
    shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture
def site(other_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmSite]:  # noqa: ARG001  needs it up
    made = SlurmSite(tmp_path).use_stand_in(f'sbatch: ["--clusters={OTHER}"]', account="max_running: 6")
    made.behave("gated")
    yield made
    made.variables.clear()
    (made.folder / "go").touch()
    made.repro("cancel", "figure-13", "--yes")


@pytest.mark.fault(
    section="Job states",
    fault="Jobs of another cluster of the site, by `--clusters` in the profile",
    promise="That cluster is asked. The jobs are not `LOST`, each runs once, and `repro cancel` ends them there.",
)
def test_jobs_of_another_cluster_are_followed_and_cancelled_there(
    site: SlurmSite, other_cluster: SlurmCluster, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = site.submit("--where", "pp=1")
    assert submitted.returncode == 0, submitted.stderr
    monkeypatch.setattr(refreshing, "LOST_AFTER", timedelta(0))
    rows = site.wait_for(lambda rows: all(row["state"] == "RUNNING" for row in rows))
    assert "0 submitted" in site.submit("--where", "pp=1").stderr
    ids = sorted(row["id"] for row in rows)
    assert sorted(ids_in_queue(other_cluster.run, site.folder)) == ids
    assert ids_in_queue(slurm_cluster.run, site.folder) == []
    done = site.repro("cancel", "figure-13", "--yes")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not ids_in_queue(other_cluster.run, site.folder), what="the jobs are cancelled")
    rows = site.wait_until_ended()
    assert {row["state"] for row in rows} == {"CANCELLED"}


@pytest.mark.fault(
    section="Job states",
    fault="A program of the site sends a job to another cluster, and sbatch prints `ID;CLUSTER`",
    promise="The job is looked up on the cluster that has it.",
)
def test_the_cluster_that_sbatch_prints_is_asked(site: SlurmSite, other_cluster: SlurmCluster) -> None:
    site.use_stand_in(account="max_running: 6")
    site.replace_sbatch(f'exec /usr/bin/sbatch --clusters={OTHER} "$@"')
    assert site.submit("--where", "pp=1,gbs=4").returncode == 0
    (row,) = site.wait_for(lambda rows: rows[0]["state"] == "RUNNING")
    assert ids_in_queue(other_cluster.run, site.folder) == [row["id"]]
    (site.folder / "go").touch()
    (row,) = site.wait_until_ended()
    assert (row["state"], row["verdict"]) == ("COMPLETED", "verified")


def test_a_submission_to_another_cluster_that_was_interrupted_is_found_there(
    site: SlurmSite, other_cluster: SlurmCluster
) -> None:
    site.replace_sbatch('/usr/bin/sbatch "$@"; kill -9 $PPID')
    assert site.submit("--where", "pp=1,gbs=4").returncode != 0
    site.variables.clear()
    (row,) = site.wait_for(lambda rows: rows[0]["state"] == "RUNNING")
    assert ids_in_queue(other_cluster.run, site.folder) == [row["id"]] and row["attempt"] == 1


@pytest.fixture
def federated_site(
    site: SlurmSite, other_cluster: SlurmCluster, paused_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmSite]:
    """Yield a site whose cluster starts no job, in a federation with the other cluster, which starts them."""
    clusters = f"clusters={paused_cluster.shape.name},{other_cluster.shape.name}"
    paused_cluster.run("sacctmgr", "-i", "add", "federation", "both", clusters)
    wait_until(lambda: "Synced:Yes" in paused_cluster.run("scontrol", "show", "federation"), what="the federation")
    monkeypatch.setattr(refreshing, "LOST_AFTER", timedelta(0))
    yield site.use_stand_in(account="max_running: 6")
    site.repro("cancel", "figure-13", "--yes")
    wait_until(lambda: not ids_in_queue(other_cluster.run, site.folder), what="the end of the jobs")
    paused_cluster.run("sacctmgr", "-i", "delete", "federation", "both")
    wait_until(lambda: "Sibling" not in paused_cluster.run("scontrol", "show", "federation"), what="its end")


@pytest.mark.fault(
    section="Job states",
    fault="A federation starts the job on another cluster, and the job is REVOKED on its own",
    promise="Its state is that on the other cluster. It is not `LOST`, and it ends verified.",
)
def test_a_job_that_a_federation_moves_is_followed_to_its_end(
    federated_site: SlurmSite, other_cluster: SlurmCluster
) -> None:
    site = federated_site
    assert site.submit("--where", "pp=1,gbs=4").returncode == 0
    (row,) = site.wait_for(lambda rows: rows[0]["state"] == "RUNNING")
    assert ids_in_queue(other_cluster.run, site.folder) == [row["id"]]
    assert "0 submitted" in site.submit("--where", "pp=1,gbs=4").stderr
    (site.folder / "go").touch()
    (row,) = site.wait_until_ended()
    assert (row["state"], row["verdict"], row["attempt"]) == ("COMPLETED", "verified", 1)


@pytest.mark.fault(
    section="Job states",
    fault="`repro cancel` of a job that a federation has started on another cluster",
    promise="It ends there.",
)
def test_a_job_that_a_federation_moves_is_cancelled_there(
    federated_site: SlurmSite, other_cluster: SlurmCluster
) -> None:
    site = federated_site
    assert site.submit("--where", "pp=1,gbs=4").returncode == 0
    site.wait_for(lambda rows: rows[0]["state"] == "RUNNING")
    done = site.repro("cancel", "figure-13")
    assert done.returncode == 0 and "1 job is being cancelled" in done.stderr, done.stderr
    wait_until(lambda: not ids_in_queue(other_cluster.run, site.folder), what="the end of the job")
    (row,) = site.wait_until_ended()
    assert row["state"] == "CANCELLED"
