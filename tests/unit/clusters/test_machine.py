"""Hardware of this machine, from the output of nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.machine import (
    GpuMemory,
    GpuProcess,
    Machine,
    gpu_memory,
    parse_gpu_memory,
    parse_nvidia_smi,
    this_machine,
)
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
def test_the_peak_is_that_of_the_gpus_data_sheet(gpu: str, bf16: float | None) -> None:
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


def test_the_local_profile_has_the_hardware_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, "exit 1")
    cluster = cluster_of(tmp_path, LOCAL, name="local")
    assert cluster.machine is not None and cluster.machine.gpus == 0
    assert (cluster.hardware.nodes, cluster.hardware.gpu) == (1, None)


DRIVER = (  # nvidia-smi's own words (exit code 9)
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA"
    " driver is installed and running."
)
LOST = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"


@pytest.mark.parametrize(
    ("script", "lack"),
    [
        (f'echo "{DRIVER}"; exit 9', f"nvidia-smi: {DRIVER}"),
        (f'echo "{LOST}" >&2; exit 15', f"nvidia-smi: {LOST.replace('  ', ' ')}"),
        ("echo No devices were found; exit 6", "nvidia-smi: No devices were found"),
        ("exit 12", "nvidia-smi: exit code 12"),
        ("printf '\\377%0500d' 1; exit 1", "nvidia-smi: \ufffd" + "0" * 199),
    ],
)
def test_of_a_driver_that_fails_its_own_words_are_kept_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, lack: str
) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, script)
    assert (this_machine().gpus, this_machine().lack) == (0, lack)


def test_the_reason_for_hidden_gpus_is_reported() -> None:
    assert parse_nvidia_smi(THREE, 16).lack is None
    assert parse_nvidia_smi(THREE, 16, "0,1,2").lack is None
    assert parse_nvidia_smi(THREE, 16, "2").lack == "CUDA_VISIBLE_DEVICES=2 hides 2 of 3"
    assert parse_nvidia_smi(THREE, 16, "").lack == "CUDA_VISIBLE_DEVICES= hides 3 of 3"


IN_USE = "0, GPU-a1, 4, 143771\n1, GPU-b2, 137000, 143771\n2, GPU-c3, 700, 81559\n"
APPS = "GPU-b2, 1234, 136000, /opt/a, b/python3\nGPU-b2, 77, [N/A], [Not Found]\nGPU-c3, 5, 690, Xorg\n"


def test_processes_on_a_gpu_are_read_with_their_memory() -> None:
    both = (GpuProcess(1234, 136000, "python3"), GpuProcess(77, None, "[Not Found]"))
    first, second, third = parse_gpu_memory(IN_USE, APPS)
    assert (first, second) == (GpuMemory(0, 4, 143771), GpuMemory(1, 137000, 143771, both))
    assert third.processes == (GpuProcess(5, 690, "Xorg"),)
    assert [gpu.index for gpu in parse_gpu_memory(IN_USE, APPS, "2,0")] == [2, 0], "as jobs here take them"
    assert parse_gpu_memory("No devices were found\n", "") == []


@given(st.text() | st.text(alphabet="GPU-a ,\n\r0123456789[]/", max_size=80), st.text(max_size=40))
def test_no_answer_about_memory_crashes(text: str, visible: str) -> None:
    parse_gpu_memory(text, text, visible)


def test_without_memory_in_nvidia_smi_the_list_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvidia_smi(tmp_path, monkeypatch, "exit 9")
    assert gpu_memory() == []
    of_processes = 'case "$1" in --query-compute-apps*) exit 3 ;; *) echo "0, GPU-a1, 137000, 143771" ;; esac'
    fake_nvidia_smi(tmp_path, monkeypatch, of_processes)
    assert gpu_memory() == [GpuMemory(0, 137000, 143771)]
