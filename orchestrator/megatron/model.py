"""Model, layout and training of a job, the input of all formulas and rules; parameters and floating-point operations.

Papers count FLOPs differently; each function documents its count.

| convention | attention | recomputation | function |
|---|---|---|---|
| SC21 eq. 3; Alpa's benchmark too | full | counted, all of it | `flops_per_iteration` |
| the products that a program computes | as computed | as computed | `computed_flops_per_iteration` |
| MFU as ATC'24 counts it | causal, half | not counted | `model_flops_per_token` |

All count the matrix products of the layers and of the output layer, 2 FLOPs per weight and token forward and 4
backward, and only the experts that a token visits. Embedding, norms and a router's product (below 1 %) are left out.
"""

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
    def first_ffn_width(self) -> int:
        """Columns of the first feed-forward matrix: SwiGLU has two halves."""
        return (2 if self.family == "llama" else 1) * self.ffn_hidden

    @property
    def kv_hidden(self) -> int:
        """Width of all keys together: less than `hidden` if query heads share keys."""
        return self.hidden * (self.kv_groups or self.heads) // self.heads

    @property
    def active_experts(self) -> int:
        """Experts that a token visits; a dense feed-forward layer counts as one."""
        return max(1, self.experts_per_token) if self.experts else 1

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
        return self.hidden * (self.first_ffn_width + self.ffn_hidden)

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
    """Options of a training. Counts are iterations; None is the program's default.

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

    @property
    def word_bytes(self) -> int:
        """Bytes of a weight and of an activation."""
        return 4 if self.dtype == "fp32" else 2


SECONDS_PER_DAY = 86400


def flops_per_iteration(model: ModelShape, global_batch_size: int, recompute_all: bool) -> float:
    """Return the FLOPs of one iteration over `global_batch_size` sequences, as SC21's appendix counts them.

    Attention counts in full, as if it were not causal. For the paper's own family this is eq. 3 with full activation
    recomputation, `F = 96 B s l h^2 (1 + s/(6h) + V/(16 l h))`, and `72 B s l h^2 (1 + s/(6h) + V/(12 l h))` without
    its second forward pass. Alpa's benchmark (OSDI'22) divides the same two counts by its step time.
    """
    layers = weight_flops_per_token(model) + attention_flops_per_token(model)
    passes = 4 if recompute_all else 3
    return global_batch_size * model.seq * (passes * model.layers * layers + 3 * _logit_flops_per_token(model))


def computed_flops_per_iteration(
    model: ModelShape,
    global_batch_size: int,
    recompute: Recompute,
    *,
    causal_attention: bool,
    skips_last_product: bool,
) -> float:
    """Return the FLOPs of the products that a program computes in one iteration over `global_batch_size` sequences.

    `full` recomputation computes each layer's products a second time, without its last one (the second feed-forward
    matrix, 8 of the 24 B s h^2 FLOPs of an SC21 layer) where the program skips it. `selective` repeats attention;
    `none` and `ours` repeat no product. `causal_attention` halves the score products.

    For SC21's family with full recomputation, causal attention and the skip this is
    `88 B s l h^2 + 8 B s^2 l h + 6 B s h V`; equation 3 counts `96 B s l h^2 + 16 B s^2 l h + 6 B s h V`.
    Scores that a flash kernel computes again in its backward pass are not counted, as in all other functions here:
    they are at most one eighth of the attention term. Source: torch's FLOP counter over an iteration of `pretrain`
    gives these numbers (tests/training/test_flops.py).
    """
    attention = attention_flops_per_token(model) / (2 if causal_attention else 1)
    weights = weight_flops_per_token(model)
    layer = 3 * (weights + attention)
    if recompute == "full":
        last_product = 2 * model.active_experts * model.hidden * model.ffn_hidden
        layer += weights + attention - (last_product if skips_last_product else 0)
    elif recompute == "selective":
        layer += attention
    return global_batch_size * model.seq * (model.layers * layer + 3 * _logit_flops_per_token(model))


def model_flops_per_token(model: ModelShape) -> float:
    """Return the FLOPs per token that count for MFU (model FLOPs utilization): `6 N + 6 l h s`.

    N is the number of matrix weights that a token visits, with the output layer (also if it shares the embedding)
    and without embedding, biases and norms: `N = l (2h^2 + 2h h_kv + 2hf) + Vh`, `3hf` for gated layers. Attention is
    causal: half of the `12 l h s` of PaLM's appendix B. Recomputation never counts.

    The definition is ATC'24's, inferred from the nine published pairs of tokens/s and MFU; the authors' own definition
    is unconfirmed. PaLM's MFU, with attention in full, is `flops_per_iteration` without recomputation (SC21's 72 in
    place of 96).
    """
    layer = weight_flops_per_token(model) + attention_flops_per_token(model) / 2
    return 3 * (model.layers * layer + _logit_flops_per_token(model))


def model_flops_utilization(model: ModelShape, tokens_per_s_per_gpu: float, peak_tflops: float) -> float:
    """Return the MFU in percent. `peak_tflops` is the GPU's dense peak in TFLOP/s."""
    return 100 * tokens_per_s_per_gpu * model_flops_per_token(model) / (peak_tflops * 1e12)


def tflops_per_gpu(flops: float, iteration_ms: float, gpus: int) -> float:
    """Return the achieved TFLOP/s of each GPU from the time of an iteration in milliseconds (SC21 section 5)."""
    return flops / (iteration_ms / 1e3) / gpus / 1e12


def training_days(parameters: float, tokens: float, gpus: int, tflops_per_gpu: float) -> float:
    """Return the days of a training with recomputation: SC21 eq. 4, `8 T P / (n X)`."""
    return days(8 * tokens * parameters, gpus, tflops_per_gpu)


def days(flops: float, gpus: int, tflops_per_gpu: float) -> float:
    """Return the days that GPUs need for a number of FLOPs, at a rate in TFLOP/s for each."""
    return flops / (gpus * tflops_per_gpu * 1e12) / SECONDS_PER_DAY


def weight_flops_per_token(model: ModelShape) -> int:
    """Return the forward FLOPs of one layer's matrices, with the experts that a token visits."""
    return 2 * (model.attention_weights() + model.active_experts * model.expert_weights())


def attention_flops_per_token(model: ModelShape) -> int:
    """Return the forward FLOPs of one layer's scores and their product with the values, not causal."""
    return 4 * model.seq * model.hidden


def _logit_flops_per_token(model: ModelShape) -> int:
    """Return the forward FLOPs of the output layer."""
    return 2 * model.hidden * model.vocab
