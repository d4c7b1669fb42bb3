"""Mock data that depends on the seed and the iteration alone, so every layout trains on the same samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from megatron.core import parallel_state

from orchestrator.pretrain.arguments import TrainingArguments
from orchestrator.pretrain.layout import Layout
from orchestrator.pretrain.sequence import take_share

_LARGEST_STRIDE = 3


@dataclass(frozen=True)
class Microbatch:
    """Token numbers, positions and the tokens to predict, each [micro batch, sequence / context parallel] of int64."""

    tokens: torch.Tensor
    position_ids: torch.Tensor
    labels: torch.Tensor

    def copy(self) -> Microbatch:
        """Return a microbatch in memory of its own."""
        return Microbatch(self.tokens.clone(), self.position_ids.clone(), self.labels.clone())

    def fill(self, other: Microbatch) -> None:
        """Overwrite tokens and labels with those of another microbatch; all have the same positions."""
        self.tokens.copy_(other.tokens)
        self.labels.copy_(other.labels)


class Batches:
    """This rank's microbatches of one global batch after the other; `draw` goes on to the next."""

    def __init__(self, arguments: TrainingArguments, layout: Layout, device: torch.device) -> None:
        self._arguments, self._layout = arguments, layout
        self._iteration = 0
        column = (arguments.global_batch_size, 1)
        # Overwritten in place, so that a recorded iteration finds each batch where it found the first.
        self._start = torch.empty(column, dtype=torch.int64, device=device)
        self._stride = torch.empty_like(self._start)
        self._positions = torch.arange(arguments.seq_length + 1, device=device)

    def draw(self) -> None:
        """Take the next iteration's global batch."""
        start, stride = _samples(self._arguments, self._iteration)
        self._start.copy_(start)
        self._stride.copy_(stride)
        self._iteration += 1

    def microbatches(self) -> Iterator[Microbatch]:
        """The batch's microbatches over and over; as many as an iteration has are those of the batch drawn last."""
        size, count = self._arguments.micro_batch_size, self._layout.num_microbatches
        first = int(parallel_state.get_data_parallel_rank()) * size * count
        while True:
            for begin in range(first, first + size * count, size):
                rows = slice(begin, begin + size)
                tokens = (self._start[rows] + self._stride[rows] * self._positions) % self._arguments.vocab_size
                yield _microbatch(tokens, self._positions[:-1].expand(size, -1), self._layout)


def _samples(arguments: TrainingArguments, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
    """First token and stride of each sequence of a global batch, [batch, 1]; arithmetic, so that the loss can fall."""
    generator = torch.Generator().manual_seed(arguments.seed * 1_000_003 + iteration)
    column = (arguments.global_batch_size, 1)
    start = torch.randint(0, arguments.vocab_size, column, generator=generator)
    return start, torch.randint(1, _LARGEST_STRIDE + 1, column, generator=generator)


def _microbatch(sequences: torch.Tensor, positions: torch.Tensor, layout: Layout) -> Microbatch:
    """This context-parallel rank's share of sequences [micro batch, sequence + 1]."""
    rank = parallel_state.get_context_parallel_rank()

    def share(whole: torch.Tensor) -> torch.Tensor:
        return take_share(whole, rank, layout.context_parallel, dim=1).contiguous()

    return Microbatch(tokens=share(sequences[:, :-1]), position_ids=share(positions), labels=share(sequences[:, 1:]))
