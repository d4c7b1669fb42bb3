"""Tests that need a GPU, by hand: `python -m pytest tests/gpu` (README.md beside this file).

They compare the kernels of layer norm, loss and activation with torch's, and training with CUDA graphs with training
without.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy as torchs_cross_entropy
from torch.nn.functional import gelu

from tests.training.launching import Step, plain_environments, read_record, run_started

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DTYPES = [torch.float32, torch.bfloat16]
# Relative to the largest value: another order of sums in fp32, one rounding to 8 bits in bf16.
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
TOKENS, BATCH, VOCABULARY = 512, 3, 51200


def _close(actual: Any, expected: Any, dtype: torch.dtype) -> None:
    apart = (actual.double() - expected.double()).abs().max().item()
    assert apart <= CLOSE[dtype] * max(1.0, expected.double().abs().max().item())


def _gradients(
    function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], gradient: torch.Tensor
) -> list[torch.Tensor]:
    """Return the output of the function, and the gradient of each of its inputs."""
    copies = [x.clone().requires_grad_() for x in inputs]
    output = function(*copies)
    return [output.detach(), *torch.autograd.grad(output, copies, gradient.to(output.dtype))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [96, 2304, 4096, 5120])
def test_layer_norm_equals_torch_in_double_precision(width: int, dtype: torch.dtype) -> None:
    from orchestrator.pretrain.layers import LayerNorm

    config = SimpleNamespace(params_dtype=dtype, sequence_parallel=False)
    norm: Any = LayerNorm(config, width).cuda()
    x, gradient = (3 * torch.randn(2, TOKENS, BATCH, width, device="cuda") + 1).to(dtype)
    weight, bias = torch.randn(2, width, device="cuda").to(dtype)

    def ours(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x,))
        return result

    def torchs(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (width,), weight, bias, 1e-5)

    actual = _gradients(ours, [x, weight, bias], gradient)
    expected = _gradients(torchs, [x.double(), weight.double(), bias.double()], gradient.double())
    for value, exact in zip(actual, expected, strict=True):
        assert value.dtype == dtype
        _close(value, exact, dtype)


def test_layer_norm_accepts_noncontiguous_input_and_gradient() -> None:
    from orchestrator.pretrain.layers import LayerNorm

    norm: Any = LayerNorm(SimpleNamespace(params_dtype=torch.float32, sequence_parallel=False), 96).cuda()
    x, gradient = torch.randn(2, BATCH, TOKENS, 96, device="cuda").transpose(1, 2)
    actual = _gradients(norm, [x], gradient)
    expected = _gradients(norm, [x.contiguous()], gradient.contiguous())
    assert all(torch.equal(value, same) for value, same in zip(actual, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_activation_equals_torchs(dtype: torch.dtype) -> None:
    from orchestrator.pretrain.layers import activate

    config = SimpleNamespace(bias_activation_fusion=True, gated_linear_unit=False)
    x, gradient = (4 * torch.randn(2, TOKENS, BATCH, 9216, device="cuda")).to(dtype)
    bias = torch.randn(9216, device="cuda").to(dtype)
    actual = _gradients(lambda x, bias: activate(config, x, bias), [x, bias], gradient)
    torchs = _gradients(
        lambda x, bias: gelu(x + bias, approximate="tanh"), [x.double(), bias.double()], gradient.double()
    )
    for value, exact in zip(actual, torchs, strict=True):
        _close(value, exact, dtype)


@pytest.fixture
def alone() -> Any:
    """Return a simulated process group of one rank."""
    return SimpleNamespace(rank=lambda: 0, size=lambda: 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_loss_equals_torchs_and_does_not_copy_the_logits(dtype: torch.dtype, alone: Any) -> None:
    from orchestrator.pretrain.layers import cross_entropy

    whole = (10 * torch.randn(TOKENS, BATCH, VOCABULARY, device="cuda")).to(dtype)
    labels = torch.randint(VOCABULARY, (TOKENS, BATCH), device="cuda")
    weights = torch.rand(TOKENS, BATCH, device="cuda")
    exact = whole.double().requires_grad_()
    expected = torchs_cross_entropy(exact.flatten(0, 1), labels.flatten(), reduction="none")
    (expected_gradient,) = torch.autograd.grad(expected, exact, weights.flatten().double())
    exact = None  # type: ignore[assignment]

    for is_compiled in (False, True):  # the first call compiles, which may allocate memory
        part = whole.clone().requires_grad_()
        logits = part * 1
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        losses = cross_entropy(logits, labels, alone)
        (gradient,) = torch.autograd.grad(losses, logits, weights)
        allocated_bytes = torch.cuda.max_memory_allocated() - before
        assert gradient.data_ptr() == logits.data_ptr()
        assert not is_compiled or allocated_bytes < 0.1 * logits.nbytes
    _close(losses.flatten(), expected, torch.float32)
    _close(gradient, expected_gradient, dtype)


MODEL = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 256 --vocab-size 1024 --lr 1e-3"
    " --micro-batch-size 1 --global-batch-size 8 --train-iters 5 --hidden-dropout 0 --attention-dropout 0 "
)
FULL, OURS = "--recompute-granularity full ", "--recompute-norm --recompute-activation-func "
PP, TP, CP = "--pipeline-model-parallel-size 2 ", "--tensor-model-parallel-size 2 ", "--context-parallel-size 2 "
SP, VPP = "--sequence-parallel ", "--num-virtual-stages-per-pipeline-rank 4 "
LLAMA = (
    "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
    " --untie-embeddings-and-output-weights "
)
# Runs with CUDA graphs by number of GPUs, each compared with the same run without.
GRAPHED = {
    1: {"alone": "", "full": FULL, "ours": OURS, "bf16": "--bf16 "},
    2: {
        "dp": "--use-distributed-optimizer ",
        "tp": TP + SP,
        "tp_full": TP + SP + FULL,
        "cp": CP,
        "pp": PP,
        "pp_full": PP + FULL,
        "pp_ours": PP + OURS,
        "pp_selective": PP + "--recompute-granularity selective ",
        "vpp": PP + VPP,
        "vpp_full": PP + VPP + FULL,
        "vpp_llama": PP + VPP + LLAMA,
        "pp_bf16": PP + "--bf16 ",
    },
}
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-3}
"""Relative. In bf16 atomic additions of attention's gradients come in another order each time."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Step]]:
    """Return the records of all runs for which this machine has the GPUs.

    Runs with equal numbers of GPUs share processes.
    """
    folder = tmp_path_factory.mktemp("graphs")
    steps: dict[str, list[Step]] = {}
    for gpus, runs in GRAPHED.items():
        if gpus <= torch.cuda.device_count():
            flags = {name: f"{MODEL} {extra}" for name, extra in runs.items()}
            flags |= {f"{name}-eager": f"{extra} --cuda-graph-impl none" for name, extra in flags.items()}
            steps |= train(flags, gpus, folder)
    return steps


