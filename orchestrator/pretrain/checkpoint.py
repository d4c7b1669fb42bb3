"""Full recomputation of layers that stops where the backward pass needs nothing more.

Megatron-Core's checkpoint computes a whole layer again, with the product, the communication and the addition at its
end, whose results nobody reads. Gradients are the same without, and one of twelve parts of a layer's products is saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from megatron.core.tensor_parallel import random as megatron_random
from torch.utils.checkpoint import checkpoint

from orchestrator.pretrain.arguments import RecomputeMethod


def recompute_layers(block: Any, method: RecomputeMethod, num_layers: int) -> None:
    """Have a Megatron-Core TransformerBlock keep the inputs of its layers only.

    `uniform` keeps one input for each `num_layers` layers; `block` recomputes the first `num_layers`, each by itself.
    """
    layers = list(block.layers)
    each = num_layers if method == "uniform" else 1
    segments = [layers[i : i + each] for i in range(0, len(layers), each)]
    recomputed = len(segments) if method == "uniform" else num_layers
    block._checkpointed_forward = partial(_forward, segments, recomputed)


def _forward(segments: list[list[Any]], recomputed: int, *, hidden_states: torch.Tensor, **options: Any) -> Any:
    """What Megatron-Core's `_checkpointed_forward` does, in its place."""
    for i, segment in enumerate(segments):
        run = partial(_run, segment, options)
        if i < recomputed:
            contexts = partial(_contexts, segment)
            # Our contexts restore the random states, those of Megatron-Core too.
            hidden_states = checkpoint(
                run, hidden_states, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
            )
        else:
            hidden_states = run(hidden_states)
    return hidden_states


def _run(segment: list[Any], options: dict[str, Any], hidden_states: torch.Tensor) -> torch.Tensor:
    for layer in segment:
        hidden_states, _ = layer(
            hidden_states=hidden_states,
            attention_mask=options["attention_mask"],
            rotary_pos_emb=options["rotary_pos_emb"],
            attention_bias=options["attention_bias"],
        )
    return hidden_states


def _contexts(segment: list[Any]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For the forward pass, and for computing it again: with the same random numbers, without the last product."""
    config = segment[-1].config
    draws = config.hidden_dropout > 0 or config.attention_dropout > 0
    states = megatron_random._get_all_rng_states() if draws else None
    return nullcontext(), _again(segment[-1].mlp.linear_fc2, states)


@contextmanager
def _again(last: Any, states: Any) -> Iterator[None]:
    with ExitStack() as stack:
        if states is not None:
            stack.enter_context(megatron_random._fork_rng())
            megatron_random._set_all_rng_states(*states)
        last.computes = False
        stack.callback(setattr, last, "computes", True)
        yield
