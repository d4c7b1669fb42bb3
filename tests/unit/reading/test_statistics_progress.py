"""Tests of the progress of a running job from the end of its log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.megatron.logs.statistics import progress
from orchestrator.reading.statistics import TAIL_BYTES, RunningProgress
from tests.recorded_jobs import job_spec

LINE = (
    " [2026-01-01 00:00:00.000000] iteration {:8d}/{:8d} | consumed samples: {:12d} | elapsed time per iteration (ms):"
    " {:.1f} | learning rate: 1.000000E-04 | global batch size:     4 | lm loss: {} | grad norm: 1.234"
    " | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def log(*elapsed_ms: float, first: int = 1, iterations: int = 100, loss: str = "6.9E+00") -> bytes:
    return "".join(
        LINE.format(first + n, iterations, 4 * (first + n), ms, loss) for n, ms in enumerate(elapsed_ms)
    ).encode()


def read(text: bytes, iterations: int = 100) -> RunningProgress:
    current = progress(text, iterations, job_spec())
    assert current is not None
    return current


def test_log_without_an_iteration_has_no_progress() -> None:
    for text in (b"", b"compiling kernels\n", log(100)[:80]):
        assert progress(text, 100, job_spec()) is None


def test_first_interval_gives_the_iteration_and_no_pace() -> None:
    assert read(log(9000)) == RunningProgress(1, None, None, None)


def test_pace_is_the_median_of_the_last_five_lines() -> None:
    current = read(log(9000, 700, 700, 700, 100, 100, 130, 100, 400))
    assert (current.iteration, current.iteration_ms) == (9, 100)
    assert current.left_s == pytest.approx((100 - 9) * 0.1)
    # Equation 3 by hand, as in test_statistics: 7113539584 FLOPs in 0.1 s on 4 GPUs.
    assert current.tflops_per_gpu == pytest.approx(7113539584 / 0.1 / 4 / 1e12, rel=1e-12)


def test_pace_is_per_iteration_for_longer_intervals() -> None:
    text = b"".join(log(ms, first=at) for at, ms in ((10, 500), (20, 200), (30, 200)))
    assert read(text).left_s == pytest.approx(70 * 0.2)


def test_progress_counts_from_the_last_restart() -> None:
    current = read(log(9000, 100, 100, 100) + log(5000, 200, first=2))
    assert (current.iteration, current.iteration_ms) == (3, 200) and current.left_s == pytest.approx(97 * 0.2)
    assert read(log(9000, 100, 100) + log(5000)) == RunningProgress(1, None, None, None)


def test_line_printed_by_two_ranks_counts_once() -> None:
    assert read(log(9000) * 2) == RunningProgress(1, None, None, None)
    assert read(log(9000) + 2 * log(100, first=2)).iteration_ms == 100


def test_remaining_time_is_never_negative() -> None:
    assert read(log(9000, 100, 100), iterations=2).left_s == 0


def test_nan_gives_no_pace() -> None:
    assert read(log(9000, 100, 100, loss="nan")) == RunningProgress(3, None, None, None)


@given(st.integers(min_value=0, max_value=3 * TAIL_BYTES))
def test_any_tail_gives_the_progress_of_the_whole_log(cut: int) -> None:
    whole = _LONG
    tail = whole[-max(cut, 5000) :]
    assert read(tail, 400) == read(whole, 400)


_LONG = log(9000, *(100 + n % 7 for n in range(350)), iterations=400)
