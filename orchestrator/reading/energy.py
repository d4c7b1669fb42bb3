"""Energy of the measured iterations from samples of the power of each GPU.

nvidia-smi prints no energy counter (driver 580), only `power.draw`: on Ampere and newer the mean of the last second.
So the power is integrated. Compared with NVML's energy counter on an H200 under five alternating loads, the sum was
within 1.3 % with a sample every second, 2.2 % every two seconds, and up to 65 % off every three seconds, where the
samples can be in step with the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.reading.statistics import measured_metric
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


def joules(power: MeanPower, numbers: Sequence[MeasuredMetric]) -> list[MeasuredMetric]:
    """Return the energy of an iteration and of a token in J: the mean power times the times behind the throughput."""
    by_name = {metric.name: metric for metric in numbers}
    timing, rate = by_name.get("iteration_ms"), by_name.get("tokens_per_s")
    if power.power_w is None or timing is None:
        return []
    per_iteration = power.power_w * timing.value / 1e3
    energy = [measured_metric("joules_per_iteration", per_iteration, count=power.samples)]
    if rate is not None and rate.value:
        energy.append(measured_metric("joules_per_token", power.power_w / rate.value, count=power.samples))
    return energy
