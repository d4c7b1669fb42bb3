"""Iteration lines -> metrics: what is dropped, what is kept, and the paper's own equation, computed by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.megatron.log_lines import IterationLine
from orchestrator.results.statistics import measured_iterations, metrics
from tests.unit.ledger.making import CONFIGURATION


def lines(*elapsed_ms: float, first: int = 1, step: int = 1, loss: float = 6.9) -> list[IterationLine]:
    return [IterationLine(first + n * step, 100, ms, loss, 1.0, 0, 0) for n, ms in enumerate(elapsed_ms)]


def computed(*elapsed_ms: float, warmup: int = 2, **configuration: Any) -> dict[str, MeasuredMetric]:
    found = metrics(measured_iterations(lines(*elapsed_ms), warmup), CONFIGURATION | configuration)
    return {metric.name: metric for metric in found}


def test_the_first_line_and_the_warm_up_do_not_count() -> None:
    assert [line.used for line in measured_iterations(lines(9, 8, 7, 6), 2)] == [False, False, True, True]
    assert [line.used for line in measured_iterations(lines(9, 8, 7, 6), 0)] == [False, True, True, True]


def test_an_interval_that_ends_within_the_warm_up_does_not_count_and_one_that_ends_behind_it_does() -> None:
    every_fifth = measured_iterations(lines(9, 8, 7, first=5, step=5), 10)
    assert [(line.iteration, line.used) for line in every_fifth] == [(5, False), (10, False), (15, True)]


def test_a_line_with_a_number_that_is_none_does_not_count() -> None:
    read = [*lines(9, 8), *lines(7, first=3, loss=math.nan), *lines(6, first=4)]
    assert [line.used for line in measured_iterations(read, 0)] == [False, True, False, True]


def test_a_time_that_no_rate_follows_from_does_not_count() -> None:
    assert [line.used for line in measured_iterations(lines(9, 0.0, -1.0, 5), 0)] == [False] * 3 + [True]
    for none in (math.nan, math.inf, -math.inf):  # a ledger cannot hold it
        assert [line.used for line in measured_iterations(lines(9, none, 5), 0)] == [False, True]


def test_tflops_are_those_of_equation_3_computed_by_hand() -> None:
    # F = 96 B s l h^2 (1 + s/6h + V/16lh), B=4 s=64 l=4 h=256 V=1024
    #   = 96 * 4 * 64 * 4 * 65536 * (1 + 1/24 + 1/16) = 6442450944 * 53/48 = 7113539584
    # in 0.1 s on 4 GPUs
    rate = computed(500, 400, 100, 100, 100)["tflops_per_gpu"]
    assert rate.value == pytest.approx(7113539584 / 0.1 / 4 / 1e12, rel=1e-12)
    assert (rate.unit, rate.spread, rate.count) == ("TFLOP/s", 0.0, 3)


def test_without_recomputation_the_second_forward_pass_is_not_counted() -> None:
    # 72 * 4 * 64 * 4 * 65536 * (1 + 1/24 + 1024/(12*4*256)) = 4831838208 * 9/8
    training = {"recompute": "none", "warmup_iterations": 2}
    rate = computed(500, 400, 100, training=training)["tflops_per_gpu"]
    assert rate.value == pytest.approx(4831838208 * 9 / 8 / 0.1 / 4 / 1e12, rel=1e-12)


def test_the_median_is_kept_with_half_the_middle_range() -> None:
    found = computed(999, 999, 100, 104, 102, 110, 1000)
    # of 100 102 104 110 1000 the quartiles are 102 and 110
    assert found["iteration_ms"] == MeasuredMetric("iteration_ms", 104, "ms", 4.0, 5)
    relative = found["tflops_per_gpu"].spread or 0.0
    assert relative / found["tflops_per_gpu"].value == pytest.approx(4 / 104)
    assert found["sequences_per_s"].value == pytest.approx(4 / 0.104)


def test_the_percentage_of_the_peak_is_given_where_the_peak_is_known() -> None:
    assert "percent_of_peak" not in computed(9, 9, 100)
    found = computed(9, 9, 100, peak_tflops=2.0)
    assert found["percent_of_peak"].value == pytest.approx(50 * found["tflops_per_gpu"].value)


def test_tokens_and_the_rate_of_all_gpus_follow_with_the_spread_of_the_time() -> None:
    # 4 sequences of 64 tokens in 0.104 s on 4 GPUs; the middle half of 100 102 104 110 1000 spans 4 ms either way
    found = computed(999, 999, 100, 104, 102, 110, 1000)
    assert found["tokens_per_s"].value == pytest.approx(256 / 0.104)
    assert found["tokens_per_s_per_gpu"].value == pytest.approx(64 / 0.104)
    assert found["aggregate_pflops"].value == pytest.approx(7113539584 / 0.104 / 1e15)
    for name in ("tokens_per_s", "tokens_per_s_per_gpu", "aggregate_pflops"):
        assert (found[name].spread or 0.0) / found[name].value == pytest.approx(4 / 104)


LLAMA_7B: dict[str, Any] = {
    "model": {"layers": 32, "hidden": 4096, "heads": 32, "seq": 12288, "vocab": 32004, "ffn": 11008, "family": "llama"},
    "layout": {"gpus": 4, "tensor_parallel": 1, "pipeline_parallel": 4, "global_batch_size": 16},
}


@pytest.mark.parametrize(
    ("tokens_per_s_per_gpu", "peak_tflops", "published"),
    [(3016, 312, 47.7), (3803, 312, 60.1), (6639, 989.4, 33.1), (8273, 989.4, 41.2)],  # ATC'24's artifact README
)
def test_mfu_is_what_atc24_printed_beside_its_throughput(
    tokens_per_s_per_gpu: float, peak_tflops: float, published: float
) -> None:
    elapsed_ms = 16 * 12288 / 4 / tokens_per_s_per_gpu * 1e3
    found = computed(9, 9, elapsed_ms, peak_tflops=peak_tflops, **LLAMA_7B)
    assert found["tokens_per_s_per_gpu"].value == pytest.approx(tokens_per_s_per_gpu)
    assert found["mfu_percent"].value == pytest.approx(published, abs=0.05)


def test_mfu_is_given_for_no_other_family_and_no_unknown_peak() -> None:
    assert "mfu_percent" not in computed(9, 9, 100, peak_tflops=2.0)
    assert "mfu_percent" not in computed(9, 9, 100, **LLAMA_7B)


@pytest.mark.parametrize("elapsed", [(), (5.0,), (5.0, 5.0)])
def test_no_metric_is_made_of_nothing(elapsed: tuple[float, ...]) -> None:
    assert computed(*elapsed) == {}


PRINTED = st.floats(-1e9, 1e12).map(lambda ms: round(ms, 1)) | st.sampled_from([math.nan, math.inf, -math.inf])


@given(st.lists(PRINTED, max_size=12), st.integers(0, 12))
def test_whatever_times_a_log_has_every_metric_is_a_number(elapsed: list[float], warmup: int) -> None:
    for metric in computed(*elapsed, warmup=warmup).values():
        assert metric.value > 0
        json.dumps([metric.value, metric.spread], allow_nan=False)
