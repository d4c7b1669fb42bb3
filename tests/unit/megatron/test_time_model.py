"""Tests of the time model against published times that were not fitted, and of its general properties."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measured_times import NOT_FITTED, published, tutorials
from benchmarks.measured_times import rows as measured_rows
from orchestrator.config.model import Hardware
from orchestrator.megatron.model import Layout, ModelShape, Recompute, Training, flops_per_iteration, tflops_per_gpu
from orchestrator.megatron.rules import RuleContext, broken_rules
from orchestrator.megatron.time_constants import FITTED, Basis, flash_share
from orchestrator.megatron.time_model import DURATION_PARTS, Duration, predict


def machine_of(
    nodes: int,
    gpus: int,
    gpu: str,
    memory_gb: int,
    peaks: dict[str, float],
    nvlink_gb_s: float | None = None,
    network_gb_s: float | None = None,
) -> Hardware:
    return Hardware.model_validate(
        {
            "nodes": nodes,
            "gpus_per_node": gpus,
            "gpu": gpu,
            "gpu_memory_gb": memory_gb,
            "peak_tflops": peaks,
            "nvlink_gb_s": nvlink_gb_s,
            "network_gb_s": network_gb_s,
        }
    )


A100 = machine_of(384, 8, "A100-SXM4-80GB", 80, {"fp16": 312, "bf16": 312}, 300, 25)
A800 = machine_of(1, 8, "A800", 80, {"bf16": 312}, 200, 12.5)
H800 = machine_of(32, 8, "H800", 80, {"bf16": 989.4}, 200, 12.5)
H200 = machine_of(1, 8, "NVIDIA H200", 141, {"bf16": 989}, 450, 50)
H100 = machine_of(1, 8, "NVIDIA H100 80GB HBM3", 80, {"bf16": 989}, 450, 50)
NO_NAME = H800.model_copy(update={"gpu": None})
"""A GPU on which no program was fitted: all programs have the same constants there."""
FP16 = Training("fp16", recompute="full")
GPT_175B = ModelShape(96, 12288, 96, 2048, 51200)
GPT_162B = ModelShape(32, 20480, 128, 2048, 51200)
GPT_6B = ModelShape(32, 3840, 32, 2048, 51200)
GPT_3B = ModelShape(16, 4096, 32, 2048, 51200)
BF16 = Training("bf16", dropout=0.0)


def duration(
    model: ModelShape,
    layout: Layout,
    training: Training = FP16,
    hardware: Hardware = A100,
    program: str = "megatron-2021",
    arguments: tuple[str, ...] = (),
    site: str | None = None,
) -> Duration:
    assert broken_rules(RuleContext(model, layout, Training("bf16"))) == []
    result = predict(model, layout, training, hardware, program, arguments, site)
    assert result is not None
    return result


def tflops(model: ModelShape, layout: Layout, training: Training = FP16) -> float:
    flops = flops_per_iteration(model, layout.global_batch_size, training.recompute == "full")
    return tflops_per_gpu(flops, duration(model, layout, training).iteration_ms, layout.gpus)


@pytest.mark.parametrize(
    ("title", "count", "mean", "largest"),
    [
        ("SC21 table 1", 10, 0.04, 0.05),
        ("ATC'24 figure 9", 41, 0.02, 0.05),
        ("pretrain on one and two H200", 26, 0.03, 0.071),
        ("pretrain on four H200", 15, 0.03, 0.04),
    ],
)
def test_unfitted_times_are_predicted(title: str, count: int, mean: float, largest: float) -> None:
    rows = measured_rows()[title]
    assert len(rows) >= count and [row.fitted for row in rows] == [i % 2 == 0 for i in range(len(rows))]
    errors = [abs(row.error(FITTED)) for row in rows if not row.fitted]
    # The promise is 8 % in the mean; what was reached is 2.6 %, 1.1 %, 2.1 % and 1.3 %.
    assert statistics.fmean(errors) < mean <= 0.08
    assert max(errors) < largest


def test_times_on_one_and_two_h100_follow_from_those_on_four() -> None:
    fitted = measured_rows()["pretrain on four H100"]
    assert len(fitted) == 15 and {row.name.partition(" ")[0] for row in fitted} == {"figure-13", "figure-15"}
    assert statistics.fmean(abs(row.error(FITTED)) for row in fitted) < 0.025
    others = [*measured_rows()["pretrain on one H100"], *measured_rows()["later on one and two H100"]]
    assert len(others) == 21 and not any(row.fitted for row in others)
    assert statistics.fmean(abs(row.error(FITTED)) for row in others) < 0.035
    assert max(abs(row.error(FITTED)) for row in others) < 0.06
    assert {row.predicted(FITTED).basis for row in (*fitted, *others)} == {Basis.MEASURED}


def test_later_times_on_four_h100_are_predicted_without_a_fit_to_them() -> None:
    later = measured_rows()["later on four H100"]
    assert len(later) == 27 and {row.name.partition(" ")[0] for row in later} == {f"figure-{n}" for n in (16, 17, 18)}
    assert not any(row.fitted for row in later)
    assert statistics.fmean(abs(row.error(FITTED)) for row in later) < 0.03
    assert max(abs(row.error(FITTED)) for row in later) < 0.08


def test_layers_without_transformer_engine_have_their_own_speed() -> None:
    """They took 1.6 to 1.9 times as long as fused layers are predicted to take."""
    rows = measured_rows()["Megatron-LM's own layers on H100"]
    assert [row.actual_ms for row in rows] == [2989.2, 1756.2, 2088.8]
    for row in rows:
        fused = replace(row, arguments=()).predicted(FITTED)
        assert fused.iteration_ms < 0.75 * row.actual_ms and abs(row.error(FITTED)) < 0.16
        assert row.predicted(FITTED).basis is Basis.NOT_COMPARED


def test_gradients_in_bf16_halve_their_sum() -> None:
    layout = Layout(16, 1, 1, 1, 16)
    wide, narrow = (
        duration(GPT_3B, layout, BF16, H100.model_copy(update={"nodes": 2}), "megatron-2026", arguments)
        for arguments in ((), ("--grad-reduce-in-bf16",))
    )
    # The sum has 4 or 2 bytes of each parameter, the gathered weights 2.
    assert narrow.data_parallel_ms == pytest.approx(wide.data_parallel_ms * 4 / 6, rel=0.01)


def test_pretrain_runs_on_h200_are_within_the_uncertainty() -> None:
    for row in [*measured_rows()["pretrain on one and two H200"], *measured_rows()["pretrain on four H200"]]:
        result = row.predicted(FITTED)
        assert result.basis is Basis.MEASURED and abs(row.error(FITTED)) < 0.08 < result.uncertainty, row.name


def test_host_bound_runs_are_neither_fitted_nor_judged() -> None:
    shown = {row.name for row in measured_rows()["host-bound on four H200"]}
    assert len(shown) == 11 and "figure-13 pp=2,tp=2,gbs=128" in shown
    assert shown.isdisjoint(row.name for row in measured_rows()["pretrain on four H200"])
    assert not any(row.fitted for row in measured_rows()["host-bound on four H200"])


def test_fitted_h200_rows_follow_from_file_and_row_order() -> None:
    names = [row.name for row in measured_rows()["pretrain on four H200"]]
    assert names[:4] == [
        "atc-demo case=baseline",
        "atc-demo case=ours",
        "atc-demo case=no-recompute",
        "figure-11 pp=1,gbs=8",
    ]
    assert names[-1] == "table-1 case=7.5B"


def test_fitted_constants_are_shares_and_times() -> None:
    for name, value in asdict(FITTED).items():
        assert 0 < value < (20 if name.endswith("_ms") else 1), name


# ATC'24 artifact, README: the 7B demo at 12,288 tokens on 4 GPUs and 175B of table 8 at 8,192 tokens on 256 H800;
# tokens per second and GPU. None was fitted, nor was any case that recomputes everything on these GPUs.
LLAMA_7B = ModelShape(32, 4096, 32, 12288, 32128, 11008, None, "llama")
LLAMA_175B = ModelShape(96, 12288, 96, 8192, 32256, 32768, None, "llama")
DEMO = Layout(4, 1, 4, 1, 16, virtual_stages=8, sequence_parallel=True)
TABLE_8 = Layout(256, 2, 16, 1, 256, virtual_stages=6, context_parallel=2, sequence_parallel=True)
TABLE_8_OURS = Layout(256, 4, 8, 1, 256, virtual_stages=6, sequence_parallel=True)
FULL = Training("bf16", recompute="full")


@pytest.mark.parametrize(
    ("model", "layout", "training", "hardware", "program", "tokens_per_second"),
    [
        (LLAMA_7B, DEMO, FULL, A800, "megatron-kwai", 3016),
        (LLAMA_7B, DEMO, Training("bf16", recompute="ours", offload=0.1), A800, "megatron-kwai", 3803),
        (LLAMA_7B, DEMO, FULL, A800, "megatron-jan-2024", 2847),
        (LLAMA_7B, DEMO, FULL, H800, "megatron-kwai", 6639),
        (LLAMA_7B, DEMO, Training("bf16", recompute="ours", offload=0.1), H800, "megatron-kwai", 8273),
        (LLAMA_7B, DEMO, FULL, H800, "megatron-jan-2024", 6138),
        (LLAMA_175B, TABLE_8, FULL, H800, "megatron-kwai", 299),
        (LLAMA_175B, TABLE_8_OURS, Training("bf16", recompute="ours", offload=0.63), H800, "megatron-kwai", 387),
        (LLAMA_175B, TABLE_8, FULL, H800, "megatron-jan-2024", 278),
    ],
)
def test_atc24_demo_and_table_8_are_within_the_uncertainty(
    model: ModelShape, layout: Layout, training: Training, hardware: Hardware, program: str, tokens_per_second: int
) -> None:
    result = duration(model, layout, training, hardware, program)
    published = layout.global_batch_size * model.seq / (tokens_per_second * layout.gpus) * 1e3
    assert abs(result.iteration_ms / published - 1) < 0.1


@pytest.mark.parametrize("batch", [32, 128])
def test_figure_13_peaks_where_tensor_parallelism_fills_a_node(batch: int) -> None:
    at = {t: tflops(GPT_162B, Layout(64, t, 64 // t, 1, batch)) for t in (2, 4, 8, 16, 32)}
    assert max(at, key=at.__getitem__) == 8
    assert at[32] < 0.8 * at[8]


@pytest.mark.parametrize("batch", [32, 512])
def test_figure_14_falls_with_pipeline_parallelism(batch: int) -> None:
    curve = [tflops(GPT_6B, Layout(64, 1, p, 1, batch)) for p in (2, 4, 8, 16, 32)]
    assert curve == sorted(curve, reverse=True)


def test_figure_15_falls_with_tensor_parallelism_and_most_between_nodes() -> None:
    at = {t: tflops(GPT_6B, Layout(64, t, 1, 1, 512)) for t in (2, 4, 8, 16, 32)}
    assert list(at.values()) == sorted(at.values(), reverse=True)
    assert at[16] / at[8] < at[8] / at[4]


def test_interleaving_gains_most_at_small_batches_as_in_figure_12() -> None:
    layouts = [Layout(96, 8, 12, 1, batch) for batch in (12, 24, 36, 48, 60)]
    gains = [tflops(GPT_175B, replace(plain, virtual_stages=4)) / tflops(GPT_175B, plain) for plain in layouts]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.3 and gains[-1] == pytest.approx(146 / 135, rel=0.03)  # values of the plot


@pytest.mark.parametrize("batch", [128, 512])
def test_figure_16_is_best_at_a_microbatch_of_two(batch: int) -> None:
    """Batch 128 decides `WAVE_SHARE`, batch 512 checks it."""
    model = ModelShape(32, 15360, 128, 2048, 51200)
    at = {micro: tflops(model, Layout(64, 8, 8, micro, batch)) for micro in (1, 2, 4, 8)}
    assert max(at, key=at.__getitem__) == 2


def test_default_schedule_wins_without_scatter_gather_only_at_large_batches() -> None:
    """Section 5.3.2."""

    def gain(batch: int) -> float:
        plain = Layout(96, 8, 12, 1, batch)
        interleaved = replace(plain, virtual_stages=4)
        return tflops(GPT_175B, interleaved, replace(FP16, scatter_gather=False)) / tflops(GPT_175B, plain)

    assert gain(12) > 1.1 and gain(60) < 1


def test_scatter_gather_gain_matches_section_5_7() -> None:
    layout = Layout(96, 8, 12, 1, 60, virtual_stages=4)
    gain = tflops(GPT_175B, layout) / tflops(GPT_175B, layout, replace(FP16, scatter_gather=False))
    assert 1.05 < gain < 1.15  # "up to 11 %"


def test_recomputation_costs_at_most_a_third_of_figure_17s_throughput() -> None:
    model, layout = ModelShape(80, 12288, 96, 2048, 51200), Layout(128, 8, 16, 1, 8)
    without = duration(model, layout, replace(FP16, recompute="none")).iteration_ms
    # "up to 33 % lower throughput" (5.6): a forward pass more than the three units without.
    assert 0.67 <= without / duration(model, layout).iteration_ms < 0.8


def test_stage_that_ends_inside_a_node_slows_the_gradient_ring() -> None:
    model = ModelShape(80, 8192, 64, 4096, 32256, 22016, None, "llama")
    training = Training("bf16", recompute="ours")

    def gradients(gpus: int, batch: int) -> float:
        layout = Layout(gpus, 2, 4, 1, batch, virtual_stages=10, sequence_parallel=True)
        return duration(model, layout, training, H800, "megatron-kwai").data_parallel_ms

    # 14 GPUs a stage lie on two nodes with one pair on the next; 16 fill two nodes.
    assert gradients(56, 252) > 3 * gradients(64, 256)


def test_only_active_experts_are_computed() -> None:
    dense = ModelShape(32, 4096, 32, 4096, 32000, 14336, 8, "llama")
    layout, training = Layout(8, 1, 1, 1, 64), Training("bf16")
    experts = replace(dense, experts=8, experts_per_token=2)
    one = duration(dense, layout, training, H800, "megatron-core-0.14")
    two = duration(experts, layout, training, H800, "megatron-core-0.14")
    assert 1.3 * one.compute_ms < two.compute_ms < 2 * one.compute_ms
    apart = duration(experts, replace(layout, expert_parallel=8), training, H800, "megatron-core-0.14")
    assert apart.expert_parallel_ms > 0 == two.expert_parallel_ms
    assert two.basis is Basis.NOT_COMPARED


def test_partial_recomputation_costs_less_than_full_recomputation() -> None:
    layout = replace(TABLE_8_OURS, global_batch_size=64)
    none, ours, full = (
        duration(LLAMA_175B, layout, Training("bf16", recompute=recompute), H800, "megatron-kwai").compute_ms
        for recompute in ("none", "ours", "full")
    )
    assert none < ours < none + 0.3 * (full - none)


def test_offloading_is_free_until_the_host_link_is_slower_than_compute() -> None:
    training = Training("bf16", recompute="ours")
    slow_link = H800.model_copy(update={"gpu": "V100"})  # PCI Express 3 beside a fast peak
    for hardware, free in ((H800, True), (slow_link, False)):
        kept = duration(LLAMA_175B, TABLE_8_OURS, training, hardware, "megatron-kwai").compute_ms
        moved = duration(LLAMA_175B, TABLE_8_OURS, replace(training, offload=1.0), hardware, "megatron-kwai").compute_ms
        assert (moved == kept) is free and moved >= kept


def test_torch_ddp_overlaps_gradients_and_local_ddp_does_not() -> None:
    model, layout = ModelShape(24, 2304, 24, 2048, 50304), Layout(32, 1, 1, 16, 512)  # SC21 table 1, 1.7B
    assert duration(model, layout, replace(FP16, ddp="torch")).data_parallel_ms == 0
    assert duration(model, layout, replace(FP16, ddp="local")).data_parallel_ms > 0


def test_distributed_optimizer_shares_the_step_and_sends_fewer_bytes() -> None:
    layout, training = Layout(64, 8, 1, 1, 32), Training("bf16")
    whole, shared = (
        duration(GPT_6B, layout, replace(training, distributed_optimizer=distributed), H800, "megatron-core-0.14")
        for distributed in (False, True)
    )
    assert shared.compute_ms < whole.compute_ms and shared.data_parallel_ms < whole.data_parallel_ms


def test_context_parallelism_sends_fewer_bytes_with_grouped_keys() -> None:
    def sent(model: ModelShape, layout: Layout, program: str) -> float:
        return duration(model, layout, FULL, H800, program).context_parallel_ms

    shared = replace(LLAMA_175B, kv_groups=8)
    assert sent(LLAMA_175B, TABLE_8_OURS, "megatron-kwai") == 0
    assert 0 < sent(shared, TABLE_8, "megatron-kwai") < sent(LLAMA_175B, TABLE_8, "megatron-kwai")
    assert sent(LLAMA_175B, TABLE_8, "megatron-kwai") < sent(LLAMA_175B, TABLE_8, "megatron-jan-2024")


@pytest.mark.parametrize(
    ("hardware", "program", "site", "basis"),
    [
        (A100, "megatron-2021", "selene", Basis.MEASURED),
        (A100, "megatron-2021", "sc21", Basis.MEASURED),
        (A100, "megatron-2021", "perlmutter", Basis.OTHER_SITE),
        (A100, "megatron-2021", None, Basis.OTHER_SITE),
        (A100, "megatron-2026", "selene", Basis.OTHER_PROGRAM),
        (H800, "megatron-kwai", "atc24", Basis.MEASURED),
        (H800, "megatron-kwai", "another", Basis.OTHER_SITE),
        (A800, "megatron-kwai", "atc24", Basis.OTHER_PROGRAM),
        (H800, "megatron-jan-2024", "atc24", Basis.OTHER_PROGRAM),
        (H200, "pretrain", "sc21", Basis.OTHER_SITE),
        (H100, "pretrain", None, Basis.OTHER_SITE),
        (H800, "pretrain", None, Basis.OTHER_SITE),
        (A100, "pretrain", "selene", Basis.NOT_COMPARED),
        (H100, "megatron-core-0.14", "tutorials", Basis.OTHER_SITE),
        (H200, "megatron-core-0.14", None, Basis.NOT_COMPARED),
        (H100.model_copy(update={"gpu": "NVIDIA H100 PCIe"}), "pretrain", None, Basis.NOT_COMPARED),
        (H100.model_copy(update={"gpu": "NVIDIA H100 NVL"}), "pretrain", None, Basis.NOT_COMPARED),
        (A100.model_copy(update={"gpu": "NVIDIA A100 80GB PCIe"}), "megatron-2021", "selene", Basis.NOT_COMPARED),
        (H200.model_copy(update={"gpu": "NVIDIA H200 NVL"}), "pretrain", None, Basis.NOT_COMPARED),
        (H200.model_copy(update={"gpu": "NVIDIA GH200 480GB"}), "pretrain", None, Basis.NOT_COMPARED),
        (A100.model_copy(update={"gpu": "V100-SXM2-16GB"}), "megatron-alpa", "alpa", Basis.NOT_COMPARED),
        (A100.model_copy(update={"gpu": None}), "pretrain", None, Basis.NOT_COMPARED),
    ],
)
def test_uncertainty_grows_with_what_was_not_measured(
    hardware: Hardware, program: str, site: str | None, basis: Basis
) -> None:
    training = Training("fp16" if "fp16" in hardware.peak_tflops else "bf16")
    result = duration(GPT_162B, Layout(64, 8, 8, 1, 32), training, hardware, program, site=site)
    assert (result.basis, result.uncertainty) == (basis, basis.uncertainty)


@pytest.mark.parametrize(("hardware", "gpus"), [(H200, 4), (H100, 4), (H100, 1)])
def test_any_node_of_measured_gpus_is_a_measured_site_of_pretrain(hardware: Hardware, gpus: int) -> None:
    layout = Layout(gpus, gpus, 1, 1, 16)
    assert duration(GPT_3B, layout, BF16, hardware, "pretrain", site="anywhere").basis is Basis.MEASURED
    two_nodes = duration(GPT_3B, Layout(16, 8, 2, 2, 16), BF16, hardware, "pretrain", site="anywhere")
    assert two_nodes.basis is Basis.OTHER_SITE


def test_no_class_has_a_smaller_uncertainty_than_the_one_before() -> None:
    widths = [basis.uncertainty for basis in Basis]
    assert widths == sorted(widths) and widths[1] >= 0.25


def test_a_host_that_limits_the_time_makes_a_case_unlike_the_measured_ones() -> None:
    layout = Layout(4, 1, 1, 4, 4, context_parallel=4)
    limited = duration(GPT_3B, layout, BF16, H100, "megatron-2026")
    assert limited.gpu_ms < limited.iteration_ms and limited.basis is Basis.NOT_COMPARED
    longer = duration(replace(GPT_3B, seq=8192), layout, BF16, H100, "megatron-2026")
    assert longer.gpu_ms == longer.iteration_ms and longer.basis is Basis.OTHER_PROGRAM


def test_small_layers_have_a_larger_uncertainty() -> None:
    """No layer as small as those of SC21 figure 15 (5.9 billion parameters, tensor-parallel 2) was fitted."""
    layout, training = Layout(64, 2, 1, 1, 32), Training("fp16", recompute="full")
    result = duration(GPT_6B, layout, training, A100, "megatron-2021", site="selene")
    assert result.basis is Basis.NOT_COMPARED


def test_small_layers_are_like_measured_ones_only_with_cuda_graphs() -> None:
    def is_measured(layout: Layout, training: Training = BF16) -> bool:
        return duration(GPT_3B, layout, training, H200, "pretrain").basis is Basis.MEASURED

    graphed = Layout(4, 4, 1, 1, 16)
    assert is_measured(graphed) and not is_measured(Layout(8, 8, 1, 1, 16))
    assert not is_measured(graphed, replace(BF16, dropout=0.1))
    assert not is_measured(graphed, replace(BF16, offload=0.1))
    pipeline, dropout = Layout(4, 2, 2, 1, 16), replace(BF16, dropout=0.1)
    assert is_measured(pipeline) and not is_measured(pipeline, dropout)
    assert is_measured(Layout(2, 1, 2, 2, 16), dropout)


def test_full_recomputation_in_pretrain_skips_the_last_product() -> None:
    """Two thirds of a layer's products are repeated: 2871.1 ms instead of 2375.8 on H200 is 1.21, not 4/3."""

    def ratio(program: str) -> float:
        layout = Layout(1, 1, 1, 8, 32)
        full, none = (
            duration(GPT_3B, layout, replace(BF16, recompute=again), H200, program).iteration_ms
            for again in ("full", "none")
        )
        return full / none

    assert ratio("pretrain") == pytest.approx(2871.1 / 2375.8, rel=0.02)
    assert ratio("megatron-jan-2024") > 1.25

    def communication(again: Recompute, program: str, sequence_parallel: bool) -> float:
        layout = Layout(2, 2, 1, 1, 16, sequence_parallel=sequence_parallel)
        return duration(GPT_3B, layout, replace(BF16, recompute=again), NO_NAME, program).tensor_parallel_ms

    half = communication("none", "megatron-jan-2024", False) / 8
    for sequence_parallel, program, repeated in (
        (False, "pretrain", 2),
        (True, "pretrain", 3),
        (False, "megatron-jan-2024", 4),
        (True, "megatron-jan-2024", 4),
    ):
        full, none = (communication(again, program, sequence_parallel) for again in ("full", "none"))
        assert full - none == pytest.approx(repeated * half)


