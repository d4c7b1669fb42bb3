"""What this machine has: its GPUs as nvidia-smi lists them, else its CPU cores. Never imports torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.documents.hardware import HardwareFields

# Dense peaks in TFLOP/s from the vendor's data sheets (they often print the doubled, sparse number). The first name
# that is part of what the driver calls the GPU decides.
PEAKS: Mapping[str, Mapping[str, float]] = {
    "GH200": {"bf16": 989, "fp16": 989, "fp32": 67},
    "H200": {"bf16": 989, "fp16": 989, "fp32": 67},
    "H100 PCIe": {"bf16": 756, "fp16": 756, "fp32": 51},
    "H100": {"bf16": 989, "fp16": 989, "fp32": 67},
    "A100": {"bf16": 312, "fp16": 312, "fp32": 19.5},
    "A800": {"bf16": 312, "fp16": 312, "fp32": 19.5},
    "V100": {"fp16": 125, "fp32": 15.7},
}


@dataclass(frozen=True, slots=True)
class Machine:
    """`gpu_memory_gb` is the smallest GPU's, in units of 10^9 bytes."""

    cpus: int
    gpus: int = 0
    gpu: str | None = None
    gpu_memory_gb: int | None = None

    @property
    def processes(self) -> int:
        """Places for processes on CPU cores; four even on a small machine, which then takes its time."""
        return max(4, self.cpus)

    def hardware(self) -> HardwareFields:
        """This machine as a cluster of one node; without GPUs its places are CPU processes."""
        peaks = next((peaks for name, peaks in PEAKS.items() if self.gpu and name in self.gpu), {})
        return HardwareFields.model_validate(
            {
                "nodes": 1,
                "gpus_per_node": self.gpus or self.processes,
                "gpu": self.gpu,
                "gpu_memory_gb": self.gpu_memory_gb,
                "peak_tflops": dict(peaks),
            }
        )


def this_machine() -> Machine:
    """Ask nvidia-smi; a machine without it, or on which it fails, has no GPUs."""
    cpus = len(os.sched_getaffinity(0))
    if shutil.which("nvidia-smi") is None:
        return Machine(cpus)
    query = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Machine(cpus)
    if answer.returncode != 0:
        return Machine(cpus)
    return parse_nvidia_smi(answer.stdout.decode(errors="replace"), cpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_nvidia_smi(text: str, cpus: int, visible: str | None = None) -> Machine:
    """One `index, uuid, name, memory in MiB` row per GPU, of which CUDA_VISIBLE_DEVICES lets jobs see `visible`."""
    rows = re.findall(r"^ *([0-9]+), *([^,\s]+), *([^,\r\n]*[^,\s]), *([0-9]{1,9}) *\r?$", text, re.MULTILINE)
    if visible is not None:
        wanted = [word.strip() for word in visible.split(",") if word.strip()]
        rows = [row for row in rows if any(word == row[0] or row[1].startswith(word) for word in wanted)]
    if not rows:
        return Machine(cpus)
    smallest = min(int(memory) * 2**20 // 10**9 for *_, memory in rows)
    return Machine(cpus, gpus=len(rows), gpu=rows[0][2], gpu_memory_gb=max(1, smallest))
