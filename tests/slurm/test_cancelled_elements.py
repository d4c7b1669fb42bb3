"""Waiting elements of an array that an administrator cancels, on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.site import SlurmSite, ids_in_queue


@pytest.fixture
def site(paused_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmSite]:  # noqa: ARG001  needs it up
    made = SlurmSite(tmp_path).use_stand_in()
    yield made
    made.repro("cancel", "figure-13", "--yes")


@pytest.mark.fault(
    section="Job states",
    fault="An administrator cancels waiting elements of an array, of which Slurm keeps no record",
    promise="While Slurm lists other elements, they are `CANCELLED`, not by repro. They are not repeated.",
)
def test_cancelled_elements_of_a_waiting_array_stay_cancelled(site: SlurmSite, slurm_cluster: SlurmCluster) -> None:
    where = ("--where", "gbs=4")
    assert site.submit(*where).returncode == 0
    first, *others = sorted(ids_in_queue(slurm_cluster.run, site.folder))
    assert len(others) == 2
    slurm_cluster.run("scancel", *others)
    assert ids_in_queue(slurm_cluster.run, site.folder) == [first]
    # Until accounting answers, the states are as last seen.
    listed = site.wait_for(lambda rows: sum(row["state"] == "CANCELLED" for row in rows) == len(others))
    rows = {row["id"]: row for row in listed}
    assert {rows[job_id]["state"] for job_id in others} == {"CANCELLED"} and rows[first]["state"] == "PENDING"
    assert {rows[job_id]["failure"] for job_id in others} == {"cancelled"}
    assert "0 submitted" in site.submit(*where).stderr
    assert ids_in_queue(slurm_cluster.run, site.folder) == [first]