def test_pretrain_overlaps_backward_communication_with_products() -> None:
    def sent(hidden: int, program: str, sequence_parallel: bool = False) -> float:
        model = replace(GPT_3B, hidden=hidden)
        layout = Layout(2, 2, 1, 16, 16, sequence_parallel=sequence_parallel)
        return duration(model, layout, BF16, NO_NAME, program).tensor_parallel_ms

    # Products last longer than what is sent: of 8 or 10 halves four cost `overlap_cost` of themselves.
    half = sent(8192, "megatron-jan-2024") / 8
    assert sent(8192, "pretrain") == pytest.approx((4 + 4 * FITTED.overlap_cost) * half)
    assert sent(8192, "pretrain", sequence_parallel=True) == pytest.approx((6 + 4 * FITTED.overlap_cost) * half)
    # Small products hide less.
    assert sent(512, "pretrain") / sent(512, "megatron-jan-2024") > sent(8192, "pretrain") / (8 * half)


def test_rotary_positions_of_pretrain_cost_their_memory_traffic() -> None:
    llama, layout = replace(GPT_3B, family="llama"), Layout(1, 1, 1, 1, 1)

    def of_shared_keys(recompute: Recompute, program: str) -> float:
        """Return the difference in ms between 8 and 32 groups of keys, which changes only the rotation."""
        training = replace(BF16, recompute=recompute)
        few, many = (
            duration(replace(llama, kv_groups=groups), layout, training, NO_NAME, program).compute_ms
            for groups in (8, 32)
        )
        return many - few

    rotated = 16 * 2048 * (4096 - 1024) / (3350e6 * FITTED.memory_share)  # ms a byte of each key
    # The weights of keys and values too cost pretrain other bytes: of the sum of gradients and of the optimizer.
    weights = 16 * 2 * 4096 * (4096 - 1024)
    other = weights * (8 * FITTED.accumulated_share + 42 - 48) / (3350e6 * FITTED.memory_share)
    more = of_shared_keys("none", "pretrain") - of_shared_keys("none", "megatron-jan-2024")
    assert more == pytest.approx((24 + 28) * rotated + other)
    # Full recomputation rotates once more.
    again = of_shared_keys("full", "pretrain") - of_shared_keys("full", "megatron-jan-2024")
    assert again == pytest.approx((24 + 28 + 24) * rotated + other)
    # Queries and keys of a GPT with rotary positions.
    gpt = (
        duration(replace(GPT_3B, positions=positions), layout, BF16, NO_NAME, "pretrain").compute_ms
        for positions in ("learned", "rotary")
    )
    turned = 16 * 2048 * 2 * 4096 / (3350e6 * FITTED.memory_share)
    assert next(gpt) + (24 + 28) * turned == pytest.approx(next(gpt))


