"""Address of rank 0 in every order of the ranks, on a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.site import SlurmSite

_FILE = "export SLURM_HOSTFILE={folder}/racks"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`--distribution` or `SLURM_HOSTFILE` puts rank 0 on another node than the first one of the job",
    promise="`MASTER_ADDR` is the node of rank 0, so the ranks find each other.",
)
@pytest.mark.parametrize(
    ("srun", "setup", "node"),
    [
        ("--distribution=arbitrary", _FILE, "n2"),
        ("", _FILE, "n2"),
        ('--distribution=arbitrary, "--nodelist=n2,n2,n1,n1"', "", "n2"),
        ("--distribution=cyclic", "", "n1"),
        ("--distribution=plane=1", "", "n1"),
    ],
    ids=["arbitrary", "only SLURM_HOSTFILE", "nodelist", "cyclic", "plane"],
)
def test_the_master_address_is_the_node_of_rank_0(
    srun: str,
    setup: str,
    node: str,
    slurm_cluster: SlurmCluster,  # noqa: ARG001  needs it up
    tmp_path: Path,
) -> None:
    site = SlurmSite(tmp_path).use_stand_in('nodelist: "n[1-2]"', f"srun: [{srun}]")
    (tmp_path / "racks").write_text("# two racks\nn2*2\nn1\nn1\n")
    if setup:
        with (tmp_path / "site.yaml").open("a") as profile:
            profile.write(f"setup: [{setup.format(folder=tmp_path)!r}]\n")
    program = tmp_path / "train.sh"
    first, rest = program.read_text().split("\n", 1)
    line = '[ "${RANK:-1}" != 0 ] || echo "$MASTER_ADDR $SLURMD_NODENAME" >"${0%/*}/rank_0"'
    program.write_text(f"{first}\n{line}\n{rest}")
    assert site.submit("--where", "pp=1,gbs=4").returncode == 0
    rows = site.wait_until_ended()
    assert [row["verdict"] for row in rows] == ["verified"], rows
    assert (tmp_path / "rank_0").read_text() == f"{node} {node}\n"
