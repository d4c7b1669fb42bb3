"""Model, layout and training of a job: the input of all formulas and rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["gpt", "llama"]
Positions = Literal["learned", "rotary"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer.

    Family `gpt` is SC21's (section 5): GELU, learned positions, LayerNorm, biases, and an output layer that shares the
    embedding. Family `llama` is ATC'24's: SwiGLU, rotary positions, RMSNorm, no biases, an output layer of its own.
    `ffn` is the width of the feed-forward layer or of each expert, 4 x hidden unless given. `kv_groups` is the number
    of key and value heads, `heads` unless given. `positions` are those of a `gpt`.
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
    positions: Positions = "learned"

    @property
    def has_rotary_positions(self) -> bool:
        """Return whether each layer rotates its queries and keys. Otherwise the embedding adds learned positions."""
        return self.family == "llama" or self.positions == "rotary"

    @property
    def ffn_hidden(self) -> int:
        """Width of the feed-forward layer, or of each expert."""
        return self.ffn or 4 * self.hidden

    @property
    def kv_hidden(self) -> int:
        """Width of all keys together: less than `hidden` if query heads share keys."""
        return self.hidden * (self.kv_groups or self.heads) // self.heads

    @property
    def active_experts(self) -> int:
        """Experts that a token visits; a dense feed-forward layer counts as one."""
        return self.experts_per_token if self.experts else 1

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
        expert = self.expert_weights()
        return self.experts * (expert + self.hidden) if self.experts else expert

    def expert_weights(self) -> int:
        """Return the weights of the matrices of one expert, or of a dense feed-forward layer."""
        return (3 if self.family == "llama" else 2) * self.hidden * self.ffn_hidden

    def embedding_weights(self) -> int:
        """Return the weights of the embedding, of learned positions, and of an output layer of its own."""
        tables = 2 if self.family == "llama" else 1
        return self.vocab * self.hidden * tables + (0 if self.has_rotary_positions else self.seq * self.hidden)


def padded_vocabulary(vocab: int, tensor_parallel: int, divisor: int = 128) -> int:
    """Return the vocabulary as Megatron-LM pads it: the next multiple of `divisor * tensor_parallel`."""
    multiple = divisor * tensor_parallel
    return -(-vocab // multiple) * multiple


def parameters_of_rank(model: ModelShape, layout: Layout, stage: int, vocabulary: int) -> int | None:
    """Return the parameters of a tensor-parallel rank of a pipeline stage, with `vocabulary` rows in the embedding.

    None where the closed form does not apply: experts, and stages or shares that are not equal.
    """
    widths = (model.hidden, model.kv_hidden, model.ffn_hidden, vocabulary, model.kv_groups or model.heads)
    is_uneven = model.layers % layout.pipeline_parallel or any(width % layout.tensor_parallel for width in widths)
    return None if model.experts or is_uneven else round(parameters_of_stage(model, layout, stage, vocabulary)[0])


def parameters_of_stage(model: ModelShape, layout: Layout, stage: int, vocabulary: int) -> tuple[float, float]:
    """Return the parameters on one GPU of a pipeline stage, outside and inside experts.

    Matrices and the biases of column-parallel layers are split over the tensor-parallel ranks
    (megatron/core/tensor_parallel/layers.py). Norms, positions and other biases are whole on each rank. A tied
    embedding counts on the first and on the last stage.
    """
    t, p, h = layout.tensor_parallel, layout.pipeline_parallel, model.hidden
    gpt, layers, ffn = model.family == "gpt", model.layers / p, model.ffn_weights()
    experts = ffn / (layout.expert_parallel * layout.expert_tensor_size) if model.experts else 0.0
    whole = (6 if gpt else 2) * h
    split = model.attention_weights() + model.norm_and_bias_weights() - whole + (0 if model.experts else ffn)
    table = vocabulary / t * h
    ends = 0.0
    if stage == 0:
        ends += table + (0 if model.has_rotary_positions else model.seq * h)
    if stage == p - 1:
        ends += (2 if gpt else 1) * h  # the final norm
        ends += table if p > 1 or not gpt else 0  # a copy of the shared table, or the output layer's own table
    return layers * (split / t + whole) + ends, layers * experts


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel sizes and batch sizes of one job.

    `virtual_stages` is the number of model chunks per pipeline stage (SC21's v); 1 is the plain 1F1B schedule.
    `expert_tensor_parallel` is `tensor_parallel` unless given. Batch sizes count sequences.
    """

    gpus: int
    tensor_parallel: int
    pipeline_parallel: int
    micro_batch_size: int
    global_batch_size: int
    virtual_stages: int = 1
    context_parallel: int = 1
    sequence_parallel: bool = False
    expert_parallel: int = 1
    expert_tensor_parallel: int | None = None

    @property
    def expert_tensor_size(self) -> int:
        """Tensor-parallel size inside experts."""
        return self.expert_tensor_parallel or self.tensor_parallel

    @property
    def model_parallel(self) -> int:
        """GPUs of one replica of the model."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def data_parallel(self) -> int:
        """Data-parallel size; 0 if a replica needs more GPUs than there are."""
        return self.gpus // self.model_parallel

    @property
    def microbatches(self) -> int:
        """Microbatches per pipeline and iteration (SC21's m)."""
        return self.global_batch_size // max(1, self.micro_batch_size * self.data_parallel)

    def bubble(self) -> float:
        """Return the pipeline bubble as a fraction of the ideal time: SC21 2.2, `(p - 1) / (v m)`."""
        return (self.pipeline_parallel - 1) / (self.virtual_stages * max(1, self.microbatches))


Dtype = Literal["fp32", "fp16", "bf16"]
Recompute = Literal["none", "selective", "full", "ours"]
Attention = Literal["unfused", "flash"]
DdpKind = Literal["local", "torch"]
ContextCommunication = Literal["p2p", "all_gather", "a2a"]


@dataclass(frozen=True, slots=True)
class Training:
    """Options of a training. Counts are iterations; None is the workload's default.

    `recompute` names the activations of a layer that the backward pass computes again: all (`full`), the attention
    scores (`selective`), or norms and activation functions as in ATC'24 (`ours`). `offload` is the share of the
    remaining activations that ATC'24 moves to the host (its alpha). `scatter_gather` is SC21 section 4.1; `ddp` is one
    of the two implementations of Megatron-LM in 2021.
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
