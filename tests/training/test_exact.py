"""Planner with the real model without data, compared with measured runs, published formulas and jobs that fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from orchestrator.megatron import exact
from orchestrator.megatron.exact import ExactJob, ExactMemory, RankMemory, exact_memory
from orchestrator.megatron.meta_memory import LiveBytes
from orchestrator.megatron.model import Attention
from tests.training.planner import shared_processes

REPOSITORY = Path(__file__).parents[2]
FULL = "--recompute-granularity full"
SELECTIVE = "--recompute-granularity selective"
SEQUENCE = "--sequence-parallel"


@dataclass(frozen=True)
class Measured:
    """A measured run on NVIDIA H200. Bytes are torch's max_memory_allocated, the largest over all ranks."""

    gpus: int
    layers: int
    hidden: int
    heads: int
    micro_batch: int
    batch: int
    flags: str
    max_memory_bytes: int

    @property
    def job(self) -> ExactJob:
        size = f"--num-layers {self.layers} --hidden-size {self.hidden} --num-attention-heads {self.heads}"
        batch = f"--micro-batch-size {self.micro_batch} --global-batch-size {self.batch}"
        rest = "--bf16 --use-distributed-optimizer --hidden-dropout 0 --attention-dropout 0"
        return job(f"{size} {batch} {rest} {self.flags}", self.gpus)


# megatron-core 0.16.1, torch 2.11.0+cu130, bf16, flash attention, fused kernels, distributed optimizer, no dropout,
# 2,048 tokens, vocabulary 51,200.
TENSOR, PIPELINE = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
OVERLAP, EAGER = "--overlap-grad-reduce", "--cuda-graph-impl none"
TENSOR_2 = f"{TENSOR} 2 {SEQUENCE}"
# 2026-11-22, benchmarks/pretrain_parts.py, which prints GB of 10^9 bytes with one digit.
RUNS = [
    Measured(1, 24, 2304, 24, 16, 16, FULL, 37_500_000_000),
    Measured(1, 16, 4096, 32, 4, 16, "", 80_700_000_000),
    Measured(1, 16, 4096, 32, 8, 32, "", 98_900_000_000),
    Measured(2, 16, 4096, 32, 4, 16, TENSOR_2, 40_600_000_000),
    Measured(2, 16, 4096, 32, 4, 32, f"{OVERLAP} --overlap-param-gather", 60_000_000_000),
    # 2026-11-21, before the loss needed less: the first stage needs most, without logits.
    Measured(4, 32, 4096, 32, 1, 32, f"{TENSOR} 2 {PIPELINE} 2 {SEQUENCE} {EAGER}", 35600623104),
    Measured(4, 32, 4096, 32, 1, 32, f"{PIPELINE} 4 {EAGER}", 41817790976),
    Measured(4, 32, 4096, 32, 1, 32, f"{PIPELINE} 4 --num-virtual-stages-per-pipeline-rank 2 {EAGER}", 45093033472),
    Measured(4, 32, 4096, 32, 1, 32, f"{PIPELINE} 2 {OVERLAP}", 50175381504),
]
OF_FOUR_STAGES = RUNS[6]
# The same day as the first; 0.3 and 0.14 GB more than planned, for an unknown reason.
FURTHER_OFF = [
    Measured(1, 16, 4096, 32, 8, 32, FULL, 67_500_000_000),
    Measured(2, 16, 4096, 32, 1, 16, TENSOR_2, 33_700_000_000),
]

# 2026-11-22, `repro submit figure-12` and `figure-13` at scale pair: stages with CUDA graphs. The log counts the memory
# of the graphs. It is mapped in pieces of 20 MiB with gaps, which are not planned.
GRAPHS = [
    Measured(2, 16, 4096, 32, 1, 16, f"{PIPELINE} 2 {FULL}", 34250172662),
    Measured(2, 16, 4096, 32, 1, 2, f"{PIPELINE} 2 --num-virtual-stages-per-pipeline-rank 4 {FULL}", 35479449764),
    Measured(2, 16, 4096, 32, 1, 6, f"{PIPELINE} 2 --num-virtual-stages-per-pipeline-rank 4 {FULL}", 35788370739),
]

# Activations of one layer over s b h bytes, Korthikanti et al. (arXiv 2205.05198): equations 2, 4 and 5 and section 5,
# with a heads, s tokens, t-way tensor parallelism.
HIDDEN, HEADS, TOKENS, MICRO_BATCH, RANKS = 6144, 64, 2048, 4, 8
SCORES = 5 * HEADS * TOKENS / (HIDDEN * RANKS)
FORMULAS = {
    "": 10 + 24 / RANKS + SCORES,
    SELECTIVE: 10 + 24 / RANKS,
    SEQUENCE: 34 / RANKS + SCORES,
    f"{SEQUENCE} {SELECTIVE}": 34 / RANKS,
    FULL: 2,
    f"{SEQUENCE} {FULL}": 2 / RANKS,
}


