"""A Slurm without accounting that forgets its jobs after seconds, gives ids out again, and takes small arrays only."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.launch import refresh as refreshing
from orchestrator.ledger.database import ledger_url, open_ledger
from orchestrator.ledger.jobs import job_rows
from orchestrator.reading.collect import collect
from tests.slurm.cluster import SlurmCluster
from tests.slurm.configuration import Shape
from tests.slurm.stand_in import StandInSite

CASE = ("--where", "pp=1,gbs=4")


@pytest.fixture(scope="module")
def forgetful(slurm_cluster: SlurmCluster) -> Iterator[SlurmCluster]:  # noqa: ARG001  says why there is none, once
    """Two nodes, squeue remembers nothing for longer than some seconds, arrays have four elements at most."""
    shape = Shape(nodes=2, accounting=False, min_job_age_s=2, most_in_array=4, last_job_id=40)
    cluster = SlurmCluster(Path(tempfile.mkdtemp(prefix="repro-slurm-")), shape)
    cluster.up()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment().items():
            patch.setenv(name, value)
        yield cluster
    cluster.down()
    shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture
def site(forgetful: SlurmCluster, tmp_path: Path) -> Iterator[StandInSite]:  # noqa: ARG001  needs it up
    made = StandInSite(tmp_path).prepare(account="max_running: 6")
    yield made
    made.repro("cancel", "figure-13", "--yes")


def wait_until_forgotten(cluster: SlurmCluster, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while cluster.run("squeue", "-h", "--states=all"):
        assert time.monotonic() < end, "squeue still knows the job"
        time.sleep(0.5)


def test_what_slurm_has_forgotten_is_known_by_its_own_record_and_a_reused_id_is_not_mistaken(
    site: StandInSite, forgetful: SlurmCluster
) -> None:
    assert site.submit().returncode == 0, "six cases, in arrays of four and two"
    ids = [row["id"] for row in site.status()]
    assert len({job_id.partition("_")[0] for job_id in ids}) == 2
    deadline = time.monotonic() + 60
    while len(list(site.folder.glob("runs/*/*/end"))) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    wait_until_forgotten(forgetful)
    taken: set[str] = set()
    while ids[0].partition("_")[0] not in taken:  # until somebody else's job has the id of ours
        assert len(taken) < 60
        taken.add(forgetful.run("sbatch", "--parsable", "--hold", "-o", "/dev/null", "--wrap", "true"))
        if len(taken) % 10 == 0:
            forgetful.run("scancel", "-u", "root")
    rows = site.status()
    assert {(row["state"], row["verdict"]) for row in rows} == {("COMPLETED", "verified")}, rows
    assert "end record" in site.repro("history", rows[0]["job"]).stdout
    forgetful.run("scancel", "-u", "root")


def test_a_job_that_nobody_knows_is_lost_only_after_everybody_was_asked_for_long_enough(
    site: StandInSite, forgetful: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.behave("hang")
    assert site.submit(*CASE).returncode == 0
    (row,) = site.wait_for(lambda rows: rows[0]["state"] == "RUNNING")
    for node in forgetful.node_names:  # both lose their power: no record of the job's end is written
        forgetful.kill_node(node)
        forgetful.set_node(node, "down")
    wait_until_forgotten(forgetful)
    (row,) = site.status()
    assert row["state"] == "RUNNING" and row["verdict"] is None, "not concluded at once"
    assert "1 running, 0 submitted" in site.submit(*CASE).stderr
    monkeypatch.setattr(refreshing, "LOST_AFTER", timedelta(0))
    ledger = open_ledger(ledger_url(None, site.folder))
    assert ledger is not None
    refreshing.refresh(ledger)
    collect(ledger)
    (lost,) = job_rows(ledger)
    assert (lost.state, lost.verdict, lost.failure) == ("LOST", "failed", "lost")
    assert "1 submitted" in site.submit(*CASE).stderr
    for node in forgetful.node_names:
        forgetful.start_node(node)