def test_pretrain_loss_moves_fewer_bytes_per_logit() -> None:
    def of_vocabulary(program: str, tensor_parallel: int) -> float:
        """Return the additional ms of 2^16 more columns of 2^17 logits each."""
        layout = Layout(tensor_parallel, tensor_parallel, 1, 64, 64)
        one, two = (
            duration(replace(GPT_3B, vocab=vocab), layout, BF16, NO_NAME, program).compute_ms
            for vocab in (2**16, 2**17)
        )
        return two - one

    bytes_per_ms, logits = 3350e6 * FITTED.memory_share, 2**16 * 2**17
    weights = 2**16 * 4096
    # 56 to 12 bytes a logit, 48 to 42 a parameter of the optimizer, and 20 more a weight of a shared embedding, beside
    # what the product does not hide of 8.
    accumulated = 8 * FITTED.accumulated_share
    saved = (56 - 12) * logits + (48 - 42 - accumulated - 20) * weights
    assert of_vocabulary("megatron-jan-2024", 1) - of_vocabulary("pretrain", 1) == pytest.approx(saved / bytes_per_ms)
    split = (56 - 14) * logits / 2 + (48 - 42 - accumulated - 20) * weights / 2
    assert of_vocabulary("megatron-jan-2024", 2) - of_vocabulary("pretrain", 2) == pytest.approx(split / bytes_per_ms)


