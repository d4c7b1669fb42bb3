"""Fingerprint of a node in the folder of each job: hardware, driver and software, without numbers of a device."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.unit.render.stand_ins import KINDS, Stage, cluster_and_plan, executable, with_arguments
from tests.unit.render.test_own_gpus import job
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

# Lines of driver 580. The identifying numbers are made up.
NVIDIA_SMI = """\
#!/bin/bash
if [ "$1" = topo ]; then
  echo "GPU0	 X 	NV18	0-31"
  exit
fi
cat <<END
Driver Version                                         : 580.159.04
CUDA Version                                           : 13.0
GPU 00000000:00:06.0
    Product Name                                       : NVIDIA H100 80GB HBM3
    Serial Number                                      : secret-1
    GPU UUID                                           : GPU-00000000-1111-2222-3333-444444444444-secret-2
    GPU PDI                                            : secret-3
    Platform Info
        Chassis Serial Number                          : secret-4
        Host ID                                        : secret-5
        GPU Fabric GUID                                : secret-6
    MIG 1g.10gb                   Device  0: (MIG-00000000-1111-2222-3333-444444444444, secret-7)
    Power Limit                                        : 700.00 W
        Process ID                                     : secret-8
            Name                                       : /home/secret-9/train
    Fabric
        ClusterUUID                                    : secret-10
END
"""
END = "GPU0\t X \tNV18\t0-31\n"


def stage_of(tmp_path: Path, nvidia_smi: str = NVIDIA_SMI) -> Stage:
    stage = Stage.at(tmp_path)
    executable(tmp_path / "bin" / "nvidia-smi", nvidia_smi)
    return stage


def fingerprint(stage: Stage) -> str:
    return "".join(path.read_text() for path in stage.job.glob("fingerprint.*.txt"))


def waits_for(text: str) -> str:
    """Return a program that ends once the fingerprint contains this text."""
    until = f'until grep -qs "{text}" "$RECORDS"/job/fingerprint.*; do sleep 0.01; done'
    return f'#!/bin/sh\n[ "$1" != -c ] || exit\n{until}\n'


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_job_writes_the_fingerprint_of_each_node(kind: str, tmp_path: Path) -> None:
    stage = stage_of(tmp_path)
    cluster, plan = job(tmp_path, 2) if kind == "local" else cluster_and_plan(kind)
    executable(tmp_path / "bin" / "python", waits_for("NV18"))
    stage.run_job(with_arguments(plan), cluster, {"TASKS": "0:0:0"})
    wait_until(lambda: fingerprint(stage).endswith(END))
    text = fingerprint(stage)
    assert f"$ uname -a\n{' '.join(os.uname())}"[:30] in text
    for line in ("$ lscpu", "$ python -c", "580.159.04", ": 13.0", "NVIDIA H100 80GB HBM3", "700.00 W", END):
        assert line in text
    assert "secret" not in text


def test_only_the_first_task_of_a_node_writes_a_fingerprint(tmp_path: Path) -> None:
    stage = stage_of(tmp_path)
    cluster, plan = cluster_and_plan("slurm")
    executable(tmp_path / "bin" / "python", '#!/bin/sh\ntouch "$RECORDS/job/$RANK"\n')
    stage.run_job(with_arguments(plan), cluster, {"TASKS": "5:1:0"})
    assert (stage.job / "5").exists() and fingerprint(stage) == ""


@pytest.mark.parametrize("command", ["lscpu", "nvidia-smi", "python"])
def test_a_command_that_fails_ends_neither_the_job_nor_the_fingerprint(command: str, tmp_path: Path) -> None:
    stage = stage_of(tmp_path)
    executable(tmp_path / "bin" / "python", waits_for("nvidia-smi topo"))
    if command != "python":
        executable(tmp_path / "bin" / command, f"#!/bin/sh\necho {command}: broken >&2\nexit 9\n")
    cluster, plan = job(tmp_path, 1)
    stage.run_job(plan, cluster)
    assert command == "python" or f"{command}: broken" in fingerprint(stage)


def test_a_command_that_hangs_delays_no_job_and_ends_with_it(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, '#!/bin/sh\necho $$ >>"$RECORDS/hanging"\nexec sleep 900\n')
    executable(tmp_path / "bin" / "python", waits_for("nvidia-smi -q"))
    cluster, plan = job(tmp_path, 1)
    start = time.monotonic()
    stage.run_job(plan, cluster)
    assert time.monotonic() - start < 10, "the job waited for the time limit of the command"
    hanging = tmp_path / "hanging"
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in _pids(hanging)))


def test_a_command_that_hangs_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, '#!/bin/sh\n[ "$1" != -q ] || exec sleep 900\necho "$1"\n')
    executable(tmp_path / "bin" / "python", waits_for("^topo"))
    cluster, plan = job(tmp_path, 1)
    script = stage.render(plan, cluster)
    limit = "--kill-after=1 10 "
    assert limit in script
    assert stage.run(script.replace(limit, "--kill-after=1 0.1 ")).returncode == 0


def test_a_folder_that_a_node_cannot_write_leaves_no_line_in_the_log(tmp_path: Path) -> None:
    stage = stage_of(tmp_path)
    cluster, plan = cluster_and_plan("mpirun")
    script = stage.render(with_arguments(plan), cluster).replace('"$3/fingerprint', '"/nowhere/fingerprint')
    assert stage.run(script, {"TASKS": "0:0"}).returncode == 0
    assert (stage.job / "log.txt").read_text() == ""


def _pids(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []
