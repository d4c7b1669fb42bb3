"""Which runs become a CUDA graph, and what calls of a recorded iteration do, with a stand-in for the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from orchestrator.pretrain import graph
from orchestrator.pretrain.arguments import parse_arguments
from orchestrator.pretrain.graph import GraphedIteration, records_graph
from tests.training.launching import SMALL_MODEL

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.mark.parametrize(
    ("flags", "device", "records"),
    [
        ("", GPU, True),
        ("--tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full", GPU, True),
        ("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", GPU, True),
        ("--context-parallel-size 2 --recompute-norm", GPU, True),
        ("--cuda-graph-impl none", GPU, False),
        ("--hidden-dropout 0.1", GPU, False),
        ("--attention-dropout 0.1", GPU, False),
        ("--pipeline-model-parallel-size 2", GPU, False),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2", GPU, False),
        ("--offload-activation-ratio 0.5", GPU, False),
        ("", CPU, False),
    ],
)
def test_only_what_repeats_itself_on_one_gpu_becomes_a_graph(flags: str, device: torch.device, records: bool) -> None:
    assert records_graph(parse_arguments([*SMALL_MODEL, *flags.split()]), device) is records


class Gpu:
    """A stand-in for what a GPU does with kernels: runs them, or while a graph is recorded notes them down only."""

    def __init__(self) -> None:
        self.recording: StandInGraph | None = None

    def launch(self, kernel: Callable[[], object]) -> None:
        if self.recording is None:
            kernel()
        else:
            self.recording.kernels.append(kernel)


class StandInGraph:
    """A stand-in for torch.cuda.CUDAGraph."""

    made: list[StandInGraph] = []

    def __init__(self) -> None:
        self.kernels: list[Callable[[], object]] = []
        self.states: list[object] = []
        StandInGraph.made.append(self)

    def register_generator_state(self, state: object) -> None:
        self.states.append(state)

    def replay(self) -> None:
        for kernel in self.kernels:
            kernel()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()

    @contextmanager
    def record(made: StandInGraph, **options: Any) -> Iterator[None]:
        assert options == {"stream": "own stream", "capture_error_mode": "thread_local"}
        assert made.states == ["one", "other"], "every random state, before anything is recorded"
        gpu.recording = made
        yield
        gpu.recording = None

    monkeypatch.setattr(StandInGraph, "made", [])
    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandInGraph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "own stream")
    monkeypatch.setattr(graph, "get_all_rng_states", lambda: {"default": "one", "model-parallel-rng": "other"})
    return gpu


def test_the_first_call_runs_the_second_records_and_each_from_then_on_replays(gpu: Gpu) -> None:
    data = torch.zeros(2)
    calls: list[list[torch.Tensor]] = []

    def run() -> list[torch.Tensor]:
        losses = [torch.full((), torch.nan), torch.full((), torch.nan)]
        calls.append(losses)
        for loss, value in zip(losses, data, strict=True):
            gpu.launch(partial(loss.copy_, value))
        return losses

    iteration = GraphedIteration(run)
    seen = []
    for batch in range(1, 5):
        data.copy_(torch.tensor([batch, 10.0 * batch]))
        found = iteration()
        seen.append([loss.item() for loss in found])
        assert found is calls[min(batch, 2) - 1]
        assert len(StandInGraph.made) == (batch > 1)
    assert seen == [[1, 10], [2, 20], [3, 30], [4, 40]], "the losses of each call's own data"
    assert len(calls) == 2
