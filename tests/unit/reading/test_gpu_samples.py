"""Tests of metrics from nvidia-smi samples."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.megatron.logs.parse import LogFacts, read_part
from orchestrator.reading.gpu_samples import read_samples, samples_of

HEADER = (
    "timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%], power.draw [W], "
    "clocks.current.sm [MHz], temperature.gpu, clocks_event_reasons.active\n"
)


def sample(
    used: float,
    busy: object,
    power: object = 690.5,
    clock: object = 1755,
    heat: object = 61,
    bits: int = 4,
    at: str = "10:00:00",
) -> str:
    return f"2026/11/21 {at}.123, 0, {used}, 143771, {busy}, {power}, {clock}, {heat}, 0x{bits:016X}\n"


def written(folder: Path, *nodes: str) -> Path:
    for number, text in enumerate(nodes):
        (folder / f"gpus.node{number}.csv").write_text(HEADER + text)
    return folder


def metrics(folder: Path, log: str = "", warmup_iterations: int = 0) -> dict[str, MeasuredMetric]:
    facts = read_part(log.encode(), LogFacts(), True, warmup_iterations).facts
    return {
        metric.name: metric for metric in read_samples(folder, (facts.measured_from, facts.measured_until), 1).metrics
    }


def test_memory_is_the_maximum_of_all_gpus_and_power_the_median_of_busy_ones(tmp_path: Path) -> None:
    result = metrics(
        written(tmp_path, sample(1000, 0, 80) + sample(2000, 99, 600, 1700), sample(61000, 100, 700, 1800, heat=70))
    )
    assert result["gpu_memory_used_gb"].value == 61000 * 2**20 / 1e9
    assert (result["gpu_power_w"].value, result["gpu_power_w"].count) == (650, 2)
    assert result["gpu_clock_mhz"].value == 1750 and result["gpu_temperature_c"].value == 70


def test_slowdown_by_heat_differs_from_the_power_limit(tmp_path: Path) -> None:
    text = sample(1, 99, bits=0x4) + sample(1, 99, bits=0x4 | 0x40) + sample(1, 99, bits=0x1) + sample(1, 99, bits=0)
    result = metrics(written(tmp_path, text + sample(1, 3, bits=0x40)))
    assert result["gpu_power_capped_percent"].value == 50
    assert result["gpu_slowed_percent"].value == 25


def test_idle_gpu_has_only_a_memory_metric(tmp_path: Path) -> None:
    assert set(metrics(written(tmp_path, sample(5, 0)))) == {"gpu_memory_used_gb"}


def test_values_that_are_not_available_give_no_metric(tmp_path: Path) -> None:
    result = metrics(written(tmp_path, sample(5, 99, "[N/A]", "[N/A]", "N/A")))
    assert set(result) == {"gpu_memory_used_gb", "gpu_power_capped_percent", "gpu_slowed_percent"}


def iteration(number: int, at: str) -> str:
    return (
        f" [2026-11-21 {at}.994462] iteration {number:8d}/       8 | elapsed time per iteration (ms): 1057.1 |"
        " number of nan iterations:   0 |\n"
    )


def test_only_samples_of_the_measured_iterations_count(tmp_path: Path) -> None:
    written(tmp_path, sample(1, 100, 300, at="10:00:05") + sample(1, 100, 700, at="10:00:21"))
    assert metrics(tmp_path)["gpu_power_w"].value == 500
    log = "".join(iteration(number, f"10:00:{18 + number}") for number in range(1, 9))
    assert metrics(tmp_path, log)["gpu_power_w"].value == 700
    assert metrics(tmp_path, log, warmup_iterations=3)["gpu_power_w"].value == 700
    in_other_time_zone = log.replace("2026-11-21 10", "2026-11-21 18")
    assert metrics(tmp_path, in_other_time_zone)["gpu_power_w"].value == 500


def test_incomplete_lines_and_error_messages_are_no_samples(tmp_path: Path) -> None:
    written(tmp_path, sample(5, 99) + sample(80000, 99)[:-1], "bash: line 1: nvidia-smi: command not found\n")
    assert metrics(tmp_path)["gpu_memory_used_gb"].count == 1


def test_job_without_samples_has_no_gpu_metrics(tmp_path: Path) -> None:
    assert metrics(tmp_path) == metrics(tmp_path / "gone") == {}


@given(st.lists(st.one_of(st.binary(max_size=200), st.sampled_from([sample(5, 99).encode(), HEADER.encode()]))))
def test_any_bytes_in_a_sample_file_give_finite_numbers(tmp_path_factory, parts: list[bytes]) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("samples")
    (folder / "gpus.n.csv").write_bytes(b"".join(parts))
    for parsed in samples_of(folder):
        assert math.isfinite(parsed.memory_used_bytes) and math.isfinite(parsed.utilization_percent)