def test_pretrain_accumulates_gradients_of_every_microbatch() -> None:
    def of_three_microbatches(program: str) -> float:
        few, many = (duration(GPT_3B, Layout(1, 1, 1, 1, batch), BF16, NO_NAME, program).compute_ms for batch in (1, 4))
        return many - few

    # What is not hidden of 8 bytes a weight of 16 layers and of the embedding, and 20 a weight of the embedding and
    # output layer, less 44 a logit; three times.
    layers, embedding, logits = 16 * 12 * 4096**2, 51200 * 4096, 2048 * 51200
    accumulated = 8 * FITTED.accumulated_share
    more = 3 * (accumulated * layers + (accumulated + 20) * embedding - 44 * logits) / (3350e6 * FITTED.memory_share)
    assert of_three_microbatches("pretrain") - of_three_microbatches("megatron-jan-2024") == pytest.approx(more)


def test_first_and_last_stage_sum_shared_embedding_gradients() -> None:
    layout = Layout(2, 1, 2, 1, 16)
    tied = duration(GPT_3B, layout, BF16, H200, "pretrain").data_parallel_ms
    apart = duration(replace(GPT_3B, family="llama"), layout, BF16, H200, "pretrain").data_parallel_ms
    # Two halves of 4 bytes for each of 51,200 x 4096, at 235/300 of 450 GB/s.
    assert tied == pytest.approx(4 * 51200 * 4096 / (450e6 * 235 / 300), rel=0.02) and apart == 0
    assert duration(GPT_3B, layout, BF16, H200, "megatron-jan-2024").data_parallel_ms == 0


