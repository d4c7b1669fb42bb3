"""Cross entropy over a vocabulary split among tensor-parallel ranks, without a second array of the logits' size.

Megatron-Core's fused one makes the logits fp32 and keeps their softmax. This one keeps the 16-bit logits and a number a
token, reads them once each way, and writes the gradient where they stood.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from orchestrator.pretrain.fused import Fused


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Loss of each token [s, b] in fp32, from this rank's logits [s, b, vocabulary / t] and labels [s, b].

    The backward pass overwrites the logits; nothing else may need them.
    """
    losses: torch.Tensor = _CrossEntropy.apply(logits, labels, group)  # type: ignore[no-untyped-call]
    return losses


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
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
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, columns, log_sums = ctx.saved_tensors
        # The gradient of a sum is one number with strides of 0. With the strides fixed, one compiled kernel serves all.
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        return overwrite_with_gradient(logits, columns, log_sums, gradient), None, None


@Fused
def log_sums_and_targets(logits: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """log(sum(exp(logits))) over the last dimension, and the logit in each row's column, both in fp32."""
    targets = logits.gather(-1, columns.unsqueeze(-1)).squeeze(-1)
    return torch.logsumexp(logits.float(), -1), targets.float()


@Fused
def sums_and_targets(logits: torch.Tensor, columns: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """This rank's part of sum(exp(logits - largest)) and of the logit in each row's column, [2, ...] in fp32.

    A column outside of this rank's part of the vocabulary adds nothing.
    """
    width = logits.size(-1)
    here = (columns >= 0) & (columns < width)
    targets = logits.gather(-1, columns.clamp(0, width - 1).unsqueeze(-1)).squeeze(-1).float()
    sums = (logits.float() - largest.unsqueeze(-1)).exp().sum(-1)
    return torch.stack([sums, torch.where(here, targets, 0.0)])


@Fused
def overwrite_with_gradient(
    logits: torch.Tensor, columns: torch.Tensor, log_sums: torch.Tensor, gradient: torch.Tensor
) -> torch.Tensor:
    """The gradient of the logits, softmax less one in each row's column, in their place."""
    shares = (logits.float() - log_sums.unsqueeze(-1)).exp()
    is_target = torch.arange(logits.size(-1), device=logits.device) == columns.unsqueeze(-1)
    return logits.copy_((shares - is_target.float()) * gradient.unsqueeze(-1))
