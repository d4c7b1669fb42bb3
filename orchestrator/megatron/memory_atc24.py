"""What ATC'24's program holds on a GPU, and the share of activations it must offload for a case to fit 80 GB.

Inferred from its code and fitted to its published bytes; the paper does not print it. Two constants are fitted, each
named below; everything else is counted. Sizes in bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.megatron.layout import Layout
from orchestrator.megatron.memory import MemoryEstimate, chunks_in_flight
from orchestrator.megatron.model import ModelShape, padded_vocabulary
from orchestrator.megatron.training import Training

_MIB = 2**20
_CHUNKS_ON_THE_GPU = 4
"""Chunks that offloading does not relieve: one computes, one is being offloaded, two are buffers that come back."""
_WORKING_UNITS = 37.1
"""Fitted to Figure 7: what is alive beside states and activations, in units of one bf16 tensor [s/c, b, h/t]."""
_SOLVER_LIMIT_BYTES = 63.484 * 2**30
"""Fitted to Figure 9's alphas: what the authors let states and activations take of 80 GB."""


def estimate_memory_atc24(model: ModelShape, layout: Layout, training: Training) -> MemoryEstimate:
    """The first stage's bytes, torch.cuda.max_memory_allocated: within 1.2 % of Figure 7's 19 published counts.

    Calibrated for recomputation `none` and `ours` with tensor parallelism. Nothing was published of the program's bytes
    with full recomputation, and none of the counts and alphas is of a case without tensor parallelism.
    """
    parts = _Parts.of(model, layout, training)
    offloaded_chunks = max(0, parts.chunks - _CHUNKS_ON_THE_GPU)
    activations = parts.chunks * parts.chunk_bytes - training.offload * offloaded_chunks * parts.chunk_bytes
    return MemoryEstimate(
        stage=0,
        parameters=parts.parameters,
        weights_bytes=2 * parts.parameters,
        gradients_bytes=4 * parts.parameters,
        optimizer_bytes=12 * parts.parameters / parts.optimizer_ranks,
        activations_bytes=activations,
        working_bytes=_WORKING_UNITS * parts.unit_bytes,
        offloaded_bytes=parts.chunks * math.ceil(training.offload * parts.chunk_bytes / _MIB) * _MIB,
        calibrated=training.recompute in ("none", "ours") and layout.tensor_parallel > 1,
    )


def solve_offload(model: ModelShape, layout: Layout, training: Training) -> float:
    """The least share of activations to offload (ATC'24's alpha); above 1 when offloading all of them is not enough.

    The authors' own: to three decimals it is 39 of Figure 9's 41 alphas, and within 0.001 of the two others.
    """
    parts = _Parts.of(model, layout, training)
    excess = parts.states_bytes + parts.chunks * parts.chunk_bytes - _SOLVER_LIMIT_BYTES
    if excess <= 0:
        return 0.0
    offloaded_chunks = parts.chunks - _CHUNKS_ON_THE_GPU
    return excess / (offloaded_chunks * parts.chunk_bytes) if offloaded_chunks > 0 else math.inf


@dataclass(frozen=True, slots=True)
class _Parts:
    """What both functions add up: `chunk_bytes` are one chunk's activations of one microbatch."""

    parameters: float
    optimizer_ranks: int
    unit_bytes: float
    chunk_bytes: float
    chunks: int

    @property
    def states_bytes(self) -> float:
        return self.parameters * (6 + 12 / self.optimizer_ranks)

    @classmethod
    def of(cls, model: ModelShape, layout: Layout, training: Training) -> _Parts:
        t, p = layout.tensor_parallel, layout.pipeline_parallel
        matrices = (model.attention_weights() + model.ffn_weights()) / t
        table = padded_vocabulary(model.vocab, t) / t * model.hidden
        unit = 2 * model.seq / layout.context_parallel * layout.micro_batch_size * model.hidden / t
        layers_per_chunk = model.layers / (p * layout.virtual_stages)
        return cls(
            parameters=model.layers / p * (matrices + 2 * model.hidden) + table,
            optimizer_ranks=max(1, layout.data_parallel) * layout.context_parallel,
            unit_bytes=unit,
            chunk_bytes=layers_per_chunk * _units_of_layer(model, training) * unit,
            chunks=chunks_in_flight(layout, 0),
        )


def _units_of_layer(model: ModelShape, training: Training) -> float:
    """What a layer keeps, in units of one bf16 tensor [s/c, b, h/t].

    `ours`: the layer's input, queries, attention's output and the residual; keys and values; the first matrix' output.
    `none` adds both norms' outputs, and SiLU's output and its product with the other half. `full`: the layer's input.
    """
    if training.recompute == "full":
        return 1
    keys, wide = model.kv_hidden / model.hidden, model.ffn_hidden / model.hidden
    if training.recompute == "ours":
        return 4 + 2 * keys + 2 * wide
    return 6 + 2 * keys + 4 * wide
