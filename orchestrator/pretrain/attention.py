"""Causal attention by torch's scaled_dot_product_attention, with context parallelism over gathered keys and values.

It replaces Megatron-Core's unfused attention, which refuses context parallelism and keeps the score matrices.

Context parallelism of c ranks cuts a sequence into 2c pieces; rank r holds pieces r and 2c-1-r. Causal queries of
an early piece attend to few keys, those of a late piece to many, so every rank has equal work.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from orchestrator.pretrain.arguments import AttentionBackend

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch.autograd.function import FunctionCtx

    class _GroupContext(FunctionCtx):
        group: dist.ProcessGroup


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
