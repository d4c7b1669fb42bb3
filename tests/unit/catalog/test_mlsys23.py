"""Tests of the experiments of MLSys'23 and of Megatron-Core's weak scaling against the numbers of their sources."""

from __future__ import annotations

import pytest

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.megatron.flops import flops_per_iteration
from tests.unit.catalog.entries import shipped

PRINTED_MFU = {
    ("22B", "selective"): 41.5,
    ("175B", "selective"): 51.4,
    ("530B", "selective"): 56.0,
    ("1T", "selective"): 56.3,
    ("530B-dp8", "selective"): 54.2,
    ("530B-dp8", "full"): 42.1,
}
"""README of Megatron-LM at 2e90a342f5; the last two are in the abstract of arXiv 2205.05198. In percent."""
TRANSCRIBED_S = {"22B": 1.10, "175B": 13.75, "530B": 37.83, "1T": 71.49, "530B-dp8": 39.15}
"""Times of present work in a third party's transcription of the table."""


def published(case: Case, metric: str) -> float:
    (point,) = (point for point in case.published if point.metric == metric)
    return point.value


def test_confirmed_times_of_table_5_follow_from_the_printed_mfu() -> None:
    cases = expand(shipped("table-5"))
    seen = set()
    for case in cases:
        row = (str(case.value("case")), case.training.recompute)
        (point,) = case.published
        assert point.confirmed is (row in PRINTED_MFU)
        if row in PRINTED_MFU:
            flops = flops_per_iteration(case.model, case.layout.global_batch_size, recompute_all=False)
            mfu = 100 * flops / (point.value / 1e3 * case.layout.gpus * 312e12)
            assert mfu == pytest.approx(PRINTED_MFU[row], rel=1e-3)
            seen.add(row)
    assert len(cases) == 10 and seen == set(PRINTED_MFU)


def test_layouts_of_table_5_agree_with_the_transcribed_times() -> None:
    for case in expand(shipped("table-5")):
        if case.training.recompute == "selective":
            seconds = TRANSCRIBED_S[str(case.value("case"))]
            assert published(case, "iteration_ms") / 1e3 == pytest.approx(seconds, rel=5e-3)
            assert case.layout.data_parallel == (8 if case.value("case") == "530B-dp8" else 1)


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
