"""CUDA graphs of a training run, and the time for which a GPU waits for its host.

A kernel of a small microbatch ends before Python has launched the next one. Then the GPU waits, and the time of an
iteration is the time of the host. The host launches a graph of thousands of kernels with one call.

Without pipeline stages one graph contains a whole iteration. A pipeline stage has a forward and a backward graph for
each chunk and memory slot (`microbatch_slots`). Megatron-Core's schedule calls a chunk's passes as before, and sends
and receives between the graphs. It ends the microbatches of a chunk in the order in which they began.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from megatron.core.tensor_parallel.random import get_all_rng_states
from megatron.core.utils import get_attr_wrapped_model

from orchestrator.pretrain.arguments import TrainingArguments

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx
    from torch.cuda import _POOL_HANDLE

    class _ReplayContext(FunctionCtx):
        graphs: ChunkGraphs


Losses = list[torch.Tensor]
GraphScope = Literal["iteration", "chunk"]
Graph = Callable[[], None]
"""Function that replays a recording."""

LAUNCHING = threading.Lock()
"""Lock of a recording or launch.

A query of the stream by another thread would end a recording. During the launch of a large graph a query reports an
empty stream, although the GPU already runs the first kernels.
"""


def graph_scope(arguments: TrainingArguments, device: torch.device) -> GraphScope | None:
    """Return the content of one graph of the run, or None if the run launches each kernel by itself.

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
    """Recorder of the work that a function launches."""

    def __call__(self, run: Callable[[], None], *, slot: int | None = None) -> Graph:
        """Record `run` and return the function that replays it."""


class CudaRecorder:
    """Recorder of CUDA graphs on the current stream.

    Graphs of one memory pool share memory: a later recording uses memory that an earlier one has freed. That is safe if
    their replays do not overlap and no tensor of such a graph is needed after its replay. A graph whose tensors are
    needed later, such as activations, is recorded with a `slot`, which has its own pool. Graphs of one slot may replace
    each other's tensors.
    """

    def __init__(self) -> None:
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        self._pools: dict[int | None, _POOL_HANDLE] = {}

    def __call__(self, run: Callable[[], None], *, slot: int | None = None) -> Graph:
        """Record `run` and return the function that replays it."""
        graph = torch.cuda.CUDAGraph()
        for state in get_all_rng_states().values():
            graph.register_generator_state(state)  # the regions of Megatron-Core's tracker switch between them
        if slot not in self._pools:
            self._pools[slot] = torch.cuda.graph_pool_handle()
        with LAUNCHING:
            # thread_local: other threads, such as NCCL's watchdog, continue to call CUDA.
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
    """Iteration that is launched as one graph from the second call on.

    `run` must read its data from tensors that are not replaced. Each call writes the losses to the same tensors.
    """

    def __init__(self, run: Callable[[], Losses], make_recorder: Callable[[], Recorder] = CudaRecorder) -> None:
        self._run, self._make_recorder = run, make_recorder
        self._replay: Graph | None = None
        self._losses: Losses = []
        self._is_first = True

    def __call__(self) -> Losses:
        """Run one iteration and return its losses."""
        if self._is_first:  # compiles kernels, opens connections
            self._is_first = False
            return self._run()
        if self._replay is None:
            self._replay = self._make_recorder()(self._record)
        self._replay()
        return self._losses

    def _record(self) -> None:
        self._losses = self._run()


@dataclass(frozen=True)
class Microbatch:
    """Tokens, positions and labels, each int64 [micro batch, sequence / context parallel]."""

    tokens: torch.Tensor
    position_ids: torch.Tensor
    labels: torch.Tensor

    def copy(self) -> Microbatch:
        """Return a copy with its own memory."""
        return Microbatch(self.tokens.clone(), self.position_ids.clone(), self.labels.clone())

    def fill(self, other: Microbatch) -> None:
        """Overwrite tokens and labels with those of another microbatch. All have the same positions."""
        self.tokens.copy_(other.tokens)
        self.labels.copy_(other.labels)


def run_chunk(chunk: torch.nn.Module, microbatch: Microbatch) -> torch.Tensor:
    """Run the forward pass of one microbatch: hidden states [s, b, h], or on the last stage losses [b, s]."""
    output: torch.Tensor = chunk(microbatch.tokens, microbatch.position_ids, None, labels=microbatch.labels)
    return output


