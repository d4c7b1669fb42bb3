"""Hardware: data sheet values of GPUs, and the GPUs or CPU cores of this machine. Does not import torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.config.model import Hardware
from orchestrator.slurm.nodes import normalized


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Nominal values from the vendor's data sheet.

    `peak_tflops` is the dense peak by dtype (data sheets often print the doubled, sparse number). Bandwidths are in
    GB/s, links per direction; `host_gb_s` is PCI Express x16 of generation 3, 4 or 5. Each of the `multiprocessors`
    computes a tile of a product at a time; None: predictions do without waves of tiles.
    """

    peak_tflops: Mapping[str, float]
    memory_gb_s: float
    nvlink_gb_s: float
    host_gb_s: float
    multiprocessors: int | None = None


_A100: Mapping[str, float] = {"bf16": 312, "fp16": 312, "fp32": 19.5}
_GH100: Mapping[str, float] = {"bf16": 989, "fp16": 989, "fp32": 67}

GPUS: Mapping[str, GpuFacts] = {
    "GH200": GpuFacts(_GH100, 4800, 450, 64),
    "H200": GpuFacts(_GH100, 4800, 450, 64),
    "H100 PCIe": GpuFacts({"bf16": 756, "fp16": 756, "fp32": 51}, 3350, 450, 64),
    "H100": GpuFacts(_GH100, 3350, 450, 64),
    "H800": GpuFacts({}, 3350, 200, 64),
    "A100": GpuFacts(_A100, 2039, 300, 32, 108),
    "A800": GpuFacts(_A100, 2039, 200, 32, 108),
    "V100": GpuFacts({"fp16": 125, "fp32": 15.7}, 900, 150, 16, 80),
}
"""Facts by a part of the GPU's name; the first key that the name contains applies. The bandwidths of GH200 and of
H100 PCIe are those of H200 and H100."""


def gpu_facts(gpu: str | None) -> GpuFacts | None:
    """Return the facts of a GPU by the name that its driver uses; None if the table has no such GPU."""
    return next((facts for part, facts in GPUS.items() if part in (gpu or "")), None)


_MODEL = re.compile(r"\b(g?[bh][123]00|g?h200|h20|h800|[av]100|a800|a30|a40|a10|a16|p100|l4|l40s?|t4|mi\d{3}[ax]?)\b")


def gpu_models(text: str) -> set[str]:
    """Return the data centre GPUs that a text names, in small letters: `{"a100"}` for `nvidia_a100-sxm4-80gb`."""
    return set(_MODEL.findall(normalized(text)))


def named_gpu(text: str) -> str | None:
    """Return the GPU in `GPUS` that a GRES type or a feature names; None if it names none with peaks."""
    names = (name for name, facts in GPUS.items() if facts.peak_tflops)
    return next((name for name in names if re.search(rf"\b{normalized(name)}\b", normalized(text))), None)


