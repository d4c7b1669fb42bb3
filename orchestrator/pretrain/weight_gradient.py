"""Weight gradients added to the fp32 gradient buffer by the GEMM itself, as apex's CUDA extension does it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

_EXTENSION = "fused_weight_gradient_mlp_cuda"


def accumulate_weight_gradient(inputs: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor) -> None:
    """Add grad_output^T x inputs to `main_grad` in place.

    inputs [..., in], grad_output [..., out] in the model's precision; main_grad [out, in] in fp32. On a GPU the product
    of 16-bit factors is summed in fp32 without a temporary (torch >= 2.8); elsewhere it is a product and a sum.
    """
    inputs = inputs.reshape(-1, inputs.shape[-1])
    grad_output = grad_output.reshape(-1, grad_output.shape[-1])
    if inputs.is_cuda and inputs.dtype != torch.float32 and hasattr(torch.ops.aten.addmm, "dtype_out"):
        torch.ops.aten.addmm.dtype_out(main_grad, grad_output.t(), inputs, torch.float32, out=main_grad)
    else:
        main_grad.add_(grad_output.t() @ inputs)


def install() -> None:
    """Stand in for apex's extension where it is not installed; must run before Megatron-Core's layers are imported."""
    try:
        __import__(_EXTENSION)
    except ImportError:
        module: Any = ModuleType(_EXTENSION)
        module.wgrad_gemm_accum_fp32 = accumulate_weight_gradient
        module.wgrad_gemm_accum_fp16 = accumulate_weight_gradient
        sys.modules[_EXTENSION] = module
