"""Mock data that depends only on seed and iteration, so that every layout trains on the same samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from megatron.core import parallel_state

from orchestrator.pretrain.arguments import TrainingArguments
from orchestrator.pretrain.attention import take_share
from orchestrator.pretrain.layout import RunLayout

_LARGEST_STRIDE = 3


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


class Batches:
    """Microbatches of this rank. `draw` selects the next global batch."""

    def __init__(self, arguments: TrainingArguments, layout: RunLayout, device: torch.device) -> None:
        self._arguments, self._layout = arguments, layout
        self._iteration = 0
        column = (arguments.global_batch_size, 1)
        # Overwritten in place: a CUDA graph reads every batch from the addresses of the first.
        self._start = torch.empty(column, dtype=torch.int64, device=device)
        self._stride = torch.empty_like(self._start)
        self._positions = torch.arange(arguments.seq_length + 1, device=device)

    def draw(self) -> None:
        """Generate the next iteration's global batch."""
        start, stride = _samples(self._arguments, self._iteration)
        self._start.copy_(start)
        self._stride.copy_(stride)
        self._iteration += 1

    def microbatches(self) -> Iterator[Microbatch]:
        """Yield the microbatches of the current global batch in an endless loop."""
        size, count = self._arguments.micro_batch_size, self._layout.num_microbatches
        first = int(parallel_state.get_data_parallel_rank()) * size * count
        while True:
            for begin in range(first, first + size * count, size):
                rows = slice(begin, begin + size)
                tokens = (self._start[rows] + self._stride[rows] * self._positions) % self._arguments.vocab_size
                yield _microbatch(tokens, self._positions[:-1].expand(size, -1), self._layout)


def _samples(arguments: TrainingArguments, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return first token and stride of each sequence, [batch, 1]. Sequences are arithmetic, so the loss can fall."""
    generator = torch.Generator().manual_seed(arguments.seed * 1_000_003 + iteration)
    column = (arguments.global_batch_size, 1)
    start = torch.randint(0, arguments.vocab_size, column, generator=generator)
    return start, torch.randint(1, _LARGEST_STRIDE + 1, column, generator=generator)


def _microbatch(sequences: torch.Tensor, positions: torch.Tensor, layout: RunLayout) -> Microbatch:
    """Return this context-parallel rank's share of sequences [micro batch, sequence + 1]."""
    rank = parallel_state.get_context_parallel_rank()

    def share(whole: torch.Tensor) -> torch.Tensor:
        return take_share(whole, rank, layout.context_parallel, dim=1).contiguous()

    return Microbatch(tokens=share(sequences[:, :-1]), position_ids=share(positions), labels=share(sequences[:, 1:]))
