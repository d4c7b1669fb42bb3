"""CUDA graphs of a pipeline stage: a forward and a backward graph for each chunk and memory slot.

The schedule is Megatron-Core's. It calls a chunk's passes as before and sends and receives between the graphs. A slot
holds the input and the activations of one microbatch from its forward to its backward pass (`microbatch_slots`). The
schedule ends the microbatches of a chunk in the order in which they began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.utils import get_attr_wrapped_model

from orchestrator.pretrain.data import Microbatch
from orchestrator.pretrain.graph import CudaRecorder, Graph, Losses, Recorder


def run_chunk(chunk: Any, microbatch: Microbatch) -> torch.Tensor:
    """Run the forward pass of one microbatch: hidden states [s, b, h], or on the last stage losses [b, s]."""
    output: torch.Tensor = chunk(microbatch.tokens, microbatch.position_ids, None, labels=microbatch.labels)
    return output


class GraphedPipeline:
    """An iteration of a pipeline schedule whose passes are replayed from graphs from the second call on."""

    def __init__(
        self,
        run: Callable[[], Losses],
        chunks: Sequence[ChunkGraphs],
        make_recorder: Callable[[], Recorder] = CudaRecorder,
    ) -> None:
        self._run, self._chunks, self._make_recorder = run, chunks, make_recorder
        self._calls = 0

    def __call__(self) -> Losses:
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

    def __init__(self, chunk: Any, slots: Sequence[int], example: Microbatch, exchange: Exchange) -> None:
        self.chunk, self._slots = chunk, slots
        self._example, self._exchange = example, exchange
        self._gpt = get_attr_wrapped_model(chunk, "decoder", return_model_obj=True)
        self._reads_data = bool(self._gpt.pre_process or self._gpt.post_process)
        # Autograd calls the backward pass of a function only if one of its inputs needs a gradient.
        self._anchor = torch.zeros((), device=example.tokens.device, requires_grad=True)
        self._recorded: dict[int, _Passes] = {}
        self._begun = self._ended = 0

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
        """Run the backward pass of the oldest microbatch in flight; returns the gradient of its input."""
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
    """Puts the graphs of a chunk where Megatron-Core's schedule expects a differentiable function."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, graphs: ChunkGraphs, microbatch: Microbatch) -> torch.Tensor:
        ctx.graphs = graphs
        return graphs.replay_forward(microbatch, source)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        return ctx.graphs.replay_backward(*gradients), None, None
