"""Start of a rank before torch is imported: its place in the run, its environment variables, and faster imports."""

from __future__ import annotations

import gc
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from stat import S_ISDIR

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
    """Rank of this process in the run and on its node."""

    rank: int
    world_size: int
    local_rank: int


def find_place(environ: Mapping[str, str]) -> Place:
    """Return this process's place from RANK and WORLD_SIZE, else from srun's variables, else for a lone process."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        rank, world_size, local_rank = environ["RANK"], environ["WORLD_SIZE"], environ.get("LOCAL_RANK", "0")
    elif "SLURM_PROCID" in environ and "SLURM_NTASKS" in environ:
        rank, world_size = environ["SLURM_PROCID"], environ["SLURM_NTASKS"]
        local_rank = environ.get("SLURM_LOCALID", "0")
    else:
        return Place(rank=0, world_size=1, local_rank=0)
    return Place(rank=int(rank), world_size=int(world_size), local_rank=int(local_rank))


def missing_gpu_reason(place: Place, visible_gpus: int, named_gpus: str = "") -> str | None:
    """Return the reason why this process has no GPU of its own, if any. `named_gpus` is CUDA_VISIBLE_DEVICES.

    A task bound to one GPU sees only that GPU, whatever its local rank. If GPUs are named and none is visible, the run
    would train on CPU cores for days.
    """
    if visible_gpus == 0 and named_gpus.strip(" ,")[:1].isalnum() and named_gpus != "NoDevFiles":
        return f"CUDA_VISIBLE_DEVICES names {named_gpus}, and torch sees no GPU"
    if visible_gpus > 1 and place.local_rank >= visible_gpus:
        return f"local rank {place.local_rank} has no GPU: this process sees {visible_gpus}"
    return None


def cores_of(local_rank: int, ranks: int, cores: Sequence[int]) -> list[int]:
    """Return the CPU cores of one rank of a node. If there are fewer cores than ranks, ranks share cores."""
    return list(cores[local_rank::ranks]) or [cores[local_rank % len(cores)]]


def set_environment(environ: MutableMapping[str, str], place: Place) -> None:
    """Set the variables of one rank and of its node. Variables that are already set stay, except the rank's own.

    Must run before torch is imported, which reads some of them at import.
    """
    environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world_size), LOCAL_RANK=str(place.local_rank))
    # srun runs on the first node of a batch job, as rank 0 does.
    environ.setdefault("MASTER_ADDR", environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"))
    environ.setdefault("MASTER_PORT", str(_rendezvous_port(environ, place)))
    if environ["MASTER_ADDR"] in _LOOPBACK and sys.platform == "linux":
        # All ranks are on this host. Its name may resolve slowly or not at all.
        environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    set_node_environment(environ)


def set_node_environment(environ: MutableMapping[str, str]) -> None:
    """Set the variables that all ranks of a node share: those of NCCL, CUDA and torch's allocator."""
    for name, value in _NODE_DEFAULTS.items():
        environ.setdefault(name, value)


def _rendezvous_port(environ: Mapping[str, str], place: Place) -> int:
    """Return a port below the ephemeral range. It depends on the Slurm job, so jobs on one node do not collide.

    A single process needs no agreement and takes any free port (0), so that several of them can run on one machine.
    """
    if place.world_size == 1:
        return 0
    job_id = environ.get("SLURM_JOB_ID", "")
    return 10000 + int(job_id) % 20000 if job_id.isdigit() else _DEFAULT_PORT


FOLDER = Path(__file__).resolve().parent
"""Folder that this package was imported from."""


def source_files() -> dict[str, bytes]:
    """Return the contents of each source file of this package by name."""
    return {file.name: file.read_bytes() for file in sorted(FOLDER.glob("*.py"))}


def version_of(files: Mapping[str, bytes]) -> str:
    """Return the name of a version of this program, with a digest of its source files; part of a job's identity."""
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(name.encode() + b"\0" + content + b"\0")
    return f"pretrain-{digest.hexdigest()[:12]}"


_LARGE_PACKAGES = ("torch", "megatron.core")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import without the garbage collector, and keep compiled files if the installation has none.

    Imported modules contain no garbage. `freeze` excludes them from all later collections: in the training loop, in a
    forked process, where a collection would copy the memory, and at exit.
    """
    _keep_bytecode()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _keep_bytecode() -> None:
    """Keep compiled files in a private folder if the installation has none, as in images built without them.

    Without compiled files the imports take about three times as long.
    """
    if all(_has_bytecode(package) for package in _LARGE_PACKAGES):
        return
    folder = Path(tempfile.gettempdir()) / f"pretrain-bytecode-{os.getuid()}"
    if _is_private(folder):
        sys.pycache_prefix = str(folder)
        sys.dont_write_bytecode = False


def _has_bytecode(package: str) -> bool:
    """Return whether the package has compiled files, or Python can write them beside the sources."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return True
    if Path(cache_from_source(spec.origin)).exists():
        return True
    return not sys.dont_write_bytecode and os.access(Path(spec.origin).parent, os.W_OK)


def _is_private(folder: Path) -> bool:
    """Make the folder. Return False if another user owns it or can write to it: Python would run that user's code."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
