"""Tests of CARAML's 800M GPT against the numbers that its repository prints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.catalog.claims import RatioClaim
from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.model import flops_per_iteration, tflops_per_gpu
from orchestrator.megatron.programs import find_megatron
from tests.cases import expand
from tests.unit.catalog.entries import shipped

CASES = {case.layout.global_batch_size: case for case in expand(shipped("llm-800m"))}
TFLOPS = {
    "A100": [166, 171, 176, 180, 183, 183],
    "H100 PCIe": [200, 232, 247, 257, 264, 269],
    "H100": [285, 301, 311, 316, 318, 319],
    "GH200": [317, 324, 322, 329, 327, 333],
}
"""Bars of LLM_tflops_nvidia.pdf at 2181fc33ec, at batch 16 to 512. GH200 is JEDI, H100 is the one with NVLink."""
ONE_GPU = [325 / 293, 387 / 287]
"""Gains of one GPU of JEDI and of the GH200 of JURECA from 16 to 512."""
EFFICIENCIES = [(0.39, 0.52), (0.58, 0.79), (0.50, 0.58), (0.58, 0.61), (0.57, 0.62), (0.46, 0.67)]
"""Lower bars of that figure at 16 and at 512: TFLOP/s per Wh, of all six systems."""
README = [(26.50, 158258.30, 321.83), (26.52, 158152.80, 321.65)]
"""Seconds, tokens/s and TFLOP/s of batch 2048 on JEDI, at 2181fc33ec and at 59cba3e4f2."""


def patched_tflops(case: TrainingCase, seconds: float) -> float:
    """Return the rate of a GPU by the benchmark's patch of Megatron-LM, which counts four passes over a layer."""
    layers, hidden, length, vocabulary = 16, 2048, 2048, 50304
    factor = 1 + length / (6 * hidden) + vocabulary / (16 * layers * hidden)
    flops = 24 * 4 * case.layout.global_batch_size * length * layers * hidden**2 * factor
    return flops / (seconds * case.layout.gpus * 1e12)


def published(case: TrainingCase, metric: str, gpu: str) -> PublishedPoint:
    (point,) = (point for point in case.published if (point.metric, point.gpu) == (metric, gpu))
    return point


@pytest.mark.parametrize(("seconds", "tokens_per_s", "tflops"), README)
def test_the_readme_has_the_rates_that_follow_from_its_time_and_the_model(
    seconds: float, tokens_per_s: float, tflops: float
) -> None:
    case = CASES[2048]
    assert 2048 * case.model.seq / seconds == pytest.approx(tokens_per_s, rel=0.005 / seconds)
    # The mean of the rates of single lines is not the rate of the mean time.
    assert patched_tflops(case, 2048 * 2048 / tokens_per_s) == pytest.approx(tflops, abs=0.04)
    flops = flops_per_iteration(case.model, 2048, recompute_all=True)
    assert tflops_per_gpu(flops, 1e3 * seconds, 4) == pytest.approx(patched_tflops(case, seconds))


def test_the_published_numbers_of_batch_2048_are_those_of_the_readme() -> None:
    case, (seconds, tokens_per_s, _) = CASES[2048], README[-1]
    assert published(case, "iteration_ms", "GH200").value == 1e3 * seconds
    assert published(case, "tokens_per_s_per_gpu", "GH200").value == pytest.approx(tokens_per_s / 4, abs=0.05)
    three_passes = flops_per_iteration(case.model, 2048, recompute_all=False)
    rate = tflops_per_gpu(three_passes, 1e3 * 2048 * 2048 / tokens_per_s, 4)
    assert published(case, "tflops_per_gpu", "GH200").value == pytest.approx(rate, abs=0.05)


@pytest.mark.parametrize("gpu", TFLOPS)
def test_the_published_rates_are_the_printed_bars_of_the_figure(gpu: str) -> None:
    for batch, printed in zip((16, 32, 64, 128, 256, 512), TFLOPS[gpu], strict=True):
        point = published(CASES[batch], "tokens_per_s_per_gpu", gpu)
        seconds = batch * 2048 / (point.value * 4)
        assert patched_tflops(CASES[batch], seconds) == pytest.approx(printed, abs=0.01)
        assert f"{printed} TFLOP/s" in point.source
        assert point.error == pytest.approx(point.value * 0.5 / printed, rel=0.01)  # the bars have whole numbers


def test_no_other_number_is_published() -> None:
    counts = {batch: len(case.published) for batch, case in CASES.items()}
    assert counts == {16: 4, 32: 4, 64: 4, 128: 4, 256: 4, 512: 4, 1024: 0, 2048: 3, 4096: 0}


def test_smaller_scales_on_gpus_train_the_published_model_with_the_published_microbatches() -> None:
    paper = [(case.layout.micro_batch_size, case.layout.microbatches) for case in CASES.values()]
    assert paper[0] == (4, 1) and paper[-1] == (4, 256)
    for scale, gpus in (("pair", 2), ("single", 1)):
        cases = expand(shipped("llm-800m"), scale)
        assert [(case.layout.micro_batch_size, case.layout.microbatches) for case in cases] == paper
        assert {(case.layout.gpus, case.model) for case in cases} == {(gpus, CASES[16].model)}


@pytest.mark.parametrize("program", ["megatron-2021", "megatron-core-0.14", "megatron-alpa"])
def test_programs_whose_arguments_lack_rotary_positions_refuse_the_model(program: str) -> None:
    refusal = find_megatron(program).unsupported_settings(replace(CASES[16], program=program))
    assert refusal is not None and "rotary positions" in refusal
    todays = find_megatron("megatron-2026")
    assert todays.unsupported_settings(replace(CASES[16], program="megatron-2026")) is None


def bounds(claim_id: str) -> tuple[float | None, float | None]:
    """Return at_least and at_most of a claim."""
    (claim,) = (claim for claim in shipped("llm-800m").experiment.claims if claim.id == claim_id)
    assert isinstance(claim, RatioClaim)
    return claim.at_least, claim.at_most


def test_the_claims_follow_from_the_printed_bars() -> None:
    gains = [bars[-1] / bars[0] for bars in TFLOPS.values()]
    assert bounds("larger-batches-are-faster") == (1.0, None) and min(*gains, *ONE_GPU) > 1
    assert bounds("gain-of-large-batches") == (round(min(gains), 2), 1.35) and round(max(gains), 2) <= 1.35
    assert bounds("saturated-at-batch-64") == (None, 1.1) and max(bars[-1] / bars[2] for bars in TFLOPS.values()) < 1.1
    assert bounds("large-batches-save-energy") == (None, 1.0)
    assert max(small / large for small, large in EFFICIENCIES) < 1
