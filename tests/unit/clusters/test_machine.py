"""What this machine has, as nvidia-smi says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.machine import Machine, parse_nvidia_smi, this_machine
from tests.unit.clusters.sites import cluster_of

LOCAL = "about: this machine\nscheduler: local\n"
THREE = "0, GPU-a1, NVIDIA H200, 143771\n1, GPU-b2, NVIDIA H200, 143771\n2, GPU-c3, NVIDIA H200, 81559\n"


def test_gpus_are_counted_and_the_smallest_memory_decides() -> None:
    assert parse_nvidia_smi(THREE, 16) == Machine(16, gpus=3, gpu="NVIDIA H200", gpu_memory_gb=85)


@pytest.mark.parametrize(
    ("visible", "gpus", "memory_gb"),
    [("0,1", 2, 150), (" 2 ", 1, 85), ("GPU-a, GPU-c", 2, 85), ("", 0, None), ("-1", 0, None), ("NoDevFiles", 0, None)],
)
def test_gpus_that_jobs_may_not_see_are_not_there(visible: str, gpus: int, memory_gb: int | None) -> None:
    machine = parse_nvidia_smi(THREE, 16, visible)
    assert (machine.gpus, machine.gpu_memory_gb) == (gpus, memory_gb)


@pytest.mark.parametrize(
    "text", ["", "\n", "No devices were found\n", "0, GPU-a, NVIDIA X, [N/A]\n", "NVIDIA-SMI has failed, because\n"]
)
def test_an_answer_without_gpus_is_a_machine_without_gpus(text: str) -> None:
    assert parse_nvidia_smi(text, 2) == Machine(2)


@given(st.text() | st.text(alphabet='NVIDIA ,\n\r0123456789"[]/', max_size=60))
def test_no_answer_of_nvidia_smi_crashes(text: str) -> None:
    parse_nvidia_smi(text, 2).hardware()


def test_a_machine_without_gpus_has_places_for_four_processes_or_one_for_each_core() -> None:
    assert Machine(2).hardware().gpus_per_node == 4
    assert Machine(16).hardware().gpus_per_node == 16
    assert Machine(2).hardware().peak_tflops == {}


@pytest.mark.parametrize(
    ("gpu", "bf16"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H200", 989),
        ("NVIDIA GH200 480GB", 989),
        ("Tesla V100-SXM2-32GB", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_the_peak_is_the_data_sheets_of_the_gpu_that_is_there(gpu: str, bf16: float | None) -> None:
    assert Machine(8, gpus=1, gpu=gpu, gpu_memory_gb=80).hardware().peak("bf16") == bf16


def fake_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_the_real_query_is_read_and_its_failure_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    answer = 'echo "0, GPU-a, NVIDIA A100, 81920"'
    fake_nvidia_smi(tmp_path, monkeypatch, f'test "$1" = --query-gpu=index,uuid,name,memory.total && {answer}')
    assert (this_machine().gpus, this_machine().gpu_memory_gb) == (1, 85)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert this_machine().gpus == 0
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    fake_nvidia_smi(tmp_path, monkeypatch, f"{answer}; exit 9")
    assert this_machine().gpus == 0


def test_the_local_profile_takes_the_machine_as_its_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, "exit 1")
    cluster = cluster_of(tmp_path, LOCAL, name="local")
    assert cluster.machine is not None and cluster.machine.gpus == 0
    assert (cluster.hardware.nodes, cluster.hardware.gpu) == (1, None)
