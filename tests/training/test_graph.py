"""Selection of runs that are recorded as CUDA graphs, and recorded iterations, with a simulated graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from orchestrator.pretrain import graph
from orchestrator.pretrain.arguments import parse_arguments
from orchestrator.pretrain.graph import CudaRecorder, GraphedIteration, graph_scope
from tests.training.launching import SMALL_MODEL

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.mark.parametrize(
    ("flags", "device", "scope"),
    [
        ("", GPU, "iteration"),
        ("--tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full", GPU, "iteration"),
        ("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", GPU, "iteration"),
        ("--context-parallel-size 2 --recompute-norm", GPU, "iteration"),
        ("--pipeline-model-parallel-size 2", GPU, "chunk"),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2", GPU, "chunk"),
        ("--pipeline-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel", GPU, "chunk"),
        ("--pipeline-model-parallel-size 2 --overlap-grad-reduce", GPU, None),
        ("--cuda-graph-impl none", GPU, None),
        ("--hidden-dropout 0.1", GPU, None),
        ("--attention-dropout 0.1", GPU, None),
        ("--offload-activation-ratio 0.5", GPU, None),
        ("", CPU, None),
    ],
)
def test_only_repeated_work_is_recorded(flags: str, device: torch.device, scope: str | None) -> None:
    assert graph_scope(parse_arguments([*SMALL_MODEL, *flags.split()]), device) == scope


class Gpu:
    """Simulated GPU: runs kernels, or only notes them while a graph is recorded."""

    def __init__(self) -> None:
        self.recording: StandInGraph | None = None

    def launch(self, kernel: Callable[[], object]) -> None:
        if self.recording is None:
            kernel()
        else:
            self.recording.kernels.append(kernel)


class StandInGraph:
    """Simulated torch.cuda.CUDAGraph."""

    made: list[StandInGraph] = []
    gpu: Gpu

    def __init__(self) -> None:
        self.kernels: list[Callable[[], object]] = []
        self.states: list[object] = []
        self.pool: object = None
        StandInGraph.made.append(self)

    def register_generator_state(self, state: object) -> None:
        self.states.append(state)

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        assert self.states == ["one", "other"], "every random state, before anything is recorded"
        self.pool, self.gpu.recording = pool, self

    def capture_end(self) -> None:
        self.gpu.recording = None

    def replay(self) -> None:
        for kernel in self.kernels:
            kernel()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    pools = iter(range(100))
    monkeypatch.setattr(StandInGraph, "made", [])
    monkeypatch.setattr(StandInGraph, "gpu", gpu, raising=False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandInGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(graph, "get_all_rng_states", lambda: {"default": "one", "model-parallel-rng": "other"})
    return gpu


def test_graphs_of_two_slots_share_no_memory(gpu: Gpu) -> None:
    record = CudaRecorder()
    for slot in (0, None, 1, None, 0):
        record(lambda: gpu.launch(lambda: None), slot=slot)
    first, shared, second, shared_again, first_again = (made.pool for made in StandInGraph.made)
    assert (first, shared) == (first_again, shared_again)
    assert len({first, second, shared}) == 3


def test_a_failed_recording_is_ended_and_releases_the_stream(gpu: Gpu) -> None:
    def fail() -> None:
        raise RuntimeError("no kernel image")

    with pytest.raises(RuntimeError, match="no kernel image"):
        CudaRecorder()(fail)
    assert gpu.recording is None and not graph.LAUNCHING.locked()


def test_first_call_runs_second_records_and_later_calls_replay(gpu: Gpu) -> None:
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
        result = iteration()
        seen.append([loss.item() for loss in result])
        assert result is calls[min(batch, 2) - 1]
        assert len(StandInGraph.made) == (batch > 1)
    assert seen == [[1, 10], [2, 20], [3, 30], [4, 40]], "the losses of each call's own data"
    assert len(calls) == 2