def test_pretrain_keeps_gathered_keys_and_copies_them() -> None:
    layout = Layout(2, 1, 1, 8, 8, context_parallel=2)
    kept, again = (duration(GPT_3B, layout, BF16, NO_NAME, program) for program in ("pretrain", "megatron-jan-2024"))
    assert kept.context_parallel_ms == pytest.approx(again.context_parallel_ms * 2 / 3)
    alone = [
        duration(GPT_3B, Layout(1, 1, 1, 4, 4), BF16, NO_NAME, program).compute_ms
        for program in ("pretrain", "megatron-jan-2024")
    ]
    assert kept.compute_ms - again.compute_ms > alone[0] - alone[1]


def test_attention_share_depends_on_the_head_width_on_h200() -> None:
    assert flash_share("GH100", 96) < flash_share("GH100", 128)
    assert flash_share("GH100", 64) == flash_share("GH100", 96)
    assert flash_share("GH100", 112) == flash_share("GH100", 256) == flash_share("GH100", 128)
    assert flash_share("A100", 64) == flash_share("A100", 160) == (0.73, 0.63)


OVERLAP = ("--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap")


def test_overlap_arguments_hide_communication() -> None:
    layout = Layout(384, 8, 1, 4, 192, sequence_parallel=True)
    model, training = ModelShape(48, 7168, 56, 4096, 131072), replace(BF16, distributed_optimizer=True)
    hardware = H100.model_copy(update={"nodes": 48})
    none, reduced, gathered, tensor, every = (
        duration(model, layout, training, hardware, "megatron-2026", arguments)
        for arguments in ((), *((flag,) for flag in OVERLAP), OVERLAP)
    )
    # The sum has 4 of 6 bytes of each parameter and fits into the backward pass; the weights' 2 into the forward pass.
    assert reduced.data_parallel_ms == pytest.approx(none.data_parallel_ms / 3, rel=0.01)
    assert gathered.data_parallel_ms == pytest.approx(none.data_parallel_ms * 2 / 3, rel=0.01)
    assert every.data_parallel_ms == 0
    assert tensor.tensor_parallel_ms == every.tensor_parallel_ms
    separate = duration(model, layout, training, hardware, "megatron-jan-2024").tensor_parallel_ms
    assert tensor.tensor_parallel_ms == pytest.approx(FITTED.exposed_share * separate)
    assert tensor.tensor_parallel_ms < none.tensor_parallel_ms < separate


