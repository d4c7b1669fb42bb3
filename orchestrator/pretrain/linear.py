"""Linear layers of Megatron-Core that add a bias within the product, or leave a product out where nobody reads it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    LinearWithGradAccumulationAndAsyncCommunication,
    RowParallelLinear,
)


class BiasedColumnParallelLinear(ColumnParallelLinear):  # type: ignore[misc]
    """Adds its bias in the product itself: Megatron-Core's own reads and writes the whole output once more for it."""

    def _forward_impl(self, input: torch.Tensor, weight: torch.Tensor, **options: Any) -> torch.Tensor:
        if options["bias"] is None:
            output: torch.Tensor = super()._forward_impl(input=input, weight=weight, **options)
            return output
        return _apply(_BiasedProduct, input, weight, options)


class SkippableRowParallelLinear(RowParallelLinear):  # type: ignore[misc]
    """While `computes` is false its output has no values; its backward pass is the same."""

    computes = True

    def _forward_impl(self, input: torch.Tensor, weight: torch.Tensor, **options: Any) -> torch.Tensor:
        if self.computes:
            output: torch.Tensor = super()._forward_impl(input=input, weight=weight, **options)
            return output
        return _apply(_NoProduct, input, weight, options)


def _apply(function: Any, input: torch.Tensor, weight: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    output: torch.Tensor = function.apply(
        input,
        weight,
        options["bias"],
        options["gradient_accumulation_fusion"],
        options["allreduce_dgrad"],
        options["sequence_parallel"],
        options["tp_group"],
    )
    return output


class _Linear(LinearWithGradAccumulationAndAsyncCommunication):  # type: ignore[misc]
    """The backward pass is Megatron-Core's, which reads these fields."""

    @staticmethod
    def keep(ctx: Any, inputs: tuple[Any, ...]) -> None:
        input, weight, bias, fuses_accumulation, reduces, sequence_parallel, group = inputs
        ctx.save_for_backward(input, weight)
        ctx.main_grad = getattr(weight, "main_grad", None) if fuses_accumulation else None
        ctx.use_bias = bias is not None
        ctx.gradient_accumulation_fusion = fuses_accumulation
        ctx.allreduce_dgrad = reduces
        ctx.sequence_parallel = sequence_parallel
        ctx.wgrad_deferral_limit, ctx.grad_output_buffer = 0, None
        ctx.tp_group = group
        # What torch.amp.custom_bwd, which decorates that backward pass, asks for.
        ctx._fwd_used_autocast, ctx._dtype = False, None

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        found = LinearWithGradAccumulationAndAsyncCommunication.backward(ctx, *gradients)
        return (*found[:3], None, None, None, None)


class _BiasedProduct(_Linear):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        _Linear.keep(ctx, inputs)
        input, weight, bias, _, _, sequence_parallel, group = inputs
        if sequence_parallel:
            whole = input.new_empty(group.size() * input.size(0), *input.shape[1:])
            dist.all_gather_into_tensor(whole, input, group=group)
        else:
            whole = input
        return torch.addmm(bias, whole.flatten(0, -2), weight.t()).view(*whole.shape[:-1], weight.size(0))


class _NoProduct(_Linear):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        _Linear.keep(ctx, inputs)
        input: torch.Tensor = inputs[0]
        weight: torch.Tensor = inputs[1]
        return input.new_empty(*input.shape[:-1], weight.size(0))