class GraphedPipeline:
    """Iteration of a pipeline schedule whose passes are replayed from graphs from the second call on."""

    def __init__(
        self,
        run: Callable[[], Losses],
        chunks: Sequence[ChunkGraphs],
        make_recorder: Callable[[], Recorder] = CudaRecorder,
    ) -> None:
        self._run, self._chunks, self._make_recorder = run, chunks, make_recorder
        self._calls = 0

    def __call__(self) -> Losses:
        """Run one iteration and return its losses."""
        self._calls += 1
        if self._calls == 2:  # the first call compiles kernels and opens connections
            recorder = self._make_recorder()
            for chunk in self._chunks:
                chunk.record(recorder)
        return self._run()


class Exchange:
    """Tensors that carry activations and gradients into and out of the graphs of all chunks of a stage."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[str, torch.Size], torch.Tensor] = {}

    def tensor(self, role: str, like: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return the tensor of a role, with the shape and type of `like`."""
        key = role, like.shape
        if key not in self._tensors:
            self._tensors[key] = torch.zeros_like(like, device=device)
        return self._tensors[key]


@dataclass
class _Passes:
    """Both passes of a chunk in one slot. `hidden` [s, b, h] is the stage's input; None on the first stage."""

    microbatch: Microbatch
    hidden: torch.Tensor | None
    output: torch.Tensor | None = None
    forward: Graph | None = None
    backward: Graph | None = None