def test_overlap_hides_no_more_than_the_last_backward_pass() -> None:
    layout, training = Layout(384, 1, 1, 1, 384), replace(BF16, distributed_optimizer=True)
    hardware = H100.model_copy(update={"nodes": 48, "network_gb_s": 1})
    none, every = (
        duration(GPT_3B, layout, training, hardware, "megatron-2026", arguments) for arguments in ((), OVERLAP)
    )
    assert none.data_parallel_ms - none.compute_ms < every.data_parallel_ms < none.data_parallel_ms


def test_host_limits_small_layers_without_graphs() -> None:
    """Tutorials, row 238: 40 layers take 205 ms on eight GPUs, which need 66 ms."""
    model, layout = ModelShape(40, 1536, 16, 1024, 50304), Layout(8, 8, 1, 8, 8)
    limited = duration(model, layout, BF16, H100, "megatron-core-0.14")
    assert limited.iteration_ms > 40 * FITTED.host_layer_ms
    assert limited.gpu_ms < 100, "the time on a host that never delays the GPUs"
    graphed = duration(model, layout, BF16, H100, "pretrain")
    assert graphed.gpu_ms == graphed.iteration_ms < 100
    kinds = [replace(BF16, cp_comm=kind) for kind in ("p2p", "all_gather")]
    steps, gathered = (
        duration(model, Layout(8, 1, 1, 1, 1, context_parallel=8), kind, H100, "megatron-core-0.14") for kind in kinds
    )
    assert steps.iteration_ms - gathered.iteration_ms == pytest.approx(40 * 4 * FITTED.host_step_ms)


