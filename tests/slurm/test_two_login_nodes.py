"""Two login nodes with one shared ledger, on a real Slurm.

A login node has its own network, host name and process table (namespaces of this machine). It reaches Slurm by its own
address, and shares the file system.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.host import install_packages, run
from tests.slurm.site import SlurmSite, ids_in_queue
from tests.stand_in_site import REPRO
from tests.waiting import wait_until

# A host name, its own slurm.conf in place of the cluster's, then the command.
_ENTER = 'hostname "$1" && mount --bind "$2" "$3" && shift 3 && exec "$@"'

SUBMIT = ("submit", "figure-13", "--cluster", "site.yaml", "--scale", "cpu")
SMALL = (*SUBMIT, "--where", "gbs=4")
"""Three cases; without the condition there are six."""


_NUMBERS = itertools.count()


@dataclass(frozen=True)
class LoginNode:
    """A login node. `namespace` is its network, `conf` its slurm.conf."""

    name: str
    namespace: str
    conf: Path
    site: SlurmSite
    cluster: SlurmCluster

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `repro` with these arguments on this node."""
        spaces = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount")
        enter = ("bash", "-c", _ENTER, "login", self.name, str(self.conf), str(self.cluster.conf))
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *spaces, *enter, REPRO, *arguments],
            cwd=self.site.folder,
            env=self.site.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def repro(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `repro` with these arguments on this node until it ends."""
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=600)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


@pytest.fixture
def nodes(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[tuple[LoginNode, LoginNode]]:
    """Yield two login nodes of a cluster that accepts jobs and starts none."""
    install_packages(("iproute2",))
    site = SlurmSite(tmp_path).use_stand_in()
    made: list[LoginNode] = []
    slurm_cluster.run("scontrol", "update", "partitionname=batch", "state=down")
    try:
        for number in (1, 2):
            made.append(_make_node(number, site, slurm_cluster))
        yield made[0], made[1]
        site.variables.clear()
        site.repro("cancel", "figure-13", "--yes")
    finally:
        slurm_cluster.run("scontrol", "update", "partitionname=batch", "state=up")
        for node in made:
            run(["ip", "netns", "delete", node.namespace])  # with its end of the cable, and so the other end


def _make_node(number: int, site: SlurmSite, cluster: SlurmCluster) -> LoginNode:
    # The kernel removes a network some time after its namespace, so names and addresses are used once.
    once = next(_NUMBERS)
    namespace = f"repro-{os.getpid()}-{once}"
    outside, inside = f"o{os.getpid()}-{once}", f"i{os.getpid()}-{once}"
    # A range that no network uses (RFC 2544), without the networks of a run of these tests that was killed.
    listed = subprocess.run(["ip", "-brief", "address"], capture_output=True, text=True, check=True).stdout
    numbers = ((os.getpid() + once + more) % 250 + 1 for more in range(250))
    network = next(f"198.18.{number}" for number in numbers if f" 198.18.{number}.1/" not in listed)
    run(["ip", "netns", "add", namespace])
    run(["ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", namespace])
    run(["ip", "address", "add", f"{network}.1/24", "dev", outside])
    run(["ip", "link", "set", outside, "up"])
    for arguments in (("address", "add", f"{network}.2/24", "dev", inside), ("link", "set", inside, "up")):
        run(["ip", "-netns", namespace, *arguments])
    conf = site.folder / f"slurm-{number}.conf"
    conf.write_text(cluster.conf.read_text().replace("127.0.0.1", f"{network}.1"))
    return LoginNode(f"login{number}", namespace, conf, site, cluster)


def queue(node: LoginNode) -> list[str]:
    return sorted(ids_in_queue(node.cluster.run, node.site.folder))


@pytest.mark.fault(
    section="Submissions",
    fault="Jobs of one login node are listed and cancelled from another",
    promise="They end.",
    count=0,
)
def test_a_job_of_one_login_node_is_listed_and_cancelled_from_the_other(
    nodes: tuple[LoginNode, LoginNode],
) -> None:
    first, second = nodes
    assert first.repro(*SMALL).returncode == 0
    assert "3 waiting, 3 submitted" in second.repro(*SUBMIT).stderr
    rows = first.site.status()
    assert [row["state"] for row in rows] == ["PENDING"] * 6 and queue(first) == sorted(row["id"] for row in rows)
    cancelled = second.repro("cancel", "figure-13", "--where", "gbs=4", "--yes")
    assert cancelled.returncode == 0 and "3 jobs are being cancelled" in cancelled.stderr
    assert len(queue(first)) == 3 and first.repro("status").stdout.count("CANCELLED") >= 3


@pytest.mark.fault(
    section="Submissions",
    fault="Four terminals on two login nodes submit at the same time",
    promise="Slurm has each case once.",
)
def test_concurrent_submits_on_two_login_nodes_submit_each_job_once(nodes: tuple[LoginNode, LoginNode]) -> None:
    processes = [node.start(*SUBMIT) for node in (*nodes, *nodes)]
    ends = [(process.communicate(timeout=600), process.returncode) for process in processes]
    assert [code for _, code in ends] == [0] * 4, ends
    rows = nodes[0].site.status()
    assert len(rows) == 6 and queue(nodes[0]) == sorted(row["id"] for row in rows)


@pytest.mark.fault(
    section="Submissions",
    fault="One login node refreshes and submits while another one is in a submission",
    promise="The node that began the submission completes it.",
)
def test_a_running_submission_of_one_login_node_is_not_touched_by_the_other(nodes: tuple[LoginNode, LoginNode]) -> None:
    first, second = nodes
    folder = first.site.folder
    first.site.replace_sbatch(f'until [ -e {folder}/go ]; do sleep 0.1; done; exec /usr/bin/sbatch "$@"')
    process = first.start(*SMALL)
    try:
        wait_until((folder / "bin" / "sbatch.count").exists, what="sbatch begins")
        first.site.variables.clear()
        assert second.repro("status").stdout.count("SUBMITTING") == 3
        assert "3 waiting, 0 submitted" in second.repro(*SMALL).stderr
        assert queue(first) == []
    finally:
        (folder / "go").touch()
        process.communicate(timeout=600)
    rows = first.site.status()
    assert process.returncode == 0 and len(rows) == 3 and queue(first) == sorted(row["id"] for row in rows)
