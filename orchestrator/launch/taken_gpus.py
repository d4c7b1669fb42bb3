"""Who else is on this machine's GPUs when jobs are about to go there: said, and no more, as it may be over by then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.clusters.machine import GpuMemory, GpuProcess, gpu_memory
from orchestrator.clusters.resolve import Cluster
from orchestrator.planning.plan import Plan

LEAST_MIB = 1024
"""Less of a GPU in use is no news: drivers and displays keep some hundred MiB of their own."""

_MARK = b"REPRO_LOCAL_ID="
"""What the queue of this machine starts each job with: jobs of ours wait for one another."""


def warnings(plans: Sequence[Plan], cluster: Cluster) -> list[str]:
    """What to know of the GPUs that these jobs will take: one line for each that somebody has memory of, and one where
    nvidia-smi fails, as jobs then run on CPU cores or not at all."""
    machine = cluster.machine
    if machine is None:
        return []
    if machine.gpus == 0:
        return [f"no GPU of this machine is used: {machine.lack}"] if machine.lack else []
    wanted = max((plan.case.layout.gpus for plan in plans if plan.case.device == "gpu"), default=0)
    return list(taken(gpu_memory()[:wanted])) if wanted else []


def taken(gpus: Sequence[GpuMemory]) -> Iterator[str]:
    """One line for each GPU of which others than our own jobs have memory."""
    for gpu in gpus:
        others = [process for process in gpu.processes if not _is_ours(process.pid)]
        if gpu.used_mib < LEAST_MIB or (gpu.processes and not others):
            continue
        whose = ", ".join(map(_shown, others)) or "nvidia-smi does not say by which process"
        used = f"{gpu.used_mib / 1024:.1f} of {gpu.total_mib / 1024:.1f} GiB"
        yield f"GPU {gpu.index} is in use, {used}: {whose}; jobs that it leaves too little for fail as gpu-in-use"


def _shown(process: GpuProcess) -> str:
    held = f", {process.used_mib / 1024:.1f} GiB" if process.used_mib is not None else ""
    return f"process {process.pid} ({process.name}{held})"


def _is_ours(pid: int) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone, or outside of this container
        return False
    return any(variable.startswith(_MARK) for variable in variables)
