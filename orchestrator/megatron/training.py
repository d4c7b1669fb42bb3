"""Training of a model: arithmetic, recomputation, switches and length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["fp32", "fp16", "bf16"]
Recompute = Literal["none", "selective", "full", "ours"]
Attention = Literal["unfused", "flash"]
DdpKind = Literal["local", "torch"]
ContextCommunication = Literal["p2p", "all_gather", "a2a"]


@dataclass(frozen=True, slots=True)
class Training:
    """Options of a training. Counts are iterations; None is the workload's default.

    `recompute` names the activations of a layer that the backward pass computes again: all (`full`), the attention
    scores (`selective`), or norms and activation functions as in ATC'24 (`ours`). `offload` is the share of the
    remaining activations that ATC'24 moves to the host (its alpha). `scatter_gather` is SC21 section 4.1; `ddp` is one
    of the two implementations of Megatron-LM in 2021.
    """

    dtype: Dtype = "fp32"
    loss_scale: int | None = None
    recompute: Recompute = "none"
    dropout: float = 0.1
    iterations: int = 20
    warmup_iterations: int = 2
    log_interval: int = 1
    evaluation_iterations: int = 0
    offload: float = 0.0
    scatter_gather: bool = True
    ddp: DdpKind = "local"
    cp_comm: ContextCommunication = "p2p"
    distributed_optimizer: bool | None = None
    attention: Attention | None = None
