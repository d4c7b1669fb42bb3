"""Metrics from nvidia-smi samples beside a job: memory, power, energy, clocks, and throttling of its GPUs.

The job's script writes one file per node, `gpus.NODE.csv`, if the profile sets `sample_gpus_every_s`. A file may end
within a line, and contains an error message if the node has no nvidia-smi.

nvidia-smi prints no energy counter (driver 580), only `power.draw`: on Ampere and newer the mean of the last second.
So the power is integrated. Compared with NVML's energy counter on an H200 under five alternating loads, the sum was
within 1.3 % with a sample every second, 2.2 % every two seconds, and up to 65 % off every three seconds, where the
samples can be in step with the load.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from orchestrator.files import open_job_file
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.programs.axes import SAMPLED
from orchestrator.reading.statistics import sample_that_counts
from orchestrator.text import counted

MOST_GAP_S = 3.0
"""Largest time between two samples of a GPU. A longer one voids the energy of the job."""
LEAST_SAMPLES = 2
"""Least number of samples of each GPU in the measured iterations."""


@dataclass(frozen=True, slots=True)
class MeanPower:
    """Mean power of all GPUs of a job over its measured iterations in W; None with the reason if it is not known."""

    power_w: float | None = None
    samples: int = 0
    unknown: str | None = None


@dataclass(slots=True)
class _Gpu:
    """Energy of a GPU so far, and its last sample."""

    at: datetime | None = None
    power_w: float = 0.0
    joules: float = 0.0
    samples: int = 0
    problem: str | None = None


class PowerIntegral:
    """Integral of the power of each GPU between two times, from samples in the order of their times."""

    def __init__(self, start: datetime | None, end: datetime | None) -> None:
        self._start, self._end = start, end
        self._gpus: dict[tuple[str, str], _Gpu] = {}

    def add(self, gpu: tuple[str, str], at: datetime | None, power_w: float | None) -> None:
        """Add a sample of a GPU, which is a node's file and an index."""
        state = self._gpus.setdefault(gpu, _Gpu())
        if at is None or power_w is None or self._start is None or self._end is None:
            return
        if state.at is not None and at < state.at:
            state.problem = "the clock went back"
        if self._start <= at <= self._end:
            state.samples += 1
            # Without a sample before the first iteration its power is taken from the first sample after it.
            before = (self._start, power_w) if state.at is None else (state.at, state.power_w)
            self._integrate(state, before, (at, power_w))
        elif state.at is not None and state.at < self._end and at > self._start:
            self._integrate(state, (state.at, state.power_w), (at, power_w))
        state.at, state.power_w = at, power_w

    def mean(self, gpus: int) -> MeanPower:
        """Return the mean power of this number of GPUs."""
        if not self._gpus:
            return MeanPower()
        if self._start is None or self._end is None:
            return MeanPower(unknown="the log has no times of the measured iterations")
        window_s = (self._end - self._start).total_seconds()
        if window_s < MOST_GAP_S:
            return MeanPower(unknown=f"the measured iterations took less than {MOST_GAP_S:g} s")
        if len(self._gpus) != gpus:
            return MeanPower(unknown=f"samples are of {counted(len(self._gpus), 'GPU')}, and the job has {gpus}")
        for (node, index), state in self._gpus.items():
            if state.at is not None and state.at < self._end:
                self._integrate(state, (state.at, state.power_w), (self._end, state.power_w))
            if state.samples < LEAST_SAMPLES and not state.problem:
                state.problem = f"{counted(state.samples, 'sample')} of its power in the measured iterations"
            if state.problem:
                return MeanPower(unknown=f"GPU {index} of {node}: {state.problem}")
        states = self._gpus.values()
        return MeanPower(sum(state.joules for state in states) / window_s, sum(state.samples for state in states))

    def _integrate(self, state: _Gpu, before: tuple[datetime, float], after: tuple[datetime, float]) -> None:
        """Add the part of a trapezoid that is between the two times."""
        assert self._start is not None and self._end is not None
        (begin, power_w), (end, next_power_w) = before, after
        gap_s = (end - begin).total_seconds()
        if gap_s > MOST_GAP_S and state.problem is None:
            state.problem = f"{gap_s:.1f} s without a sample of its power; at most {MOST_GAP_S:g} s are accepted"
        if gap_s <= 0:
            return
        low_s = max(0.0, (self._start - begin).total_seconds())
        high_s = min(gap_s, (self._end - begin).total_seconds())
        middle_w = power_w + (next_power_w - power_w) * (low_s + high_s) / 2 / gap_s
        state.joules += middle_w * (high_s - low_s)


BUSY_PERCENT = 50
"""Least utilization of a busy GPU. Other GPUs wait, so their power and clocks mean nothing."""

# Bits of nvmlClocksEventReasons (NVML API reference): the board's power limit; and slowdowns that a healthy machine
# never has: by hardware, by heat (software's limit, hardware's limit), by the power supply.
_POWER_CAPPED = 0x4
_SLOWED = 0x8 | 0x20 | 0x40 | 0x80

_IS_SAMPLES = re.compile(r"gpus\..+\.csv").fullmatch
_IS_INDEX = re.compile(r"[0-9]{1,4}").fullmatch

_MIB = 2**20
_FIELDS = 9
_LONGEST_LINE = 4096


