"""Floating-point operations, rates and days. Papers count FLOPs differently; each function documents its count.

| convention | attention | recomputation | function |
|---|---|---|---|
| SC21 eq. 3; Alpa's benchmark too | full | counted, all of it | `flops_per_iteration` |
| the products that a program computes | as computed | as computed | `computed_flops_per_iteration` |
| MFU as ATC'24 counts it | causal, half | not counted | `model_flops_per_token` |

All count the matrix products of the layers and of the output layer, 2 FLOPs per weight and token forward and 4
backward, and only the experts that a token visits. Embedding, norms and a router's product (below 1 %) are left out.
"""

from __future__ import annotations

from orchestrator.megatron.model import ModelShape, Recompute

SECONDS_PER_DAY = 86400


def flops_per_iteration(model: ModelShape, global_batch_size: int, recompute_all: bool) -> float:
    """Return the FLOPs of one iteration over `global_batch_size` sequences, as SC21's appendix counts them.

    Attention counts in full, as if it were not causal. For the paper's own family this is eq. 3 with full activation
    recomputation, `F = 96 B s l h^2 (1 + s/(6h) + V/(16 l h))`, and `72 B s l h^2 (1 + s/(6h) + V/(12 l h))` without
    its second forward pass. Alpa's benchmark (OSDI'22) divides the same two counts by its step time.
    """
    layers = _weight_flops_per_token(model) + _attention_flops_per_token(model)
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
    attention = _attention_flops_per_token(model) / (2 if causal_attention else 1)
    weights = _weight_flops_per_token(model)
    layer = 3 * (weights + attention)
    if recompute == "full":
        layer += weights + attention - (_last_product_flops_per_token(model) if skips_last_product else 0)
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
    layer = _weight_flops_per_token(model) + _attention_flops_per_token(model) / 2
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


def _weight_flops_per_token(model: ModelShape) -> int:
    """Return the forward FLOPs of one layer's matrices, with the experts that a token visits."""
    return 2 * (model.attention_weights() + model.active_experts * model.expert_weights())


def _attention_flops_per_token(model: ModelShape) -> int:
    """Return the forward FLOPs of one layer's scores and their product with the values, not causal."""
    return 4 * model.seq * model.hidden


def _logit_flops_per_token(model: ModelShape) -> int:
    """Return the forward FLOPs of the output layer."""
    return 2 * model.hidden * model.vocab


def _last_product_flops_per_token(model: ModelShape) -> int:
    """Return the forward FLOPs of one layer's last matrix, the feed-forward layer's output."""
    return 2 * model.active_experts * model.hidden * model.ffn_hidden
