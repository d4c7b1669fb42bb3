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


def microbatch_slots(
    pipeline_parallel: int, virtual_stages: int, num_microbatches: int, stage: int
) -> tuple[tuple[int, ...], ...]:
    """Return, for each chunk of a stage, the memory slot of each microbatch of an iteration.

    A slot holds the activations of one microbatch of one chunk from its forward to its backward pass. There are as many
    slots as the stage ever needs at once. A chunk keeps to slots that it has used before, if one of them is free. The
    chunk that computes the loss has its own: every slot that it used would need room for logits.

    Follows the order of Megatron-Core 0.16.1's schedules (pipeline_parallel/schedules.py). Interleaved, a stage runs
    groups of p microbatches through its v chunks in turn, and begins 2 (p - stage - 1) + (v - 1) p passes before its
    first backward pass; backward passes visit the chunks in reverse.
    """
    p, v, m = pipeline_parallel, virtual_stages, num_microbatches
    order = [chunk for first in range(0, m, p) for chunk in range(v) for _ in range(first, min(first + p, m))]
    ahead = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * p
    ahead = min(ahead, len(order))
    slots: list[list[int]] = [[] for _ in range(v)]
    ended = [0] * v
    shared, with_logits = set[int](), set[int]()
    free = [shared] * (v - 1) + [with_logits if stage == p - 1 else shared]
    count = 0
    pause: list[int | None] = [None] * ahead
    for begins, ends in zip([*order, *pause], [*pause, *order], strict=True):
        if begins is not None:
            if not free[begins]:
                free[begins].add(count)
                count += 1
            slot = min(free[begins].intersection(slots[begins]) or free[begins])
            free[begins].remove(slot)
            slots[begins].append(slot)
        if ends is not None:
            chunk = v - 1 - ends
            free[chunk].add(slots[chunk][ended[chunk]])
            ended[chunk] += 1
    return tuple(tuple(numbers) for numbers in slots)
