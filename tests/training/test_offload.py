"""Offloaded activations: the right bytes leave the device, and gradients do not change."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.pretrain.activations import Offload, Transfers, shares_of
from tests.training.launching import SMALL_MODEL, plain_environments, run_forked

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
WIDTH, BATCH = 16, 64

# Order of the passes of two pipeline stages: forward passes in sequence, backward passes by number.
IN_ORDER = ["F", "F", "F", "B0", "F", "B1", "B2", "B3"]
INTERLEAVED = ["F", "F", "F", "F", "B2", "B3", "F", "B0", "B1", "B4"]
ALTERNATING = ["F", "B0", "F", "B1"]


class Block(torch.nn.Module):
    """Simulated TransformerBlock: keeps views, one storage twice, its input, and the outputs of two functions."""

    def __init__(self, input_tensor: torch.Tensor | None = None) -> None:
        super().__init__()
        self.input_tensor = input_tensor
        self.first, self.last = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.inside: list[Any] = []

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = self.first(hidden_states if self.input_tensor is None else self.input_tensor)
        gate, up = wide.chunk(2, -1)
        self.inside.append(weakref.ref(wide.untyped_storage()))
        output: torch.Tensor = self.last(torch.sigmoid(gate) * up)
        return output


def _train(schedule: list[str], ratio: float | None, device: str) -> list[torch.Tensor]:
    """Return the gradients after two iterations of the schedule."""
    torch.manual_seed(1)
    block = Block().to(device)
    if ratio is not None:
        Offload(block, ratio, Transfers(torch.device(device)))
    for _ in range(2):
        outputs: list[torch.Tensor] = []
        for step in schedule:
            if step == "F":
                outputs.append(block(torch.randn(BATCH, WIDTH, device=device)))
            else:
                torch.autograd.backward(outputs[int(step[1:])].square().sum())
    return [parameter.grad for parameter in block.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(
    "schedule", [IN_ORDER, INTERLEAVED, ALTERNATING], ids=["in_order", "interleaved", "alternating"]
)
def test_offloading_does_not_change_gradients(schedule: list[str], ratio: float, device: str) -> None:
    for gradient, expected in zip(_train(schedule, ratio, device), _train(schedule, None, device), strict=True):
        assert torch.equal(gradient, expected)


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0])
def test_the_share_of_saved_bytes_is_offloaded_and_parameters_are_not(ratio: float) -> None:
    block = Block()
    offload = Offload(block, ratio, Transfers(torch.device("cpu")))
    block(torch.randn(BATCH, WIDTH))
    # The input has 1, the first layer's output 4, the sigmoid and the product 2 each, in widths of fp32.
    assert offload.kept_bytes == 9 * WIDTH * BATCH * 4
    assert offload.offloaded_bytes == ratio * offload.kept_bytes


def test_the_input_that_the_pipeline_schedule_holds_is_not_offloaded() -> None:
    received = torch.randn(BATCH, WIDTH)
    offload = Offload(block := Block(received), 1.0, Transfers(torch.device("cpu")))
    block(torch.empty(0))
    assert offload.offloaded_bytes == 8 / 9 * offload.kept_bytes


@pytest.mark.parametrize(("ratio", "alive"), [(0.0, True), (1.0, False)])
def test_offloaded_memory_is_freed_after_the_next_chunk_and_restored(ratio: float, alive: bool) -> None:
    block = Block()
    Offload(block, ratio, Transfers(torch.device("cpu")))
    outputs = [block(torch.randn(BATCH, WIDTH)) for _ in range(2)]
    assert (block.inside[0]() is not None) is alive
    assert block.inside[1]() is not None, "it is on its way"
    sum(outputs).sum().backward()
    del outputs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_gpu_memory_decreases_by_the_share_of_all_passes_except_the_last(ratio: float) -> None:
    def allocated(share: float) -> int:
        block = Block().cuda()
        offload = Offload(block, share, Transfers(torch.device("cuda")))
        gc.collect()  # block and offload refer to each other, so earlier ones are freed only now
        before = torch.cuda.memory_allocated()
        outputs = [block(torch.randn(2**16, WIDTH, device="cuda")) for _ in range(4)]
        allocated_bytes = torch.cuda.memory_allocated() - before
        assert len(outputs) == 4 and offload.offloaded_bytes == share * offload.kept_bytes
        return allocated_bytes

    allocated(0.0)  # the first product allocates cuBLAS's workspace
    saved = allocated(0.0) - allocated(ratio)
    assert saved == pytest.approx(ratio * 3 * 9 * WIDTH * 2**16 * 4, rel=0.01)


@given(st.lists(st.integers(0, 2**34)), st.floats(0, 1))
def test_largest_tensors_are_offloaded_first_up_to_the_exact_share(sizes: list[int], ratio: float) -> None:
    shares = shares_of(sizes, ratio)
    assert sum(shares) == round(ratio * sum(sizes))
    assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
    staying = [size for share, size in zip(shares, sizes, strict=True) if share < size]
    going = [size for share, size in zip(shares, sizes, strict=True) if share == size > 0]
    assert sum(0 < share < size for share, size in zip(shares, sizes, strict=True)) <= 1
    assert not (staying and going) or max(staying) <= min(going)


# A Llama of two layers with tensors [256, 1, 256] in fp32: u = 0.25 MB, r = ffn / hidden, k = 1/4.
LAYERS, HIDDEN, HEADS, FFN = 2, 256, 16, 512
LLAMA = [
    *SMALL_MODEL,
    *f"--num-layers {LAYERS} --hidden-size {HIDDEN} --num-attention-heads {HEADS} --seq-length 256".split(),
    *["--swiglu", "--normalization", "RMSNorm", "--position-embedding-type", "rope", "--disable-bias-linear"],
    *f"--group-query-attention --num-query-groups {HEADS // 4} --ffn-hidden-size {FFN} --train-iters 1".split(),
]


# Tensors of [s, b, h] that a layer saves, by flags.
KEPT = {
    # Layer input, q, k, v, attention output, its sum with the residual, both halves of the gated linear unit.
    "--recompute-norm --recompute-activation-func": 4 + 2 / 4 + 2 * FFN / HIDDEN,
    "--recompute-activation-func": 6 + 2 / 4 + 2 * FFN / HIDDEN,
    "--recompute-norm": 4 + 2 / 4 + 4 * FFN / HIDDEN,
    # Outputs of both norms; SiLU of the gate, and its product with the other half.
    "": 6 + 2 / 4 + 4 * FFN / HIDDEN,
}


def test_a_layer_saves_the_tensors_listed_by_atc24() -> None:
    """ATC'24 counts 4 + 2k + 2r tensors of [s, b, h] for a layer that recomputes norms and activation functions."""
    command = ["-m", "orchestrator.pretrain", *LLAMA, "--offload-activation-ratio", "0.5"]
    environments = [plain_environments(1)[0] for _ in KEPT]  # each run is one process
    angles = 4 / HEADS  # cosines and sines for q and for k, [s, 1, 1, d] each
    final_norm = 1
    all_finished = run_forked([[*command, *flags.split()] for flags in KEPT], environments)
    for (flags, kept), finished in zip(KEPT.items(), all_finished, strict=True):
        assert finished.exit_code == 0, finished.stderr
        (line,) = (line for line in finished.stdout.splitlines() if line.endswith("offloaded"))
        offloaded_mb, kept_mb = (float(word) for word in line.split("chunk 0:")[1].split()[0:3:2])
        assert kept_mb / 0.25 == pytest.approx(LAYERS * (kept + angles) + final_norm, rel=0.02), flags
        assert offloaded_mb == pytest.approx(kept_mb / 2, abs=0.02), flags
