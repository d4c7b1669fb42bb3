"""Results of benchmarks/peers.py from times and losses. The programs themselves need minutes."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers import LATER, WARM_UP, Case, Measured, Step, experiment_of, losses, measure, programs, times

CASE = Case(24, 2304, 24, 2048, 51200, 16, 16, recompute=True, dtype="bf16", device="gpu")


def steps(count: int, ms: float) -> list[Step]:
    """Return steps whose first ones are slow, as with compilation."""
    return [Step(100 * ms if i < WARM_UP else ms, 10.0 - i / 10) for i in range(count)]


def test_rates_are_sc21s_and_ratios_are_of_medians_after_the_warm_up() -> None:
    measured = measure({"pretrain": lambda n: steps(n, 876.0), "Megatron-LM": lambda n: steps(n, 1840.0)}, 2, 50)
    table = [line.split() for line in times(CASE, measured).splitlines()[1:]]
    # These times were measured as 551 and 262 to 263 TFLOP/s on one H200.
    assert table[0] == ["pretrain", "876.0", "876.0", "876.0", "551.8", "1.00", "x"]
    assert table[1] == ["Megatron-LM", "1840.0", "1840.0", "1840.0", "262.7", "2.10", "x"]
    assert len(measured["pretrain"].times_ms) == 50 + LATER - 2 * WARM_UP
    assert len(measured["pretrain"].losses) == 50


def test_on_two_gpus_rates_are_per_gpu_and_plain_pytorch_is_left_out(tmp_path: Path) -> None:
    two = replace(CASE, tensor_parallel=2)
    (line,) = times(two, {"pretrain": Measured(times_ms=[438.0])}).splitlines()[1:]
    assert line.split() == ["pretrain", "438.0", "438.0", "438.0", "551.8", "1.00", "x"]
    assert list(programs(CASE, tmp_path, None)) == ["pretrain", "plain PyTorch"]
    assert list(programs(two, tmp_path, None)) == ["pretrain"]
    layout = {"case": "peer", "tp": 2, "pp": 1, "gpus": 2, "mbs": 16, "gbs": 16}
    assert experiment_of(two, "pretrain", 6, ())["cases"] == [layout]


def test_a_failed_program_is_reported_and_not_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []

    def broken(iterations: int) -> list[Step]:
        calls.append(iterations)
        raise subprocess.CalledProcessError(1, "x", "out of memory")

    measured = measure({"pretrain": lambda n: steps(n, 1.0), "plain PyTorch": broken}, 3, 6)
    assert calls == [6] and "plain PyTorch failed with exit code 1:\nout of memory" in capsys.readouterr().out
    assert times(CASE, measured).splitlines()[-1].split() == ["plain", "PyTorch", "failed"]
    assert losses(measured).splitlines()[1:] == [f"{'1-5':<16}{9.8:>16.5f}", f"{'6-6':<16}{9.5:>16.5f}"]


def test_losses_are_means_with_their_differences_from_pretrain() -> None:
    ran = {"pretrain": [4.0, 2.0], "plain PyTorch": [4.0, 2.002], "Megatron-LM": [4.5, 2.5]}
    text = losses({name: Measured(losses=one) for name, one in ran.items()})
    assert text.splitlines()[1].split() == ["1-2", "3.00000", "3.00100", "3.50000"]
    differences = dict(line.split(": the loss differs from pretrain's by ") for line in text.splitlines()[2:])
    assert differences == {
        "plain PyTorch": "5.0e-04 on average and by at most 1.0e-03",
        "Megatron-LM": "1.9e-01 on average and by at most 2.5e-01",
    }
