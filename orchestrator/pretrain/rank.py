"""One rank of a run: the checks before training, the imports, and the training itself."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import torch

from orchestrator.pretrain.arguments import TrainingArguments
from orchestrator.pretrain.devices import prepare_megatron, start_processes, stop_processes
from orchestrator.pretrain.layout import refusals
from orchestrator.pretrain.place import Place, gpu_lacking

EXIT_REFUSED = 2


def sees_gpu() -> bool:
    """Return whether the run trains on GPUs."""
    return torch.cuda.is_available()


def is_refused(arguments: TrainingArguments, place: Place, *, prints: bool) -> bool:
    """Return whether the run cannot work in this place; with `prints` every reason goes to stderr.

    A missing GPU is always printed: it may be missing on one node only.
    """
    reasons = refusals(arguments, place.world_size, on_gpu=sees_gpu())
    printed = reasons if prints else []
    if not reasons:
        lacking = gpu_lacking(place, torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        reasons = printed = [lacking] if lacking else []
    for reason in printed:
        print(f"pretrain: error: {reason}", file=sys.stderr, flush=True)
    return bool(reasons)


def import_megatron() -> None:
    """Import Megatron-Core, the training loop and torch's compiler. CUDA is not initialised.

    torch uses the compiler also where nothing is compiled: in its checkpoints and optimizers.
    """
    prepare_megatron(torch.device("cuda" if sees_gpu() else "cpu"))
    import_module("torch._dynamo")
    import_module("orchestrator.pretrain.train")


def train_rank(arguments: TrainingArguments, place: Place, store_port: int | None = None) -> None:
    """Join the run's process group, train, and leave it; `store_port` is the launcher's, which then has the store."""
    device = start_processes(place, store_port)
    prepare_megatron(device)
    from orchestrator.pretrain.train import pretrain

    pretrain(arguments, device)
    stop_processes(device)
