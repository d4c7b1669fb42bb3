"""Parts of the model that replace Megatron-Core's: linear layers, norms, activation functions, the loss and attention.

Attention is torch's scaled_dot_product_attention, with context parallelism over gathered keys and values.
Megatron-Core's unfused attention refuses context parallelism and keeps the score matrices. Context parallelism of c
ranks cuts a sequence into 2c pieces; rank r holds pieces r and 2c-1-r. Causal queries of an early piece attend to few
keys, those of a late piece to many, so every rank has equal work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.fusions.fused_bias_swiglu import bias_swiglu_impl
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    LinearWithGradAccumulationAndAsyncCommunication,
    RowParallelLinear,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from orchestrator.pretrain.arguments import AttentionBackend, Normalization

if TYPE_CHECKING:
    from megatron.core.transformer.mlp import MLP
    from megatron.core.transformer.transformer_block import TransformerBlock
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch.autograd.function import FunctionCtx
    from typing_extensions import Unpack

    class _Context(FunctionCtx):
        """Context of an autograd function that saves tensors."""

        saved_tensors: tuple[torch.Tensor, ...]

    class _GroupContext(FunctionCtx):
        group: dist.ProcessGroup

    # Input, weight, bias, gradient_accumulation_fusion, allreduce_dgrad, sequence_parallel and tp_group.
    _LinearInputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, bool, bool, bool, dist.ProcessGroup]

Result = TypeVar("Result")


class Fused(Generic[Result]):
    """Function that torch.compile turns into one kernel on a GPU. The device of its first tensor decides."""

    def __init__(self, function: Callable[..., Result]) -> None:
        self.function = function
        self._compiled: Callable[..., Result] | None = None

    def __call__(self, tensor: torch.Tensor, *others: object) -> Result:
        """Run the function, compiled if the tensor is on a GPU."""
        if not tensor.is_cuda:
            return self.function(tensor, *others)
        if self._compiled is None:
            # The shapes of a run do not change, and code for fixed shapes is faster.
            self._compiled = torch.compile(self.function, dynamic=False)
        return self._compiled(tensor, *others)


class BiasedColumnParallelLinear(ColumnParallelLinear):  # type: ignore[misc]
    """Linear layer that adds its bias in the GEMM. Megatron-Core reads and writes the whole output again for it."""

    def _forward_impl(self, input: torch.Tensor, weight: torch.Tensor, **options: object) -> torch.Tensor:
        if options["bias"] is None:
            output: torch.Tensor = super()._forward_impl(input=input, weight=weight, **options)
            return output
        return _apply(_BiasedProduct, input, weight, options)


class SkippableRowParallelLinear(RowParallelLinear):  # type: ignore[misc]
    """Linear layer that skips its product while `computes` is false. Its backward pass does not change."""

    computes = True

    def _forward_impl(self, input: torch.Tensor, weight: torch.Tensor, **options: object) -> torch.Tensor:
        if self.computes:
            output: torch.Tensor = super()._forward_impl(input=input, weight=weight, **options)
            return output
        return _apply(_NoProduct, input, weight, options)


_OPTIONS = ("bias", "gradient_accumulation_fusion", "allreduce_dgrad", "sequence_parallel", "tp_group")


def _apply(
    function: type[torch.autograd.Function], input: torch.Tensor, weight: torch.Tensor, options: Mapping[str, object]
) -> torch.Tensor:
    output: torch.Tensor = function.apply(input, weight, *(options[name] for name in _OPTIONS))  # type: ignore[no-untyped-call]
    return output


class _Linear(LinearWithGradAccumulationAndAsyncCommunication):  # type: ignore[misc]
    """Autograd function with Megatron-Core's backward pass."""

    @staticmethod
    def set_fields(ctx: FunctionCtx, inputs: _LinearInputs) -> None:
        """Set the fields that Megatron-Core's backward pass reads."""
        input, weight, bias, fuses_accumulation, reduces, sequence_parallel, group = inputs
        ctx.save_for_backward(input, weight)
        fields = {
            "main_grad": getattr(weight, "main_grad", None) if fuses_accumulation else None,
            "use_bias": bias is not None,
            "gradient_accumulation_fusion": fuses_accumulation,
            "allreduce_dgrad": reduces,
            "sequence_parallel": sequence_parallel,
            "wgrad_deferral_limit": 0,
            "grad_output_buffer": None,
            "tp_group": group,
            # torch.amp.custom_bwd, which decorates that backward pass, reads these two.
            "_fwd_used_autocast": False,
            "_dtype": None,
        }
        for name, value in fields.items():
            setattr(ctx, name, value)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_inputs = LinearWithGradAccumulationAndAsyncCommunication.backward(ctx, *gradients)
        return (*of_inputs[:3], None, None, None, None)


