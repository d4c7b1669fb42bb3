"""What nvidia-smi wrote down beside a job -> metrics of its GPUs: memory, power, clocks, and what held them back.

One file per node, `gpus.NODE.csv`, that the job's script leaves beside the log where a profile asks for it
(`sample_gpus_every_s`). A file may end in the middle of a line, and holds a complaint where a node has no nvidia-smi.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from orchestrator.job_dir import open_job_file
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.reading.logs import log_files

BUSY_PERCENT = 50
"""Of utilization: a GPU that shows less waits for the start, the end, or another; its power and clocks say nothing."""

# Bits of nvmlClocksEventReasons (NVML API reference): the board's power limit; and what a healthy machine never shows:
# slowed by the hardware, by heat (software's limit, hardware's limit), by the power supply.
_POWER_CAPPED = 0x4
_SLOWED = 0x8 | 0x20 | 0x40 | 0x80

_IS_SAMPLES = re.compile(r"gpus\..+\.csv").fullmatch

_MIB = 2**20
_FIELDS = 9
_LONGEST_LINE = 4096

# An iteration line's own time, which Megatron-LM prints since core_v0.6.0; as nvidia-smi's it is the node's local one.
_TIMED = re.compile(rb"\[([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8})[.0-9]{0,7}\] iteration +([0-9]{1,9})/")

Window = tuple[datetime, datetime]
"""From the end of the warm-up to that of the training."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """A GPU at one moment. `memory_used_bytes` is the whole GPU's, whoever uses it; `reasons` are NVML's bits."""

    at: datetime | None
    memory_used_bytes: float
    utilization_percent: float
    power_w: float | None
    clock_mhz: float | None
    temperature_c: float | None
    reasons: int

    @property
    def is_busy(self) -> bool:
        return self.utilization_percent >= BUSY_PERCENT


def sampled_metrics(folder: Path, warmup_iterations: int = 0) -> list[MeasuredMetric]:
    """The metrics of all GPUs of a job; none where nothing was sampled.

    Unreadable or ReproError as `open_job_file`. Power (W) and clock (MHz) are medians over the samples of busy GPUs,
    memory (10^9 bytes) and temperature (degrees Celsius) the largest, the rest shares of the busy samples. Where the
    log tells the time, and by the same clock, all but memory is that of the time after the warm-up: ranks that wait for
    one another as they start are busy too, and use half the power.
    """
    samples = list(samples_of(folder))
    if not samples:
        return []
    window = _measured_window(folder, warmup_iterations)
    within = [one for one in samples if window and one.at and window[0] <= one.at <= window[1]]
    found = [_largest("gpu_memory_used_gb", [sample.memory_used_bytes / 1e9 for sample in samples], "GB")]
    busy = [sample for sample in within or samples if sample.is_busy]
    power_w = [sample.power_w for sample in busy if sample.power_w is not None]
    clock_mhz = [sample.clock_mhz for sample in busy if sample.clock_mhz is not None]
    temperature_c = [sample.temperature_c for sample in busy if sample.temperature_c is not None]
    found += [_typical("gpu_power_w", power_w, "W")] if power_w else []
    found += [_typical("gpu_clock_mhz", clock_mhz, "MHz")] if clock_mhz else []
    found += [_largest("gpu_temperature_c", temperature_c, "degC")] if temperature_c else []
    found += [_share("gpu_power_capped_percent", busy, _POWER_CAPPED), _share("gpu_slowed_percent", busy, _SLOWED)]
    return [metric for metric in found if metric.count]


def samples_of(folder: Path) -> Iterator[GpuSample]:
    """Every sample that can be read, node by node."""
    try:
        names = sorted(path.name for path in folder.iterdir() if _IS_SAMPLES(path.name))
    except OSError:  # no such folder: whoever reads its log says so
        return
    for name in names:
        file = open_job_file(folder, name)
        if file is None:
            continue
        with file:
            while line := file.readline(_LONGEST_LINE):
                sample = _sample(line.decode("ascii", errors="replace"))
                if sample is not None:
                    yield sample


def _sample(line: str) -> GpuSample | None:
    """None for the header, for a complaint and for a line cut short."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != _FIELDS or not line.endswith("\n"):
        return None
    at, _, used_mib, _, utilization, power_w, clock_mhz, temperature_c, reasons = fields
    used, busy = _number(used_mib), _number(utilization)
    if used is None or busy is None:
        return None
    try:
        bits = int(reasons, 16)
    except ValueError:  # "[N/A]" on a GPU that does not tell
        bits = 0
    numbers = _number(power_w), _number(clock_mhz), _number(temperature_c)
    return GpuSample(_moment(at.partition(".")[0], "%Y/%m/%d %H:%M:%S"), used * _MIB, busy, *numbers, bits)


def _measured_window(folder: Path, warmup_iterations: int) -> Window | None:
    """From the last line of the warm-up (at least the first of all) to the last; None where lines have no time."""
    first, last = b"", b""
    for file in log_files(folder):
        for block in file.blocks():
            for match in _TIMED.finditer(block):
                if not first or int(match[2]) <= warmup_iterations:
                    first = match[1]
                last = match[1]
    began, ended = (_moment(text.decode(), "%Y-%m-%d %H:%M:%S") for text in (first, last))
    return (began, ended) if began and ended else None


def _moment(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text, form)
    except ValueError:
        return None


def _number(text: str) -> float | None:
    """A count or a decimal of at most twelve characters; None for "[N/A]" and everything else."""
    if len(text) > 12 or not text.replace(".", "", 1).isdecimal():
        return None
    return float(text)


def _typical(name: str, values: Sequence[float], unit: str) -> MeasuredMetric:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (0.0, 0.0, 0.0)
    return MeasuredMetric(name, statistics.median(values), unit, (high - low) / 2, len(values))


def _largest(name: str, values: Sequence[float], unit: str) -> MeasuredMetric:
    return MeasuredMetric(name, max(values), unit, None, len(values))


def _share(name: str, busy: Sequence[GpuSample], bits: int) -> MeasuredMetric:
    """How often one of these reasons held a busy GPU back, in percent of its samples."""
    held = sum(1 for sample in busy if sample.reasons & bits)
    return MeasuredMetric(name, 100 * held / len(busy) if busy else 0.0, "%", None, len(busy))
