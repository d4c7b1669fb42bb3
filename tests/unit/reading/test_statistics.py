"""Tests of metrics from iteration lines: used lines, and the paper's equation computed by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.tables import IterationLine
from orchestrator.megatron.logs.iteration_lines import IterationLines
from orchestrator.megatron.logs.parse import LogFacts
from orchestrator.megatron.logs.statistics import metrics, with_used
from tests.recorded_jobs import job_spec


def lines(*elapsed_ms: float, first: int = 1, step: int = 1, loss: float = 6.9) -> list[IterationLine]:
    read = (IterationLine(first + n * step, ms, loss, 1.0, skipped=0, nan=0) for n, ms in enumerate(elapsed_ms))
    return list(IterationLines.of(read, train_iterations=100))


def computed(*elapsed_ms: float, warmup: int = 2, **configuration: Any) -> dict[str, MeasuredMetric]:
    result = metrics(with_used(lines(*elapsed_ms), warmup), job_spec(**configuration))
    return {metric.name: metric for metric in result}


def test_first_line_and_warm_up_do_not_count() -> None:
    assert [line.used for line in with_used(lines(9, 8, 7, 6), 2)] == [False, False, True, True]
    assert [line.used for line in with_used(lines(9, 8, 7, 6), 0)] == [False, True, True, True]


def test_interval_counts_if_it_ends_after_the_warm_up() -> None:
    every_fifth = with_used(lines(9, 8, 7, first=5, step=5), 10)
    assert [(line.iteration, line.used) for line in every_fifth] == [(5, False), (10, False), (15, True)]


def test_line_with_nan_does_not_count() -> None:
    read = [*lines(9, 8), *lines(7, first=3, loss=math.nan), *lines(6, first=4)]
    result = with_used(read, 0)
    assert [line.used for line in result] == [False, True, False, True]
    assert [line.is_finite for line in result] == [True, True, False, True]


def test_line_with_a_skipped_iteration_does_not_count() -> None:
    read = lines(9, 8, 7, 6, first=10, step=10)
    read[1:3] = [replace(read[1], skipped=1), replace(read[2], skipped=10, loss=None)]
    result = with_used(read, 0)
    assert [line.used for line in result] == [False, False, False, True]
    assert all(line.is_finite for line in result), "an interval that was skipped whole has no loss"


def test_line_without_a_loss_is_nan_unless_it_was_skipped_whole() -> None:
    """core_v0.16 prints an extra first line, and counts its skipped iteration again in the second line."""
    read = [replace(line, loss=None) for line in (*lines(9), *lines(8, 7, 6, first=2, step=2))]
    for skipped, is_finite in (((0, 0, 0, 0), False), ((1, 2, 2, 2), True), ((1, 2, 1, 2), False)):
        result = with_used([replace(line, skipped=n) for line, n in zip(read, skipped, strict=True)], 0)
        assert all(line.is_finite for line in result) is is_finite


def test_line_without_a_positive_time_does_not_count() -> None:
    assert [line.used for line in with_used(lines(9, 0.0, -1.0, 5), 0)] == [False] * 3 + [True]
    for none in (math.nan, math.inf, -math.inf):  # the ledger stores NULL
        assert [line.used for line in with_used(lines(9, none, 5), 0)] == [False, False, True]


def waiting(*waits_ms: float | None) -> dict[str, MeasuredMetric]:
    """Return the metrics of iterations of 200 ms with these host waits. The first two lines do not count."""
    read = [replace(lines(200.0, first=n)[0], host_wait_ms=wait) for n, wait in enumerate(waits_ms, 1)]
    return {metric.name: metric for metric in metrics(with_used(read, 2), job_spec())}


def test_host_wait_is_the_median_of_the_used_lines() -> None:
    result = waiting(190.0, 150.0, 10.0, 20.0, 90.0)
    wait, share = result["host_wait_ms"], result["host_wait_percent"]
    assert (wait.value, wait.unit, wait.spread, wait.count) == (20.0, "ms", 20.0, 3)
    assert (share.value, share.unit, share.spread, share.count) == (10.0, "%", 10.0, 3)


@pytest.mark.parametrize("garbled", [math.nan, math.inf, -1.0, 1e12, None])
def test_implausible_or_missing_host_wait_is_left_out(garbled: float | None) -> None:
    assert waiting(None, None, garbled, 20.0, garbled)["host_wait_ms"] == MeasuredMetric(
        "host_wait_ms", 20.0, "ms", 0.0, 1
    )
    assert not {"host_wait_ms", "host_wait_percent"} & waiting(5.0, 5.0, garbled, garbled).keys()


def test_gpus_that_never_waited_have_a_host_wait_of_zero() -> None:
    assert [waiting(9.0, 9.0, 0.0, 0.0)[name].value for name in ("host_wait_ms", "host_wait_percent")] == [0.0, 0.0]


def test_tflops_match_equation_3_computed_by_hand() -> None:
    # F = 96 B s l h^2 (1 + s/6h + V/16lh), B=4 s=64 l=4 h=256 V=1024
    #   = 96 * 4 * 64 * 4 * 65536 * (1 + 1/24 + 1/16) = 6442450944 * 53/48 = 7113539584
    # in 0.1 s on 4 GPUs
    rate = computed(500, 400, 100, 100, 100)["tflops_per_gpu"]
    assert rate.value == pytest.approx(7113539584 / 0.1 / 4 / 1e12, rel=1e-12)
    assert (rate.unit, rate.spread, rate.count) == ("TFLOP/s", 0.0, 3)


def test_second_forward_pass_counts_only_with_recomputation() -> None:
    # 72 * 4 * 64 * 4 * 65536 * (1 + 1/24 + 1024/(12*4*256)) = 4831838208 * 9/8
    training = {"recompute": "none", "warmup_iterations": 2}
    rate = computed(500, 400, 100, training=training)["tflops_per_gpu"]
    assert rate.value == pytest.approx(4831838208 * 9 / 8 / 0.1 / 4 / 1e12, rel=1e-12)


def test_spread_is_half_the_interquartile_range() -> None:
    result = computed(999, 999, 100, 104, 102, 110, 1000)
    # of 100 102 104 110 1000 the quartiles are 102 and 110
    assert result["iteration_ms"] == MeasuredMetric("iteration_ms", 104, "ms", 4.0, 5)
    relative = result["tflops_per_gpu"].spread or 0.0
    assert relative / result["tflops_per_gpu"].value == pytest.approx(4 / 104)
    assert result["sequences_per_s"].value == pytest.approx(4 / 0.104)


def test_percentage_of_a_known_peak() -> None:
    assert "percent_of_peak" not in computed(9, 9, 100)
    result = computed(9, 9, 100, peak_tflops=2.0)
    assert result["percent_of_peak"].value == pytest.approx(50 * result["tflops_per_gpu"].value)


def test_rates_have_the_relative_spread_of_the_time() -> None:
    # 4 sequences of 64 tokens in 0.104 s on 4 GPUs; the middle half of 100 102 104 110 1000 spans 4 ms either way
    result = computed(999, 999, 100, 104, 102, 110, 1000)
    assert result["tokens_per_s"].value == pytest.approx(256 / 0.104)
    assert result["tokens_per_s_per_gpu"].value == pytest.approx(64 / 0.104)
    assert result["aggregate_pflops"].value == pytest.approx(7113539584 / 0.104 / 1e15)
    for name in ("tokens_per_s", "tokens_per_s_per_gpu", "aggregate_pflops"):
        assert (result[name].spread or 0.0) / result[name].value == pytest.approx(4 / 104)


LLAMA_7B: dict[str, Any] = {
    "model": {"layers": 32, "hidden": 4096, "heads": 32, "seq": 12288, "vocab": 32004, "ffn": 11008, "family": "llama"},
    "layout": {"gpus": 4, "tensor_parallel": 1, "pipeline_parallel": 4, "micro_batch_size": 1, "global_batch_size": 16},
}


@pytest.mark.parametrize(
    ("tokens_per_s_per_gpu", "peak_tflops", "published"),
    [(3016, 312, 47.7), (3803, 312, 60.1), (6639, 989.4, 33.1), (8273, 989.4, 41.2)],  # ATC'24's artifact README
)
def test_mfu_matches_the_value_that_atc24_printed(
    tokens_per_s_per_gpu: float, peak_tflops: float, published: float
) -> None:
    elapsed_ms = 16 * 12288 / 4 / tokens_per_s_per_gpu * 1e3
    result = computed(9, 9, elapsed_ms, peak_tflops=peak_tflops, **LLAMA_7B)
    assert result["tokens_per_s_per_gpu"].value == pytest.approx(tokens_per_s_per_gpu)
    assert result["mfu_percent"].value == pytest.approx(published, abs=0.05)


def test_unknown_peak_gives_no_percentage() -> None:
    shares = {"percent_of_peak", "percent_of_peak_computed", "mfu_percent"}
    assert shares.isdisjoint(computed(9, 9, 100, computes=SKIPS, **LLAMA_7B))


# SC21 table 1, 1.7B, as `pretrain` ran it on one H200: 786.075 ms.
SC21_1_7B: dict[str, Any] = {
    "model": {"layers": 24, "hidden": 2304, "heads": 24, "seq": 2048, "vocab": 51200},
    "layout": {"gpus": 1, "tensor_parallel": 1, "pipeline_parallel": 1, "micro_batch_size": 1, "global_batch_size": 16},
    "peak_tflops": 989,
}
SKIPS = {"causal_attention": True, "skips_last_product": True}


def test_computed_share_and_mfu_are_metrics() -> None:
    result = computed(9, 9, 786.075, computes=SKIPS, **SC21_1_7B)
    assert result["percent_of_peak"].value == pytest.approx(62.17, abs=0.005)
    # s/6h = 0.14815 and V/16lh = 0.05787: of 96 (1 + 0.14815 + 0.05787) are computed 88 + 96 (0.07407 + 0.05787).
    assert result["percent_of_peak_computed"].value == pytest.approx(62.17 * 100.667 / 115.778, abs=0.01)
    assert result["mfu_percent"].value == pytest.approx(62.17 * (72 * 1.07407 + 96 * 0.05787) / 115.778, abs=0.01)
    # The old program of 2021 computes all that equation 3 counts.
    all_of_it = {"causal_attention": False, "skips_last_product": False}
    result = computed(9, 9, 786.075, computes=all_of_it, **SC21_1_7B)
    assert result["percent_of_peak_computed"].value == pytest.approx(result["percent_of_peak"].value)


def test_job_without_recorded_products_has_no_computed_share() -> None:
    result = computed(9, 9, 786.075, **SC21_1_7B)
    assert "mfu_percent" in result and "percent_of_peak_computed" not in result


@pytest.mark.parametrize("elapsed", [(), (5.0,), (5.0, 5.0)])
def test_no_used_lines_give_no_metrics(elapsed: tuple[float, ...]) -> None:
    assert computed(*elapsed) == {}


PRINTED = st.floats(-1e9, 1e12).map(lambda ms: round(ms, 1)) | st.sampled_from([math.nan, math.inf, -math.inf])


@given(st.lists(PRINTED, max_size=12), st.integers(0, 12))
def test_metrics_of_any_times_are_finite(elapsed: list[float], warmup: int) -> None:
    for metric in computed(*elapsed, warmup=warmup).values():
        assert metric.value > 0
        json.dumps([metric.value, metric.spread], allow_nan=False)


@pytest.mark.parametrize(
    ("printed", "used"),
    [
        ((1, 5, 10, 15), (10, 15)),  # core_v0.16 prints after iteration 1 and goes on counting
        ((1, 2, 4, 6), (4, 6)),
        ((1, 10), ()),
        ((1, 2, 3), (2, 3)),  # a line for every iteration: none of them is extra
        ((5, 10, 15), (10, 15)),
        ((101, 110, 120, 130), (120, 130)),  # the same after a restart from a checkpoint
    ],
)
def test_interval_after_an_extra_first_line_contains_the_start_up(
    printed: tuple[int, ...], used: tuple[int, ...]
) -> None:
    read = [IterationLine(iteration, 9.0, 6.9, 1.0) for iteration in printed]
    assert tuple(line.iteration for line in with_used(read, 0) if line.used) == used


def test_other_values_of_a_line_are_kept() -> None:
    line = IterationLine(1, 9.0, 6.9, 1.0, True, 8192.0, 2, 3, 104.4, 3016.0, 366.6)
    (kept,) = with_used([line], 0)
    assert (kept.loss_scale, kept.skipped, kept.nan) == (8192.0, 2, 3)
    assert (kept.reported_tflops_per_gpu, kept.reported_tokens_per_s_per_gpu, kept.power_w) == (104.4, 3016.0, 366.6)


def test_reported_rates_do_not_change_computed_rates() -> None:
    printed = (1.0, 98.0, math.nan, -5.0, 100.0, 104.0)
    read = [
        IterationLine(number, 100.0, 6.9, 1.0, reported_tflops_per_gpu=rate, power_w=300.0)
        for number, rate in enumerate(printed, 1)
    ]
    result = {metric.name: metric for metric in metrics(with_used(read, 0), job_spec())}
    # of 98, 100 and 104; the first line does not count, and NaN and -5 are no rates
    assert result["reported_tflops_per_gpu"] == MeasuredMetric("reported_tflops_per_gpu", 100.0, "TFLOP/s", 1.5, 3)
    assert result["gpu_power_w"].value == 300.0 and "reported_tokens_per_s_per_gpu" not in result
    assert result["tflops_per_gpu"].value == computed(9, 9, 100)["tflops_per_gpu"].value


def with_facts(facts: LogFacts, **configuration: Any) -> dict[str, MeasuredMetric]:
    result = metrics(with_used(lines(9, 9, 100), 0), job_spec(**configuration), facts)
    return {metric.name: metric for metric in result}


def test_memory_metrics_are_in_bytes_if_printed() -> None:
    facts = LogFacts(
        max_allocated_bytes=72762730496,
        max_reserved_bytes=74000000000,
        theoretical_memory_bytes=8312 * 2**20,
        device_used_bytes=66123592192,
    )
    result = with_facts(facts)
    assert result["max_memory_allocated_bytes"] == MeasuredMetric("max_memory_allocated_bytes", 72762730496.0, "B")
    assert result["max_memory_reserved_bytes"].value == 74000000000
    assert result["theoretical_memory_bytes"].value == 8312 * 2**20
    assert result["gpu_memory_used_gb"].value == pytest.approx(66.123592192)
    assert not any("memory" in name or "parameters" in name for name in with_facts(LogFacts()))


# SC21 table 1's smallest model in four ranks: by equation 2 it has 1,651,968,000 parameters but for the final norm.
SMALL = {
    "model": {"layers": 24, "hidden": 2304, "heads": 24, "seq": 2048, "vocab": 51200},
    "layout": {"gpus": 4, "tensor_parallel": 1, "pipeline_parallel": 4, "micro_batch_size": 1, "global_batch_size": 4},
}
LAYER = 12 * 2304**2 + 13 * 2304
STAGES = (6 * LAYER + (51200 + 2048) * 2304, 6 * LAYER, 6 * LAYER, 6 * LAYER + 51200 * 2304 + 2 * 2304)


def test_parameters_are_summed_with_a_shared_embedding_counted_once() -> None:
    whole = 24 * LAYER + (51200 + 2048) * 2304 + 2 * 2304
    facts = LogFacts(padded_vocab=51200, parameters={(0, stage): count for stage, count in enumerate(STAGES)})
    assert with_facts(facts, **SMALL)["parameters_billion"].value == pytest.approx(whole / 1e9, rel=1e-12)
    assert round(whole / 1e9, 1) == 1.7  # as the table prints it
    untied = replace(facts, settings={"untie_embeddings_and_output_weights": "True"})
    assert with_facts(untied, **SMALL)["parameters_billion"].value == pytest.approx((whole + 51200 * 2304) / 1e9)
    one_stage = {**SMALL, "layout": {**SMALL["layout"], "pipeline_parallel": 1}}
    assert with_facts(LogFacts(parameters={(0, 0): whole}), **one_stage)["parameters_billion"].value == whole / 1e9


def test_incomplete_parameters_give_no_metric() -> None:
    facts = LogFacts(parameters={(0, stage): count for stage, count in enumerate(STAGES[:3])})
    assert "parameters_billion" not in with_facts(facts, **SMALL)
    experts = {**SMALL, "layout": {**SMALL["layout"], "expert_parallel": 2}}
    full = LogFacts(parameters={(0, stage): count for stage, count in enumerate(STAGES)})
    assert "parameters_billion" not in with_facts(full, **experts)