class _BiasedProduct(_Linear):
    @staticmethod
    def forward(ctx: FunctionCtx, *inputs: Unpack[_LinearInputs]) -> torch.Tensor:
        _Linear.set_fields(ctx, inputs)
        input, weight, bias, _, _, sequence_parallel, group = inputs
        assert bias is not None
        if sequence_parallel:
            whole = input.new_empty(group.size() * input.size(0), *input.shape[1:])
            dist.all_gather_into_tensor(whole, input, group=group)
        else:
            whole = input
        return torch.addmm(bias, whole.flatten(0, -2), weight.t()).view(*whole.shape[:-1], weight.size(0))


class _NoProduct(_Linear):
    @staticmethod
    def forward(ctx: FunctionCtx, *inputs: Unpack[_LinearInputs]) -> torch.Tensor:
        _Linear.set_fields(ctx, inputs)
        input, weight, *_ = inputs
        return input.new_empty(*input.shape[:-1], weight.size(0))


class LayerNorm(torch.nn.LayerNorm):
    """torch's layer norm, marked so that sequence parallelism sums its gradients over the ranks.

    On a GPU it uses `layer_norm_kernels`, which keep the same tensors for the backward pass.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: object) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        _mark_parameters(self, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm over the last dimension."""
        if not x.is_cuda:
            return super().forward(x)
        normed: torch.Tensor = _LayerNormFunction.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return normed


class RMSNorm(torch.nn.RMSNorm):
    """Root-mean-square norm in fp32, marked like LayerNorm; one kernel on a GPU with torch >= 2.9.

    Without that kernel torch keeps several fp32 copies of the input. This norm keeps only the input.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: object) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        _mark_parameters(self, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm over the last dimension."""
        normed: torch.Tensor = RootMeanSquare.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return normed


NORMS: dict[Normalization, type[LayerNorm | RMSNorm]] = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


