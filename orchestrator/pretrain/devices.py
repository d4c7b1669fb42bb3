"""Start torch.distributed: NCCL on GPUs, gloo on CPU, with Megatron-Core made ready for either."""

from __future__ import annotations

import logging
import warnings
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist

from orchestrator.pretrain.place import Place

_TIMEOUT = timedelta(minutes=10)

# What Megatron-Core causes from each process of every run: optional packages, its own defaults, torch's newer names.
_EXPECTED_WARNINGS = (
    "Transformer Engine and Apex are not installed",
    "Apex is not installed",
    "full scope is deprecated",
    r"The \.grad attribute of a Tensor that is not a leaf Tensor is being accessed",
    r"`torch\.distributed\.\w+` is deprecated",
)


def start_processes(place: Place, store_port: int | None = None) -> torch.device:
    """Join the run's process group; return the device that holds this process's share of the model.

    The ranks meet at the store of a launcher on this host if its port is given, else at MASTER_ADDR.
    """
    if torch.cuda.is_available():
        # A task bound to one GPU sees that one alone, whatever its local rank.
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
        device = torch.device("cuda", torch.cuda.current_device())
    else:
        device = torch.device("cpu")
    backend = "nccl" if device.type == "cuda" else "gloo"
    if store_port is None:
        dist.init_process_group(backend, timeout=_TIMEOUT)
    else:
        store = dist.TCPStore("127.0.0.1", store_port, is_master=False, timeout=_TIMEOUT)  # type: ignore[attr-defined]
        dist.init_process_group(backend, timeout=_TIMEOUT, store=store, rank=place.rank, world_size=place.world_size)
    return device


def stop_processes(device: torch.device) -> None:
    """Leave the process group once every rank has come this far: none goes while another still talks to it."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    dist.destroy_process_group()


def prepare_megatron(device: torch.device) -> None:
    """Put in place what Megatron-Core lacks on this device; must run before Megatron-Core is imported."""
    _prepare_for(device.type)


@cache
def _prepare_for(device_type: str) -> None:
    """Once for each process: a forked rank has what the launcher prepared."""
    for message in _EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    if device_type == "cuda":
        from orchestrator.pretrain import weight_gradient

        weight_gradient.install()
    else:
        # torch's CUDA build says from each process that it found a compiler and no GPU
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        from orchestrator.pretrain import cpu_shim

        cpu_shim.install()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all work given to it so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    """Product name of the GPU, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
