"""RMSNorm compared with torch's, and the tensors that it saves for its backward pass."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from orchestrator.pretrain.layers import NORMS, RMSNorm

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _config(dtype: torch.dtype = torch.float32, *, sequence_parallel: bool = False) -> SimpleNamespace:
    return SimpleNamespace(params_dtype=dtype, sequence_parallel=sequence_parallel)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_and_its_gradients_equal_torchs(dtype: torch.dtype, device: str) -> None:
    ours = RMSNorm(_config(dtype), 24).to(device)
    theirs = torch.nn.RMSNorm(24, eps=1e-5, dtype=dtype, device=device)
    weight = torch.randn(24, device=device).to(dtype)
    x, gradient = torch.randn(2, 5, 3, 24, device=device).to(dtype)
    results = []
    for norm in (ours, theirs):
        norm.weight.data.copy_(weight)
        copy = x.clone().requires_grad_()
        normed = norm(copy)
        normed.backward(gradient)
        results.append((normed, copy.grad, norm.weight.grad))
    for value, expected in zip(*results, strict=True):
        torch.testing.assert_close(value, expected)


def test_rms_norm_saves_its_input_and_one_number_per_token() -> None:
    kept: list[torch.Size] = []
    norm = RMSNorm(_config(torch.bfloat16), 24)
    x = torch.randn(5, 3, 24, dtype=torch.bfloat16, requires_grad=True)
    with saved_tensors_hooks(lambda tensor: kept.append(tensor.size()), lambda _: x):
        norm(x)
    assert sorted(kept) == [(5, 3, 1), (5, 3, 24), (24,)]


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_weights_are_marked_for_sequence_parallelism(name: str) -> None:
    for marked in (False, True):
        norm = NORMS[name](_config(sequence_parallel=marked), 8)  # type: ignore[index]
        assert {getattr(parameter, "sequence_parallel", None) for parameter in norm.parameters()} == {marked}