def worst(plan: ExactMemory) -> RankMemory:
    """Return the rank that needs most memory."""
    return max(plan, key=lambda rank: rank.total_bytes)


def job(flags: str, world_size: int, attention: Attention = "flash") -> ExactJob:
    common = "--seq-length 2048 --vocab-size 51200 --train-iters 1"
    return ExactJob(tuple(f"{common} {flags}".split()), world_size, attention)


def planned(jobs: Sequence[ExactJob]) -> list[ExactMemory]:
    results = results_of(jobs)
    assert [result for result in results if isinstance(result, str)] == []
    return [result for result in results if not isinstance(result, str)]


def results_of(jobs: Sequence[ExactJob]) -> list[ExactMemory | str]:
    with shared_processes():
        return exact_memory(jobs)


@pytest.fixture(scope="module")
def plans_of_runs() -> list[ExactMemory]:
    return planned([run.job for run in RUNS + FURTHER_OFF])


def test_planned_memory_equals_measurements_on_h200(plans_of_runs: list[ExactMemory]) -> None:
    both = zip(plans_of_runs, RUNS + FURTHER_OFF, strict=True)
    faults = [abs(worst(plan).total_bytes / run.max_memory_bytes - 1) for plan, run in both]
    # The rest is cuBLAS's workspaces, 64 MiB, and up to 48 MiB more with pipeline stages.
    assert mean(faults[: len(RUNS)]) < 0.002
    assert max(faults[: len(RUNS)]) < 0.004
    assert max(faults) < 0.005


def test_planned_memory_with_graphs_is_within_two_percent_of_h200() -> None:
    plans = planned([run.job for run in GRAPHS])
    faults = [worst(plan).total_bytes / run.max_memory_bytes - 1 for plan, run in zip(plans, GRAPHS, strict=True)]
    assert all(abs(fault) < 0.02 for fault in faults), faults


def test_the_first_pipeline_stage_needs_the_most_memory(plans_of_runs: list[ExactMemory]) -> None:
    plan = plans_of_runs[RUNS.index(OF_FOUR_STAGES)]
    assert [(rank.rank, rank.pipeline_rank) for rank in plan] == [(0, 0), (3, 3)]
    assert worst(plan).rank == 0


def test_activation_bytes_of_a_layer_equal_the_published_ones() -> None:
    def with_layers(layers: int, flags: str) -> ExactJob:
        size = f"--num-layers {layers} --hidden-size {HIDDEN} --num-attention-heads {HEADS} {TENSOR} {RANKS}"
        return job(f"{size} --micro-batch-size 4 --global-batch-size 4 --bf16 {flags}", RANKS, "unfused")

    plans = planned([with_layers(layers, flags) for flags in FORMULAS for layers in (8, 12)])
    peaks = [worst(plan).activations_peak_bytes for plan in plans]
    unit = 4 * TOKENS * MICRO_BATCH * HIDDEN
    found = [(more - fewer) / unit for fewer, more in zip(peaks[::2], peaks[1::2], strict=True)]
    assert found == pytest.approx(list(FORMULAS.values()), rel=1e-3)


def test_the_stages_of_a_sharded_job_have_the_parameters_of_the_model() -> None:
    layers, hidden, tensor = 8, 1024, 4
    size = f"--num-layers {layers} --hidden-size {hidden} --num-attention-heads 16 --micro-batch-size 1"
    (plan,) = planned([job(f"{size} --global-batch-size 2 --bf16 {TENSOR} {tensor} {PIPELINE} 2", 16)])
    # SC21 equation 2 has 12 h^2 + 13 h for each layer, of which every rank holds 6 h (norms, and biases after sums).
    layer = 12 * hidden**2 // tensor + 7 * hidden // tensor + 6 * hidden
    embedding = 51200 * hidden // tensor  # on the first stage, and again on the last for the logits
    assert sum(rank.parameters for rank in plan) == layers * layer + 2 * embedding + 2048 * hidden + 2 * hidden
    for rank in plan:  # 16-bit weights, fp32 gradients, Adam: 18 bytes per parameter
        used_bytes = rank.weights_and_gradients_bytes + rank.optimizer_bytes
        assert used_bytes == pytest.approx(18 * rank.parameters, rel=1e-3)


def test_optimizer_state_is_divided_by_the_data_parallel_ranks() -> None:
    size = (
        "--num-layers 2 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 1 --global-batch-size 8 --bf16"
    )
    plans = planned([job(f"{size} {flag}", 8) for flag in ("", "--use-distributed-optimizer")])
    plain, shared = (worst(plan) for plan in plans)
    assert plain.optimizer_bytes == 12 * plain.parameters
    assert shared.optimizer_bytes == pytest.approx(plain.optimizer_bytes / 8, rel=0.02)  # the buffer is padded


