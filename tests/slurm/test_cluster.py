"""Test cluster itself, on which the other tests on Slurm rely. Tests that break it come last and repair it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.errors import Unreachable
from orchestrator.slurm.command import find_by_comments, query_jobs
from tests.slurm.cluster import SlurmCluster
from tests.slurm.host import Daemon, end_processes
from tests.unit.catalog.entries import CHECKOUT
from tests.waiting import wait_until


def test_tasks_on_several_nodes_start_and_the_first_node_resolves(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = (
        "#!/bin/bash\n"
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)\n'
        'getent hosts "$first" > /dev/null && echo "first $first"\n'
        "srun bash -c 'echo $SLURMD_NODENAME $SLURM_LOCALID $CUDA_VISIBLE_DEVICES'\n"
    )
    (tmp_path / "job.sh").write_text(script)
    options = ("-N2", "--ntasks-per-node=2", "--gpus-per-node=2", "--wait", f"--output={out}")
    slurm_cluster.run("sbatch", "-w", "n1,n2", *options, str(tmp_path / "job.sh"))
    assert sorted(out.read_text().splitlines()) == ["first n1", "n1 0 0,1", "n1 1 0,1", "n2 0 0,1", "n2 1 0,1"]


def test_starting_a_running_cluster_again_changes_nothing(slurm_cluster: SlurmCluster) -> None:
    started = slurm_cluster.run("scontrol", "show", "config").splitlines()
    slurm_cluster.up()
    again = slurm_cluster.run("scontrol", "show", "config").splitlines()
    boot = [line for line in started if line.startswith("BOOT_TIME")]
    assert boot == [line for line in again if line.startswith("BOOT_TIME")]


def test_a_killed_node_loses_its_processes_and_comes_back(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    job = slurm_cluster.run(
        "sbatch", "--parsable", "-wn3", "-o/dev/null", "--wrap", f"while :; do date +%N > {beat}; sleep 0.1; done"
    )
    wait_until(beat.exists, what="the job runs")
    slurm_cluster.kill_node("n3")
    last = beat.read_text()
    time.sleep(0.4)
    assert beat.read_text() == last
    slurm_cluster.run("scancel", job)
    slurm_cluster.start_node("n3")


def test_an_unreachable_controller_is_an_error_within_bounded_time(slurm_cluster: SlurmCluster) -> None:
    with slurm_cluster.without_controller():
        began = time.monotonic()
        with pytest.raises(Unreachable, match="slurmctld"):
            query_jobs(["1", "2"])
        with pytest.raises(Unreachable, match="slurmctld"):
            find_by_comments(["token"])
        assert time.monotonic() - began < 600
    assert query_jobs(["1"]).complaints == ()


def test_a_crashed_slurmd_is_noticed_and_the_node_can_be_started(slurm_cluster: SlurmCluster) -> None:
    slurmd = Daemon("slurmd", slurm_cluster.folder / "pid/slurmd.n3.pid").pid()
    assert slurmd is not None and slurm_cluster.crashed_daemons() == []
    end_processes([slurmd], signal.SIGABRT)
    assert slurm_cluster.crashed_daemons() == ["slurmd of n3"]
    slurm_cluster.start_node("n3")
    assert slurm_cluster.crashed_daemons() == []


CONFTEST = """
import pytest
from tests.slurm import crashes
from tests.slurm.crashes import pytest_runtest_protocol, pytest_runtest_teardown

starts = []
crashes.crashed_daemons = lambda: {crashed} if len(starts) == 1 else []

@pytest.fixture(scope="module")
def start():
    starts.append("a cluster starts")
    return len(starts)
"""


@pytest.mark.parametrize(
    ("crashed", "condition", "outcome", "is_repeated"),
    [
        (["slurmctld"], "start == 2", "1 passed", True),
        (["slurmctld"], "False", "1 failed", True),
        (["slurmctld"], "start == 1", "1 passed", False),
        ([], "start == 2", "1 failed", False),
    ],
)
def test_only_a_failure_beside_a_crash_is_tried_again_with_a_new_cluster(
    crashed: list[str], condition: str, outcome: str, is_repeated: bool, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.replace("{crashed}", str(crashed)))
    (tmp_path / "test_it.py").write_text(f"def test(start):\n    assert {condition}\n")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert outcome in done.stdout.splitlines()[-1], done.stdout
    assert ("It runs again" in done.stdout) == is_repeated


def test_tests_of_other_folders_run_in_the_same_process(tmp_path: Path) -> None:
    for name in ("slurm", "unit"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text("def test():\n    pass\n")
    (tmp_path / "slurm" / "conftest.py").write_text(CONFTEST.replace("{crashed}", "[]"))
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout.splitlines()[-1], done.stdout
