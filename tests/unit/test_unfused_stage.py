"""benchmarks/unfused_stage.py on CPU cores, which count no memory: it runs all schedules of small stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.catalog.case import parse_where, select
from orchestrator.megatron.axes import MEGATRON
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.model import DdpKind, Recompute, padded_vocabulary, parameters_of_rank
from tests.cases import expand
from tests.unit.catalog.entries import shipped


def small(pipeline: int, recompute: Recompute, ddp: DdpKind) -> TrainingCase:
    case = expand(shipped("figure-17"))[0]
    return replace(
        case,
        model=replace(case.model, layers=2, hidden=32, heads=4, seq=8, vocab=256),
        layout=replace(case.layout, gpus=2 * pipeline, tensor_parallel=2, pipeline_parallel=pipeline),
        training=replace(case.training, recompute=recompute, ddp=ddp),
    )


@pytest.mark.torch
@pytest.mark.parametrize(
    ("stage", "pipeline", "recompute", "ddp", "keeps_buffers"),
    [(0, 1, "full", "torch", False), (0, 2, "none", "local", False), (1, 2, "full", "local", True)],
)
def test_a_stage_runs_with_the_parameters_of_its_rank(
    stage: int, pipeline: int, recompute: Recompute, ddp: DdpKind, keeps_buffers: bool
) -> None:
    from benchmarks.unfused_stage import Stage

    case = small(pipeline, recompute, ddp)
    rank = Stage(case, stage, keeps_buffers, "cpu")
    rank.run(iterations=2)
    sizes = [shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in rank.sizes()]
    vocabulary = padded_vocabulary(case.model.vocab, case.layout.tensor_parallel)
    assert sum(sizes) == parameters_of_rank(case.model, case.layout, stage, vocabulary)


@pytest.mark.torch
def test_every_measured_stage_is_one_of_a_published_case() -> None:
    from benchmarks.unfused_stage import CASES

    cases = {name: expand(shipped(name)) for name, _, _ in CASES}
    for name, where, stage in CASES:
        (case,) = select(cases[name], parse_where(where, MEGATRON.axes))
        assert stage < case.layout.pipeline_parallel and case.layout.virtual_stages == 1
