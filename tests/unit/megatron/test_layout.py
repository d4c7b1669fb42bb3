"""What a layout derives, and the rules that it must keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.megatron.layout import Layout, layout_problems
from orchestrator.megatron.model import ModelShape

MODEL = ModelShape(layers=32, hidden=1024, heads=16, seq=2048, vocab=51200)
LAYOUT = Layout(gpus=64, tensor_parallel=4, pipeline_parallel=8, micro_batch_size=2, global_batch_size=64)


def problems(model: ModelShape = MODEL, layout: Layout = LAYOUT) -> list[str]:
    return list(layout_problems(model, layout))


def test_a_layout_that_keeps_every_rule_has_no_problem() -> None:
    assert problems() == []
    everything = replace(LAYOUT, gpus=128, virtual_stages=2, context_parallel=2, sequence_parallel=True)
    assert problems(layout=everything) == []


def test_data_parallel_and_microbatches_follow_from_the_rest() -> None:
    assert (LAYOUT.model_parallel, LAYOUT.data_parallel, LAYOUT.microbatches) == (32, 2, 16)
    wide = replace(LAYOUT, context_parallel=2)
    assert (wide.model_parallel, wide.data_parallel, wide.microbatches) == (64, 1, 32)


@pytest.mark.parametrize(
    ("pipeline", "virtual", "microbatches", "bubble"),
    [
        (1, 1, 8, 0.0),
        (8, 1, 32, 7 / 32),
        (32, 1, 32, 31 / 32),
        (16, 1, 1, 15.0),
        (12, 4, 12, 0.229167),
        (2, 1, 32, 0.03125),
    ],
)
def test_the_bubble_is_the_papers(pipeline: int, virtual: int, microbatches: int, bubble: float) -> None:
    layout = Layout(pipeline, 1, pipeline, 1, microbatches, virtual_stages=virtual)
    assert layout.bubble() == pytest.approx(bubble, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "layout", "reason"),
    [
        ({}, {"gpus": 48}, "48 GPUs do not divide by tensor-parallel 4 x pipeline-parallel 8 = 32"),
        (
            {},
            {"gpus": 96, "context_parallel": 2},
            "96 GPUs do not divide by tensor-parallel 4 x pipeline-parallel 8 x context-parallel 2 = 64",
        ),
        ({}, {"global_batch_size": 66}, "global batch 66 does not divide by microbatch 2 x data-parallel 2"),
        (
            {},
            {"global_batch_size": 40, "virtual_stages": 2},
            "interleaving needs microbatches (10) to divide by pipeline-parallel 8",
        ),
        ({"layers": 30}, {}, "30 layers do not divide by pipeline-parallel 8"),
        ({}, {"virtual_stages": 3}, "4 layers per stage do not divide by 3 virtual stages"),
        (
            {},
            {"pipeline_parallel": 1, "virtual_stages": 2},
            "interleaving needs a pipeline-parallel size of 2 or more",
        ),
        ({"heads": 2}, {}, "attention heads 2 does not divide by tensor-parallel 4"),
        ({"heads": 12}, {}, "hidden size 1024 does not divide by 12 attention heads"),
        (
            {"seq": 2046},
            {"context_parallel": 2},
            "sequence length 2046 does not divide by 2 x context-parallel 2",
        ),
        (
            {"seq": 2046},
            {"sequence_parallel": True},
            "sequence length 2046 does not divide by tensor-parallel 4 (sequence parallelism)",
        ),
    ],
)
def test_each_rule_is_broken_alone_and_said_in_its_own_words(
    model: dict[str, Any], layout: dict[str, Any], reason: str
) -> None:
    assert problems(replace(MODEL, **model), replace(LAYOUT, **layout)) == [reason]


def test_a_hidden_size_that_tensor_parallel_does_not_divide_is_refused() -> None:
    """Never alone: where heads divide by it and the hidden size by the heads, so does the hidden size."""
    odd = replace(MODEL, hidden=1020, heads=20)
    assert problems(odd, replace(LAYOUT, tensor_parallel=8, pipeline_parallel=4)) == [
        "attention heads 20 does not divide by tensor-parallel 8",
        "hidden size 1020 does not divide by tensor-parallel 8",
    ]


def test_all_reasons_are_given_at_once() -> None:
    model = ModelShape(layers=30, hidden=1023, heads=10, seq=2047, vocab=51200)
    layout = Layout(30, 4, 8, 2, 64, virtual_stages=2, context_parallel=2, sequence_parallel=True)
    assert len(problems(model, layout)) == 7


def test_more_model_parallel_than_gpus_is_refused_and_divides_by_no_zero() -> None:
    layout = replace(LAYOUT, gpus=16)
    assert (layout.data_parallel, layout.microbatches > 0, layout.bubble() > 0) == (0, True, True)
    assert len(problems(layout=layout)) == 1


SIZES = st.integers(1, 64)


@given(
    layout=st.builds(Layout, SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, st.booleans()),
    model=st.builds(ModelShape, SIZES, SIZES, SIZES, SIZES, SIZES),
)
def test_no_problem_means_that_everything_comes_out_whole(layout: Layout, model: ModelShape) -> None:
    if not problems(model, layout):
        assert layout.data_parallel * layout.model_parallel == layout.gpus
        assert layout.microbatches * layout.micro_batch_size * layout.data_parallel == layout.global_batch_size
        assert model.layers % (layout.pipeline_parallel * layout.virtual_stages) == 0
        assert model.heads % layout.tensor_parallel == model.hidden % model.heads == 0
