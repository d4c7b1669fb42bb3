"""Metrics from nvidia-smi samples beside a job: memory, power, clocks, and throttling of its GPUs.

The job's script writes one file per node, `gpus.NODE.csv`, if the profile sets `sample_gpus_every_s`. A file may end
within a line, and contains an error message if the node has no nvidia-smi.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from orchestrator.files import open_job_file
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.reading.energy import MeanPower, PowerIntegral
from orchestrator.reading.facts import LogFacts
from orchestrator.reading.statistics import measured_metric, metric_of_samples

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


def read_samples(folder: Path, facts: LogFacts, gpus: int) -> SampledNumbers:
    """Return the metrics of all GPUs of a job with this number of GPUs; none without samples.

    Power (W) and clock (MHz) are medians over the samples of busy GPUs, memory (10^9 bytes) and temperature (degrees
    Celsius) the maximum, the rest shares of the busy samples. All but memory use the samples between the times in
    `facts`, if there are any: both clocks are the node's local time. Ranks that wait for one another at the start are
    busy too, and use half the power. Raise Unreadable or ReproError as `open_job_file` does.
    """
    start, end = (_time(text or "") for text in (facts.measured_from, facts.measured_until))
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
    return SampledNumbers([metric_of_samples("gpu_memory_used_gb", memory_gb), *busy], power.mean(gpus))


class _BusyGpus:
    """Values of busy GPUs. A large job has millions of samples, so a value takes 8 bytes."""

    def __init__(self) -> None:
        self.samples = 0
        self._busy = self._power_capped = self._slowed = 0
        self._power_w, self._clock_mhz, self._temperature_c = array("d"), array("d"), array("d")

    def add(self, sample: GpuSample) -> None:
        """Add a sample, if its GPU is busy."""
        self.samples += 1
        if not sample.is_busy:
            return
        self._busy += 1
        self._power_capped += bool(sample.reasons & _POWER_CAPPED)
        self._slowed += bool(sample.reasons & _SLOWED)
        for values, value in (
            (self._power_w, sample.power_w),
            (self._clock_mhz, sample.clock_mhz),
            (self._temperature_c, sample.temperature_c),
        ):
            if value is not None:
                values.append(value)

    def metrics(self) -> Iterator[MeasuredMetric]:
        """Yield the metrics of the samples that have values."""
        if self._power_w:
            yield metric_of_samples("gpu_power_w", self._power_w)
        if self._clock_mhz:
            yield metric_of_samples("gpu_clock_mhz", self._clock_mhz)
        if self._temperature_c:
            yield metric_of_samples("gpu_temperature_c", self._temperature_c)
        if self._busy:
            capped, slowed = 100 * self._power_capped / self._busy, 100 * self._slowed / self._busy
            yield measured_metric("gpu_power_capped_percent", capped, count=self._busy)
            yield measured_metric("gpu_slowed_percent", slowed, count=self._busy)


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
