"""Sizes that follow from a layout, and parameters of a rank, compared with numbers that programs printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.megatron.model import Layout, ModelShape, parameters_of_rank

LAYOUT = Layout(gpus=64, tensor_parallel=4, pipeline_parallel=8, micro_batch_size=2, global_batch_size=64)


def test_data_parallel_and_microbatches_follow_from_the_other_sizes() -> None:
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


def test_more_model_parallel_than_gpus_does_not_divide_by_zero() -> None:
    layout = replace(LAYOUT, gpus=16)
    assert (layout.data_parallel, layout.microbatches > 0, layout.bubble() > 0) == (0, True, True)


SMALL = ModelShape(layers=4, hidden=64, heads=8, seq=32, vocab=1000)
LLAMA = replace(SMALL, family="llama")


def spread(tensor: int, pipeline: int, virtual: int = 1) -> Layout:
    return Layout(tensor * pipeline, tensor, pipeline, micro_batch_size=1, global_batch_size=4, virtual_stages=virtual)


@pytest.mark.parametrize(
    ("model", "layout", "vocabulary", "printed"),
    [
        # Printed by orchestrator.pretrain with megatron-core 0.16.1 on CPU, by pipeline stage.
        (SMALL, spread(2, 2), 1000, [84416, 82496]),
        (replace(SMALL, layers=3), spread(1, 1), 1001, [216192]),
        (replace(SMALL, layers=3, positions="rotary"), spread(1, 1), 1001, [214144]),
        (replace(LLAMA, ffn=160, kv_groups=2), spread(2, 2), 1024, [73984, 74048]),
        (replace(LLAMA, layers=8), spread(1, 4, virtual=2), 1024, [196864, 131328, 131328, 196928]),
        # ATC'24's 65B with tensor-parallel 2 on 8 stages: the first stage (its artifact's memory model).
        (ModelShape(80, 8192, 64, 4096, 32004, ffn=22016, family="llama"), spread(2, 8), 32256, [4179787776]),
    ],
)
def test_the_count_is_exact_on_every_stage(
    model: ModelShape, layout: Layout, vocabulary: int, printed: list[int]
) -> None:
    counted = [parameters_of_rank(model, layout, stage, vocabulary) for stage in range(len(printed))]
    assert counted == printed


@pytest.mark.parametrize(
    ("model", "layout", "vocabulary"),
    [
        (replace(SMALL, experts=4, experts_per_token=2), spread(2, 2), 1000),
        (replace(SMALL, layers=5), spread(2, 2), 1000),
        (SMALL, spread(2, 2), 1001),
        (replace(LLAMA, kv_groups=1), spread(2, 2), 1000),
    ],
    ids=["experts", "unequal stages", "unequal vocabulary", "shared keys"],
)
def test_unequal_shares_have_no_count(model: ModelShape, layout: Layout, vocabulary: int) -> None:
    assert parameters_of_rank(model, layout, 0, vocabulary) is None
