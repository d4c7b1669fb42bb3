"""The lines that Megatron-LM prints (as of core_v0.16), so that one parser reads its logs and ours."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from orchestrator.pretrain.arguments import TrainingArguments
from orchestrator.pretrain.layout import Layout

if TYPE_CHECKING:
    from orchestrator.pretrain.interval import IntervalSummary

ExecutionMode = Literal["graph", "eager"]

_TIME = "%Y-%m-%d %H:%M:%S.%f"


def world(layout: Layout) -> str:
    """Sizes of the parallel groups, to be held against the plan."""
    return (
        f"using world size: {layout.world_size}, data-parallel size: {layout.data_parallel}, "
        f"context-parallel size: {layout.context_parallel}, hierarchical context-parallel sizes: None, "
        f"tensor-model-parallel size: {layout.tensor_parallel}, "
        f"pipeline-model-parallel size: {layout.pipeline_parallel}"
    )


def vocabulary(arguments: TrainingArguments) -> str:
    """Rows of the embedding before and after padding."""
    padded = arguments.padded_vocab_size
    return (
        f" > padded vocab (size: {arguments.vocab_size}) with {padded - arguments.vocab_size} dummy tokens "
        f"(new size: {padded})"
    )


def parameters(tensor_rank: int, pipeline_rank: int, count: int) -> str:
    """Parameters of one rank; tied embeddings count on the first and on the last stage."""
    return (
        f" > number of parameters on (tensor, pipeline) model parallel rank ({tensor_rank}, {pipeline_rank}): {count}"
    )


def offloaded(tensor_rank: int, pipeline_rank: int, chunk: int, offloaded_mb: float, kept_mb: float) -> str:
    """What one chunk keeps of a microbatch for its backward pass, in MB (2^20 bytes), and what of it goes to the host.

    A line of ours: Megatron-LM prints none.
    """
    return (
        f" > activations on (tensor, pipeline) model parallel rank ({tensor_rank}, {pipeline_rank}), chunk {chunk}:"
        f" {offloaded_mb:.2f} of {kept_mb:.2f} MB per microbatch offloaded"
    )


def software(torch_version: str, megatron_version: str, backend: str, device: str) -> str:
    """What the numbers were measured with (a line of ours: Megatron-LM prints none)."""
    return (
        f" > software: torch {torch_version} | megatron-core {megatron_version} | backend {backend} | device {device}"
    )


def execution(mode: ExecutionMode) -> str:
    """Return the line with the execution mode: `graph` (iterations run as CUDA graphs) or `eager`.

    Megatron-LM prints no such line.
    """
    return f" > execution: {mode}"


def moment(what: str, now: datetime) -> str:
    """A mark of progress with its time, such as `after training is done`."""
    return f"[{what}] datetime: {now.strftime(_TIME)} "


def iteration(summary: IntervalSummary, arguments: TrainingArguments, now: datetime) -> str:
    """The line of one logging interval; the loss is absent where no step counted or it is not a number."""
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
    """Device memory of one rank in MB (2^20 bytes), from a name such as `max allocated` to its size."""
    sizes = " | ".join(f"{name}: {size_mb:.2f}" for name, size_mb in sizes_mb.items())
    return f"[Rank {rank}] (after {iteration} iterations) memory (MB) | {sizes}"
