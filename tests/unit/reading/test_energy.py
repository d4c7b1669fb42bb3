"""Tests of the energy of the measured iterations: integration, and the reasons why there is none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.megatron.logs.parse import LogFacts
from orchestrator.megatron.logs.reader import read_new
from orchestrator.megatron.logs.statistics import joules
from orchestrator.reading.gpu_samples import MeanPower, read_samples
from orchestrator.results.bundle.extract import unpacked
from tests.unit.catalog.entries import CHECKOUT

FACTS = LogFacts(measured_from="2026-11-21 10:00:10", measured_until="2026-11-21 10:00:20")


def line(at_s: float, power_w: object = 500.0, index: int = 0) -> str:
    return f"2026/11/21 10:00:{at_s:06.3f}, {index}, 1000, 143771, 99, {power_w}, 1755, 61, 0x0000000000000004\n"


def steady(index: int = 0, power_w: float = 500.0, left_out: range = range(0)) -> str:
    """Return a sample every second from 0:05 to 0:25, without some seconds."""
    return "".join(line(at + 0.25, power_w, index) for at in range(5, 26) if at not in left_out)


def power(folder: Path, *nodes: str, gpus: int = 1, facts: LogFacts = FACTS) -> MeanPower:
    for number, text in enumerate(nodes):
        (folder / f"gpus.n{number}.csv").write_text(text)
    return read_samples(folder, (facts.measured_from, facts.measured_until), gpus).power


def test_power_outside_the_measured_iterations_does_not_count_and_gpus_are_summed(tmp_path: Path) -> None:
    start_up = "".join(line(at, 90) for at in range(5, 10))
    both = "".join(line(at, 500) + line(at, 300, index=1) for at in range(10, 21))
    other_node = "".join(line(at, 200) for at in range(8, 24))
    mean = power(tmp_path, start_up + both + line(21, 80) + line(21, 80, index=1), other_node, gpus=3)
    assert mean.unknown is None and mean.power_w == pytest.approx(500 + 300 + 200)
    assert mean.samples == 3 * 11


def test_changing_power_is_integrated_by_trapezoids_and_clipped_to_the_interval(tmp_path: Path) -> None:
    # 0 W at 8 s rises to 1200 W at 20 s: 200 W at 10 s, so 700 W on average.
    rising = "".join(line(at, 100.0 * (at - 8)) for at in range(8, 22, 2))
    assert power(tmp_path, rising).power_w == pytest.approx(700)


def test_energy_belongs_to_the_times_behind_the_throughput() -> None:
    numbers = [MeasuredMetric("iteration_ms", 2000.0, "ms", 1.0, 5), MeasuredMetric("tokens_per_s", 4096.0, "1/s")]
    energy = {metric.name: metric for metric in joules(MeanPower(1024.0, 40), numbers)}
    assert (energy["joules_per_iteration"].value, energy["joules_per_iteration"].unit) == (2048, "J")
    assert (energy["joules_per_token"].value, energy["joules_per_token"].count) == (0.25, 40)
    assert joules(MeanPower(unknown="gap"), numbers) == joules(MeanPower(1.0), []) == []
    assert [metric.name for metric in joules(MeanPower(1.0, 1), numbers[:1])] == ["joules_per_iteration"]


@pytest.mark.parametrize(
    ("nodes", "gpus", "reason"),
    [
        ((steady(left_out=range(14, 17)),), 1, "GPU 0 of n0: 4.0 s without a sample of its power; at most 3 s"),
        ((steady(left_out=range(8, 13)),), 1, "GPU 0 of n0: 6.0 s without"),
        ((steady(left_out=range(17, 26)),), 1, "GPU 0 of n0: 3.8 s without"),
        ((steady(left_out=range(5, 14)),), 1, "GPU 0 of n0: 4.2 s without"),
        ((steady() + steady(1, left_out=range(5, 26)),), 2, "samples are of 1 GPU, and the job has 2"),
        ((steady() + steady(1),), 1, "samples are of 2 GPUs, and the job has 1"),
        ((steady(), line(3) + line(4)), 2, "GPU 0 of n1: "),
        ((steady(), steady().replace("500.0", "[N/A]")), 2, "GPU 0 of n1: 0 samples of its power"),
        ((steady() + line(12),), 1, "GPU 0 of n0: the clock went back"),
        ((steady().replace("21 10:", "21 18:"),), 1, "GPU 0 of n0: 0 samples of its power in the measured"),
    ],
)
def test_energy_that_samples_do_not_cover_is_no_number_and_has_a_reason(
    tmp_path: Path, nodes: tuple[str, ...], gpus: int, reason: str
) -> None:
    mean = power(tmp_path, *nodes, gpus=gpus)
    assert mean.power_w is None and mean.unknown is not None and mean.unknown.startswith(reason), mean


def test_a_gap_outside_the_measured_iterations_and_one_of_less_than_three_seconds_void_nothing(tmp_path: Path) -> None:
    text = line(0) + "".join(line(at) for at in (9, 10, 13, 16, 17.2)) + line(20.1) + line(40)
    assert power(tmp_path, text).power_w == pytest.approx(500)


def test_a_log_without_times_or_with_short_iterations_has_no_energy(tmp_path: Path) -> None:
    assert power(tmp_path, steady(), facts=LogFacts()).unknown == "the log has no times of the measured iterations"
    short = LogFacts(measured_from="2026-11-21 10:00:10", measured_until="2026-11-21 10:00:12")
    assert power(tmp_path, steady(), facts=short).unknown == "the measured iterations took less than 3 s"


def test_a_job_without_samples_has_neither_energy_nor_a_reason(tmp_path: Path) -> None:
    assert power(tmp_path) == MeanPower()


def test_recorded_samples_of_h200_give_the_power_of_busy_gpus() -> None:
    with unpacked(CHECKOUT / "experiments" / "results" / "h200" / "figure-16.tar.zst") as (folder, _):
        (job,) = folder.glob("jobs/mbs8-gbs32-*/attempt-1")
        facts = read_new(job, {}, final=True, warmup_iterations=2).facts
        mean = read_samples(job, (facts.measured_from, facts.measured_until), 2).power
    # Plain mean of the samples from the end of iteration 2 to the end of iteration 6: 586.6 W and 610.5 W.
    assert mean.power_w == pytest.approx(586.6 + 610.5, rel=0.02) and mean.samples == 14


def _times(gaps_ms: list[int]) -> Iterator[float]:
    at_ms = 9000
    for gap_ms in gaps_ms:
        at_ms += gap_ms
        yield at_ms / 1000


@given(st.lists(st.integers(1, 2900), min_size=1, max_size=60), st.floats(1, 1000))
def test_steady_power_is_its_own_mean_at_any_times_of_the_samples(
    tmp_path_factory: pytest.TempPathFactory, gaps_ms: list[int], power_w: float
) -> None:
    times = [at for at in _times(gaps_ms) if at < 60]
    mean = power(tmp_path_factory.mktemp("steady"), "".join(line(at, round(power_w, 2)) for at in times))
    if mean.power_w is not None:
        assert math.isclose(mean.power_w, round(power_w, 2), rel_tol=1e-6)
    else:
        assert mean.unknown is not None and (times[-1] < 20 or len(times) < 8)
