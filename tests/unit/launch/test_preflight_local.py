"""Clusters without Slurm, checked from the machine that starts their jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clusters.check import Finding
from orchestrator.clusters.machine import Machine
from orchestrator.clusters.resolve import Cluster
from orchestrator.launch.cluster_check import check_this_machine
from tests.unit.clusters.sites import cluster_of

LOCAL = "about: this machine\nscheduler: local\n"


def mpirun_cluster(folder: Path, hosts: str | None) -> Cluster:
    if hosts is not None:
        (folder / "hosts").write_text(hosts)
    text = (
        "about: two machines\nscheduler: mpirun\n"
        "hardware: {nodes: 2, gpus_per_node: 8, gpu: H800, gpu_memory_gb: 80, peak_tflops: {bf16: 989.4}}\n"
        f"mpirun: {{hostfile: {folder}/hosts, time_limit: 1:00:00}}\n"
    )
    return cluster_of(folder, text)


def told(found: list[Finding]) -> list[tuple[str, str, str | None]]:
    return [(one.result, f"{one.check}: {one.found}", one.hint) for one in found]


@pytest.fixture
def with_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")


@pytest.mark.usefixtures("with_mpirun")
def test_a_machine_with_mpirun_is_right(tmp_path: Path) -> None:
    found = check_this_machine(mpirun_cluster(tmp_path, "n1\nn2\n"))
    assert [one.result for one in found] == ["ok"]


def test_a_machine_without_mpirun_is_the_wrong_machine_and_a_missing_hostfile_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert told(check_this_machine(mpirun_cluster(tmp_path, None))) == [
        ("wrong", "mpirun: not on this machine", "run this on the machine from which jobs are started")
    ]


@pytest.mark.parametrize(
    ("absent", "python", "result"),
    [((), "", "ok"), (("torch",), "", "wrong"), (("torch",), "programs: {pretrain: {python: /x/python}}\n", "ok")],
)
def test_this_machine_needs_torch_unless_jobs_have_a_python_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: tuple[str, ...], python: str, result: str
) -> None:
    monkeypatch.setattr("orchestrator.megatron.exact.absent_packages", lambda: absent)
    machine, training = check_this_machine(replace(cluster_of(tmp_path, LOCAL + python), machine=Machine(cpus=8)))
    assert machine.found == "no GPUs; processes run on CPU cores"
    assert training.result == result and (training.hint is None) == (result == "ok")