@dataclass(frozen=True, slots=True)
class Machine:
    """CPU cores and visible GPUs. `gpu_memory_gb` is that of the smallest GPU, in units of 10^9 bytes.

    `lack` is the reason for missing GPUs: the error of nvidia-smi, or the number of GPUs that CUDA_VISIBLE_DEVICES
    hides; None if there is no reason.
    """

    cpus: int
    gpus: int = 0
    gpu: str | None = None
    gpu_memory_gb: int | None = None
    lack: str | None = field(default=None, compare=False)

    @property
    def processes(self) -> int:
        """Number of processes that may run on the CPU cores: at least four, even if they are slow."""
        return max(4, self.cpus)

    def hardware(self) -> Hardware:
        """Return this machine as a cluster of one node. Without GPUs, CPU processes take their place."""
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
    """A process on a GPU: the MiB that it uses (None if unknown) and the name of its program."""

    pid: int
    used_mib: int | None
    name: str


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory in use on a GPU, by its nvidia-smi index, with its processes.

    nvidia-smi may not list processes outside this container.
    """

    index: int
    used_mib: int
    total_mib: int
    processes: tuple[GpuProcess, ...] = ()


def this_machine() -> Machine:
    """Return this machine. It has no GPUs if nvidia-smi is missing or fails."""
    cpus = len(os.sched_getaffinity(0))
    if shutil.which("nvidia-smi") is None:
        return Machine(cpus)
    text, error = _query("--query-gpu=index,uuid,name,memory.total")
    if error is not None:
        return Machine(cpus, lack=error)
    return parse_nvidia_smi(text, cpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_nvidia_smi(text: str, cpus: int, visible: str | None = None) -> Machine:
    """Parse `index, uuid, name, memory in MiB` rows of GPUs. `visible` is the value of CUDA_VISIBLE_DEVICES."""
    gpus = re.findall(r"^ *([0-9]+), *([^,\s]+), *([^,\r\n]*[^,\s]), *([0-9]{1,9}) *\r?$", text, re.MULTILINE)
    rows = _visible(gpus, visible)
    machine = Machine(cpus)
    if rows:
        smallest = min(int(memory) * 2**20 // 10**9 for *_, memory in rows)
        machine = Machine(cpus, gpus=len(rows), gpu=rows[0][2], gpu_memory_gb=max(1, smallest))
    if len(rows) < len(gpus):
        lack = f"CUDA_VISIBLE_DEVICES={visible} hides {len(gpus) - len(rows)} of {len(gpus)}"
        return replace(machine, lack=lack)
    return machine


def gpu_memory() -> list[GpuMemory]:
    """Return the memory in use on each visible GPU, in the order of CUDA_VISIBLE_DEVICES; [] if nvidia-smi fails."""
    gpus, error = _query("--query-gpu=index,uuid,memory.used,memory.total")
    if error is not None:
        return []
    processes, _ = _query("--query-compute-apps=gpu_uuid,pid,used_memory,process_name")
    return parse_gpu_memory(gpus, processes, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_gpu_memory(gpus: str, processes: str, visible: str | None = None) -> list[GpuMemory]:
    """Parse `index, uuid, used, total` rows of GPUs and `uuid, pid, used, program` rows of processes.

    Sizes are in MiB. The size of a process may be `[N/A]` or similar.
    """
    of_gpu: dict[str, list[GpuProcess]] = {}
    for uuid, pid, used, name in re.findall(
        r"^ *([^,\s]+), *([0-9]{1,9}), *([^,\r\n]*), *([^\r\n]*?) *\r?$", processes, re.MULTILINE
    ):
        used_mib = int(used) if re.fullmatch(r"[0-9]{1,9}", used) else None
        of_gpu.setdefault(uuid, []).append(GpuProcess(int(pid), used_mib, name.rpartition("/")[2]))
    rows = re.findall(r"^ *([0-9]{1,9}), *([^,\s]+), *([0-9]{1,9}), *([0-9]{1,9}) *\r?$", gpus, re.MULTILINE)
    return [
        GpuMemory(int(index), int(used), int(total), tuple(of_gpu.get(uuid, ())))
        for index, uuid, used, total in _visible(rows, visible)
    ]


def _visible(rows: Sequence[tuple[str, ...]], visible: str | None) -> list[tuple[str, ...]]:
    """Return the rows that CUDA_VISIBLE_DEVICES selects by index or uuid, in its order."""
    if visible is None:
        return list(rows)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return list(dict.fromkeys(row for name in names for row in rows if name == row[0] or row[1].startswith(name)))


def _query(fields: str) -> tuple[str, str | None]:
    """Return the output of nvidia-smi and None, or "" and the error in one line."""
    command = ["nvidia-smi", fields, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return "", "nvidia-smi did not answer within 30 s"
    except OSError as error:
        return "", f"nvidia-smi: {error.strerror or error}"
    if answer.returncode != 0:
        message = b" ".join((answer.stdout + b"\n" + answer.stderr).split()).decode(errors="replace")
        return "", f"nvidia-smi: {message[:200]}" if message else f"nvidia-smi: exit code {answer.returncode}"
    return answer.stdout.decode(errors="replace"), None
