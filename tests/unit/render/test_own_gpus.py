"""On a machine without a scheduler a job sees the GPUs that it asks for, of those that the shell lets it use."""

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
    """A job of so many GPUs on a machine with eight."""
    cluster = local(folder, text, EIGHT)
    plan = plans(cluster, "quad")[0]
    return cluster, with_arguments(
        replace(plan, resources=replace(plan.resources, tasks_per_node=gpus, gpus_per_node=gpus))
    )


def seen(stage: Stage, gpus: int, **shell: str) -> str:
    """CUDA_VISIBLE_DEVICES of the program."""
    cluster, plan = job(stage.base, gpus)
    stage.run_job(plan, cluster, shell)
    assert f"--nproc-per-node={gpus}" in stage.recorded()
    return stage.environment()["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(("gpus", "expected"), [(1, "0"), (2, "0,1"), (8, "0,1,2,3,4,5,6,7")])
def test_where_nothing_is_set_a_job_sees_the_first_ones_and_its_script_says_which(
    gpus: int, expected: str, stage: Stage
) -> None:
    assert seen(stage, gpus) == expected
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
def test_of_those_that_the_shell_names_by_number_or_by_uuid_a_job_sees_the_first(
    gpus: int, named: str, expected: str, stage: Stage
) -> None:
    assert seen(stage, gpus, CUDA_VISIBLE_DEVICES=named) == expected


@pytest.mark.parametrize(("named", "gpus"), [("0", 2), ("GPU-9", 2), ("", 1), ("2,3,5", 4)])
def test_a_script_started_where_there_are_fewer_starts_nothing_and_says_so_in_a_line(
    named: str, gpus: int, stage: Stage
) -> None:
    cluster, plan = job(stage.base, gpus, LOCAL + "sample_gpus_every_s: 1\n")
    executable(stage.base / "bin" / "nvidia-smi", '#!/bin/sh\ntouch "$RECORDS/sampled"\n')
    answer = stage.run(stage.render(plan, cluster), {"CUDA_VISIBLE_DEVICES": named})
    needs = f"it needs {gpus} GPU{'' if gpus == 1 else 's'}, and CUDA_VISIBLE_DEVICES names no more than '{named}'"
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == f"repro: not started: {needs}\n"
    assert not (stage.base / "argv").exists() and not (stage.base / "sampled").exists()
    assert stage.end_record()["exit_code"] == "2"


def test_the_sites_own_word_is_narrowed_as_the_shells_is(stage: Stage) -> None:
    cluster, plan = job(stage.base, 2)
    cluster = with_fields(cluster, environment={"CUDA_VISIBLE_DEVICES": "7,6,5", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    stage.run_job(plan, cluster, {"CUDA_VISIBLE_DEVICES": "0"})
    found = stage.environment()
    assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == ("7,6", "FASTEST_FIRST")


def test_numbers_mean_what_nvidia_smi_means_by_them_as_the_plan_read_them(stage: Stage) -> None:
    assert seen(stage, 1) == "0" and stage.environment()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_job_on_cpu_cores_sees_no_gpu_even_where_there_are_some(stage: Stage) -> None:
    cluster = local(stage.base, machine=EIGHT)
    plan = with_arguments(plans(cluster, "cpu")[0])
    stage.run_job(plan, cluster, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert stage.environment()["CUDA_VISIBLE_DEVICES"] == ""


def test_only_the_jobs_own_gpus_are_sampled(stage: Stage) -> None:
    cluster, plan = job(stage.base, 2, LOCAL + "sample_gpus_every_s: 1\n")
    executable(stage.base / "bin" / "nvidia-smi", '#!/bin/sh\nprintf "%s\\n" "$*" >"$RECORDS/sampled"\n')
    executable(stage.base / "bin" / "python", '#!/bin/sh\nuntil [ -s "$RECORDS/sampled" ]; do sleep 0.01; done\n')
    stage.run_job(plan, cluster, {"CUDA_VISIBLE_DEVICES": "GPU-9,GPU-5,GPU-1"})
    assert re.match(r"--id=GPU-9,GPU-5 --format=csv,nounits --loop=1 ", (stage.base / "sampled").read_text())


def test_a_sampler_that_has_ended_by_itself_is_no_fault_of_the_job(stage: Stage) -> None:
    cluster, plan = job(stage.base, 1, LOCAL + "sample_gpus_every_s: 1\n")
    executable(stage.base / "bin" / "nvidia-smi", '#!/bin/sh\ntouch "$RECORDS/sampled"\nexit 6\n')
    executable(
        stage.base / "bin" / "python", '#!/bin/sh\nuntil [ -e "$RECORDS/sampled" ]; do sleep 0.01; done; sleep 0.2\n'
    )
    stage.run_job(plan, cluster)
    assert stage.end_record()["exit_code"] == "0"
