"""SC21's equations, compared with the numbers that the paper prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.megatron.model import (
    Layout,
    ModelShape,
    days,
    flops_per_iteration,
    padded_vocabulary,
    tflops_per_gpu,
    training_days,
)

# SC21 table 1: parameters in 10^9, heads, hidden, layers, GPUs, batch, TFLOP/s per GPU, % of peak, PFLOP/s together.
TABLE_1 = [
    (1.7, 24, 2304, 24, 32, 512, 137, 44, 4.4),
    (3.6, 32, 3072, 30, 64, 512, 138, 44, 8.8),
    (7.5, 32, 4096, 36, 128, 512, 142, 46, 18.2),
    (18.4, 48, 6144, 40, 256, 1024, 135, 43, 34.6),
    (39.1, 64, 8192, 48, 512, 1536, 138, 44, 70.8),
    (76.1, 80, 10240, 60, 1024, 1792, 140, 45, 143.8),
    (145.6, 96, 12288, 80, 1536, 2304, 148, 47, 227.1),
    (310.1, 128, 16384, 96, 1920, 2160, 155, 50, 297.4),
    (529.6, 128, 20480, 105, 2520, 2520, 163, 52, 410.2),
    (1008.0, 160, 25600, 128, 3072, 3072, 163, 52, 502.0),
]

# Every different (layers, hidden, heads, global batch, recomputation) of the paper's 99 points, with the parameters
# (10^9, eq. 2) and FLOPs per iteration (eq. 3, without recomputation the appendix' count) worked out independently.
POINTS = [
    (24, 2304, 24, 512, True, 1.652, 1.546683e16),  # table 1
    (30, 3072, 32, 512, True, 3.562, 3.265550e16),  # table 1
    (36, 4096, 32, 512, True, 7.468, 6.718456e16),  # table 1
    (40, 6144, 48, 1024, True, 18.45, 3.248397e17),  # table 1
    (48, 8192, 64, 1536, True, 39.096, 1.021226e18),  # table 1
    (60, 10240, 80, 1792, True, 76.051, 2.302047e18),  # table 1
    (80, 12288, 96, 2304, True, 145.622, 5.641682e18),  # table 1
    (96, 16384, 128, 2160, True, 310.131, 1.119401e19),  # table 1
    (105, 20480, 128, 2520, True, 529.601, 2.221594e19),  # table 1
    (128, 25600, 160, 3072, True, 1008.039, 5.139051e19),  # table 1
    (3, 20480, 128, 8, True, 16.191, 2.115185e15),  # figure 11
    (3, 20480, 128, 128, True, 16.191, 3.384297e16),  # figure 11
    (6, 20480, 128, 8, True, 31.291, 4.127292e15),  # figure 11
    (6, 20480, 128, 128, True, 31.291, 6.603667e16),  # figure 11
    (12, 20480, 128, 8, True, 61.492, 8.151504e15),  # figure 11
    (12, 20480, 128, 128, True, 61.492, 1.304241e17),  # figure 11
    (24, 20480, 128, 8, True, 121.893, 1.619993e16),  # figure 11
    (24, 20480, 128, 128, True, 121.893, 2.591989e17),  # figure 11
    (96, 12288, 96, 12, True, 174.616, 3.524196e16),  # figures 12, 18
    (96, 12288, 96, 24, True, 174.616, 7.048392e16),  # figures 12, 18
    (96, 12288, 96, 36, True, 174.616, 1.057259e17),  # figures 12, 18
    (96, 12288, 96, 48, True, 174.616, 1.409678e17),  # figures 12, 18
    (96, 12288, 96, 60, True, 174.616, 1.762098e17),  # figures 12, 18
    (32, 20480, 128, 32, True, 162.16, 8.626218e16),  # figure 13
    (32, 20480, 128, 128, True, 162.16, 3.450487e17),  # figure 13
    (32, 3840, 32, 32, True, 5.868, 3.309874e15),  # figures 14, 15
    (32, 3840, 32, 512, True, 5.868, 5.295798e16),  # figures 14, 15
    (32, 3840, 32, 128, True, 5.868, 1.323949e16),  # figure 15
    (32, 15360, 128, 128, True, 91.421, 1.954547e17),  # figure 16
    (32, 15360, 128, 512, True, 91.421, 7.818187e17),  # figure 16
    (80, 12288, 96, 1, True, 145.622, 2.448647e15),  # figure 17
    (80, 12288, 96, 2, True, 145.622, 4.897294e15),  # figure 17
    (80, 12288, 96, 4, True, 145.622, 9.794587e15),  # figure 17
    (80, 12288, 96, 8, True, 145.622, 1.958917e16),  # figure 17
    (80, 12288, 96, 16, True, 145.622, 3.917835e16),  # figure 17
    (80, 12288, 96, 32, True, 145.622, 7.835670e16),  # figure 17
    (80, 12288, 96, 64, True, 145.622, 1.567134e17),  # figure 17
    (80, 12288, 96, 128, True, 145.622, 3.134268e17),  # figure 17
    (80, 12288, 96, 256, True, 145.622, 6.268536e17),  # figure 17
    (80, 12288, 96, 1, False, 145.622, 1.838418e15),  # figure 17
    (80, 12288, 96, 2, False, 145.622, 3.676836e15),  # figure 17
    (80, 12288, 96, 4, False, 145.622, 7.353671e15),  # figure 17
    (80, 12288, 96, 8, False, 145.622, 1.470734e16),  # figure 17
    (80, 12288, 96, 16, False, 145.622, 2.941468e16),  # figure 17
    (80, 12288, 96, 32, False, 145.622, 5.882937e16),  # figure 17
    (80, 12288, 96, 64, False, 145.622, 1.176587e17),  # figure 17
    (80, 12288, 96, 128, False, 145.622, 2.353175e17),  # figure 17
    (80, 12288, 96, 256, False, 145.622, 4.706350e17),  # figure 17
]

# SC21 table 2: layers, hidden, heads, batch, GPUs, TFLOP/s per GPU, days for 300e9 tokens. ZeRO-3, then PTD-P.
TABLE_2 = [
    (96, 12288, 96, 1536, 384, 144, 90),
    (96, 12288, 96, 1536, 768, 88, 74),
    (96, 12288, 96, 1536, 1536, 44, 74),
    (105, 20480, 128, 2560, 640, 138, 169),
    (105, 20480, 128, 2240, 1120, 98, 137),
    (105, 20480, 128, 2240, 2240, 48, 140),
    (96, 12288, 96, 1536, 384, 153, 84),
    (96, 12288, 96, 1536, 768, 149, 43),
    (96, 12288, 96, 1536, 1536, 141, 23),
    (105, 20480, 128, 2240, 560, 171, 156),
    (105, 20480, 128, 2240, 1120, 167, 80),
    (105, 20480, 128, 2240, 2240, 159, 42),
]

# Layouts of the SC21 scripts: GPUs, tensor, pipeline, virtual stages, microbatch, batch, and the bubble that follows
# from section 2.2 as a fraction of ideal time.
BUBBLES = [
    (256, 8, 1, 1, 8, 1024, 0.0),  # table 1, 18B
    (512, 8, 2, 1, 4, 1536, 0.083333),
    (1024, 8, 4, 3, 2, 1792, 0.035714),
    (1536, 8, 8, 2, 2, 2304, 0.072917),
    (1920, 8, 16, 2, 1, 2160, 0.052083),
    (2520, 8, 35, 3, 1, 2520, 0.040476),
    (3072, 8, 64, 1, 1, 3072, 0.123047),
    (96, 8, 12, 4, 1, 12, 0.229167),  # figure 12, interleaved
    (96, 8, 12, 4, 1, 60, 0.045833),
    (96, 8, 12, 1, 1, 12, 0.916667),  # and not
    (128, 8, 16, 1, 1, 1, 15.0),  # figure 17
]


def shape(layers: int, hidden: int, heads: int) -> ModelShape:
    return ModelShape(layers=layers, hidden=hidden, heads=heads, seq=2048, vocab=51200)


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: f"{row[0]}B")
def test_equation_2_gives_the_parameter_counts_that_table_1_prints(row: tuple[float, ...]) -> None:
    printed, heads, hidden, layers = row[0], int(row[1]), int(row[2]), int(row[3])
    assert abs(shape(layers, hidden, heads).parameters() / 1e9 - printed) <= 0.0501


def test_equation_2_gives_figure_13_its_caption() -> None:
    assert shape(32, 20480, 128).parameters() / 1e9 == pytest.approx(162.160, abs=5e-4)


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: f"{row[0]}B")
def test_throughput_percent_and_aggregate_of_table_1_agree_through_equation_3(row: tuple[float, ...]) -> None:
    _, heads, hidden, layers, gpus, batch, tflops, percent, together = row
    flops = flops_per_iteration(shape(int(layers), int(hidden), int(heads)), int(batch), recompute_all=True)
    iteration_ms = flops / (together * 1e15) * 1e3
    rate = tflops_per_gpu(flops, iteration_ms, int(gpus))
    assert rate == pytest.approx(tflops, rel=0.004)  # both are printed rounded
    assert round(100 * tflops / 312) == percent


def test_flops_of_every_published_point() -> None:
    for layers, hidden, heads, batch, recompute, billions, flops in POINTS:
        model = shape(layers, hidden, heads)
        assert model.parameters() / 1e9 == pytest.approx(billions, abs=6e-4), model
        assert flops_per_iteration(model, batch, recompute) == pytest.approx(flops, rel=1e-6), (model, batch)


@given(st.integers(1, 200), st.integers(1, 400).map(lambda n: 64 * n), st.integers(1, 4096), st.integers(1, 8192))
def test_the_equations_equal_their_sums_over_matrix_products(layers: int, hidden: int, batch: int, seq: int) -> None:
    """SC21's appendix: 24Bsh^2 + 4Bs^2h of a layer's forward pass, 6BshV of the logits, forward and backward."""
    model = ModelShape(layers, hidden, 1, seq, 51200)
    forward, logits = 24 * batch * seq * hidden**2 + 4 * batch * seq**2 * hidden, 6 * batch * seq * hidden * 51200
    assert flops_per_iteration(model, batch, True) == pytest.approx(4 * layers * forward + logits, rel=1e-9)
    assert flops_per_iteration(model, batch, False) == pytest.approx(3 * layers * forward + logits, rel=1e-9)


@pytest.mark.parametrize(
    ("tensor", "padded"), [(1, 50304), (2, 50432), (4, 50688), (8, 51200), (16, 51200), (32, 53248)]
)
def test_gpt2s_vocabulary_is_padded_as_the_scripts_of_figure_13_pad_it(tensor: int, padded: int) -> None:
    assert padded_vocabulary(50257, tensor) == padded


def test_a_vocabulary_that_fits_is_not_padded() -> None:
    assert padded_vocabulary(51200, 8) == 51200


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "billions"),
    [
        (4, 4096, 128, 1.024),  # figure 7
        (3, 20480, 128, 16.191),  # figure 11
        (24, 20480, 128, 121.893),
        (96, 12288, 96, 174.616),  # figures 12 and 18
    ],
)
def test_equation_2_gives_the_models_of_the_figures(layers: int, hidden: int, heads: int, billions: float) -> None:
    assert shape(layers, hidden, heads).parameters() / 1e9 == pytest.approx(billions, abs=5e-4)


@pytest.mark.parametrize(
    ("parameters", "tokens", "gpus", "tflops", "printed"),
    [(175e9, 300e9, 1024, 140, 34), (1008e9, 450e9, 3072, 163, 84)],
    ids=["GPT-3", "1T"],
)
def test_equation_4_gives_the_days_that_section_5_1_prints(
    parameters: float, tokens: float, gpus: int, tflops: float, printed: int
) -> None:
    assert round(training_days(parameters, tokens, gpus, tflops)) == printed


@pytest.mark.parametrize("row", TABLE_2, ids=lambda row: f"{row[1]}-{row[4]}-{row[5]}")
def test_iterations_by_equation_3_give_the_days_that_table_2_prints(row: tuple[int, ...]) -> None:
    layers, hidden, heads, batch, gpus, tflops, printed = row
    iterations = 300e9 / (batch * 2048)
    flops = iterations * flops_per_iteration(shape(layers, hidden, heads), batch, recompute_all=True)
    assert days(flops, gpus, tflops) == pytest.approx(printed, abs=1.2)


@pytest.mark.parametrize("row", BUBBLES, ids=lambda row: f"p{row[2]}-v{row[3]}-{row[5]}")
def test_the_bubbles_of_the_published_layouts(row: tuple[int, int, int, int, int, int, float]) -> None:
    gpus, tensor, pipeline, virtual, micro, batch, bubble = row
    layout = Layout(gpus, tensor, pipeline, micro, batch, virtual_stages=virtual)
    assert layout.bubble() == pytest.approx(bubble, abs=5e-7)