def test_host_limits_small_virtual_stages_of_the_tutorials_only() -> None:
    """Layers of 512 take less time on the GPU than on the host; a stage of 18 has two in each virtual stage."""
    model, layout = ModelShape(72, 512, 8, 1024, 50304), Layout(8, 2, 4, 1, 4, 9, sequence_parallel=True)
    tutorials_host, other = (
        duration(model, layout, BF16, H100, program).iteration_ms for program in ("megatron-core-0.14", "megatron-2026")
    )
    assert tutorials_host - other == pytest.approx((4 * 9 + 3) * FITTED.host_stage_ms, rel=0.01)


def test_no_constant_is_fitted_to_the_table_that_tests_virtual_stages() -> None:
    rows = published(f"tutorials/{NOT_FITTED}")
    assert len(rows) == 7 and {row.job for row in rows}.isdisjoint(row.job for row in tutorials() if row.fitted)
    assert statistics.fmean(abs(row.error(FITTED)) for row in rows) < 0.03


def test_experts_of_a_gpu_take_the_host_time() -> None:
    def of_experts(parallel: int) -> float:
        model = ModelShape(16, 1024, 16, 1024, 50304, 1024, experts=64, experts_per_token=2)
        layout = Layout(8, 1, 1, 1, 8, expert_parallel=parallel)
        return duration(model, layout, BF16, H100, "megatron-core-0.14").compute_ms

    assert of_experts(1) - of_experts(8) > 16 * 56 * FITTED.host_expert_ms * 0.9


def test_unfused_operators_cost_memory_traffic_as_in_section_5_8() -> None:
    layout = Layout(96, 8, 12, 1, 60)
    flags = ("--no-masked-softmax-fusion", "--no-bias-gelu-fusion", "--no-bias-dropout-fusion")
    fused, *separate, none = (
        duration(GPT_175B, layout, arguments=arguments).iteration_ms
        for arguments in ((), *((flag,) for flag in flags), flags)
    )
    assert all(fused < time < none for time in separate)
    assert 1.14 < none / fused < 1.24  # 19 % in section 5.8


def test_shared_network_card_serves_the_sending_stage() -> None:
    """Alpa's nodes have one card for 8 GPUs; two of them send from a stage of two."""
    layout, model = Layout(16, 2, 8, 4, 1024), ModelShape(32, 4096, 32, 1024, 51200)
    hardware = machine_of(8, 8, "V100-SXM2-16GB", 16, {"fp16": 125}, 150, 25 / 64)
    shared = hardware.model_copy(update={"network_cards": 1})
    own, one = (
        duration(model, layout, FP16, machine, "megatron-alpa").pipeline_transfer_ms for machine in (hardware, shared)
    )
    assert 3 < own / one < 4


@pytest.mark.parametrize(
    ("tensor", "pipeline", "slow_transfers"),
    [(2, 16, 2 * 3 + 256), (4, 8, 2 * 3 + 256), (8, 4, 2 * 3 + 2 * 256), (16, 2, 2 + 2 * 256)],
)
def test_a_stage_beside_another_in_its_node_exchanges_with_one_other_node(
    tensor: int, pipeline: int, slow_transfers: int
) -> None:
    model, layout = ModelShape(32, 4096, 32, 2048, 51200), Layout(32, tensor, pipeline, 1, 256)
    slow, fast = (
        duration(model, layout, FP16, A100.model_copy(update={"network_gb_s": rate})).pipeline_transfer_ms
        for rate in (5, 10)
    )
    sent_ms = 2 * 2048 * 4096 / tensor / 1e6 * (1 / 5 - 1 / 10) / FITTED.transfer_share
    assert slow - fast == pytest.approx(slow_transfers * sent_ms)


def test_rings_of_some_gpus_of_a_node_use_one_card_in_2021() -> None:
    """SC21 figure 15 at (2, 32): half of the 8 GPUs of a node are in a ring."""
    every, half = (duration(GPT_6B, Layout(64, t, 1, 1, 64)).data_parallel_ms for t in (1, 2))
    assert half > 2 * every


