"""Gain of each part of `pretrain` that replaces a part of Megatron-Core, on the GPUs of this machine.

    python benchmarks/pretrain_parts.py 1.7B hidden-4096
    torchrun --nproc-per-node 2 benchmarks/pretrain_parts.py tp pp dp

Each case runs as shipped, then with one part at a time replaced by Megatron-Core's own, then with all of them. Tokens
and initial weights are always the same. A line has the median time of an iteration, its ratio to the shipped program,
and the largest difference of a loss. The shipped program runs again at the end: a difference from its first run is
noise.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.clusters.machine import GPUS
from orchestrator.megatron.model import ModelShape, flops_per_iteration, tflops_per_gpu
from orchestrator.pretrain.arguments import RunLayout, TrainingArguments, parse_arguments
from orchestrator.pretrain.environment import find_place, set_environment

H200_PEAK_TFLOPS = GPUS["H200"].peak_tflops["bf16"]
COMMON = (
    "--seq-length 2048 --vocab-size 51200 --train-iters 1 --hidden-dropout 0 --attention-dropout 0 --bf16"
    " --use-distributed-optimizer"
)
SC21_1_7B = "--num-layers 24 --hidden-size 2304 --num-attention-heads 24"
HIDDEN_4096 = "--num-layers 16 --hidden-size 4096 --num-attention-heads 32"
HIDDEN_8192 = "--num-layers 4 --hidden-size 8192 --num-attention-heads 64"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
TENSOR_PARALLEL = "--tensor-model-parallel-size 2 --sequence-parallel"
CASES = {
    "1.7B": f"{SC21_1_7B} --micro-batch-size 16 --global-batch-size 16 {FULL}",
    "hidden-4096": f"{HIDDEN_4096} --micro-batch-size 4 --global-batch-size 16",
    "hidden-4096-mbs8": f"{HIDDEN_4096} --micro-batch-size 8 --global-batch-size 32",
    "hidden-4096-full": f"{HIDDEN_4096} --micro-batch-size 8 --global-batch-size 32 {FULL}",
    "hidden-8192": f"{HIDDEN_8192} --micro-batch-size 4 --global-batch-size 32",
    "hidden-4096-mbs1": f"{HIDDEN_4096} --micro-batch-size 1 --global-batch-size 8",
    "tp": f"{HIDDEN_4096} --micro-batch-size 1 --global-batch-size 16 {TENSOR_PARALLEL}",
    "tp-mbs4": f"{HIDDEN_4096} --micro-batch-size 4 --global-batch-size 16 {TENSOR_PARALLEL}",
    "pp": f"{HIDDEN_4096} --micro-batch-size 1 --global-batch-size 64 --pipeline-model-parallel-size 2"
    " --num-virtual-stages-per-pipeline-rank 2",
    "dp": f"{HIDDEN_4096} --micro-batch-size 4 --global-batch-size 32 --overlap-grad-reduce --overlap-param-gather",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of a run: median time of an iteration, losses (NaN except on the last stage), peak memory."""

    iteration_ms: float
    losses: tuple[float, ...]
    max_allocated_gb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="+", choices=sorted(CASES))
    parser.add_argument("--iterations", type=int, default=6, help="of which the first two are not counted")
    parser.add_argument("--only", nargs="+", metavar="PART", help="these parts instead of all")
    options = parser.parse_args()
    place = find_place(os.environ)
    set_environment(os.environ, place)
    import torch.distributed as dist

    from orchestrator.pretrain.rank import prepare_megatron, start_processes, stop_processes

    device = start_processes(place)
    prepare_megatron(device)
    for case in options.case:
        _compare(case, options.only, options.iterations, device)
    stop_processes(device)
    dist.destroy_process_group()
    return 0


