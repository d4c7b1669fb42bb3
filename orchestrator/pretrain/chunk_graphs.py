"""CUDA graphs of a pipeline stage: a forward and a backward graph for each microbatch that a chunk holds at once.

The schedule is Megatron-Core's. It calls a chunk's passes as before and sends and receives between the graphs. A slot
holds the input and the activations of one microbatch from its forward to its backward pass. The schedule ends the
microbatches of a chunk in the order in which they began, so the slots are used in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

    def tensor(self, role: str, like: torch.Tensor) -> torch.Tensor:
        """Return the tensor of a role, with the shape and type of `like`."""
        key = role, like.shape
        if key not in self._tensors:
            self._tensors[key] = torch.zeros_like(like, requires_grad=False)
        return self._tensors[key]


@dataclass
class _Slot:
    """One microbatch in flight. `hidden` [s, b, h] is the input from the stage before; None on the first stage."""

    microbatch: Microbatch
    hidden: torch.Tensor | None
    output: torch.Tensor | None = None
    forward: Graph | None = None
    backward: Graph | None = None


@dataclass
class ChunkGraphs:
    """Graphs of one model chunk; `in_flight` is the largest number of microbatches that it holds at once.

    `example` is a microbatch of the run's shapes. Until the passes are recorded, `run` calls the chunk itself.
    """

    chunk: Any
    in_flight: int
    example: Microbatch
    exchange: Exchange
    _slots: list[_Slot] = field(default_factory=list)
    _begun: int = 0
    _ended: int = 0

    def __post_init__(self) -> None:
        self._gpt = get_attr_wrapped_model(self.chunk, "decoder", return_model_obj=True)
        self._reads_data = bool(self._gpt.pre_process or self._gpt.post_process)
        # Autograd calls the backward pass of a function only if one of its inputs needs a gradient.
        self._anchor = torch.zeros((), device=self.example.tokens.device, requires_grad=True)

    def run(self, microbatch: Microbatch) -> torch.Tensor:
        """Run the forward pass of the next microbatch; the hidden states come from Megatron-Core's set_input_tensor."""
        received: torch.Tensor | None = self._gpt.decoder.input_tensor
        if not self._slots:
            output = run_chunk(self.chunk, microbatch)
            self._hidden_like = None if received is None else torch.empty_like(received, device="meta")
            self._output_like = torch.empty_like(output, device="meta")
            return output
        source = self._anchor if received is None else received
        replayed: torch.Tensor = _Passes.apply(source, self, microbatch)  # type: ignore[no-untyped-call]
        if received is not None:
            # The schedule holds the received tensor until the backward pass, for its gradient alone.
            received.untyped_storage().resize_(0)
        return replayed

    def record(self, recorder: Recorder) -> None:
        """Record the passes of every slot. Call it after one iteration without graphs.

        Each forward graph has memory of its own, in which the activations wait for the backward graph. Forward graphs
        that share memory would overwrite them: another microbatch runs through its forward graph while they wait.
        """
        device = self._anchor.device
        self._outgoing = self.exchange.tensor("outgoing", torch.empty_like(self._output_like, device=device))
        self._incoming = self.exchange.tensor("incoming", self._outgoing)
        for _ in range(self.in_flight):
            hidden = self._hidden_like
            slot = _Slot(
                microbatch=self.example.copy(),
                hidden=None if hidden is None else torch.zeros_like(hidden, device=device, requires_grad=True),
            )
            if slot.hidden is not None:
                self._returned = self.exchange.tensor("returned", slot.hidden)
            slot.forward = recorder(partial(self._forward, slot), own_memory=True)
            slot.backward = recorder(partial(self._backward, slot))
            self._slots.append(slot)
        self._gpt.decoder.input_tensor = None

    def replay_forward(self, microbatch: Microbatch, received: torch.Tensor) -> torch.Tensor:
        """Run the next microbatch's forward pass from the slot whose turn it is."""
        slot = self._slots[self._begun % self.in_flight]
        assert self._begun - self._ended < self.in_flight and slot.forward is not None
        self._begun += 1
        if self._reads_data:
            slot.microbatch.fill(microbatch)
        if slot.hidden is not None:
            slot.hidden.detach().copy_(received)
        slot.forward()
        return self._outgoing.clone()

    def replay_backward(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Run the backward pass of the oldest microbatch in flight; returns the gradient of its input."""
        slot = self._slots[self._ended % self.in_flight]
        assert self._ended < self._begun and slot.backward is not None
        self._ended += 1
        self._incoming.copy_(gradient)
        slot.backward()
        return None if slot.hidden is None else self._returned.clone()

    def _forward(self, slot: _Slot) -> None:
        self._gpt.set_input_tensor(slot.hidden)
        with torch.enable_grad():
            slot.output = run_chunk(self.chunk, slot.microbatch)
        self._outgoing.copy_(slot.output.detach())

    def _backward(self, slot: _Slot) -> None:
        assert slot.output is not None
        torch.autograd.backward([slot.output], [self._incoming])
        slot.output = None
        if slot.hidden is not None:
            assert slot.hidden.grad is not None
            self._returned.copy_(slot.hidden.grad)
            slot.hidden.grad = None


class _Passes(torch.autograd.Function):
    """Puts the graphs of a chunk where Megatron-Core's schedule expects a differentiable function."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, graphs: ChunkGraphs, microbatch: Microbatch) -> torch.Tensor:
        ctx.graphs = graphs
        return graphs.replay_forward(microbatch, source)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        return ctx.graphs.replay_backward(*gradients), None, None
