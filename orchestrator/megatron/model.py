"""Shape of a language model and its number of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.megatron.layout import Layout

Family = Literal["gpt", "llama"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer.

    Family `gpt` is SC21's (section 5): GELU, learned positions, LayerNorm, biases, and an output layer that shares the
    embedding. Family `llama` is ATC'24's: SwiGLU, rotary positions, RMSNorm, no biases, an output layer of its own.
    `ffn` is the width of the feed-forward layer, 4 x hidden unless given, and of each expert's where there are
    `experts`; `kv_groups` is the number of key and value heads, all of them unless given.
    """

    layers: int
    hidden: int
    heads: int
    seq: int
    vocab: int
    ffn: int | None = None
    kv_groups: int | None = None
    family: Family = "gpt"
    experts: int = 0
    experts_per_token: int = 0

    @property
    def ffn_hidden(self) -> int:
        """Width of the feed-forward layer, or of each expert."""
        return self.ffn or 4 * self.hidden

    @property
    def kv_hidden(self) -> int:
        """Width of all keys together: less than `hidden` if query heads share keys."""
        return self.hidden * (self.kv_groups or self.heads) // self.heads

    def parameters(self) -> float:
        """Return the number of parameters: matrices, biases, norms and embeddings, without the final norm.

        For the paper's own family this is SC21 eq. 2, `P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h))`.
        """
        layer = self.attention_weights() + self.ffn_weights() + self.norm_and_bias_weights()
        return self.layers * layer + self.embedding_weights()

    def norm_and_bias_weights(self) -> int:
        """Return the weights of one layer that are not matrices: eq. 2's 13 h for the paper's family."""
        if self.family == "llama":
            return 2 * self.hidden
        attention, ffn = 2 * self.hidden + 2 * self.kv_hidden, self.ffn_hidden + self.hidden
        return 4 * self.hidden + attention + max(1, self.experts) * ffn

    def attention_weights(self) -> int:
        """Return the weights of one layer's attention matrices."""
        return 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_hidden

    def ffn_weights(self) -> int:
        """Return the weights of one layer's feed-forward matrices, with all experts and their router."""
        matrices = 3 if self.family == "llama" else 2
        expert = matrices * self.hidden * self.ffn_hidden
        return self.experts * (expert + self.hidden) if self.experts else expert

    def embedding_weights(self) -> int:
        """Return the weights of the embedding, of learned positions, and of an output layer of its own."""
        tables = 2 if self.family == "llama" else 1
        return self.vocab * self.hidden * tables + (self.seq * self.hidden if self.family == "gpt" else 0)


def padded_vocabulary(vocab: int, tensor_parallel: int, divisor: int = 128) -> int:
    """Return the vocabulary as Megatron-LM pads it: the next multiple of `divisor * tensor_parallel`."""
    multiple = divisor * tensor_parallel
    return -(-vocab // multiple) * multiple


def parameters_of_rank(model: ModelShape, layout: Layout, stage: int, vocabulary: int) -> int | None:
    """Return the parameters of a tensor-parallel rank of a pipeline stage, with `vocabulary` rows in the embedding.

    Matrices and the biases of column-parallel layers are split over the tensor-parallel ranks
    (megatron/core/tensor_parallel/layers.py); norms, positions and other biases are whole on each rank. A tied
    embedding counts on the first and on the last stage. None where the closed form does not apply: experts, and stages
    or shares that are not equal.
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
