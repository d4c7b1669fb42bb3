"""What ATC'24 recomputes: the outputs of norms and activation functions are not kept for the layer that uses them.

Megatron-Core 0.16's CheckpointWithoutOutput does this for norms, but as its layers call it, it needs Transformer
Engine, and like every checkpoint of Megatron-Core it holds its inputs on the device even where they were offloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from orchestrator.pretrain.activation import activate


class Recomputation:
    """One call of a function without randomness, whose output its user does not keep for the backward pass.

    Called with the inputs it gives the output. What uses the output must run under `for_user`; its backward pass, which
    comes first, computes the output again. Gradients reach the parameters of the function too.
    """

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.function = function
        self.context: Any = None
        self._output_key = 0
        self._inputs: list[torch.Tensor | None] = []
        self._edge: Any = None

    def __call__(self, *inputs: torch.Tensor | None) -> torch.Tensor:
        output: torch.Tensor = _Recomputed.apply(self, *inputs)  # type: ignore[no-untyped-call]
        self._output_key = _key(output)
        return output

    def for_user(self) -> saved_tensors_hooks:
        """The context in which the output is used and not kept."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def gradients(self, gradient: torch.Tensor) -> list[torch.Tensor | None]:
        """Gradients of the inputs from the output's."""
        if self._edge is None:
            self._recompute()
        torch.autograd.backward([self._edge], [gradient])
        inputs, self._inputs, self._edge = self._inputs, [], None
        return [None if x is None else x.grad for x in inputs]

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return None if _key(tensor) == self._output_key else tensor

    def _unpack(self, packed: torch.Tensor | None) -> torch.Tensor:
        return self._recompute() if packed is None else packed

    def _recompute(self) -> torch.Tensor:
        """The output once more; its graph stays for `gradients`."""
        self._inputs = [None if x is None else x.detach().requires_grad_() for x in self.context.saved_tensors]
        self.context = None  # it refers to this object
        with torch.enable_grad():
            output = self.function(*self._inputs)
        self._edge = get_gradient_edge(output)
        return output.detach()


def _key(tensor: torch.Tensor) -> int:
    """Identity of the tensor's memory while it lasts."""
    return int(tensor.untyped_storage()._cdata)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recomputation: Recomputation, *inputs: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        ctx.recomputation, recomputation.context = recomputation, ctx
        return recomputation.function(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, *ctx.recomputation.gradients(*gradients))


def recompute_norms(block: Any) -> None:
    """Have the layers of a Megatron-Core TransformerBlock not keep what their norms put out."""
    for layer in block.layers:
        _recompute_between(layer.input_layernorm, layer.self_attention.linear_qkv)
        _recompute_between(layer.pre_mlp_layernorm, layer.mlp.linear_fc1)


def recompute_activations(block: Any) -> None:
    """Have the layers of a Megatron-Core TransformerBlock not keep what their activation functions put out."""
    for layer in block.layers:
        layer.mlp.forward = partial(_feed_forward, layer.mlp)


def _recompute_between(norm: Any, linear: Any) -> None:
    """Have the linear layer, which comes right after the norm, not keep its input."""
    normalize, project = norm.forward, linear.forward
    last: list[Recomputation] = []

    def forward_norm(x: torch.Tensor) -> torch.Tensor:
        last.append(Recomputation(normalize))
        return last[0](x)

    def forward_linear(*args: Any, **kwargs: Any) -> Any:
        with last.pop().for_user():
            return project(*args, **kwargs)

    norm.forward, linear.forward = forward_norm, forward_linear


def _feed_forward(mlp: Any, hidden_states: torch.Tensor, **_: Any) -> Any:
    """What the layer does without; returns the output and the bias that is still to be added to it."""
    intermediate, bias = mlp.linear_fc1(hidden_states)
    recomputation = Recomputation(partial(activate, mlp.config))
    activated = recomputation(intermediate, bias)
    with recomputation.for_user():
        return mlp.linear_fc2(activated)
