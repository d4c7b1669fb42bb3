"""GPUs that a job on a machine without a scheduler uses: as many as it needs, of those that the shell allows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clusters.machine import Machine
from orchestrator.clusters.resolve import Cluster
from orchestrator.planning.plan import Plan
from tests.unit.render.plans import LOCAL, local, plans
from tests.unit.render.stand_ins import Stage, executable, with_arguments, with_fields

EIGHT = Machine(cpus=64, gpus=8, gpu="NVIDIA H200", gpu_memory_gb=150)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage.at(tmp_path)


def job(folder: Path, gpus: int, text: str = LOCAL) -> tuple[Cluster, Plan]:
    """Return a job that needs this number of GPUs, on a machine with eight."""
    cluster = local(folder, text, EIGHT)
    plan = plans(cluster, "quad")[0]
    return cluster, with_arguments(
        replace(plan, resources=replace(plan.resources, tasks_per_node=gpus, gpus_per_node=gpus))
    )


def visible_gpus(stage: Stage, gpus: int, **shell: str) -> str:
    """Run a job and return CUDA_VISIBLE_DEVICES of its program."""
    cluster, plan = job(stage.base, gpus)
    stage.run_job(plan, cluster, shell)
    assert f"--nproc-per-node={gpus}" in stage.recorded()
    return stage.environment()["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(("gpus", "expected"), [(1, "0"), (2, "0,1"), (8, "0,1,2,3,4,5,6,7")])
def test_job_uses_the_first_gpus_if_the_shell_names_none(gpus: int, expected: str, stage: Stage) -> None:
    assert visible_gpus(stage, gpus) == expected
    text = (stage.base / "job.sh").read_text()
    assert "${CUDA_VISIBLE_DEVICES-" + expected + "}" in text
    assert f"# Use {gpus} GPU{'' if gpus == 1 else 's'}: the first " in text


@pytest.mark.parametrize(
    ("gpus", "named", "expected"),
    [
        (1, "2,3", "2"),
        (2, "2,3", "2,3"),
        (2, "3, 1 ,0", "3,1"),
        (1, "GPU-5f1c0a5e-0000-1111-2222-333344445555,GPU-9", "GPU-5f1c0a5e-0000-1111-2222-333344445555"),
        (2, "GPU-9,GPU-5,GPU-1", "GPU-9,GPU-5"),
        (1, "MIG-41a2", "MIG-41a2"),
    ],
)
def test_job_uses_the_first_gpus_that_the_shell_names(gpus: int, named: str, expected: str, stage: Stage) -> None:
    assert visible_gpus(stage, gpus, CUDA_VISIBLE_DEVICES=named) == expected


@pytest.mark.parametrize(("named", "gpus"), [("0", 2), ("GPU-9", 2), ("", 1), ("2,3,5", 4)])
def test_script_with_too_few_gpus_starts_nothing_and_prints_the_reason(named: str, gpus: int, stage: Stage) -> None:
    cluster, plan = job(stage.base, gpus, LOCAL + "sample_gpus_every_s: 1\n")
    executable(stage.base / "bin" / "nvidia-smi", '#!/bin/sh\ntouch "$RECORDS/sampled"\n')
    answer = stage.run(stage.render(plan, cluster), {"CUDA_VISIBLE_DEVICES": named})
    needs = f"it needs {gpus} GPU{'' if gpus == 1 else 's'}, and CUDA_VISIBLE_DEVICES names no more than '{named}'"
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == f"repro: not started: {needs}\n"
    assert not (stage.base / "argv").exists() and not (stage.base / "sampled").exists()
    assert stage.end_record()["exit_code"] == "2"


def test_job_uses_the_first_gpus_that_the_profile_names(stage: Stage) -> None:
    cluster, plan = job(stage.base, 2)
    cluster = with_fields(cluster, environment={"CUDA_VISIBLE_DEVICES": "7,6,5", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    stage.run_job(plan, cluster, {"CUDA_VISIBLE_DEVICES": "0"})
    environment = stage.environment()
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["CUDA_DEVICE_ORDER"]) == ("7,6", "FASTEST_FIRST")


def test_gpu_numbers_are_those_of_nvidia_smi(stage: Stage) -> None:
    assert visible_gpus(stage, 1) == "0" and stage.environment()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_job_on_cpu_cores_uses_no_gpu(stage: Stage) -> None:
    cluster = local(stage.base, machine=EIGHT)
    plan = with_arguments(plans(cluster, "cpu")[0])
    stage.run_job(plan, cluster, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert stage.environment()["CUDA_VISIBLE_DEVICES"] == ""


def test_only_gpus_of_the_job_are_sampled(stage: Stage) -> None:
    cluster, plan = job(stage.base, 2, LOCAL + "sample_gpus_every_s: 1\n")
    smi = '#!/bin/sh\n[ "$1" = -q ] || [ "$1" = topo ] || printf "%s\\n" "$*" >"$RECORDS/sampled"\n'
    executable(stage.base / "bin" / "nvidia-smi", smi)
    executable(stage.base / "bin" / "python", '#!/bin/sh\nuntil [ -s "$RECORDS/sampled" ]; do sleep 0.01; done\n')
    stage.run_job(plan, cluster, {"CUDA_VISIBLE_DEVICES": "GPU-9,GPU-5,GPU-1"})
    assert re.match(r"--id=GPU-9,GPU-5 --format=csv,nounits --loop=1 ", (stage.base / "sampled").read_text())


def test_sampler_that_ends_early_does_not_fail_the_job(stage: Stage) -> None:
    cluster, plan = job(stage.base, 1, LOCAL + "sample_gpus_every_s: 1\n")
    executable(stage.base / "bin" / "nvidia-smi", '#!/bin/sh\necho $$ >"$RECORDS/sampler"\nexit 6\n')
    until_it_ends = 'while kill -0 "$(cat "$RECORDS/sampler")" 2>/dev/null; do sleep 0.01; done'
    program = f'#!/bin/sh\nuntil [ -s "$RECORDS/sampler" ]; do sleep 0.01; done\n{until_it_ends}\n'
    executable(stage.base / "bin" / "python", program)
    stage.run_job(plan, cluster)
    assert stage.end_record()["exit_code"] == "0"
