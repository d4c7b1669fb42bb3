"""Floating-point operations per iteration and the throughput that follows, by the paper's own equations."""

from __future__ import annotations

from orchestrator.megatron.model import ModelShape


def flops_per_iteration(model: ModelShape, global_batch_size: int, recompute_all: bool) -> float:
    """FLOPs of one iteration over `global_batch_size` sequences.

    With full activation recomputation SC21 eq. 3, `F = 96 B s l h^2 (1 + s/(6h) + V/(16 l h))`; without it the
    appendix' count less the second forward pass, `72 B s l h^2 (1 + s/(6h) + V/(12 l h))`.
    """
    l, h, s, vocab = model.layers, model.hidden, model.seq, model.vocab  # noqa: E741  the paper's symbols
    layers_flops = global_batch_size * s * l * h * h
    if recompute_all:
        return 96 * layers_flops * (1 + s / (6 * h) + vocab / (16 * l * h))
    return 72 * layers_flops * (1 + s / (6 * h) + vocab / (12 * l * h))


def tflops_per_gpu(flops: float, iteration_ms: float, gpus: int) -> float:
    """Achieved TFLOP/s of each GPU, from the elapsed time of an iteration in milliseconds (SC21 section 5)."""
    return flops / (iteration_ms / 1e3) / gpus / 1e12