def _mark_parameters(norm: torch.nn.Module, config: TransformerConfig) -> None:
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class _LayerNormFunction(torch.autograd.Function):
    """(x - mean) * weight / deviation + bias over the last dimension. Keeps x and two numbers per row."""

    @staticmethod
    def forward(ctx: _Context, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        from orchestrator.pretrain import layer_norm_kernels

        normed, mean, scale = layer_norm_kernels.forward(x.contiguous(), weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, scale)
        return normed

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        from orchestrator.pretrain import layer_norm_kernels

        x, weight, mean, scale = ctx.saved_tensors
        (gradient,) = gradients
        return (*layer_norm_kernels.backward(gradient.contiguous(), x.contiguous(), weight, mean, scale), None)


class RootMeanSquare(torch.autograd.Function):
    """x * weight / sqrt(mean(x^2) + eps) over the last dimension. Keeps x and 1 / sqrt(mean(x^2) + eps)."""

    @staticmethod
    def forward(ctx: _Context, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Return the norm over the last dimension."""
        normed: torch.Tensor
        if _has_kernel(x):
            normed, scale = torch.ops.aten._fused_rms_norm(x, weight.shape, weight, eps)
        else:
            wide = x.float()
            scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
            normed = (wide * scale * weight.float()).to(x.dtype)
        ctx.save_for_backward(x, weight, scale)
        return normed

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the gradients of x and the weight."""
        (gradient,) = gradients
        x, weight, scale = ctx.saved_tensors
        if _has_kernel(x):
            gradient_of_x, gradient_of_weight = torch.ops.aten._fused_rms_norm_backward(
                gradient.contiguous(), x, weight.shape, scale, weight, [True, True]
            )
            return gradient_of_x, gradient_of_weight, None
        unscaled, gradient = x.float() * scale, gradient.float()
        weighted = gradient * weight.float()
        gradient_of_x = scale * (weighted - unscaled * (weighted * unscaled).mean(-1, keepdim=True))
        gradient_of_weight = (gradient * unscaled).flatten(0, -2).sum(0)
        return gradient_of_x.to(x.dtype), gradient_of_weight.to(weight.dtype), None


def _has_kernel(x: torch.Tensor) -> bool:
    return x.is_cuda and hasattr(torch.ops.aten, "_fused_rms_norm")


# gelu(x) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3). It equals the tanh form of Megatron-Core's kernel.
# A GPU has an instruction for the exponential.
_SQRT_2_OVER_PI = 0.7978845608028654
_CUBIC = 0.044715


def use_activation(block: TransformerBlock) -> None:
    """Make the layers of a Megatron-Core TransformerBlock use `activate` between their feed-forward products."""
    for layer in block.layers:
        layer.mlp.forward = partial(_feed_forward, layer.mlp)


def _feed_forward(mlp: MLP, hidden_states: torch.Tensor, **_: object) -> object:
    """Return the output, and the bias that the caller must add to it."""
    intermediate, bias = mlp.linear_fc1(hidden_states)
    return mlp.linear_fc2(activate(mlp.config, intermediate, bias))


def activate(config: TransformerConfig, intermediate: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return SwiGLU or GELU of the first product and its bias, fused or not."""
    if config.bias_activation_fusion:
        fused = bias_swiglu_impl if config.gated_linear_unit else _BiasGelu.apply
        activated: torch.Tensor = fused(intermediate, bias)
        return activated
    if bias is not None:
        intermediate = intermediate + bias
    activation: Callable[[torch.Tensor], torch.Tensor] = config.activation_func
    if not config.gated_linear_unit:
        return activation(intermediate)
    gate, up = intermediate.chunk(2, -1)
    return activation(gate) * up


class _BiasGelu(torch.autograd.Function):
    """gelu(x + bias) of x [..., ffn] and bias [ffn]. Keeps both and recomputes the rest."""

    @staticmethod
    def forward(ctx: _Context, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, bias)
        return bias_gelu(x, bias)

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, bias = ctx.saved_tensors
        gradient = bias_gelu_gradient(x, bias, *gradients)
        return gradient, gradient.flatten(0, -2).sum(0)


@Fused
def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return gelu(x + bias) in its tanh form."""
    x = x + bias
    return x * torch.sigmoid(2 * _SQRT_2_OVER_PI * x * (1 + _CUBIC * x * x))


@Fused
def bias_gelu_gradient(x: torch.Tensor, bias: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient of x from the gradient of gelu(x + bias)."""
    x = x + bias
    share = torch.sigmoid(2 * _SQRT_2_OVER_PI * x * (1 + _CUBIC * x * x))
    slope = 2 * _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * x * x)
    return gradient * share * (1 + x * (1 - share) * slope)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return each token's cross entropy [s, b] in fp32, from logits [s, b, vocabulary / t] and labels [s, b].

    Megatron-Core's fused loss makes fp32 logits and keeps their softmax. This loss keeps the 16-bit logits and one
    number per token, reads them once in each pass, and overwrites them with the gradient. No other code may need them.
    """
    losses: torch.Tensor = _CrossEntropy.apply(logits, labels, group)  # type: ignore[no-untyped-call]
    return losses


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, logits: torch.Tensor, labels: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        columns = labels - group.rank() * logits.size(-1)
        if group.size() == 1:
            log_sums, targets = log_sums_and_targets(logits, columns)
        else:
            largest = logits.amax(-1).float()
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
            parts = sums_and_targets(logits, columns, largest)
            dist.all_reduce(parts, group=group)
            log_sums, targets = parts[0].log() + largest, parts[1]
        ctx.save_for_backward(logits, columns, log_sums)
        return log_sums - targets

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, columns, log_sums = ctx.saved_tensors
        # The gradient of a sum has strides of 0. With fixed strides one compiled kernel serves all cases.
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        return overwrite_with_gradient(logits, columns, log_sums, gradient), None, None


@Fused
def log_sums_and_targets(logits: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log(sum(exp(logits))) over the last dimension, and the logit in each row's column, both in fp32."""
    targets = logits.gather(-1, columns.unsqueeze(-1)).squeeze(-1)
    return torch.logsumexp(logits.float(), -1), targets.float()


@Fused
def sums_and_targets(logits: torch.Tensor, columns: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of sum(exp(logits - largest)) and of the logit in each row's column, fp32 [2, ...].

    A column outside this rank's part of the vocabulary adds nothing.
    """
    width = logits.size(-1)
    is_local = (columns >= 0) & (columns < width)
    targets = logits.gather(-1, columns.clamp(0, width - 1).unsqueeze(-1)).squeeze(-1).float()
    sums = (logits.float() - largest.unsqueeze(-1)).exp().sum(-1)
    return torch.stack([sums, torch.where(is_local, targets, 0.0)])


@Fused
def overwrite_with_gradient(
    logits: torch.Tensor, columns: torch.Tensor, log_sums: torch.Tensor, gradient: torch.Tensor
) -> torch.Tensor:
    """Overwrite the logits with their gradient: softmax, minus one in each row's column."""
    shares = (logits.float() - log_sums.unsqueeze(-1)).exp()
    is_target = torch.arange(logits.size(-1), device=logits.device) == columns.unsqueeze(-1)
    return logits.copy_((shares - is_target.float()) * gradient.unsqueeze(-1))


# `unfused` keeps the score matrices for the backward pass, as programs before flash attention did.
_KERNELS: dict[AttentionBackend, list[SDPBackend]] = {
    "flash": [SDPBackend.FLASH_ATTENTION],
    "fused": [SDPBackend.CUDNN_ATTENTION],
    "unfused": [SDPBackend.MATH],
}


class CausalAttention(torch.nn.Module):
    """Core attention of a Megatron-Core layer spec.

    Query [s, b, n, d], key and value [s, b, n_kv, d], all local to the rank: s the sequence length over the
    context-parallel size, n the heads over the tensor-parallel size, n_kv a divisor of n. Returns [s, b, n * d].
    `copies_value` is for rotary positions: there only the value still uses the memory of all three projections. A copy
    of the value frees that memory.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *_: object,
        backend: AttentionBackend = "auto",
        copies_value: bool = False,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        **__: object,
    ) -> None:
        super().__init__()
        self.context_parallel: int = config.context_parallel_size
        self.context_group: dist.ProcessGroup | None = (
            parallel_state.get_context_parallel_group() if self.context_parallel > 1 else None
        )
        self.dropout: float = config.attention_dropout if attention_dropout is None else attention_dropout
        self.scale = softmax_scale
        self.backend: AttentionBackend = backend
        self.copies_value = copies_value
        self.shares_keys: bool = config.num_query_groups < config.num_attention_heads
        # Under sequence parallelism the layer already draws from the tensor-parallel random state.
        self.forks_random_state = not config.sequence_parallel

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> torch.Tensor:
        """Return the context [s, b, n * d]."""
        length, batch, heads, width = query.shape
        dropout = self.dropout if self.training else 0.0
        with ExitStack() as stack:
            if dropout > 0 and self.forks_random_state:
                stack.enter_context(get_cuda_rng_tracker().fork())
            if self.backend != "auto":
                stack.enter_context(sdpa_kernel(_KERNELS[self.backend]))
            if self.copies_value:
                value = value.contiguous()
            attend = self._attend if self.context_group is None else self._attend_across_ranks
            context = attend(query, key, value, dropout)
        return context.permute(2, 0, 1, 3).reshape(length, batch, heads * width)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float) -> torch.Tensor:
        query, key, value = _heads_first(query), _heads_first(key), _heads_first(value)
        return scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True, scale=self.scale, enable_gqa=self.shares_keys
        )

    def _attend_across_ranks(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float
    ) -> torch.Tensor:
        """Return [b, n, s, d]. Each of the rank's two pieces of queries attends to all keys up to its own end."""
        assert self.context_group is not None
        keys = join_shares(_gather_sequence(key, self.context_group), self.context_parallel)
        values = join_shares(_gather_sequence(value, self.context_group), self.context_parallel)
        piece_length = query.size(0) // 2
        pieces = pieces_of(self.context_group.rank(), self.context_parallel)
        contexts = []
        for i, queries in zip(pieces, query.chunk(2, 0), strict=True):
            end = (i + 1) * piece_length
            contexts.append(
                scaled_dot_product_attention(
                    _heads_first(queries),
                    _heads_first(keys[:end]),
                    _heads_first(values[:end]),
                    attn_mask=causal_lower_right(piece_length, end),
                    dropout_p=dropout,
                    scale=self.scale,
                    enable_gqa=self.shares_keys,
                )
            )
        return torch.cat(contexts, 2)


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    """Return [s, b, n, d] as [b, n, s, d] without a copy."""
    return x.permute(1, 2, 0, 3)


def _gather_sequence(share: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    shares: torch.Tensor = _GatherSequence.apply(share, group)  # type: ignore[no-untyped-call]
    return shares


class _GatherSequence(torch.autograd.Function):
    """Gather of the shares of a sequence (dimension 0) in rank order. Backward sums the ranks' gradients of a share."""

    @staticmethod
    def forward(ctx: _GroupContext, share: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        shares = share.new_empty(group.size() * share.size(0), *share.shape[1:])
        dist.all_gather_into_tensor(shares, share.contiguous(), group=group)
        return shares

    @staticmethod
    def backward(ctx: _GroupContext, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        share = gradient.new_empty(gradient.size(0) // ctx.group.size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(share, gradient.contiguous(), group=ctx.group)
        return share, None


def pieces_of(rank: int, context_parallel: int) -> tuple[int, int]:
    """Return the two pieces that a rank of the context-parallel group holds, earlier first."""
    return rank, 2 * context_parallel - 1 - rank


def take_share(whole: torch.Tensor, rank: int, context_parallel: int, dim: int) -> torch.Tensor:
    """Return the share of one rank, its two pieces joined. `dim` is the sequence dimension."""
    if context_parallel == 1:
        return whole
    pieces = whole.chunk(2 * context_parallel, dim)
    return torch.cat([pieces[i] for i in pieces_of(rank, context_parallel)], dim)


def join_shares(shares: torch.Tensor, context_parallel: int) -> torch.Tensor:
    """Return the whole sequence from the shares of all ranks in rank order, both along dimension 0."""
    halves = shares.chunk(2 * context_parallel, 0)
    in_order: dict[int, torch.Tensor] = {}
    for rank in range(context_parallel):
        early, late = pieces_of(rank, context_parallel)
        in_order[early], in_order[late] = halves[2 * rank], halves[2 * rank + 1]
    return torch.cat([in_order[i] for i in range(2 * context_parallel)], 0)