@pytest.mark.parametrize(("gpus", "name"), [(gpus, name) for gpus, runs in GRAPHED.items() for name in runs])
def test_graphs_change_neither_losses_nor_gradient_norms(gpus: int, name: str, records: dict[str, list[Step]]) -> None:
    if gpus > torch.cuda.device_count():
        pytest.skip(f"needs {gpus} GPUs")
    recorded, eager = records[name], records[f"{name}-eager"]
    tolerance = TOLERANCE["bf16" if "bf16" in name else "fp32"]
    assert [step.loss for step in recorded] == pytest.approx([step.loss for step in eager], rel=tolerance)
    assert [step.grad_norm for step in recorded] == pytest.approx([step.grad_norm for step in eager], rel=tolerance)
    assert recorded[-1].loss < recorded[0].loss - 0.1, "it learns: steps that do nothing would agree, too"


def test_full_recomputation_has_the_losses_of_no_recomputation(records: dict[str, list[Step]]) -> None:
    full, none = ([step.loss for step in records[name]] for name in ("full", "alone"))
    assert full == pytest.approx(none, rel=1e-5)


def test_forked_ranks_train_as_one_rank_does(records: dict[str, list[Step]], tmp_path: Path) -> None:
    """The ranks could not use their GPUs if the launcher had initialised CUDA."""
    ranks, record = min(2, torch.cuda.device_count()), tmp_path / "forked.jsonl"
    command = [
        "-m",
        "orchestrator.pretrain.launch",
        f"--nproc-per-node={ranks}",
        *MODEL.split(),
        "--record",
        str(record),
    ]
    (launched,) = run_started([command], [{}])
    assert launched.exit_code == 0, launched.stderr
    alone = [step.loss for step in records["alone"]]
    assert [step.loss for step in read_record(record)] == pytest.approx(alone, rel=1e-5)


def train(runs: dict[str, str], gpus: int, folder: Path) -> dict[str, list[Step]]:
    """Train all runs in one group of processes, one GPU each, and return their records by name."""
    plan = folder / f"runs_of_{gpus}.json"
    plan.write_text(
        json.dumps({name: {"flags": flags.split(), "fault": None, "graphs": False} for name, flags in runs.items()})
    )
    command = ["-m", "tests.training.worker", str(plan), str(folder)]
    for rank, finished in enumerate(run_started([command] * gpus, plain_environments(gpus))):
        assert finished.exit_code == 0, f"rank {rank}: {finished.stderr}"
    return {name: read_record(folder / f"{name}.jsonl") for name in runs}
