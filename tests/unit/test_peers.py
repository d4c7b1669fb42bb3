"""What benchmarks/peers.py concludes from times and losses; the programs themselves need minutes."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks.peers import LATER, WARM_UP, Case, Measured, Step, losses, measure, times

CASE = Case(24, 2304, 24, 2048, 51200, 16, 16, recompute=True, dtype="bf16", device="gpu")


def steps(count: int, ms: float) -> list[Step]:
    """The first ones slow, as compiling is."""
    return [Step(100 * ms if i < WARM_UP else ms, 10.0 - i / 10) for i in range(count)]


def test_rates_are_sc21s_and_the_ratio_is_of_medians_without_the_warm_up() -> None:
    measured = measure({"pretrain": lambda n: steps(n, 876.0), "Megatron-LM": lambda n: steps(n, 1840.0)}, 2, 50)
    table = [line.split() for line in times(CASE, measured).splitlines()[1:]]
    # 551 and 262 to 263 TFLOP/s were seen of these times on one H200.
    assert table[0] == ["pretrain", "876.0", "876.0", "876.0", "551.8", "1.00", "x"]
    assert table[1] == ["Megatron-LM", "1840.0", "1840.0", "1840.0", "262.7", "2.10", "x"]
    assert len(measured["pretrain"].times_ms) == 50 + LATER - 2 * WARM_UP
    assert len(measured["pretrain"].losses) == 50


def test_one_that_fails_is_said_to_and_asked_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []

    def broken(iterations: int) -> list[Step]:
        calls.append(iterations)
        raise subprocess.CalledProcessError(1, "x", "out of memory")

    measured = measure({"pretrain": lambda n: steps(n, 1.0), "plain PyTorch": broken}, 3, 6)
    assert calls == [6] and "plain PyTorch failed with exit code 1:\nout of memory" in capsys.readouterr().out
    assert times(CASE, measured).splitlines()[-1].split() == ["plain", "PyTorch", "failed"]
    assert losses(measured).splitlines()[1:] == [f"{'1-5':<16}{9.8:>16.5f}", f"{'6-6':<16}{9.5:>16.5f}"]


def test_losses_are_means_beside_one_another_with_the_largest_distance_from_pretrain() -> None:
    ran = {"pretrain": [4.0, 2.0], "plain PyTorch": [4.0, 2.002], "Megatron-LM": [4.5, 2.5]}
    text = losses({name: Measured(losses=one) for name, one in ran.items()})
    assert text.splitlines()[1].split() == ["1-2", "3.00000", "3.00100", "3.50000"]
    assert "at most 1.0e-03 of pretrain's away" in text
