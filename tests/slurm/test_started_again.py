"""Jobs that Slurm starts again after their end, on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.site import SlurmSite


@pytest.fixture
def site(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmSite]:  # noqa: ARG001  needs it up
    made = SlurmSite(tmp_path).use_stand_in("requeue: true")
    yield made
    made.repro("cancel", "figure-13", "--yes")


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`scontrol requeue` of a verified job that has ended, with `requeue: true`",
    promise="The new run is an attempt of its own. The verified attempt keeps its files, and its bundle is consistent.",
)
@pytest.mark.parametrize("where", [("pp=1,gbs=4",), ("pp=1",)], ids=["single job", "array"])
def test_a_verified_job_that_slurm_starts_again_keeps_its_evidence(
    site: SlurmSite, slurm_cluster: SlurmCluster, where: tuple[str, ...]
) -> None:
    assert site.submit("--where", *where).returncode == 0
    rows = site.wait_for(lambda rows: all(row["verdict"] == "verified" for row in rows))
    first = next(row for row in rows if str(row["case"]).endswith("gbs=4"))
    (folder,) = site.folder.glob("runs/*/pp1*-gbs4")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    site.behave("fail")
    slurm_cluster.run("scontrol", "requeue", first["id"])
    rows = site.wait_for(lambda rows: any(row["newer"] for row in rows))
    site.wait_for(lambda _rows: folder.with_name(f"{folder.name}.run2").joinpath("end").exists())
    rows = site.wait_until_ended()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {row["verdict"] for row in rows} == {"verified"}, "the last verified attempt is the result"
    history = site.repro("history", first["job"]).stdout
    assert "started again by Slurm" in history and "exit code 7" in history, history
    assert site.repro("bundle", "figure-13", "-o", "out.tar.zst").returncode == 0
    verified = site.repro("bundle", "verify", "out.tar.zst")
    assert verified.returncode == 0, verified.stdout + verified.stderr
