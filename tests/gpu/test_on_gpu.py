"""What no CPU can run, by hand on a machine with a GPU: `python -m pytest tests/gpu` (README.md beside this file).

The kernels of layer norm, loss and activation against torch's own, and training with CUDA graphs against training
without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy as torchs_cross_entropy
from torch.nn.functional import gelu

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

REPOSITORY = Path(__file__).resolve().parents[2]
DTYPES = [torch.float32, torch.bfloat16]
# Of the largest value: sums in another order in fp32, one rounding to 8 bits in bf16.
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
TOKENS, BATCH, VOCABULARY = 512, 3, 51200


def _close(found: Any, expected: Any, dtype: torch.dtype) -> None:
    apart = (found.double() - expected.double()).abs().max().item()
    assert apart <= CLOSE[dtype] * max(1.0, expected.double().abs().max().item())


def _gradients(
    function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], gradient: torch.Tensor
) -> list[torch.Tensor]:
    """Output of the function, and the gradient of each of its inputs."""
    copies = [x.clone().requires_grad_() for x in inputs]
    output = function(*copies)
    return [output.detach(), *torch.autograd.grad(output, copies, gradient.to(output.dtype))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [96, 2304, 4096, 5120])
def test_layer_norm_is_that_of_torch_in_double(width: int, dtype: torch.dtype) -> None:
    from orchestrator.pretrain.norms import LayerNorm

    config = SimpleNamespace(params_dtype=dtype, sequence_parallel=False)
    norm: Any = LayerNorm(config, width).cuda()
    x, gradient = (3 * torch.randn(2, TOKENS, BATCH, width, device="cuda") + 1).to(dtype)
    weight, bias = torch.randn(2, width, device="cuda").to(dtype)

    def ours(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x,))
        return result

    def torchs(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (width,), weight, bias, 1e-5)

    found = _gradients(ours, [x, weight, bias], gradient)
    expected = _gradients(torchs, [x.double(), weight.double(), bias.double()], gradient.double())
    for value, exact in zip(found, expected, strict=True):
        assert value.dtype == dtype
        _close(value, exact, dtype)


def test_layer_norm_takes_an_input_and_a_gradient_whose_rows_do_not_follow_each_other() -> None:
    from orchestrator.pretrain.norms import LayerNorm

    norm: Any = LayerNorm(SimpleNamespace(params_dtype=torch.float32, sequence_parallel=False), 96).cuda()
    x, gradient = torch.randn(2, BATCH, TOKENS, 96, device="cuda").transpose(1, 2)
    found = _gradients(norm, [x], gradient)
    expected = _gradients(norm, [x.contiguous()], gradient.contiguous())
    assert all(torch.equal(value, same) for value, same in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_activation_is_torchs(dtype: torch.dtype) -> None:
    from orchestrator.pretrain.activation import activate

    config = SimpleNamespace(bias_activation_fusion=True, gated_linear_unit=False)
    x, gradient = (4 * torch.randn(2, TOKENS, BATCH, 9216, device="cuda")).to(dtype)
    bias = torch.randn(9216, device="cuda").to(dtype)
    found = _gradients(lambda x, bias: activate(config, x, bias), [x, bias], gradient)
    torchs = _gradients(
        lambda x, bias: gelu(x + bias, approximate="tanh"), [x.double(), bias.double()], gradient.double()
    )
    for value, exact in zip(found, torchs, strict=True):
        _close(value, exact, dtype)


@pytest.fixture
def alone() -> Any:
    """Stands for the process group of one rank."""
    return SimpleNamespace(rank=lambda: 0, size=lambda: 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_loss_is_torchs_and_makes_no_second_array_of_the_logits(dtype: torch.dtype, alone: Any) -> None:
    from orchestrator.pretrain.loss import cross_entropy

    whole = (10 * torch.randn(TOKENS, BATCH, VOCABULARY, device="cuda")).to(dtype)
    labels = torch.randint(VOCABULARY, (TOKENS, BATCH), device="cuda")
    weights = torch.rand(TOKENS, BATCH, device="cuda")
    exact = whole.double().requires_grad_()
    expected = torchs_cross_entropy(exact.flatten(0, 1), labels.flatten(), reduction="none")
    (expected_gradient,) = torch.autograd.grad(expected, exact, weights.flatten().double())
    exact = None  # type: ignore[assignment]

    for is_compiled in (False, True):  # the first time it is compiled, which may take memory
        part = whole.clone().requires_grad_()
        logits = part * 1
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        losses = cross_entropy(logits, labels, alone)
        (gradient,) = torch.autograd.grad(losses, logits, weights)
        taken = torch.cuda.max_memory_allocated() - before
        assert gradient.data_ptr() == logits.data_ptr()
        assert not is_compiled or taken < 0.1 * logits.nbytes
    _close(losses.flatten(), expected, torch.float32)
    _close(gradient, expected_gradient, dtype)


MODEL = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 256 --vocab-size 1024 --bf16 --lr 1e-3"
    " --micro-batch-size 2 --global-batch-size 8 --train-iters 5 --hidden-dropout 0 --attention-dropout 0"
)


@pytest.mark.parametrize(
    "flags", ["", "--recompute-granularity full", "--recompute-norm --recompute-activation-func", "--seq-length 512"]
)
def test_a_recorded_iteration_has_the_losses_of_one_that_is_not(flags: str, tmp_path: Path) -> None:
    losses = [_losses(f"{flags} --cuda-graph-impl {graphs}", tmp_path / graphs) for graphs in ("local", "none")]
    # Atomic additions of attention's gradients come in another order each time.
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)
    assert losses[0][-1] < losses[0][0] - 0.1, "it learns: steps that do nothing would agree, too"


@pytest.mark.parametrize(
    "flags", ["--recompute-granularity full", "--recompute-granularity full --recompute-num-layers 2"]
)
def test_full_recomputation_has_the_losses_of_none(flags: str, tmp_path: Path) -> None:
    with_it, without = (_losses(words, tmp_path / str(i)) for i, words in enumerate((flags, "")))
    assert with_it == pytest.approx(without, rel=2e-3)


def test_forked_ranks_can_use_their_gpus_and_have_the_losses_of_one_rank(tmp_path: Path) -> None:
    """They could not if the launcher had initialised CUDA."""
    ranks = next(ranks for ranks in (4, 2, 1) if ranks <= torch.cuda.device_count())
    forked = _losses("", tmp_path / "forked", f"launch --nproc-per-node={ranks}", ",".join(map(str, range(ranks))))
    assert forked == pytest.approx(_losses("", tmp_path / "alone"), rel=2e-3)


def _losses(flags: str, record: Path, launcher: str = "", gpus: str = "0") -> list[float]:
    program = f"orchestrator.pretrain.{launcher}".rstrip(".")
    command = [sys.executable, "-m", *f"{program} {MODEL} {flags} --record {record}".split()]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": gpus}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, timeout=300)
    return [json.loads(line)["loss"] for line in record.read_text().splitlines()]
