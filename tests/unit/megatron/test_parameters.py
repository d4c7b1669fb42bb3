"""How many parameters a rank holds, against what programs printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.megatron.model import Layout, ModelShape, parameters_of_rank

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
def test_nothing_is_counted_where_ranks_do_not_share_equally(
    model: ModelShape, layout: Layout, vocabulary: int
) -> None:
    assert parameters_of_rank(model, layout, 0, vocabulary) is None
