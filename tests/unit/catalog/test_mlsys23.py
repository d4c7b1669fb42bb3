"""Tests of the experiments of MLSys'23 and of Megatron-Core's weak scaling against the numbers of their sources."""

from __future__ import annotations

import pytest

from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.model import flops_per_iteration
from tests.cases import expand
from tests.unit.catalog.entries import shipped

PRINTED_MFU = {"22B": 41.5, "175B": 51.4, "530B": 56.0, "1T": 56.3, "530B-dp8": 54.2}
"""MFU of present work in percent: table 5, the README of Megatron-LM at 2e90a342f5, and the abstract."""
PRINTED_GAIN = {"22B": 29.0, "175B": 31.8, "530B": 29.7, "1T": 32.1}
"""Column Throughput Increase of table 5, in percent."""
TABLE_3 = {
    "22B": (48, 6144, 64, 8, 1, 8, 4, 4),
    "175B": (96, 12288, 96, 8, 8, 64, 64, 1),
    "530B": (105, 20480, 128, 8, 35, 280, 280, 1),
    "1T": (128, 25600, 160, 8, 64, 512, 512, 1),
}
"""Layers, hidden size, heads, tensor- and pipeline-parallel size, GPUs, batch and microbatch size."""


def published(case: TrainingCase, metric: str) -> float:
    (point,) = (point for point in case.published if point.metric == metric)
    return point.value


def test_times_of_table_5_follow_from_the_printed_mfu() -> None:
    seen = set()
    for case in expand(shipped("table-5")):
        (point,) = case.published
        assert point.confirmed
        if case.training.recompute == "selective":
            flops = flops_per_iteration(case.model, case.layout.global_batch_size, recompute_all=False)
            mfu = 100 * flops / (point.value / 1e3 * case.layout.gpus * 312e12)
            assert mfu == pytest.approx(PRINTED_MFU[str(case.value("case"))], rel=5e-3)
            seen.add(case.value("case"))
    assert seen == set(PRINTED_MFU)


def test_times_of_table_5_have_the_printed_throughput_increase() -> None:
    times = {
        (case.value("case"), case.training.recompute): published(case, "iteration_ms")
        for case in expand(shipped("table-5"))
    }
    for name, gain in PRINTED_GAIN.items():
        assert 100 * (times[name, "full"] / times[name, "selective"] - 1) == pytest.approx(gain, abs=0.2)


def test_layouts_of_table_5_are_those_of_table_3() -> None:
    for case in expand(shipped("table-5")):
        name, layout, model = str(case.value("case")), case.layout, case.model
        copies = 8 if name == "530B-dp8" else 1
        layers, hidden, heads, tp, pp, gpus, gbs, mbs = TABLE_3[name.removesuffix("-dp8")]
        assert (model.layers, model.hidden, model.heads) == (layers, hidden, heads)
        assert (case.value("tp"), case.value("pp"), layout.data_parallel) == (tp, pp, copies)
        assert (layout.gpus, layout.global_batch_size, layout.micro_batch_size) == (gpus * copies, gbs * copies, mbs)
        assert case.value("vp") == (3 if name.startswith(("175B", "530B")) else 1)  # section 6


def test_weak_scaling_has_the_printed_rates_and_sizes() -> None:
    cases = expand(shipped("weak-scaling"))
    billions = [1.7, 7.1, 16, 32, 70, 119, 177, 314, 462]
    assert [case.layout.gpus for case in cases] == [48, 96, 192, 384, 768, 1536, 2304, 3072, 6144]
    for case, printed in zip(cases, billions, strict=True):
        assert case.layout.data_parallel == 48 and case.layout.microbatches * case.layout.micro_batch_size * 48 == (
            case.layout.global_batch_size
        )
        total = published(case, "tflops_per_gpu") * case.layout.gpus / 1e3
        assert total == pytest.approx(published(case, "aggregate_pflops"), rel=3e-3)
        # The output layer has a table of its own, which `parameters` does not count for this family.
        parameters = case.model.parameters() + case.model.vocab * case.model.hidden
        assert parameters / 1e9 == pytest.approx(printed, rel=0.035)
