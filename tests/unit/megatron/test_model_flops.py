"""FLOPs other than SC21's equations: ATC'24's MFU, Alpa's benchmark, gated layers and experts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.megatron.model import (
    ModelShape,
    Recompute,
    computed_flops_per_iteration,
    flops_per_iteration,
    model_flops_per_token,
    model_flops_utilization,
    tflops_per_gpu,
)
from tests.unit.catalog.test_alpa import alpa_parameters

GPT_1T = ModelShape(layers=128, hidden=25600, heads=160, seq=2048, vocab=51200)
LLAMA_7B = ModelShape(layers=32, hidden=4096, heads=32, seq=12288, vocab=32004, ffn=11008, family="llama")
LLAMA_175B = ModelShape(layers=96, hidden=12288, heads=96, seq=8192, vocab=32004, ffn=32768, family="llama")
MIXTRAL = ModelShape(
    layers=32,
    hidden=4096,
    heads=32,
    seq=4096,
    vocab=32000,
    ffn=14336,
    kv_groups=8,
    family="llama",
    experts=8,
    experts_per_token=2,
)

# The ATC'24 artifact's tokens/s per GPU and MFU in percent, by script, model and the GPU's dense bf16 peak in TFLOP/s.
PUBLISHED_MFU = [
    (1, LLAMA_7B, 312, 3016, 47.7),
    (1, LLAMA_7B, 989.4, 6639, 33.1),
    (2, LLAMA_7B, 312, 3803, 60.1),
    (2, LLAMA_7B, 989.4, 8273, 41.2),
    (3, LLAMA_7B, 312, 2847, 45.0),
    (3, LLAMA_7B, 989.4, 6138, 30.6),
    (5, LLAMA_175B, 989.4, 299, 33.4),
    (6, LLAMA_175B, 989.4, 387, 43.2),
    (7, LLAMA_175B, 989.4, 278, 31.0),
]

# Alpa's artifact (OSDI'22): layers, hidden, heads, GPUs, batch, published TFLOP/s per GPU; the seconds per step and the
# parameters in 10^9 that follow from its own formulas. The batch on 64 GPUs is not published; 1024 as on fewer.
ALPA = [
    (24, 1024, 16, 1, 128, 47.53, 8.64, 0.355),
    (24, 2048, 32, 4, 1024, 55.89, 52.05, 1.313),
    (32, 2560, 32, 8, 1024, 50.44, 57.85, 2.649),
    (32, 4096, 32, 16, 1024, 56.59, 63.63, 6.654),
    (48, 5120, 40, 32, 1024, 58.24, 71.12, 15.364),
    (48, 8192, 64, 64, 1024, 57.84, 90.13, 39.079),
]


@pytest.mark.parametrize("row", PUBLISHED_MFU, ids=lambda row: f"script-{row[0]}-{row[2]}")
def test_mfu_of_every_published_pair(row: tuple[int, ModelShape, float, float, float]) -> None:
    _, model, peak, tokens_per_s, published = row
    assert model_flops_utilization(model, tokens_per_s, peak) == pytest.approx(published, abs=0.04)


def test_mfu_counts_no_recomputation_and_half_the_attention() -> None:
    full = flops_per_iteration(LLAMA_7B, 1, recompute_all=False)
    attention = 12 * LLAMA_7B.layers * LLAMA_7B.hidden * LLAMA_7B.seq**2
    assert model_flops_per_token(LLAMA_7B) * LLAMA_7B.seq == pytest.approx(full - attention / 2)


@pytest.mark.parametrize("model", [GPT_1T, LLAMA_7B, MIXTRAL], ids=["GPT", "Llama", "experts"])
def test_a_program_that_skips_nothing_computes_what_equation_3_counts(model: ModelShape) -> None:
    for recompute in ("full", "none"):
        all_of_it = computed_flops_per_iteration(model, 8, recompute, causal_attention=False, skips_last_product=False)
        assert all_of_it == flops_per_iteration(model, 8, recompute == "full")


def test_computed_products_of_a_gpt_by_hand() -> None:
    b, s, l, h, v = 16, 2048, 24, 2304, 51200  # noqa: E741  the papers' symbols
    model = ModelShape(l, h, 24, s, v)

    def computed(recompute: Recompute, **program: bool) -> float:
        return computed_flops_per_iteration(model, b, recompute, **program)

    causal, logits = 2 * b * s * s * l * h, 6 * b * s * h * v
    pretrain = {"causal_attention": True, "skips_last_product": True}
    assert computed("full", **pretrain) == 88 * b * s * l * h**2 + 4 * causal + logits
    assert computed("none", **pretrain) == 72 * b * s * l * h**2 + 3 * causal + logits
    assert computed("ours", **pretrain) == computed("none", **pretrain)
    assert computed("selective", **pretrain) == computed("none", **pretrain) + causal
    flash = {"causal_attention": True, "skips_last_product": False}
    assert computed("full", **flash) - computed("full", **pretrain) == 8 * b * s * l * h**2


def test_the_last_product_of_a_gated_layer_is_a_third_of_its_feed_forward_layer() -> None:
    skipped = computed_flops_per_iteration(LLAMA_7B, 1, "full", causal_attention=True, skips_last_product=False)
    skipped -= computed_flops_per_iteration(LLAMA_7B, 1, "full", causal_attention=True, skips_last_product=True)
    assert skipped == 2 * LLAMA_7B.seq * 32 * 4096 * 11008


def test_mfu_of_a_gpt_counts_its_output_layer_once_and_its_embedding_not() -> None:
    model = ModelShape(24, 2304, 24, 2048, 51200)
    matrices = 24 * 12 * 2304**2 + 51200 * 2304
    assert model_flops_per_token(model) == 6 * matrices + 6 * 24 * 2304 * 2048


@pytest.mark.parametrize("row", ALPA, ids=lambda row: f"{row[3]}-gpus")
def test_alpas_published_rates_give_its_step_times_and_parameters(
    row: tuple[int, int, int, int, int, float, float, float],
) -> None:
    layers, hidden, heads, gpus, batch, tflops, seconds, billions = row
    model = ModelShape(layers, hidden, heads, seq=1024, vocab=51200)
    assert tflops_per_gpu(flops_per_iteration(model, batch, True), seconds * 1e3, gpus) == pytest.approx(
        tflops, rel=7e-4
    )
    assert alpa_parameters(model) / 1e9 == pytest.approx(billions, abs=5e-4)


def test_only_experts_that_a_token_visits_count() -> None:
    dense = replace(MIXTRAL, ffn=2 * 14336, experts=0, experts_per_token=0)
    assert flops_per_iteration(MIXTRAL, 8, False) == flops_per_iteration(dense, 8, False)
    assert model_flops_per_token(replace(MIXTRAL, experts=64)) == model_flops_per_token(MIXTRAL)


def test_shared_keys_cost_less() -> None:
    every_head = replace(MIXTRAL, kv_groups=None)
    less = 3 * 2 * 2 * 4096 * (4096 - 1024) * 32 * 4096
    assert flops_per_iteration(every_head, 1, False) - flops_per_iteration(MIXTRAL, 1, False) == pytest.approx(less)


@pytest.mark.parametrize(
    ("model", "billions"),
    [(replace(LLAMA_7B, vocab=32000), 6.7), (MIXTRAL, 46.7)],
    ids=["LLaMA-7B", "Mixtral-8x7B"],
)
def test_parameters_of_gated_models_and_of_experts_as_published(model: ModelShape, billions: float) -> None:
    """arXiv 2302.13971 table 2; Mistral AI's announcement of Mixtral."""
    assert round(model.parameters() / 1e9, 1) == billions
