"""What this machine has: its GPUs as nvidia-smi lists them, else its CPU cores; and who has their memory. Never imports
torch.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from orchestrator.config.model import Hardware
from orchestrator.megatron.hardware import gpu_facts


@dataclass(frozen=True, slots=True)
class Machine:
    """`gpu_memory_gb` is the smallest GPU's, in units of 10^9 bytes. `lack` is why there are no GPUs, or not all: what
    nvidia-smi said when it failed, or how many CUDA_VISIBLE_DEVICES hides; None where nothing says so.
    """

    cpus: int
    gpus: int = 0
    gpu: str | None = None
    gpu_memory_gb: int | None = None
    lack: str | None = field(default=None, compare=False)

    @property
    def processes(self) -> int:
        """Places for processes on CPU cores; four even on a small machine, which then takes its time."""
        return max(4, self.cpus)

    def hardware(self) -> Hardware:
        """This machine as a cluster of one node; without GPUs its places are CPU processes."""
        facts = gpu_facts(self.gpu)
        return Hardware.model_validate(
            {
                "nodes": 1,
                "gpus_per_node": self.gpus or self.processes,
                "gpu": self.gpu,
                "gpu_memory_gb": self.gpu_memory_gb,
                "peak_tflops": dict(facts.peak_tflops) if facts else {},
            }
        )


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that nvidia-smi names: MiB that it holds of one GPU (None where that is not told), and its program."""

    pid: int
    used_mib: int | None
    name: str


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """A GPU by nvidia-smi's number, how much of its memory is in use, and by whom as far as that is told: of what runs
    outside of this container there may be nothing.
    """

    index: int
    used_mib: int
    total_mib: int
    processes: tuple[GpuProcess, ...] = ()


def this_machine() -> Machine:
    """Ask nvidia-smi; a machine without it, or on which it fails, has no GPUs."""
    cpus = len(os.sched_getaffinity(0))
    if shutil.which("nvidia-smi") is None:
        return Machine(cpus)
    text, trouble = _ask("--query-gpu=index,uuid,name,memory.total")
    if trouble is not None:
        return Machine(cpus, lack=trouble)
    return parse_nvidia_smi(text, cpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_nvidia_smi(text: str, cpus: int, visible: str | None = None) -> Machine:
    """One `index, uuid, name, memory in MiB` row per GPU, of which CUDA_VISIBLE_DEVICES lets jobs see `visible`."""
    there = re.findall(r"^ *([0-9]+), *([^,\s]+), *([^,\r\n]*[^,\s]), *([0-9]{1,9}) *\r?$", text, re.MULTILINE)
    rows = _visible(there, visible)
    machine = Machine(cpus)
    if rows:
        smallest = min(int(memory) * 2**20 // 10**9 for *_, memory in rows)
        machine = Machine(cpus, gpus=len(rows), gpu=rows[0][2], gpu_memory_gb=max(1, smallest))
    if len(rows) < len(there):
        lack = f"CUDA_VISIBLE_DEVICES={visible} hides {len(there) - len(rows)} of {len(there)}"
        return replace(machine, lack=lack)
    return machine


def gpu_memory() -> list[GpuMemory]:
    """How much of each GPU's memory is in use now, in the order in which jobs here take them; nothing where nvidia-smi
    does not tell.
    """
    gpus, trouble = _ask("--query-gpu=index,uuid,memory.used,memory.total")
    if trouble is not None:
        return []
    processes, _ = _ask("--query-compute-apps=gpu_uuid,pid,used_memory,process_name")
    return parse_gpu_memory(gpus, processes, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_gpu_memory(gpus: str, processes: str, visible: str | None = None) -> list[GpuMemory]:
    """One `index, uuid, used, total` row per GPU, and one `uuid, pid, used, program` row per process and GPU; MiB, or
    `[N/A]` and the like.
    """
    of_gpu: dict[str, list[GpuProcess]] = {}
    for uuid, pid, used, name in re.findall(
        r"^ *([^,\s]+), *([0-9]{1,9}), *([^,\r\n]*), *([^\r\n]*?) *\r?$", processes, re.MULTILINE
    ):
        known = int(used) if re.fullmatch(r"[0-9]{1,9}", used) else None
        of_gpu.setdefault(uuid, []).append(GpuProcess(int(pid), known, name.rpartition("/")[2]))
    rows = re.findall(r"^ *([0-9]{1,9}), *([^,\s]+), *([0-9]{1,9}), *([0-9]{1,9}) *\r?$", gpus, re.MULTILINE)
    return [
        GpuMemory(int(index), int(used), int(total), tuple(of_gpu.get(uuid, ())))
        for index, uuid, used, total in _visible(rows, visible)
    ]


def _visible(rows: Sequence[tuple[str, ...]], visible: str | None) -> list[tuple[str, ...]]:
    """Of rows that begin with a GPU's number and id those that CUDA_VISIBLE_DEVICES names, in its order."""
    if visible is None:
        return list(rows)
    words = [word.strip() for word in visible.split(",") if word.strip()]
    found = [row for word in words for row in rows if word == row[0] or row[1].startswith(word)]
    return list(dict.fromkeys(found))


def _ask(query: str) -> tuple[str, str | None]:
    """nvidia-smi's answer, and in one line why there is none."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return "", "nvidia-smi gave no answer for 30 s"
    except OSError as error:
        return "", f"nvidia-smi: {error.strerror or error}"
    if answer.returncode != 0:
        said = b" ".join((answer.stdout + b"\n" + answer.stderr).split()).decode(errors="replace")
        return "", f"nvidia-smi: {said[:200]}" if said else f"nvidia-smi: exit code {answer.returncode}"
    return answer.stdout.decode(errors="replace"), None
