"""Tests of the closed form of memory against measured cases on four H200; tests/unit/results has those of two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.megatron.predictions import memory_of
from tests.unit.catalog.entries import find_case

# 2026-11-21, `repro submit NAME --cluster local --scale quad` with megatron-core 0.16.1 and torch 2.11: the largest
# torch.cuda.max_memory_allocated of all ranks, in MiB as the log prints it. Pipelines recorded no CUDA graphs then. The
# loss takes less since: in these cases the first pipeline stage, which has no logits, needs most.
MEASURED = [
    ("figure-12", "vp=1,gbs=20", 32511.60),
    ("figure-16", "mbs=2,gbs=32", 31239.30),
    ("figure-16", "mbs=4,gbs=32", 32803.49),
    ("figure-17", "recompute=full,gbs=32", 30515.03),
    ("figure-17", "recompute=none,gbs=32", 34967.90),
]
LLAMA = [
    ("atc-demo", "case=ours", 67055.29),
    ("atc-demo", "case=no-recompute", 86088.16),
    ("atc-figure-7", "recompute=ours,offload=0.0", 51808.41),
    ("atc-figure-7", "recompute=ours,offload=0.5", 42964.41),
]


@pytest.mark.parametrize(("experiment", "name", "measured_mib"), MEASURED)
def test_measured_memory_is_within_one_percent_of_the_prediction(
    experiment: str, name: str, measured_mib: float
) -> None:
    assert _without_graphs(experiment, name) == pytest.approx(measured_mib * 2**20, rel=0.01)


@pytest.mark.parametrize(("experiment", "name", "measured_mib"), LLAMA)
def test_llama_with_offloading_is_within_two_and_a_half_percent(
    experiment: str, name: str, measured_mib: float
) -> None:
    assert _without_graphs(experiment, name) == pytest.approx(measured_mib * 2**20, rel=0.025)


def _without_graphs(experiment: str, name: str) -> float:
    case = find_case(experiment, name, "quad")
    return memory_of(replace(case, arguments=("--cuda-graph-impl", "none"))).total_bytes