def _compare(case: str, only: list[str] | None, iterations: int, device: Any) -> None:
    arguments = parse_arguments((CASES[case] + " " + COMMON).split())
    parts = [name for name in _parts() if only is None or name in only]
    variants = [[], *([part] for part in parts), parts] if len(parts) > 1 else [[], *([part] for part in parts)]
    shipped = _run(arguments, [], iterations, device)  # compiles everything, so that no variant pays for it
    _print(case, "as it ships", shipped, shipped, arguments)
    for without in variants[1:]:
        measured = _run(arguments, without, iterations, device)
        name = "all put back" if len(without) > 1 else f"put back: {without[0]}"
        _print(case, name, measured, shipped, arguments)
    _print(case, "as it ships, again", _run(arguments, [], iterations, device), shipped, arguments)


def _print(case: str, name: str, measured: Measured, shipped: Measured, arguments: TrainingArguments) -> None:
    import torch.distributed as dist

    if dist.get_rank() != dist.get_world_size() - 1:
        return
    rate = tflops_per_gpu(_flops(arguments), measured.iteration_ms, dist.get_world_size())
    apart = max(abs(a - b) / abs(b) for a, b in zip(measured.losses, shipped.losses, strict=True))
    print(
        f"{case:18} {name:34} {measured.iteration_ms:8.1f} ms {rate:6.1f} TFLOP/s {rate / H200_PEAK_TFLOPS:6.1%}"
        f"  x {measured.iteration_ms / shipped.iteration_ms:.3f}  {measured.max_allocated_gb:6.1f} GB"
        f"  losses within {apart:.1e}",
        flush=True,
    )


def _flops(arguments: TrainingArguments) -> float:
    """Return the FLOPs of one iteration by SC21 eq. 3."""
    model = ModelShape(
        arguments.num_layers,
        arguments.hidden_size,
        arguments.num_attention_heads,
        arguments.seq_length,
        arguments.padded_vocab_size,
    )
    return flops_per_iteration(model, arguments.global_batch_size, arguments.recompute_granularity == "full")


def _run(arguments: TrainingArguments, without: list[str], iterations: int, device: Any) -> Measured:
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state

    from orchestrator.pretrain import model, train
    from orchestrator.pretrain.graph import graph_scope, use_own_stream
    from orchestrator.pretrain.train import Batches

    if "graph" in without:
        arguments = replace(arguments, cuda_graph_impl="none")
    layout = RunLayout.of(arguments, dist.get_world_size())
    use_own_stream(device)
    model.start_model_parallel(layout, arguments.seed, recordable=graph_scope(arguments, device) is not None)
    with ExitStack() as stack:
        stack.callback(parallel_state.destroy_model_parallel)
        for part in without:
            stack.enter_context(_parts()[part]())
        trainee = model.build(arguments, layout, device)
        batches = Batches(arguments, layout, device)
        run = train.passes_of_an_iteration(arguments, layout, trainee, batches, device)
        torch.cuda.reset_peak_memory_stats()
        times, losses = [], []
        for _ in range(iterations):
            batches.draw()
            torch.cuda.synchronize()
            dist.barrier(device_ids=[device.index])
            started = time.perf_counter()
            loss = train.train_step(trainee, run).loss
            torch.cuda.synchronize()
            times.append((time.perf_counter() - started) * 1000)
            losses.append(math.nan if loss is None else loss)
        peak = torch.cuda.max_memory_allocated() / 1e9
    del trainee, run, batches
    gc.collect()
    torch.cuda.empty_cache()
    return Measured(statistics.median(times[2:]), tuple(losses), peak)


def _parts() -> dict[str, Callable[[], Any]]:
    """Return each part by name, with a context that replaces it by Megatron-Core's or torch's own."""
    import torch
    from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    from orchestrator.pretrain import layers, model

    return {
        "bias": lambda: _put(model, "BiasedColumnParallelLinear", ColumnParallelLinear),
        "gelu": lambda: _put(model, "use_activation", lambda _: None),
        "layer norm": lambda: _put(layers.LayerNorm, "forward", torch.nn.LayerNorm.forward),
        "loss": lambda: _put(model, "cross_entropy", fused_vocab_parallel_cross_entropy),
        "recomputation": lambda: _put(model, "recompute_layers", lambda *_: None),
        "graph": ExitStack,
    }


@contextmanager
def _put(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


if __name__ == "__main__":
    sys.exit(main())
