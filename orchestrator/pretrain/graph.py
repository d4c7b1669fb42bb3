"""CUDA graphs of a training run: what is recorded, and the graph of a whole iteration.

A kernel of a small microbatch ends before Python has launched the next one. Then the GPU waits, and the time of an
iteration is the time of the host. The host launches a graph of thousands of kernels with one call.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol

import torch
from megatron.core.tensor_parallel.random import get_all_rng_states

from orchestrator.pretrain.arguments import TrainingArguments

Losses = list[torch.Tensor]
GraphScope = Literal["iteration", "chunk"]
Graph = Callable[[], None]
"""Replays what was recorded."""

LAUNCHING = threading.Lock()
"""Held while a graph is recorded or launched.

A query of the stream by another thread would end a recording. During the launch of a large graph a query answers that
the stream is empty, although the GPU already runs the first kernels.
"""


def graph_scope(arguments: TrainingArguments, device: torch.device) -> GraphScope | None:
    """Return what one graph of the run contains; None if the run launches each kernel by itself.

    `iteration`: all passes of an iteration. `chunk`: one pass of one microbatch through one chunk of a pipeline stage.
    Sends and receives between stages stay outside of graphs: stages of the interleaved schedule that send and receive
    at the same time wait for each other forever when they are recorded.

    Dropout (each iteration draws other random numbers), activations in host memory, and gradients or weights that are
    communicated during the passes of a pipeline are not recorded.
    """
    draws = arguments.hidden_dropout > 0 or arguments.attention_dropout > 0
    if arguments.cuda_graph_impl == "none" or device.type != "cuda" or draws or arguments.offload_activation_ratio > 0:
        return None
    if arguments.pipeline_model_parallel_size == 1:
        return "iteration"
    overlaps = arguments.overlap_grad_reduce or arguments.overlap_param_gather
    return None if overlaps else "chunk"


def use_own_stream(device: torch.device) -> None:
    """Leave the default stream, which cannot be recorded. Must run before the model is built."""
    torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


class Recorder(Protocol):
    """Records the work that a function launches."""

    def __call__(self, run: Callable[[], None], *, slot: int | None = None) -> Graph: ...


class CudaRecorder:
    """Records CUDA graphs on the current stream.

    Graphs of one memory pool use the same memory one after another: a later recording uses what an earlier one has
    freed. That is safe if their replays do not overlap and no tensor of such a graph is needed after its replay. A
    graph whose tensors are needed later, such as activations, is recorded with a `slot`, which has a pool of its own;
    graphs of one slot may replace each other's tensors.
    """

    def __init__(self) -> None:
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        self._pools: dict[int | None, Any] = {}

    def __call__(self, run: Callable[[], None], *, slot: int | None = None) -> Graph:
        graph = torch.cuda.CUDAGraph()
        for state in get_all_rng_states().values():
            graph.register_generator_state(state)  # the regions of Megatron-Core's tracker switch between them
        if slot not in self._pools:
            self._pools[slot] = torch.cuda.graph_pool_handle()
        with LAUNCHING:
            # Other threads, such as NCCL's watchdog, continue to call CUDA.
            graph.capture_begin(pool=self._pools[slot], capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        return partial(_replay, graph)


def _replay(graph: torch.cuda.CUDAGraph) -> None:
    with LAUNCHING:
        graph.replay()


def idle_graph_bytes() -> int:
    """Return the GPU memory that graphs hold for their replays and that torch does not count as allocated."""
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    ordinary_pool = (0, 0)
    return sum(
        int(segment["total_size"]) - int(segment["allocated_size"])
        for segment in segments
        if tuple(segment["segment_pool_id"]) != ordinary_pool
    )


class GraphedIteration:
    """An iteration that is launched as one graph from the second call on.

    `run` must read its data from tensors that stay. Each call writes the losses to the same tensors.
    """

    def __init__(self, run: Callable[[], Losses], make_recorder: Callable[[], Recorder] = CudaRecorder) -> None:
        self._run, self._make_recorder = run, make_recorder
        self._replay: Graph | None = None
        self._losses: Losses = []
        self._is_first = True

    def __call__(self) -> Losses:
        if self._is_first:  # compiles kernels, opens connections
            self._is_first = False
            return self._run()
        if self._replay is None:
            self._replay = self._make_recorder()(self._record)
        self._replay()
        return self._losses

    def _record(self) -> None:
        self._losses = self._run()
