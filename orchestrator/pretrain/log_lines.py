"""Log lines as Megatron-LM prints them (core_v0.16), and the summary of the iterations between two lines."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal, Protocol

from orchestrator.pretrain.arguments import RunLayout, TrainingArguments
from orchestrator.pretrain.environment import FOLDER, source_files, version_of

ExecutionMode = Literal["graph", "eager"]

_TIME = "%Y-%m-%d %H:%M:%S.%f"


@dataclass(frozen=True)
class StepResult:
    """One iteration: loss of the global batch (last stage only), gradient norm before clipping."""

    loss: float | None
    grad_norm: float | None
    updated: bool


@dataclass(frozen=True)
class IntervalSummary:
    """One logged interval: `iteration` is its last iteration, `elapsed_ms` the mean time per iteration.

    `host_wait_ms` is the mean time per iteration for which a GPU waited for the host, the largest over all ranks. It is
    None on CPUs.
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
        """Return one JSON line with every digit; NaN and Infinity as Python's json writes them."""
        return json.dumps(asdict(self))


class WaitTimer(Protocol):
    """Timer of the seconds for which the device waited for its host."""

    def restart(self) -> None:
        """Start a new measurement."""

    def finish(self) -> float:
        """End the measurement and return the seconds."""
        ...


class Interval:
    """Steps since the last log line. `largest` returns the largest of a number over all ranks."""

    def __init__(
        self,
        synchronize: Callable[[], None],
        largest: Callable[[float], float],
        host_wait: WaitTimer | None = None,
    ) -> None:
        self._synchronize, self._largest, self._host_wait = synchronize, largest, host_wait
        self.restart()

    def restart(self) -> None:
        """Start a new interval on all ranks at the same time, with no work left on the device."""
        self._losses: list[float] = []
        self._iterations = self._skipped = self._nan = 0
        self._grad_norm: float | None = None
        self._synchronize()
        self._largest(0.0)
        if self._host_wait is not None:
            self._host_wait.restart()
        self._start = time.perf_counter()

    def add(self, step: StepResult) -> None:
        """Count one iteration. As in Megatron-LM, a skipped iteration adds no loss."""
        self._iterations += 1
        self._grad_norm = step.grad_norm
        if step.updated and step.loss is not None:
            self._losses.append(step.loss)
        self._skipped += not step.updated
        numbers = (step.loss, step.grad_norm)
        self._nan += any(number is not None and not math.isfinite(number) for number in numbers)

    def finish(self, iteration: int, loss_scale: float) -> IntervalSummary:
        """Return the summary with the elapsed time of the slowest rank. All ranks must call it."""
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


def world(layout: RunLayout) -> str:
    """Return the line with the sizes of the parallel groups. The log reader compares it with the plan."""
    return (
        f"using world size: {layout.world_size}, data-parallel size: {layout.data_parallel}, "
        f"context-parallel size: {layout.context_parallel}, hierarchical context-parallel sizes: None, "
        f"tensor-model-parallel size: {layout.tensor_parallel}, "
        f"pipeline-model-parallel size: {layout.pipeline_parallel}"
    )


def vocabulary(arguments: TrainingArguments) -> str:
    """Return the line with the rows of the embedding before and after padding."""
    padded = arguments.padded_vocab_size
    return (
        f" > padded vocab (size: {arguments.vocab_size}) with {padded - arguments.vocab_size} dummy tokens "
        f"(new size: {padded})"
    )


def parameters(tensor_rank: int, pipeline_rank: int, count: int) -> str:
    """Return the line with one rank's parameters. Tied embeddings count on the first and the last stage."""
    return (
        f" > number of parameters on (tensor, pipeline) model parallel rank ({tensor_rank}, {pipeline_rank}): {count}"
    )


def offloaded(tensor_rank: int, pipeline_rank: int, chunk: int, offloaded_mb: float, kept_mb: float) -> str:
    """Return the line with one chunk's activations per microbatch, and their offloaded part, in MB (2^20 bytes).

    Megatron-LM prints no such line.
    """
    return (
        f" > activations on (tensor, pipeline) model parallel rank ({tensor_rank}, {pipeline_rank}), chunk {chunk}:"
        f" {offloaded_mb:.2f} of {kept_mb:.2f} MB per microbatch offloaded"
    )


def software(torch_version: str, megatron_version: str, backend: str, device: str) -> str:
    """Return the line with the software versions. Megatron-LM prints no such line."""
    return (
        f" > software: torch {torch_version} | megatron-core {megatron_version} | backend {backend} | device {device}"
    )


def program() -> str:
    """Return the line with the version of this program and the folder that it was imported from.

    The log reader compares the version with the recorded one. Megatron-LM prints no such line.
    """
    return f" > program: {version_of(source_files())} in {FOLDER}"


def execution(mode: ExecutionMode) -> str:
    """Return the line with the execution mode: `graph` (iterations run as CUDA graphs) or `eager`.

    Megatron-LM prints no such line.
    """
    return f" > execution: {mode}"


def moment(event: str, now: datetime) -> str:
    """Return the line with the time of an event, such as `after training is done`."""
    return f"[{event}] datetime: {now.strftime(_TIME)} "


def iteration(summary: IntervalSummary, arguments: TrainingArguments, now: datetime) -> str:
    """Return the line of one interval. It has no loss if all iterations were skipped or the loss is not a number."""
    parts = [
        f" [{now.strftime(_TIME)}] iteration {summary.iteration:8d}/{arguments.train_iters:8d}",
        f"consumed samples: {summary.iteration * arguments.global_batch_size:12d}",
        f"elapsed time per iteration (ms): {summary.elapsed_ms:.1f}",
        *([] if summary.host_wait_ms is None else [f"host wait per iteration (ms): {summary.host_wait_ms:.1f}"]),
        f"learning rate: {arguments.lr:.6E}",
        f"global batch size: {arguments.global_batch_size:5d}",
    ]
    if summary.loss is not None and summary.loss > 0:
        parts.append(f"lm loss: {summary.loss:.6E}")
    parts.append(f"loss scale: {summary.loss_scale:.1f}")
    if summary.grad_norm is not None:
        parts.append(f"grad norm: {summary.grad_norm:.3f}")
    parts += [
        f"number of skipped iterations: {summary.skipped:3d}",
        f"number of nan iterations: {summary.nan:3d}",
    ]
    return " | ".join(parts) + " |"


def memory(rank: int, iteration: int, sizes_mb: dict[str, float]) -> str:
    """Return the line with one rank's device memory in MB (2^20 bytes). Keys are names such as `max allocated`."""
    sizes = " | ".join(f"{name}: {size_mb:.2f}" for name, size_mb in sizes_mb.items())
    return f"[Rank {rank}] (after {iteration} iterations) memory (MB) | {sizes}"
