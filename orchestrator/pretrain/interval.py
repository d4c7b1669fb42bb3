"""What happened between two log lines: mean loss, time per iteration, iterations that were skipped or not finite."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol


@dataclass(frozen=True)
class StepResult:
    """One iteration: the loss of the global batch (on the last stage only), the gradient norm before clipping."""

    loss: float | None
    grad_norm: float | None
    updated: bool


@dataclass(frozen=True)
class IntervalSummary:
    """One logged interval. `iteration` is its last iteration, `elapsed_ms` the mean time of its iterations.

    `host_wait_ms` is the mean time per iteration for which a GPU waited for the host, the largest over all ranks; None
    where it is not measured, as on CPUs.
    """

    iteration: int
    elapsed_ms: float
    loss: float | None
    loss_scale: float
    grad_norm: float | None
    skipped: int
    nan: int
    host_wait_ms: float | None = None

    def as_json(self) -> str:
        """One line with every digit; what is not finite is written as Python's json does: NaN, Infinity."""
        return json.dumps(asdict(self))


class WaitTimer(Protocol):
    """Measures the time in seconds for which the device waited for its host."""

    def restart(self) -> None: ...

    def finish(self) -> float: ...


class Interval:
    """Gathers steps until the next log line. `largest` returns the largest of a number over all ranks."""

    def __init__(
        self,
        synchronize: Callable[[], None],
        largest: Callable[[float], float],
        host_wait: WaitTimer | None = None,
    ) -> None:
        self._synchronize, self._largest, self._host_wait = synchronize, largest, host_wait
        self.restart()

    def restart(self) -> None:
        """Start anew, on all ranks at the same moment and with no work left on the device."""
        self._losses: list[float] = []
        self._iterations = self._skipped = self._nan = 0
        self._grad_norm: float | None = None
        self._synchronize()
        self._largest(0.0)
        if self._host_wait is not None:
            self._host_wait.restart()
        self._start = time.perf_counter()

    def add(self, step: StepResult) -> None:
        """Count one iteration. Like Megatron-LM, a skipped one adds no loss."""
        self._iterations += 1
        self._grad_norm = step.grad_norm
        if step.updated and step.loss is not None:
            self._losses.append(step.loss)
        self._skipped += not step.updated
        numbers = (step.loss, step.grad_norm)
        self._nan += any(number is not None and not math.isfinite(number) for number in numbers)

    def finish(self, iteration: int, loss_scale: float) -> IntervalSummary:
        """Sum up, with the elapsed time of the slowest rank; all ranks must call it."""
        self._synchronize()
        elapsed_s = time.perf_counter() - self._start
        host_wait_s = None if self._host_wait is None else self._largest(self._host_wait.finish())
        elapsed_s = self._largest(elapsed_s)
        return IntervalSummary(
            iteration=iteration,
            elapsed_ms=elapsed_s * 1000 / self._iterations,
            loss=sum(self._losses) / len(self._losses) if self._losses else None,
            loss_scale=loss_scale,
            grad_norm=self._grad_norm,
            skipped=self._skipped,
            nan=self._nan,
            host_wait_ms=None if host_wait_s is None else host_wait_s * 1000 / self._iterations,
        )
