"""Which process of the run this one is, read from torchrun, srun or plain environment variables."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_DEFAULT_PORT = 29500

_NODE_DEFAULTS = {
    # The overlap of tensor-parallel communication with compute relies on kernels starting in launch order.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # NVLink multicast needs a fabric manager that not every node or container has; without it NCCL fails to start.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    # Megatron-Core refuses CUDA graphs with such segments otherwise: NCCL may keep addresses that are no longer mapped.
    "NCCL_GRAPH_REGISTER": "0",
}


@dataclass(frozen=True)
class Place:
    """Number of this process in the run and on its node."""

    rank: int
    world_size: int
    local_rank: int


def find_place(environ: Mapping[str, str]) -> Place:
    """RANK and WORLD_SIZE (torchrun, or set by hand) win over srun's variables; a lone process has neither."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        rank, world_size, local_rank = environ["RANK"], environ["WORLD_SIZE"], environ.get("LOCAL_RANK", "0")
    elif "SLURM_PROCID" in environ and "SLURM_NTASKS" in environ:
        rank, world_size = environ["SLURM_PROCID"], environ["SLURM_NTASKS"]
        local_rank = environ.get("SLURM_LOCALID", "0")
    else:
        return Place(rank=0, world_size=1, local_rank=0)
    return Place(rank=int(rank), world_size=int(world_size), local_rank=int(local_rank))


def gpu_lacking(place: Place, visible_gpus: int, named_gpus: str = "") -> str | None:
    """Why this process has no GPU of its own; `named_gpus` is CUDA_VISIBLE_DEVICES.

    A task bound to one GPU sees that one alone, whatever its local rank. Where GPUs are named and none is seen the run
    would train on CPU cores, for days.
    """
    if visible_gpus == 0 and named_gpus.strip(" ,")[:1].isalnum() and named_gpus != "NoDevFiles":
        return f"CUDA_VISIBLE_DEVICES names {named_gpus}, and torch sees no GPU"
    if visible_gpus > 1 and place.local_rank >= visible_gpus:
        return f"local rank {place.local_rank} has no GPU: this process sees {visible_gpus}"
    return None


def cores_of(local_rank: int, ranks: int, cores: Sequence[int]) -> list[int]:
    """The share of a node's CPU cores that one of its ranks trains on: its own cores, or one that it shares."""
    return list(cores[local_rank::ranks]) or [cores[local_rank % len(cores)]]


def set_environment(environ: MutableMapping[str, str], place: Place) -> None:
    """Set the variables of one rank, and those of its node. Values that are set already stay, but for the rank's own.

    Must run before torch is imported, which reads some of them then.
    """
    environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world_size), LOCAL_RANK=str(place.local_rank))
    # srun's own host is the first node of a batch job, where rank 0 runs.
    environ.setdefault("MASTER_ADDR", environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"))
    environ.setdefault("MASTER_PORT", str(_rendezvous_port(environ)))
    if environ["MASTER_ADDR"] in _LOOPBACK and sys.platform == "linux":
        # All ranks are on this host, whose name need not resolve quickly or at all.
        environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    set_node_environment(environ)


def set_node_environment(environ: MutableMapping[str, str]) -> None:
    """Set the variables that are the same for all ranks of a node: of NCCL, CUDA and torch's allocator."""
    for name, value in _NODE_DEFAULTS.items():
        environ.setdefault(name, value)


def _rendezvous_port(environ: Mapping[str, str]) -> int:
    """A port below the ephemeral range, its own for each Slurm job so that jobs on one node do not meet."""
    job_id = environ.get("SLURM_JOB_ID", "")
    return 10000 + int(job_id) % 20000 if job_id.isdigit() else _DEFAULT_PORT
