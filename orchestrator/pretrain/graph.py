"""An iteration's forward and backward passes recorded once as a CUDA graph and started as a whole from then on.

A small microbatch's kernels end before Python has started the next ones: the GPU waits, and the time of an iteration is
that of the host. Started as a graph, thousands of kernels cost the host one call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from megatron.core.tensor_parallel.random import get_all_rng_states

from orchestrator.pretrain.arguments import TrainingArguments

Losses = list[torch.Tensor]


def records_graph(arguments: TrainingArguments, device: torch.device) -> bool:
    """Whether the run's iterations become a graph.

    Not where each draws other random numbers or copies to the host, and not in a pipeline: stages that send and receive
    at once, as the interleaved schedule's do, wait for each other for ever, and schedules are to be compared alike.
    """
    draws = arguments.hidden_dropout > 0 or arguments.attention_dropout > 0
    moves = arguments.offload_activation_ratio > 0 or arguments.pipeline_model_parallel_size > 1
    return arguments.cuda_graph_impl == "local" and device.type == "cuda" and not draws and not moves


def use_own_stream(device: torch.device) -> None:
    """Leave the default stream, on which nothing can be recorded, before anything of the model is built."""
    torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


class GraphedIteration:
    """Calls of `run`, which reads its data from tensors that stay: the first as it is, the second recorded."""

    def __init__(self, run: Callable[[], Losses]) -> None:
        self._run = run
        self._graph: torch.cuda.CUDAGraph | None = None
        self._losses: Losses = []
        self._is_first = True

    def __call__(self) -> Losses:
        """The microbatches' losses; each call writes to the same tensors."""
        if self._is_first:  # compiles kernels, opens connections
            self._is_first = False
            return self._run()
        if self._graph is None:
            self._graph = self._record()
        self._graph.replay()
        return self._losses

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for state in get_all_rng_states().values():
            graph.register_generator_state(state)  # the regions of Megatron-Core's tracker switch between them
        # Other threads, NCCL's watchdog for one, may go on to call CUDA.
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self._losses = self._run()
        return graph
