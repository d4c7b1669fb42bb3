"""One rank of a run: checks before training, imports, process group, training."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from datetime import timedelta
from functools import cache
from importlib import import_module

import torch
import torch.distributed as dist

from orchestrator.pretrain.arguments import TrainingArguments
from orchestrator.pretrain.environment import Place, missing_gpu_reason
from orchestrator.pretrain.layout import refusals
from orchestrator.pretrain.megatron_patches import fuse_weight_gradient, redirect_cuda

EXIT_REFUSED = 2

_TIMEOUT = timedelta(minutes=10)

# Warnings that Megatron-Core causes in each process of every run.
_EXPECTED_WARNINGS = (
    "Transformer Engine and Apex are not installed",
    "Apex is not installed",
    "full scope is deprecated",
    r"The \.grad attribute of a Tensor that is not a leaf Tensor is being accessed",
    r"`torch\.distributed\.\w+` is deprecated",
)


def sees_gpu() -> bool:
    """Return whether the run trains on GPUs."""
    return torch.cuda.is_available()


def is_refused(arguments: TrainingArguments, place: Place, *, prints: bool) -> bool:
    """Return whether the run cannot work in this place. With `prints`, print every reason to stderr.

    A missing GPU is always printed: it may be missing on one node only.
    """
    reasons = refusals(arguments, place.world_size, on_gpu=sees_gpu())
    printed = reasons if prints else []
    if not reasons:
        reason = missing_gpu_reason(place, torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        reasons = printed = [reason] if reason else []
    for reason in printed:
        print(f"pretrain: error: {reason}", file=sys.stderr, flush=True)
    return bool(reasons)


def import_megatron() -> None:
    """Import Megatron-Core, the training loop and torch's compiler. CUDA is not initialised.

    torch uses the compiler even if nothing is compiled: in its checkpoints and optimizers.
    """
    prepare_megatron(torch.device("cuda" if sees_gpu() else "cpu"))
    import_module("torch._dynamo")
    import_module("orchestrator.pretrain.train")


def train_rank(arguments: TrainingArguments, place: Place, store_port: int | None = None) -> None:
    """Join the process group, train, and leave the group. `store_port` is the port of the launcher's store."""
    device = start_processes(place, store_port)
    prepare_megatron(device)
    from orchestrator.pretrain.train import pretrain

    pretrain(arguments, device)
    stop_processes(device)


def start_processes(place: Place, store_port: int | None = None) -> torch.device:
    """Join the process group (NCCL on GPUs, gloo on CPU) and return this rank's device.

    The ranks meet at the launcher's store on this host if `store_port` is given, else at MASTER_ADDR.
    """
    if torch.cuda.is_available():
        # A task bound to one GPU sees only that GPU, whatever its local rank.
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
    """Leave the process group after all ranks have finished, so that no rank loses a peer it still needs."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    dist.destroy_process_group()


def prepare_megatron(device: torch.device) -> None:
    """Install the patches that Megatron-Core needs on this device. Must run before Megatron-Core is imported."""
    _prepare_for(device.type)


@cache
def _prepare_for(device_type: str) -> None:
    """Prepare once per process. A forked rank inherits what the launcher has prepared."""
    for message in _EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    if device_type == "cuda":
        fuse_weight_gradient()
    else:
        # torch's CUDA build logs in each process that there is a compiler and no GPU.
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        redirect_cuda()