def test_a_trillion_parameters_fit_the_gpus_that_trained_them() -> None:
    # SC21 table 1, last row: 3,072 A100 of 80 GB.
    size = "--num-layers 128 --hidden-size 25600 --num-attention-heads 160 --micro-batch-size 1"
    layout = f"--global-batch-size 3072 {TENSOR} 8 {PIPELINE} 64 --fp16 --loss-scale 4096 {FULL}"
    (plan,) = planned([job(f"{size} {layout} --no-cross-entropy-fusion", 3072, "unfused")])
    assert [rank.rank for rank in plan] == [0, 3024]
    assert worst(plan).total_bytes < 80e9


def test_an_equal_operation_makes_a_new_tensor_of_the_same_shape_and_type() -> None:
    integers = torch.empty(256, 4, dtype=torch.int32, device="meta")
    with LiveBytes() as live:
        sums = [integers + 1 for _ in range(3)]
        assert live.now == 3 * integers.nbytes
        assert [(integers * factor).dtype for factor in (1, 1.0, 1, 1.0)] == 2 * [torch.int32, torch.float32]
        stacked = [torch.stack(parts) for parts in (sums[:2], sums, sums[:2])]
        assert [tuple(result.shape) for result in stacked] == [(2, 256, 4), (3, 256, 4), (2, 256, 4)]
        views = [torch.ops.aten._unsafe_view(sums[0], [4, 256]) for _ in range(2)]
        assert all(view.untyped_storage()._cdata == sums[0].untyped_storage()._cdata for view in views)


def test_an_unplannable_job_has_a_reason_and_the_next_is_planned() -> None:
    size = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 --global-batch-size 2"
    good = job(size, 1)
    refused, unknown, after = results_of([job(f"{size} {PIPELINE} 4", 4), job(f"{size} --no-such-flag", 1), good])
    assert refused == "2 layers do not divide over 4 pipeline stages"
    assert isinstance(unknown, str) and unknown.endswith("error: unrecognized arguments: --no-such-flag")
    assert not isinstance(after, str)


def test_an_error_inside_the_model_is_a_reason_of_one_line() -> None:
    size = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 --global-batch-size 2"
    # Megatron-LM's own attention refuses context parallelism.
    impossible = job(f"{size} --context-parallel-size 2", 2, "unfused")
    # The last of three jobs goes to the process in which one has failed.
    broken, _, after = results_of([impossible, impossible, job(size, 1)])
    assert isinstance(broken, str) and "ontext parallelism" in broken and "\n" not in broken
    assert not isinstance(after, str)


# Answers all jobs except those with a world of 13, which end it as the kernel ends a process without memory.
PLANNER_THAT_DIES = """
import json, os, signal, sys
for line in sys.stdin:
    if json.loads(line)["world_size"] == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    print(json.dumps({"reason": "seen"}), flush=True)
"""


def test_a_killed_planner_loses_only_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_COMMAND", [sys.executable, "-c", PLANNER_THAT_DIES])
    results = exact_memory([ExactJob((), size) for size in (1, 13, 2, 13, 13, 3)])
    killed = "the planning process was ended by SIGKILL"
    assert results == ["seen", killed, "seen", killed, killed, "seen"]


def test_a_planner_that_cannot_start_reports_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_COMMAND", [sys.executable, "-c", "import no_such_module"])
    (result,) = exact_memory([ExactJob((), 1)])
    assert result == "the planning process ended: ModuleNotFoundError: No module named 'no_such_module'"


def test_an_interrupt_ends_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def remember(*args: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(start(*args, **options))
        return started[-1]

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exact, "_COMMAND", [sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr("orchestrator.megatron.exact.subprocess.Popen", remember)
    monkeypatch.setattr(exact, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        exact_memory([ExactJob((), 1)] * 3)
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_the_calling_process_never_loads_torch() -> None:
    size = "--seq-length 16 --vocab-size 64 --num-layers 1 --hidden-size 32 --num-attention-heads 2 --train-iters 1"
    arguments = f"{size} --micro-batch-size 1 --global-batch-size 1"
    program = (
        "import sys; from orchestrator.megatron.exact import *;"
        f"[memory] = exact_memory([ExactJob({tuple(arguments.split())!r}, 1)]);"
        "print(max(rank.parameters for rank in memory), 'torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    # 12 h^2 + 13 h for the layer, (V + s) h for the embeddings, 2 h for the last norm.
    assert done.stdout.split() == [str(12 * 32**2 + 13 * 32 + (64 + 16) * 32 + 2 * 32), "False"]


def test_planning_imports_nothing_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("typing.py", "orchestrator.py"):
        (tmp_path / name).write_text("raise SystemExit('SHADOWED')\n")
    monkeypatch.chdir(tmp_path)
    (reason,) = exact_memory([ExactJob((), 1)])
    assert "SHADOWED" not in str(reason) and "required: --num-layers" in str(reason)