@dataclass(frozen=True, slots=True)
class GpuSample:
    """State of a GPU at one time. `memory_used_bytes` includes other processes; `reasons` are NVML's bits.

    `gpu` is the GPU's node and index.
    """

    gpu: tuple[str, str]
    at: datetime | None
    memory_used_bytes: float
    utilization_percent: float
    power_w: float | None
    clock_mhz: float | None
    temperature_c: float | None
    reasons: int

    @property
    def is_busy(self) -> bool:
        """Return whether the GPU computes."""
        return self.utilization_percent >= BUSY_PERCENT


@dataclass(frozen=True, slots=True)
class SampledNumbers:
    """Metrics from the samples of a job, and the mean power of its GPUs."""

    metrics: list[MeasuredMetric]
    power: MeanPower


def read_samples(folder: Path, window: tuple[str | None, str | None], gpus: int) -> SampledNumbers:
    """Return the metrics of all GPUs of a job with this number of GPUs; none without samples.

    Power (W) and clock (MHz) are medians over the samples of busy GPUs, memory (10^9 bytes) and temperature (degrees
    Celsius) the maximum, the rest shares of the busy samples. All but memory use the samples of the `window`, the first
    and last time of the measured iterations, if they are known: both clocks are the node's local time. Ranks that wait
    for one another at the start are busy too, and use half the power. Raise Unreadable or ReproError as
    `open_job_file` does.
    """
    start, end = (_time(text or "") for text in window)
    memory_gb, measured, others, power = array("d"), _BusyGpus(), _BusyGpus(), PowerIntegral(start, end)
    for sample in samples_of(folder):
        memory_gb.append(sample.memory_used_bytes / 1e9)
        # The times of the log are whole seconds.
        is_measured = start and end and sample.at and start <= sample.at.replace(microsecond=0) <= end
        (measured if is_measured else others).add(sample)
        power.add(sample.gpu, sample.at, sample.power_w)
    if not memory_gb:
        return SampledNumbers([], MeanPower())
    busy = (measured if measured.samples else others).metrics()
    return SampledNumbers([_metric_of_samples("gpu_memory_used_gb", memory_gb), *busy], power.mean(gpus))


class _BusyGpus:
    """Values of busy GPUs. A large job has millions of samples, so a value takes 8 bytes."""

    def __init__(self) -> None:
        self.samples = 0
        self._busy = self._power_capped = self._slowed = 0
        self._values = {name: array("d") for name in ("gpu_power_w", "gpu_clock_mhz", "gpu_temperature_c")}

    def add(self, sample: GpuSample) -> None:
        """Add a sample, if its GPU is busy."""
        self.samples += 1
        if not sample.is_busy:
            return
        self._busy += 1
        self._power_capped += bool(sample.reasons & _POWER_CAPPED)
        self._slowed += bool(sample.reasons & _SLOWED)
        numbers = (sample.power_w, sample.clock_mhz, sample.temperature_c)
        for values, value in zip(self._values.values(), numbers, strict=True):
            if value is not None:
                values.append(value)

    def metrics(self) -> Iterator[MeasuredMetric]:
        """Yield the metrics of the samples that have values."""
        for name, values in self._values.items():
            if values:
                yield _metric_of_samples(name, values)
        if self._busy:
            capped, slowed = 100 * self._power_capped / self._busy, 100 * self._slowed / self._busy
            for name, share in (("gpu_power_capped_percent", capped), ("gpu_slowed_percent", slowed)):
                yield MeasuredMetric(name, share, SAMPLED[name].unit, None, self._busy)


def _metric_of_samples(name: str, values: Sequence[float]) -> MeasuredMetric:
    return sample_that_counts(name, SAMPLED[name].unit, SAMPLED[name].take, values)


def samples_of(folder: Path) -> Iterator[GpuSample]:
    """Yield every sample that can be read, node by node."""
    try:
        names = sorted(path.name for path in folder.iterdir() if _IS_SAMPLES(path.name))
    except OSError:  # no such folder; reading the log reports it
        return
    for name in names:
        file = open_job_file(folder, name)
        if file is None:
            continue
        with file:
            while line := file.readline(_LONGEST_LINE):
                sample = _sample(line.decode("ascii", errors="replace"), name[len("gpus.") : -len(".csv")])
                if sample is not None:
                    yield sample


def _sample(line: str, node: str) -> GpuSample | None:
    """Parse a line of a node's file; None for the heading, an error message or an incomplete line."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != _FIELDS or not line.endswith("\n"):
        return None
    at, index, used_mib, _, utilization, power_w, clock_mhz, temperature_c, reasons = fields
    used, busy = _number(used_mib), _number(utilization)
    if used is None or busy is None or not _IS_INDEX(index):
        return None
    try:
        bits = int(reasons, 16)
    except ValueError:  # "[N/A]" on a GPU that does not report reasons
        bits = 0
    numbers = _number(power_w), _number(clock_mhz), _number(temperature_c)
    return GpuSample((node, index), _time(at.replace("/", "-")), used * _MIB, busy, *numbers, bits)


def _time(text: str) -> datetime | None:
    """Parse `2026-01-16 15:22:22`, also with a fraction of a second."""
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f" if "." in text else "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None


def _number(text: str) -> float | None:
    """Parse an integer or a decimal of at most twelve characters; None for "[N/A]" and all other texts."""
    if len(text) > 12 or not text.replace(".", "", 1).isdecimal():
        return None
    return float(text)
