"""A GPU that somebody else has is said before jobs go there, and only then."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.clusters.machine import GpuMemory, GpuProcess
from orchestrator.launch.preflight import LEAST_MIB, gpus_in_use
from tests.stand_in_site import Site
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

NOBODY = 2**22 + 1
"""A process id that no process has."""
H200 = "NVIDIA H200, 143771"
TWO = f'case "$1" in --query-gpu=index,uuid,name*) echo "0, GPU-a1, {H200}"; echo "1, GPU-b2, {H200}" ;;'


def test_a_gpu_in_use_is_named_with_how_much_and_by_whom() -> None:
    by = (GpuProcess(NOBODY, 136_500, "python3"), GpuProcess(NOBODY + 1, None, "[Not Found]"))
    (said,) = gpus_in_use([GpuMemory(0, 4, 143_771), GpuMemory(1, 137_000, 143_771, by)])
    assert said.startswith(
        f"GPU 1 is in use, 133.8 of 140.4 GiB: process {NOBODY} (python3, 133.3 GiB), "
        f"process {NOBODY + 1} ([Not Found]); "
    )


def test_where_no_process_is_told_the_memory_is_said_all_the_same() -> None:
    (said,) = gpus_in_use([GpuMemory(0, LEAST_MIB, 143_771)])
    assert "1.0 of 140.4 GiB: nvidia-smi does not list the process;" in said


@pytest.mark.parametrize("used", [0, 4, LEAST_MIB - 1])
def test_what_a_driver_or_a_display_keeps_is_not_said(used: int) -> None:
    assert list(gpus_in_use([GpuMemory(0, used, 143_771, (GpuProcess(NOBODY, used, "Xorg"),))])) == []


def test_a_job_of_ours_which_the_new_ones_wait_for_is_not_said_and_another_beside_it_is() -> None:
    environment = {**os.environ, "REPRO_LOCAL_ID": "7_0"}
    with subprocess.Popen(["sleep", "300"], env=environment) as ours:
        wait_until(lambda: b"REPRO_LOCAL_ID" in Path(f"/proc/{ours.pid}/environ").read_bytes())
        own, other = GpuProcess(ours.pid, 90_000, "python3"), GpuProcess(NOBODY, 40_000, "python3")
        assert list(gpus_in_use([GpuMemory(0, 90_500, 143_771, (own,))])) == []
        (said,) = gpus_in_use([GpuMemory(0, 130_500, 143_771, (own, other))])
        assert str(NOBODY) in said and str(ours.pid) not in said.replace(str(NOBODY), "")
        ours.kill()


def fake(site: Site, script: str) -> str:
    """A PATH that begins with an nvidia-smi of ours."""
    program = site.folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Another process uses a GPU's memory at submission",
    promise="A warning with its size and owner. The job is submitted, because the memory may be free by then.",
    count=0,
)
@pytest.mark.parametrize("scale", ["pair", "cpu"])
def test_submit_warns_of_a_gpu_that_its_jobs_would_take_and_sends_them(site: Site, scale: str) -> None:
    site.variables["PATH"] = fake(
        site,
        f"""{TWO}
--query-gpu=*) echo "0, GPU-a1, 4, 143771"; echo "1, GPU-b2, 137000, 143771" ;;
*) echo "GPU-b2, 4194305, 136500, python3" ;;
esac""",
    )
    words = ["submit", "figure-13", "--cluster", "here", "--scale", scale, "--where", "pp=1", "--where", "gbs=4"]
    done = site.repro(*words[: 8 if scale == "pair" else 10])
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stderr.splitlines() if "GPU 1 is in use" in line]
    assert len(warned) == (1 if scale == "pair" else 0)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Too few GPUs; nvidia-smi fails; CUDA_VISIBLE_DEVICES hides GPUs",
    promise="Refused before a job starts, with the available and the required number and nvidia-smi's message.",
)
@pytest.mark.parametrize(
    ("script", "said"),
    [
        (f"{TWO} esac", "needs 4 GPUs, this machine has 2"),
        (
            "echo No devices were found; exit 6",
            "4 GPUs, this machine has none (nvidia-smi: No devices were found)",
        ),
        (
            "echo NVIDIA-SMI has failed; exit 9",
            "4 GPUs, this machine has none (nvidia-smi: NVIDIA-SMI has failed)",
        ),
    ],
)
def test_too_few_gpus_are_refused_before_anything_is_started_with_what_there_is(
    site: Site, script: str, said: str
) -> None:
    site.variables["PATH"] = fake(site, script)
    done = site.repro("submit", "figure-13", "--cluster", "here", "--scale", "quad")
    assert done.returncode == 2 and said in done.stderr
    assert not (site.folder / "runs").exists() and not (site.folder / "results.db").exists()
