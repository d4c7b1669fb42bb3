"""Communication settings of pipeline stages, and how many microbatches each of their chunks holds at once."""

from __future__ import annotations

from orchestrator.pretrain.layout import Layout


def communication_options(layout: Layout, *, on_gpu: bool) -> dict[str, bool]:
    """Fields of Megatron-Core's TransformerConfig that suit the schedule and the backend."""
    interleaved = layout.virtual_stages > 1
    return {
        # With two stages both neighbours are one rank, and a batch matches their messages wrongly: wrong gradients.
        "batch_p2p_comm": not interleaved,
        "overlap_p2p_comm": interleaved,
        "batch_p2p_sync": False,
        # gloo may still be sending an output when its memory is given back: wrong gradients.
        "deallocate_pipeline_outputs": on_gpu,
    }


def microbatches_in_flight(layout: Layout, stage: int) -> list[int]:
    """Return, for each chunk of a stage, the most microbatches between their forward and their backward pass.

    Follows the order of Megatron-Core 0.16.1's schedules (pipeline_parallel/schedules.py). Interleaved, a stage runs
    groups of p microbatches through its v chunks in turn, and begins 2 (p - stage - 1) + (v - 1) p passes before its
    first backward pass; backward passes visit the chunks in reverse.
    """
    p, v, m = layout.pipeline_parallel, layout.virtual_stages, layout.num_microbatches
    if v == 1:
        return [min(p - stage, m)]
    order = [chunk for first in range(0, m, p) for chunk in range(v) for _ in range(first, min(first + p, m))]
    ahead = min(2 * (p - stage - 1) + (v - 1) * p, len(order))
    held, most = [0] * v, [0] * v
    for begins, ends in zip(order + [None] * ahead, [None] * ahead + order, strict=True):
        if begins is not None:
            held[begins] += 1
            most[begins] = max(most[begins], held[begins])
        if ends is not None:
            held[v - 1 - ends] -= 1
    return most
