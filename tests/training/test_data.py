"""Samples of a run: equal in every layout, and overwritten in place."""

from __future__ import annotations

import itertools

import pytest
import torch
from megatron.core import parallel_state

from benchmarks.plain_gpt import Sizes, sequences
from orchestrator.pretrain.arguments import RunLayout, parse_arguments
from orchestrator.pretrain.graph import Microbatch
from orchestrator.pretrain.layers import join_shares
from orchestrator.pretrain.train import Batches
from tests.training.launching import SMALL_MODEL

CPU = torch.device("cpu")
ARGUMENTS = parse_arguments(SMALL_MODEL)
# Sizes of SMALL_MODEL, for a program that reads only its samples.
SIZES = Sizes(
    layers=4,
    hidden=32,
    heads=4,
    seq=16,
    vocab=64,
    micro_batch_size=1,
    global_batch_size=8,
    iterations=3,
    dtype="fp32",
    compiled=False,
)


def _microbatches(flags: str, world_size: int, rank: int, monkeypatch: pytest.MonkeyPatch) -> list[list[Microbatch]]:
    """Return the microbatches of three iterations on one rank of the data-parallel or context-parallel group."""
    arguments = parse_arguments([*SMALL_MODEL, *flags.split()])
    layout = RunLayout.of(arguments, world_size)
    data_rank, context_rank = (0, rank) if layout.context_parallel > 1 else (rank, 0)
    monkeypatch.setattr(parallel_state, "get_data_parallel_rank", lambda: data_rank)
    monkeypatch.setattr(parallel_state, "get_context_parallel_rank", lambda: context_rank)
    batches = Batches(arguments, layout, CPU)
    microbatches = batches.microbatches()
    rows = []
    for _ in range(3):
        batches.draw()
        rows.append(list(itertools.islice(microbatches, layout.num_microbatches)))
    return rows


@pytest.mark.parametrize(
    ("flags", "world_size"),
    [("", 1), ("--micro-batch-size 4", 1), ("", 2), ("--micro-batch-size 2", 4), ("--micro-batch-size 2", 2)],
)
def test_ranks_of_each_layout_together_read_one_global_batch(
    flags: str, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_ranks = [_microbatches(flags, world_size, rank, monkeypatch) for rank in range(world_size)]
    for iteration in range(3):
        drawn = [microbatch for rank in of_ranks for microbatch in rank[iteration]]
        expected = sequences(SIZES, iteration)
        assert torch.equal(torch.cat([microbatch.tokens for microbatch in drawn]), expected[:, :-1])
        assert torch.equal(torch.cat([microbatch.labels for microbatch in drawn]), expected[:, 1:])
        for microbatch in drawn:
            assert torch.equal(microbatch.position_ids, torch.arange(16).expand_as(microbatch.tokens))


def test_context_parallel_ranks_have_shares_of_the_same_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    of_ranks = [_microbatches("--context-parallel-size 2", 2, rank, monkeypatch) for rank in range(2)]
    for iteration in range(3):
        pairs = list(zip(of_ranks[0][iteration], of_ranks[1][iteration], strict=True))
        expected = sequences(SIZES, iteration)
        for name, whole in (("tokens", expected[:, :-1]), ("labels", expected[:, 1:])):
            joined = [join_shares(torch.cat([getattr(half, name) for half in pair], 1).t(), 2).t() for pair in pairs]
            assert torch.equal(torch.cat(joined), whole)
        (positions, *_) = [torch.cat([half.position_ids for half in pair], 1) for pair in pairs]
        assert torch.equal(join_shares(positions[0], 2), torch.arange(16))


def test_the_next_batch_overwrites_the_previous_one_in_place() -> None:
    """A recorded iteration always reads from the same addresses."""
    batches = Batches(ARGUMENTS, RunLayout.of(ARGUMENTS, 1), CPU)
    seen = []
    for _ in range(2):
        batches.draw()
        seen.append([(part.data_ptr(), part.flatten().tolist()) for part in (batches._start, batches._stride)])
    for (place, values), (place_of_next, next_values) in zip(*seen, strict=True):
        assert place == place_of_next and values != next_values
