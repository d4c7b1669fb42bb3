"""One rank that trains one layout after another: `python -m tests.training.worker RUNS.json FOLDER`.

RUNS.json maps names to {"flags": [...], "fault": name or null, "graphs": bool}. Each run writes FOLDER/NAME.jsonl. A
fault restores settings with wrong gradients, to test that the comparison detects them. A run with `graphs` records the
passes of its pipeline's chunks with simulated CUDA graphs, which call the recorded functions. Each stage of such a run
must compile its kernels without waiting for another stage.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from orchestrator.pretrain.arguments import RunLayout, communication_options, parse_arguments, refusals
from orchestrator.pretrain.environment import find_place, set_environment
from orchestrator.pretrain.rank import prepare_megatron, start_processes, stop_processes


def main(runs_file: str, folder: str) -> None:
    place = find_place(os.environ)
    set_environment(os.environ, place)
    device = start_processes(place)
    prepare_megatron(device)
    from orchestrator.pretrain.train import pretrain

    groups: dict[Any, Any] = {}
    for name, run in json.loads(Path(runs_file).read_text()).items():
        arguments = parse_arguments([*run["flags"], "--record", str(Path(folder) / f"{name}.jsonl")])
        reasons = refusals(arguments, place.world_size, on_gpu=False)
        if reasons:
            raise SystemExit(f"{name}: {reasons}")
        with _fault(run["fault"]), _graphs(run["graphs"]), _groups_made_once(groups):
            pretrain(arguments, device)
    stop_processes(device)
    dist.destroy_process_group()


@contextmanager
def _groups_made_once(made: dict[Any, Any]) -> Iterator[None]:
    """Let a run reuse the process groups that an earlier run made of the same ranks, one for each of its own groups.

    A group opens connections between all its ranks, and its threads wake up a hundred times a second.
    """
    from megatron.core import parallel_state

    create, uses = parallel_state.create_group, Counter[Any]()

    def take(ranks: Any = None, *args: Any, **options: Any) -> Any:
        uses[tuple(ranks)] += 1
        key = tuple(ranks), uses[tuple(ranks)]
        if key not in made:
            made[key] = create(ranks, *args, **options)
        return made[key]

    with mock.patch.object(parallel_state, "create_group", take):
        yield


@contextmanager
def _fault(name: str | None) -> Iterator[None]:
    from orchestrator.pretrain import model, train

    if name is None:
        yield
    elif name == "two_loss_outputs":
        with mock.patch.object(train, "sum_of_losses", _two_outputs):
            yield
    else:
        assert name == "batched_interleaved"
        with mock.patch.object(model, "communication_options", _batched):
            yield


@contextmanager
def _graphs(is_on: bool) -> Iterator[None]:
    """Record as on a GPU, with a simulated graph scope and simulated graphs."""
    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

    from orchestrator.pretrain import graph, train
    from orchestrator.pretrain.graph import GraphedPipeline

    recorded: list[object] = []

    def record(run: Callable[[], None], *, slot: int | None = None) -> Callable[[], None]:  # noqa: ARG001
        recorded.append(run)
        return run

    if not is_on:
        yield
        return
    events: list[str] = []
    with ExitStack() as stack:
        for owner, name in ((graph, "run_chunk"), (P2PCommunicator, "_communicate")):
            stack.enter_context(mock.patch.object(owner, name, _noted(owner, name, events)))
        stack.enter_context(mock.patch.object(train, "graph_scope", lambda *_: "chunk"))
        pipeline = partial(GraphedPipeline, make_recorder=lambda: record)
        stack.enter_context(mock.patch.object(train, "GraphedPipeline", pipeline))
        stack.enter_context(mock.patch.object(train, "use_own_stream"))
        stack.enter_context(mock.patch.object(train, "start_model_parallel", _start_without_graphs))
        yield
    assert recorded, "no pass was recorded"
    is_interleaved = events[0] == "_communicate"  # opens the connections
    assert events[is_interleaved] == "run_chunk", "a stage compiles only after it has received a message"


def _noted(owner: object, name: str, events: list[str]) -> Callable[..., Any]:
    """Return the function of this name. Each call adds the name to the events."""
    function = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        events.append(name)
        return function(*args, **options)

    return call


def _start_without_graphs(layout: RunLayout, seed: int, recordable: bool) -> None:  # noqa: ARG001
    """Random states for graphs need a GPU."""
    from orchestrator.pretrain.model import start_model_parallel

    start_model_parallel(layout, seed)


def _two_outputs(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return losses.float().mean(), losses.detach().float().mean()


def _batched(layout: RunLayout, *, on_gpu: bool) -> dict[str, bool]:
    return communication_options(layout, on_gpu=on_gpu) | {"batch_p2p_comm": True, "overlap_p2p_comm": False}


if __name__ == "__main__":
    main(*sys.argv[1:])
