"""The norms of a layer, marked for sequence parallelism; each keeps the same for its backward pass on every device."""

from __future__ import annotations

from typing import Any

import torch

from orchestrator.pretrain.arguments import Normalization


class LayerNorm(torch.nn.LayerNorm):
    """torch's layer norm, marked so that under sequence parallelism its gradients are summed over the ranks.

    On a GPU it has kernels of its own, which keep what torch's keep.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        _mark(self, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_cuda:
            return super().forward(x)
        normed: torch.Tensor = _Layer.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return normed


class RMSNorm(torch.nn.RMSNorm):
    """Root-mean-square norm, marked as LayerNorm is; computed in fp32, in one kernel on a GPU with torch >= 2.9.

    torch's own keeps several fp32 copies of its input where it has no such kernel; this one keeps the input alone.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        _mark(self, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = RootMeanSquare.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return normed


NORMS: dict[Normalization, type[LayerNorm | RMSNorm]] = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


def _mark(norm: torch.nn.Module, config: Any) -> None:
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class _Layer(torch.autograd.Function):
    """(x - mean) * weight / deviation + bias over the last dimension; keeps x and two numbers a row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        from orchestrator.pretrain import layer_norm_kernels

        normed, mean, scale = layer_norm_kernels.forward(x.contiguous(), weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, scale)
        return normed

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        from orchestrator.pretrain import layer_norm_kernels

        x, weight, mean, scale = ctx.saved_tensors
        (gradient,) = gradients
        return (*layer_norm_kernels.backward(gradient.contiguous(), x.contiguous(), weight, mean, scale), None)


class RootMeanSquare(torch.autograd.Function):
    """x * weight / sqrt(mean(x^2) + eps) over the last dimension; keeps x and 1 / sqrt(mean(x^2) + eps)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if _has_kernel(x):
            normed, scale = torch.ops.aten._fused_rms_norm(x, weight.shape, weight, eps)
        else:
            wide = x.float()
            scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
            normed = (wide * scale * weight.float()).to(x.dtype)
        ctx.save_for_backward(x, weight, scale)
        return normed  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
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
