"""The shape of a GPT model and how many parameters it has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A GPT as SC21 section 5 describes it: GELU with 4h, learned positions, tied embeddings."""

    layers: int
    hidden: int
    heads: int
    seq: int
    vocab: int

    def parameters(self) -> float:
        """Number of parameters: SC21 eq. 2, `P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h))`."""
        l, h = self.layers, self.hidden  # noqa: E741  the paper's symbols
        return 12 * l * h * h * (1 + 13 / (12 * h) + (self.vocab + self.seq) / (12 * l * h))


def padded_vocabulary(vocab: int, tensor_parallel: int, divisor: int = 128) -> int:
    """What Megatron-LM makes of a vocabulary: the next multiple of `divisor * tensor_parallel`."""
    multiple = divisor * tensor_parallel
    return -(-vocab // multiple) * multiple
