"""How many parameters one rank holds: exactly, as Megatron-LM prints them once its model is built."""

from __future__ import annotations

from orchestrator.megatron.layout import Layout
from orchestrator.megatron.model import ModelShape


def parameters_of_rank(model: ModelShape, layout: Layout, stage: int, vocabulary: int) -> int | None:
    """Parameters of any tensor-parallel rank of a pipeline stage, with `vocabulary` rows in the embedding.

    Matrices are split over the tensor-parallel ranks, and with them the biases of those that are split by columns
    (megatron/core/tensor_parallel/layers.py); norms, positions and the other biases are whole on each. A tied
    embedding counts on the first and on the last stage. None where this closed form does not say: experts, stages or
    shares that are not equal.
    """
    t, p, h = layout.tensor_parallel, layout.pipeline_parallel, model.hidden
    widths = (h, model.kv_hidden, model.ffn_hidden, vocabulary, model.kv_groups or model.heads)
    if model.experts or model.layers % p or any(width % t for width in widths):
        return None
    has_biases = model.family == "gpt"
    norm = (2 if has_biases else 1) * h
    table = vocabulary // t * h
    matrices = (model.attention_weights() + model.ffn_weights()) // t
    biases = (h + 2 * model.kv_hidden + model.ffn_hidden) // t + 2 * h if has_biases else 0
    count = model.layers // p * (matrices + biases + 2 * norm)
    if stage == 0:
        count += table + (model.seq * h if model.family == "gpt" else 0)
    if stage == p - 1:
        count += norm + (table if p > 1 or model.family == "llama" else 0)
    return count