class ChunkGraphs:
    """Graphs of one model chunk; `slots` has the slot of each microbatch of an iteration.

    `example` is a microbatch of the run's shapes. Until the passes are recorded, `run` calls the chunk itself.
    """

    def __init__(self, chunk: torch.nn.Module, slots: Sequence[int], example: Microbatch, exchange: Exchange) -> None:
        self.chunk, self._slots = chunk, slots
        self._example, self._exchange = example, exchange
        self._gpt = get_attr_wrapped_model(chunk, "decoder", return_model_obj=True)
        self._reads_data = bool(self._gpt.pre_process or self._gpt.post_process)
        # Autograd calls the backward pass of a function only if one of its inputs needs a gradient.
        self._anchor = torch.zeros((), device=example.tokens.device, requires_grad=True)
        self._recorded: dict[int, _Passes] = {}
        self._begun = self._ended = 0

    def warm_up(self) -> None:
        """Run both passes once, which compiles their kernels. The gradients are zeroed at the start of an iteration.

        In the first iteration each stage would compile only after the stage before it.
        """
        config, (size, length) = self._gpt.config, self._example.tokens.shape
        hidden = None
        if not self._gpt.pre_process:
            shape = (length // (config.tensor_model_parallel_size if config.sequence_parallel else 1), size)
            hidden = torch.zeros(*shape, config.hidden_size, dtype=config.pipeline_dtype, device=self._anchor.device)
            hidden.requires_grad_()
        self._gpt.set_input_tensor(hidden)
        output = run_chunk(self.chunk, self._example)
        torch.autograd.backward([output], [torch.zeros_like(output)])
        self._gpt.decoder.input_tensor = None

    def run(self, microbatch: Microbatch) -> torch.Tensor:
        """Run the forward pass of the next microbatch; the hidden states come from Megatron-Core's set_input_tensor."""
        received: torch.Tensor | None = self._gpt.decoder.input_tensor
        if not self._recorded:
            output = run_chunk(self.chunk, microbatch)
            self._hidden_like = None if received is None else torch.empty_like(received, device="meta")
            self._output_like = torch.empty_like(output, device="meta")
            return output
        source = self._anchor if received is None else received
        replayed: torch.Tensor = _Replay.apply(source, self, microbatch)  # type: ignore[no-untyped-call]
        if received is not None:
            # The schedule holds the received tensor until the backward pass, for its gradient alone.
            received.untyped_storage().resize_(0)
        return replayed

    def record(self, recorder: Recorder) -> None:
        """Record both passes for every slot of the chunk. Call it after one iteration without graphs.

        The activations wait for the backward graph in the memory of the slot. Forward graphs that share memory would
        overwrite them: another microbatch runs through its forward graph while they wait.
        """
        device = self._anchor.device
        self._outgoing = self._exchange.tensor("outgoing", self._output_like, device)
        self._incoming = self._exchange.tensor("incoming", self._output_like, device)
        for slot in sorted(set(self._slots)):
            passes = _Passes(self._example.copy(), hidden=None)
            if self._hidden_like is not None:
                passes.hidden = self._exchange.tensor(f"hidden in slot {slot}", self._hidden_like, device)
                passes.hidden.requires_grad_()
                self._returned = self._exchange.tensor("returned", self._hidden_like, device)
            passes.forward = recorder(partial(self._forward, passes), slot=slot)
            passes.backward = recorder(partial(self._backward, passes))
            self._recorded[slot] = passes
        self._gpt.decoder.input_tensor = None

    def replay_forward(self, microbatch: Microbatch, received: torch.Tensor) -> torch.Tensor:
        """Run the next microbatch's forward pass in its slot."""
        passes = self._recorded[self._slots[self._begun % len(self._slots)]]
        self._begun += 1
        assert passes.forward is not None
        if self._reads_data:
            passes.microbatch.fill(microbatch)
        if passes.hidden is not None:
            passes.hidden.detach().copy_(received)
        passes.forward()
        return self._outgoing.clone()

    def replay_backward(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Run the backward pass of the oldest microbatch in flight and return the gradient of its input."""
        assert self._ended < self._begun
        passes = self._recorded[self._slots[self._ended % len(self._slots)]]
        self._ended += 1
        assert passes.backward is not None
        self._incoming.copy_(gradient)
        passes.backward()
        return None if passes.hidden is None else self._returned.clone()

    def _forward(self, passes: _Passes) -> None:
        self._gpt.set_input_tensor(passes.hidden)
        with torch.enable_grad():
            passes.output = run_chunk(self.chunk, passes.microbatch)
        self._outgoing.copy_(passes.output.detach())

    def _backward(self, passes: _Passes) -> None:
        assert passes.output is not None
        torch.autograd.backward([passes.output], [self._incoming])
        passes.output = None
        if passes.hidden is not None:
            assert passes.hidden.grad is not None
            self._returned.copy_(passes.hidden.grad)
            passes.hidden.grad = None


class _Replay(torch.autograd.Function):
    """Differentiable function that replays the graphs of a chunk, for Megatron-Core's schedule."""

    @staticmethod
    def forward(ctx: _ReplayContext, source: torch.Tensor, graphs: ChunkGraphs, microbatch: Microbatch) -> torch.Tensor:
        ctx.graphs = graphs
        return graphs.replay_forward(microbatch, source)

    @staticmethod
    def backward(ctx: _ReplayContext, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        return ctx.graphs.replay_backward(*gradients), None, None


_PERIOD_S = 0.001


class HostWait:
    """Timer of a GPU's waits for its host: a thread samples the compute stream every millisecond.

    The stream is empty when the GPU has finished all work that the host has launched. A stream that waits for another
    rank is not empty, because the wait itself is queued work.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.current_stream(device)
        self._lock = threading.Lock()
        self._is_on = False
        self._waited_s = self._last_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="host-wait", daemon=True)

    def __enter__(self) -> HostWait:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def restart(self) -> None:
        """Start a new measurement."""
        with self._lock:
            self._waited_s, self._last_s, self._is_on = 0.0, time.perf_counter(), True

    def finish(self) -> float:
        """End the measurement and return the seconds for which the stream was empty."""
        with self._lock:
            self._is_on = False
            return self._waited_s

    def _sample(self) -> None:
        torch.cuda.set_device(self._device)  # a new thread's device is the first GPU
        while not self._ended.wait(_PERIOD_S):
            with self._lock:
                if not self._is_on:
                    continue
                now_s = time.perf_counter()
                if self._is_empty():
                    self._waited_s += now_s - self._last_s
                self._last_s = now_s

    def _is_empty(self) -> bool:
        """Return whether the GPU has finished all launched work and no graph is being launched."""
        if not LAUNCHING.acquire(blocking=False):
            return False
        try:
            return self._stream.query()
        finally:
            LAUNCHING.release()
