"""The feed-forward part of a layer, its activation function one kernel each way where it is fused."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from megatron.core.fusions.fused_bias_swiglu import bias_swiglu_impl

from orchestrator.pretrain.fused import Fused

# gelu(x) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3): the tanh form of Megatron-Core's kernel, with the
# exponential in its place, which a GPU has an instruction for.
_SQRT_2_OVER_PI = 0.7978845608028654
_CUBIC = 0.044715


def use_activation(block: Any) -> None:
    """Have the layers of a Megatron-Core TransformerBlock compute `activate` between their feed-forward products."""
    for layer in block.layers:
        layer.mlp.forward = partial(_feed_forward, layer.mlp)


def _feed_forward(mlp: Any, hidden_states: torch.Tensor, **_: Any) -> Any:
    """The output, and the bias that is still to be added to it."""
    intermediate, bias = mlp.linear_fc1(hidden_states)
    return mlp.linear_fc2(activate(mlp.config, intermediate, bias))


def activate(config: Any, intermediate: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """SwiGLU or GELU of what the first product and its bias give, fused or not."""
    activated: torch.Tensor
    if config.bias_activation_fusion and config.gated_linear_unit:
        activated = bias_swiglu_impl(intermediate, bias)
        return activated
    if config.bias_activation_fusion:
        activated = _BiasGelu.apply(intermediate, bias)  # type: ignore[no-untyped-call]
        return activated
    if bias is not None:
        intermediate = intermediate + bias
    if not config.gated_linear_unit:
        activated = config.activation_func(intermediate)
        return activated
    gate, up = intermediate.chunk(2, -1)
    activated = config.activation_func(gate) * up
    return activated


class _BiasGelu(torch.autograd.Function):
    """gelu(x + bias), x [..., ffn] and bias [ffn]; keeps both and computes the rest again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, bias)
        return bias_gelu(x, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, bias = ctx.saved_tensors
        gradient = bias_gelu_gradient(x, bias, *gradients)
        return gradient, gradient.flatten(0, -2).sum(0)


@Fused
def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """gelu(x + bias), its tanh form."""
    x = x + bias
    return x * torch.sigmoid(2 * _SQRT_2_OVER_PI * x * (1 + _CUBIC * x * x))


@Fused
def bias_gelu_gradient(x: torch.Tensor, bias: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient at x from the one at gelu(x + bias)."""
    x = x + bias
    share = torch.sigmoid(2 * _SQRT_2_OVER_PI * x * (1 + _CUBIC * x * x))
    slope = 2 * _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * x * x)
    return gradient * share * (1 + x * (1 - share) * slope)
