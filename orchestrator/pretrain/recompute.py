"""Recomputation of activations: of whole layers, or of the outputs of norms and activation functions (ATC'24).

Megatron-Core's checkpoint recomputes a whole layer, including the last product, whose result nothing reads. Here the
recomputation stops before it. Gradients are equal, and one of twelve parts of a layer's products is saved.

Megatron-Core 0.16's CheckpointWithoutOutput does the same for norms as ATC'24. But its layers need Transformer Engine
for it, and it holds its inputs on the device even if they were offloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.transformer_block import TransformerBlock
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from orchestrator.pretrain.arguments import RecomputeMethod
from orchestrator.pretrain.layers import activate


class Recomputation:
    """One call of a deterministic function whose output is recomputed in the backward pass.

    Call it with the inputs to get the output. Code that uses the output must run under `for_user`. The backward pass of
    that code comes first and recomputes the output. Parameters of the function get gradients too.
    """

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.function = function
        self.context: Any = None
        self._output_key = 0
        self._inputs: list[torch.Tensor | None] = []
        self._edge: Any = None

    def __call__(self, *inputs: torch.Tensor | None) -> torch.Tensor:
        """Return the output."""
        output: torch.Tensor = _Recomputed.apply(self, *inputs)  # type: ignore[no-untyped-call]
        self._output_key = _key(output)
        return output

    def for_user(self) -> saved_tensors_hooks:
        """Return the context in which the output may be used without being kept."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def gradients(self, gradient: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the gradients of the inputs from the gradient of the output."""
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
        """Recompute the output. Its graph stays for `gradients`."""
        self._inputs = [None if x is None else x.detach().requires_grad_() for x in self.context.saved_tensors]
        self.context = None  # it refers to this object
        with torch.enable_grad():
            output = self.function(*self._inputs)
        self._edge = get_gradient_edge(output)
        return output.detach()


def _key(tensor: torch.Tensor) -> int:
    """Return the identity of the tensor's memory, valid while the memory exists."""
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


def recompute_norms(block: TransformerBlock) -> None:
    """Recompute the outputs of all norms in the layers of a Megatron-Core TransformerBlock."""
    for layer in block.layers:
        _recompute_between(layer.input_layernorm, layer.self_attention.linear_qkv)
        _recompute_between(layer.pre_mlp_layernorm, layer.mlp.linear_fc1)


def recompute_activations(block: TransformerBlock) -> None:
    """Recompute the outputs of all activation functions in the layers of a Megatron-Core TransformerBlock."""
    for layer in block.layers:
        layer.mlp.forward = partial(_feed_forward, layer.mlp)


def _recompute_between(norm: Any, linear: Any) -> None:
    """Make the linear layer after a norm not keep its input."""
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
    """Return the output, and the bias that the caller must add to it."""
    intermediate, bias = mlp.linear_fc1(hidden_states)
    recomputation = Recomputation(partial(activate, mlp.config))
    activated = recomputation(intermediate, bias)
    with recomputation.for_user():
        return mlp.linear_fc2(activated)


def recompute_layers(block: TransformerBlock, method: RecomputeMethod, num_layers: int) -> None:
    """Make a Megatron-Core TransformerBlock keep only the inputs of its layers.

    `uniform` keeps one input per `num_layers` layers. `block` recomputes the first `num_layers` layers one by one.
    """
    layers = list(block.layers)
    each = num_layers if method == "uniform" else 1
    segments = [layers[i : i + each] for i in range(0, len(layers), each)]
    recomputed = len(segments) if method == "uniform" else num_layers
    block._checkpointed_forward = partial(_forward_segments, segments, recomputed)


def _forward_segments(
    segments: list[list[Any]], recomputed: int, *, hidden_states: torch.Tensor, **options: Any
) -> Any:
    """Run the layers in place of Megatron-Core's `_checkpointed_forward`."""
    for i, segment in enumerate(segments):
        run = partial(_run_segment, segment, options)
        if i < recomputed:
            contexts = partial(_contexts, segment)
            # The contexts restore the random states, including those of Megatron-Core.
            hidden_states = checkpoint(
                run, hidden_states, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
            )
        else:
            hidden_states = run(hidden_states)
    return hidden_states


def _run_segment(segment: list[Any], options: dict[str, Any], hidden_states: torch.Tensor) -> torch.Tensor:
    for layer in segment:
        hidden_states, _ = layer(
            hidden_states=hidden_states,
            attention_mask=options["attention_mask"],
            rotary_pos_emb=options["rotary_pos_emb"],
            attention_bias=options["attention_bias"],
        )
    return hidden_states


def _contexts(segment: list[Any]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass and of its recomputation (same random numbers, no last product)."""
    config = segment[-1].config
    draws = config.hidden_dropout > 0 or config.attention_dropout > 0
    states = megatron_random._get_all_rng_states() if draws else None
    return nullcontext(), _recompute_context(segment[-1].mlp.linear_fc2, states)


@contextmanager
def _recompute_context(last: Any, states: Any) -> Iterator[None]:
    with ExitStack() as stack:
        if states is not None:
            stack.enter_context(megatron_random._fork_rng())
            megatron_random._set_all_rng_states(*states)
        last.computes = False
        stack.callback(setattr, last, "computes", True)
        yield
