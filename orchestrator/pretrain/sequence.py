"""How context parallelism cuts a sequence: into twice as many pieces as ranks, rank r taking pieces r and 2c-1-r.

A causal query of an early piece attends to little and one of a late piece to much, so every rank has equal work.
"""

from __future__ import annotations

import torch


def pieces_of(rank: int, context_parallel: int) -> tuple[int, int]:
    """The two pieces, earlier first, that a rank of the context-parallel group holds."""
    return rank, 2 * context_parallel - 1 - rank


def take_share(whole: torch.Tensor, rank: int, context_parallel: int, dim: int) -> torch.Tensor:
    """The share of one rank, its two pieces joined; `dim` is the sequence dimension."""
    if context_parallel == 1:
        return whole
    pieces = whole.chunk(2 * context_parallel, dim)
    return torch.cat([pieces[i] for i in pieces_of(rank, context_parallel)], dim)


def join_shares(shares: torch.Tensor, context_parallel: int) -> torch.Tensor:
    """The whole sequence from the shares of all ranks in rank order, both along dimension 0."""
    halves = shares.chunk(2 * context_parallel, 0)
    in_order: dict[int, torch.Tensor] = {}
    for rank in range(context_parallel):
        early, late = pieces_of(rank, context_parallel)
        in_order[early], in_order[late] = halves[2 * rank], halves[2 * rank + 1]
    return torch.cat([in_order[i] for i in range(2 * context_parallel)], 0)
