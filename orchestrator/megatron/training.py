"""How a model is trained: arithmetic, recomputation, the switches that a paper turns, and for how long."""

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
    """How long and in what arithmetic a case trains. Counts are iterations.

    `recompute` says what of a layer's activations is computed again in the backward pass: all (`full`), the attention
    scores (`selective`), or norms and activation functions as ATC'24 does (`ours`). `offload` is the share of the
    remaining activations that ATC'24 moves to the host (its alpha). `scatter_gather` is SC21 section 4.1; `ddp` the two
    implementations that Megatron-LM had in 2021. What is None is the workload's own choice.
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