def test_unknown_peak_gives_no_prediction() -> None:
    assert predict(GPT_6B, Layout(8, 8, 1, 1, 8), Training("fp32"), A100, "pretrain") is None


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        (A100, A100.model_copy(update={"network_gb_s": None})),
        (
            A100.model_copy(update={"gpu": "NVIDIA A100 80GB PCIe"}),
            A100.model_copy(update={"gpu": "NVIDIA A100 80GB PCIe", "nvlink_gb_s": None}),
        ),
        (
            A100.model_copy(update={"gpu": "a new GPU"}),
            A100.model_copy(update={"gpu": "a new GPU", "nvlink_gb_s": None}),
        ),
    ],
)
def test_unknown_bandwidth_increases_the_uncertainty(known: Hardware, unknown: Hardware) -> None:
    layout = Layout(64, 8, 4, 1, 32)
    certain, guessed = (duration(GPT_162B, layout, hardware=hardware) for hardware in (known, unknown))
    assert guessed.uncertainty > certain.uncertainty
    assert guessed.iteration_ms >= certain.iteration_ms


def test_job_on_one_node_needs_no_network_bandwidth() -> None:
    for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        machine = machine_of(1, 8, gpu, 141, {"bf16": 989})
        result = duration(GPT_6B, Layout(8, 4, 1, 1, 32), BF16, machine, "pretrain")
        assert result.tensor_parallel_ms > 0 and result.data_parallel_ms > 0
        assert result.uncertainty == Basis.MEASURED.uncertainty


MODELS = st.builds(
    ModelShape,
    layers=st.sampled_from((16, 32)),
    hidden=st.sampled_from((512, 4096, 12288)),
    heads=st.sampled_from((32, 64)),
    seq=st.sampled_from((1024, 8192)),
    vocab=st.just(51200),
    kv_groups=st.sampled_from((None, 32)),
    family=st.sampled_from(("gpt", "llama")),
)
PROGRAMS = st.sampled_from(
    ("megatron-2021", "megatron-kwai", "megatron-jan-2024", "megatron-alpa", "megatron-core-0.14", "pretrain")
)
HARDWARE = st.sampled_from(
    (
        A100,
        H800,
        H200,
        A100.model_copy(update={"gpu": "V100"}),
        Hardware(nodes=64, gpus_per_node=4, peak_tflops={"bf16": 2250}),
    )
)
TRAININGS = st.builds(
    Training,
    dtype=st.just("bf16"),
    recompute=st.sampled_from(("none", "selective", "ours", "full")),
    offload=st.sampled_from((0.0, 0.9)),
    scatter_gather=st.booleans(),
    ddp=st.sampled_from(("local", "torch")),
    distributed_optimizer=st.sampled_from((None, True, False)),
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    t, p, c, d = (draw(st.sampled_from((1, 2, 4, 16))) for _ in range(4))
    micro, rounds = draw(st.sampled_from((1, 4))), draw(st.integers(1, 4))
    virtual = 1 if p == 1 or p == 16 else draw(st.sampled_from((1, 2)))
    return Layout(
        t * p * c * d, t, p, micro, micro * d * p * rounds, virtual, c, sequence_parallel=t > 1 and draw(st.booleans())
    )


@given(MODELS, layouts(), TRAININGS, HARDWARE, PROGRAMS)
def test_parts_of_every_valid_layout_add_up_to_a_finite_time(
    model: ModelShape, layout: Layout, training: Training, hardware: Hardware, program: str
) -> None:
    hardware = hardware.model_copy(update={"peak_tflops": {"bf16": 312}})
    result = duration(model, layout, training, hardware, program)
    parts = [getattr(result, name) for name in DURATION_PARTS]
    assert all(math.isfinite(part) and part >= 0 for part in parts) and result.compute_ms > 0
    assert result.iteration_ms == pytest.approx(sum(parts)) and 0 < result.gpu_ms <= result.iteration_ms
    assert 0 < result.uncertainty < 2


@given(MODELS, layouts(), TRAININGS, PROGRAMS)
def test_more_microbatches_never_take_less_time(
    model: ModelShape, layout: Layout, training: Training, program: str
) -> None:
    more = replace(layout, global_batch_size=2 * layout.global_batch_size)
    shorter = duration(model, layout, training, H800, program).iteration_ms
    assert shorter < duration(model, more, training, H800, program).iteration_ms


@given(MODELS, layouts(), TRAININGS, PROGRAMS, st.sampled_from(("nvlink_gb_s", "network_gb_s")), st.floats(0.01, 1))
def test_slower_link_never_takes_less_time(
    model: ModelShape, layout: Layout, training: Training, program: str, link: str, share: float
) -> None:
    slower = H800.model_copy(update={link: getattr(H800, link) * share})
    fast = duration(model, layout, training, H800, program).iteration_ms
    # Not less than rounding: the host may hide the difference.
    assert duration(model, layout, training, slower, program).iteration_ms >= fast * (1 - 1e-9)


@given(MODELS, layouts(), TRAININGS, PROGRAMS)
def test_full_recomputation_is_never_faster_than_none(
    model: ModelShape, layout: Layout, training: Training, program: str
) -> None:
    # Offloading is left out: all activations of a layer may take longer to the host than computing them again.
    training = replace(training, offload=0.0)
    full = duration(model, layout, replace(training, recompute="full"), H800, program).iteration_ms
    for less in ("none", "selective", "ours"):
        assert duration(model, layout, replace(training, recompute=less), H800, program).iteration_ms <= full
