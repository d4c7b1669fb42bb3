"""How pipeline stages send each other activations and gradients, free of the settings that make gradients wrong."""

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
