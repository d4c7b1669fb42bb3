"""What follows from a layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.megatron.model import Layout

LAYOUT = Layout(gpus=64, tensor_parallel=4, pipeline_parallel=8, micro_batch_size=2, global_batch_size=64)


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


def test_more_model_parallel_than_gpus_divides_by_no_zero() -> None:
    layout = replace(LAYOUT, gpus=16)
    assert (layout.data_parallel, layout.microbatches > 0, layout.bubble() > 0) == (0, True, True)
