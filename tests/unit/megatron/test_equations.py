"""The paper's equations against the paper's numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.megatron.flops import flops_per_iteration, tflops_per_gpu
from orchestrator.megatron.model import ModelShape, padded_vocabulary

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


@pytest.mark.parametrize("row", POINTS, ids=lambda row: f"{row[0]}x{row[1]}-{row[3]}-{'re' if row[4] else 'full'}")
def test_flops_of_every_published_point(row: tuple[int, int, int, int, bool, float, float]) -> None:
    layers, hidden, heads, batch, recompute, billions, flops = row
    model = shape(layers, hidden, heads)
    assert model.parameters() / 1e9 == pytest.approx(billions, abs=6e-4)
    assert flops_per_iteration(model, batch, recompute) == pytest.approx(flops, rel=1e-6)


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
