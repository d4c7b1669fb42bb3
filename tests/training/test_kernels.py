"""Fused functions on a CPU, compared with torch. tests/gpu has the kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.nn.functional import gelu, silu

import orchestrator.pretrain
from orchestrator.pretrain.layers import Fused, LayerNorm, activate, bias_gelu, bias_gelu_gradient
from orchestrator.pretrain.rank import accumulate_weight_gradient, fuse_weight_gradient


def _doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_gelu_with_bias_equals_torch_and_its_gradient_equals_autograd() -> None:
    # From gelu(x) = 0 to gelu(x) = x.
    x, bias = torch.linspace(-12, 12, 240, dtype=torch.float64).view(10, 3, 8), _doubles(8)
    argument = (x + bias).requires_grad_()
    expected = gelu(argument, approximate="tanh")
    gradient = _doubles(10, 3, 8)
    torch.autograd.backward(expected, gradient)
    torch.testing.assert_close(bias_gelu(x, bias), expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(bias_gelu_gradient(x, bias, gradient), argument.grad, rtol=1e-12, atol=1e-12)


def test_fused_activation_gradients_equal_autograd() -> None:
    config = SimpleNamespace(bias_activation_fusion=True, gated_linear_unit=False)
    x, bias = _doubles(5, 3, 8).requires_grad_(), _doubles(8).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, bias: activate(config, x, bias), (x, bias))
    torch.testing.assert_close(activate(config, x, bias), gelu(x + bias, approximate="tanh"))


@pytest.mark.parametrize("has_bias", [False, True])
def test_an_unfused_activation_is_the_configured_one(has_bias: bool) -> None:
    x, bias = _doubles(5, 3, 8), _doubles(8) if has_bias else None
    moved = x if bias is None else x + bias
    plain = SimpleNamespace(bias_activation_fusion=False, gated_linear_unit=False, activation_func=gelu)
    torch.testing.assert_close(activate(plain, x, bias), gelu(moved))
    gated = SimpleNamespace(bias_activation_fusion=False, gated_linear_unit=True, activation_func=silu)
    torch.testing.assert_close(activate(gated, x, bias), silu(moved[..., :4]) * moved[..., 4:])


class OnGpu:
    """A tensor that claims to be on a GPU."""

    is_cuda = True


def test_a_fused_function_is_compiled_once_and_only_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[object, dict[str, object]]] = []

    def compile_(function: Callable[..., str], **options: object) -> Callable[..., str]:
        compiled.append((function, options))
        return lambda *tensors: f"one kernel of {function(*tensors)}"

    def function(_: object, other: int) -> str:
        return f"as written {other}"

    monkeypatch.setattr(torch, "compile", compile_)
    fused = Fused(function)
    assert fused(torch.zeros(1), 1) == "as written 1" and compiled == []
    assert [fused(cast(torch.Tensor, OnGpu()), i) for i in (2, 3)] == [
        "one kernel of as written 2",
        "one kernel of as written 3",
    ]
    assert compiled == [(function, {"dynamic": False})]
    assert fused(torch.zeros(1), 4) == "as written 4"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm_on_cpu_equals_torch_exactly(dtype: torch.dtype) -> None:
    config: Any = SimpleNamespace(params_dtype=dtype, sequence_parallel=False)
    ours, theirs = LayerNorm(config, 24), torch.nn.LayerNorm(24, eps=1e-5, dtype=dtype)
    weight, bias = torch.randn(2, 24).to(dtype)
    x, gradient = torch.randn(2, 5, 3, 24).to(dtype)
    results: list[list[torch.Tensor | None]] = []
    for norm in (ours, theirs):
        norm.weight.data.copy_(weight)
        norm.bias.data.copy_(bias)
        copy = x.clone().requires_grad_()
        normed = norm(copy)
        torch.autograd.backward(normed, gradient)
        results.append([normed.detach(), copy.grad, norm.weight.grad, norm.bias.grad])
    for value, expected in zip(*results, strict=True):
        assert value is not None and expected is not None and torch.equal(value, expected)


def _import_again(name: str) -> Any:
    """Return a second copy of a module. The first one stays in use."""
    spec = find_spec(name)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_kernel_is_loaded_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton is in no extra, and torch for CPUs does not include it."""
    kernels = "orchestrator.pretrain.layer_norm_kernels"
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, kernels, raising=False)
    monkeypatch.delattr(orchestrator.pretrain, "layer_norm_kernels", raising=False)
    layers = _import_again("orchestrator.pretrain.layers")
    norm = layers.LayerNorm(SimpleNamespace(params_dtype=torch.float32, sequence_parallel=False), 8)
    norm(torch.ones(2, 8)).sum().backward()
    assert kernels not in sys.modules


def test_megatron_core_finds_the_function_that_adds_weight_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-Core's layers look for an extension of apex at import. `pretrain` provides it under the same names."""
    monkeypatch.setitem(sys.modules, "fused_weight_gradient_mlp_cuda", ModuleType("removed after the test"))
    del sys.modules["fused_weight_gradient_mlp_cuda"]
    fuse_weight_gradient()
    layers = _import_again("megatron.core.tensor_parallel.layers")
    assert layers._grad_accum_fusion_available
    assert layers.fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32 is accumulate_weight_gradient
    assert layers.fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp16 is accumulate_weight_gradient
