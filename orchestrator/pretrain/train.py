"""Training loop: mock data, forward and backward passes over the layout's schedule, optimizer steps, log lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial

import megatron.core
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.transformer import TransformerConfig

from orchestrator.pretrain import log_lines
from orchestrator.pretrain.activations import Offload
from orchestrator.pretrain.arguments import RunLayout, TrainingArguments, microbatch_slots
from orchestrator.pretrain.graph import (
    ChunkGraphs,
    Exchange,
    GraphedIteration,
    GraphedPipeline,
    HostWait,
    Losses,
    Microbatch,
    graph_scope,
    idle_graph_bytes,
    run_chunk,
    use_own_stream,
)
from orchestrator.pretrain.layers import take_share
from orchestrator.pretrain.log_lines import Interval, IntervalSummary, StepResult
from orchestrator.pretrain.model import ModelAndOptimizer, build, start_model_parallel, transformer_config

# Memory is printed with the first log lines (after the first step, and once optimizer states exist) and with the last.
_MEMORY_LINES = 2
_MIB = 2**20

LossFunction = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
ForwardStep = Callable[[Iterator[Microbatch], torch.nn.Module], tuple[torch.Tensor, LossFunction]]


_LARGEST_STRIDE = 3


class Batches:
    """Microbatches of this rank, of mock data. `draw` selects the next global batch.

    The data depend only on seed and iteration, so that every layout trains on the same samples.
    """

    def __init__(self, arguments: TrainingArguments, layout: RunLayout, device: torch.device) -> None:
        self._arguments, self._layout = arguments, layout
        self._iteration = 0
        column = (arguments.global_batch_size, 1)
        # Overwritten in place: a CUDA graph reads every batch from the addresses of the first.
        self._start = torch.empty(column, dtype=torch.int64, device=device)
        self._stride = torch.empty_like(self._start)
        self._positions = torch.arange(arguments.seq_length + 1, device=device)

    def draw(self) -> None:
        """Generate the next iteration's global batch."""
        start, stride = _samples(self._arguments, self._iteration)
        self._start.copy_(start)
        self._stride.copy_(stride)
        self._iteration += 1

    def microbatches(self) -> Iterator[Microbatch]:
        """Yield the microbatches of the current global batch in an endless loop."""
        size, count = self._arguments.micro_batch_size, self._layout.num_microbatches
        first = int(parallel_state.get_data_parallel_rank()) * size * count
        while True:
            for begin in range(first, first + size * count, size):
                rows = slice(begin, begin + size)
                tokens = (self._start[rows] + self._stride[rows] * self._positions) % self._arguments.vocab_size
                yield _microbatch(tokens, self._positions[:-1].expand(size, -1), self._layout)


def _samples(arguments: TrainingArguments, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return first token and stride of each sequence, [batch, 1]. Sequences are arithmetic, so the loss can fall."""
    generator = torch.Generator().manual_seed(arguments.seed * 1_000_003 + iteration)
    column = (arguments.global_batch_size, 1)
    start = torch.randint(0, arguments.vocab_size, column, generator=generator)
    return start, torch.randint(1, _LARGEST_STRIDE + 1, column, generator=generator)


def _microbatch(sequences: torch.Tensor, positions: torch.Tensor, layout: RunLayout) -> Microbatch:
    """Return this context-parallel rank's share of sequences [micro batch, sequence + 1]."""
    rank = parallel_state.get_context_parallel_rank()

    def share(whole: torch.Tensor) -> torch.Tensor:
        return take_share(whole, rank, layout.context_parallel, dim=1).contiguous()

    return Microbatch(tokens=share(sequences[:, :-1]), position_ids=share(positions), labels=share(sequences[:, 1:]))


def pretrain(arguments: TrainingArguments, device: torch.device) -> None:
    """Train once in the existing process group. Megatron-Core's process groups last as long as the run."""
    layout = RunLayout.of(arguments, dist.get_world_size())
    graphed = graph_scope(arguments, device) is not None
    if graphed:
        use_own_stream(device)
    start_model_parallel(layout, arguments.seed, recordable=graphed)
    try:
        _print_layout(arguments, layout, device)
        if layout.virtual_stages > 1:
            open_connections(transformer_config(arguments, layout, device))
        model = build(arguments, layout, device)
        if _holds_first_replica():
            _print(log_lines.parameters(*_model_parallel_ranks(), model.num_parameters))
        train(arguments, layout, model, device)
    finally:
        parallel_state.destroy_model_parallel()


def train(arguments: TrainingArguments, layout: RunLayout, model: ModelAndOptimizer, device: torch.device) -> None:
    """Run all iterations and print a line per logging interval."""
    batches = Batches(arguments, layout, device)
    forward_backward = passes_of_an_iteration(arguments, layout, model, batches, device)
    with ExitStack() as stack:
        record = None
        if arguments.record and _is_last_rank():
            arguments.record.parent.mkdir(parents=True, exist_ok=True)
            record = stack.enter_context(arguments.record.open("w"))
        _print_once(log_lines.moment("before the start of training step", datetime.now()))
        host_wait = stack.enter_context(HostWait(device)) if device.type == "cuda" else None
        interval = Interval(partial(_synchronize, device), partial(_largest, device), host_wait)
        lines = 0
        for iteration in range(1, arguments.train_iters + 1):
            batches.draw()
            interval.add(train_step(model, forward_backward))
            if iteration == 1 and arguments.offload_activation_ratio:
                _print_offloaded(model)
            if iteration % arguments.log_interval and iteration != arguments.train_iters:
                continue
            summary = interval.finish(iteration, float(model.optimizer.get_loss_scale()))
            lines += 1
            with_memory = lines <= _MEMORY_LINES or iteration == arguments.train_iters
            _print_interval(arguments, summary, device, with_memory=with_memory)
            if record:
                print(summary.as_json(), file=record, flush=True)
            interval.restart()
    _print_once(log_lines.moment("after training is done", datetime.now()))


def train_step(model: ModelAndOptimizer, forward_backward: Callable[[], Losses]) -> StepResult:
    """Run one iteration over the global batch: gradients reduced over the data-parallel ranks, then Adam."""
    for chunk in model.chunks:
        chunk.zero_grad_buffer()
    model.optimizer.zero_grad()
    losses = forward_backward()
    updated, grad_norm, _ = model.optimizer.step()
    return StepResult(
        loss=_mean_over_data(losses) if losses else None,
        grad_norm=None if grad_norm is None else float(grad_norm),
        updated=bool(updated),
    )


def passes_of_an_iteration(
    arguments: TrainingArguments, layout: RunLayout, model: ModelAndOptimizer, batches: Batches, device: torch.device
) -> Callable[[], Losses]:
    """Return a function that runs one iteration's passes and returns the microbatches' losses."""
    scope = graph_scope(arguments, device)
    if scope == "chunk":
        graphs = chunk_graphs(layout, model.chunks, batches)
        for part in graphs:
            part.warm_up()
        return GraphedPipeline(schedule(arguments, layout, model.chunks, batches, graphed_step(graphs)), graphs)
    run = schedule(arguments, layout, model.chunks, batches, forward_step)
    return GraphedIteration(run) if scope == "iteration" else run


def open_connections(config: TransformerConfig) -> None:
    """Send one number around the pipeline's stages, so that each stage opens its connections to both neighbours.

    The interleaved schedule does not batch its sends and receives. The first one between two ranks opens a communicator
    of NCCL. In the first iteration each stage would do this only after the stage before it.
    """
    number = torch.zeros(1, dtype=config.pipeline_dtype, device=torch.cuda.current_device())
    P2PCommunicator(parallel_state.get_pipeline_model_parallel_group(), config).send_forward_recv_forward(
        number, recv_prev=True, tensor_shape=number.shape
    )


def schedule(
    arguments: TrainingArguments,
    layout: RunLayout,
    chunks: Sequence[torch.nn.Module],
    batches: Batches,
    step: ForwardStep,
) -> Callable[[], Losses]:
    """Return a function that runs one iteration in Megatron-Core's schedule and returns the microbatches' losses."""
    data = [batches.microbatches() for _ in chunks]
    interleaved = len(chunks) > 1
    return partial(
        get_forward_backward_func(),
        forward_step_func=step,
        data_iterator=data if interleaved else data[0],
        model=list(chunks) if interleaved else chunks[0],
        num_microbatches=layout.num_microbatches,
        seq_length=arguments.seq_length,
        micro_batch_size=arguments.micro_batch_size,
        forward_only=False,
    )


def forward_step(data: Iterator[Microbatch], chunk: torch.nn.Module) -> tuple[torch.Tensor, LossFunction]:
    """Run one microbatch through one chunk. The schedule calls the loss function on the last stage."""
    return run_chunk(chunk, next(data)), sum_of_losses


def chunk_graphs(layout: RunLayout, chunks: Sequence[torch.nn.Module], batches: Batches) -> list[ChunkGraphs]:
    """Return the graphs of this stage's chunks, with nothing recorded yet."""
    stage = parallel_state.get_pipeline_model_parallel_rank()
    sizes = layout.pipeline_parallel, layout.virtual_stages, layout.num_microbatches
    example, exchange = next(batches.microbatches()), Exchange()
    return [
        ChunkGraphs(chunk, slots, example, exchange)
        for chunk, slots in zip(chunks, microbatch_slots(*sizes, stage), strict=True)
    ]


def graphed_step(graphs: Sequence[ChunkGraphs]) -> ForwardStep:
    """Return `forward_step` for chunks whose passes are recorded."""
    by_chunk = {id(part.chunk): part for part in graphs}

    def step(data: Iterator[Microbatch], chunk: torch.nn.Module) -> tuple[torch.Tensor, LossFunction]:
        return by_chunk[id(chunk)].run(next(data)), sum_of_losses

    return step


def sum_of_losses(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sum of the tokens' losses [b, s], the number of tokens, and the mean for the log."""
    losses = losses.float()
    num_tokens = torch.full((), losses.numel(), dtype=torch.int, device=losses.device)
    # With two outputs (mean, and mean for the log) the schedule would multiply gradients by the context-parallel size.
    return losses.sum(), num_tokens, losses.detach().mean()


def _mean_over_data(losses: Losses) -> float:
    """Return the mean loss of the global batch. Every data- and context-parallel rank of the last stage calls it."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean, group=group)
    return mean.item() / dist.get_world_size(group)


def _largest(device: torch.device, value: float) -> float:
    tensor = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.item()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _print_layout(arguments: TrainingArguments, layout: RunLayout, device: torch.device) -> None:
    _print_once(log_lines.world(layout))
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    _print_once(log_lines.software(torch.__version__, megatron.core.__version__, dist.get_backend(), device_name))
    _print_once(log_lines.execution("eager" if graph_scope(arguments, device) is None else "graph"))
    _print_once(log_lines.vocabulary(arguments))


def _print_offloaded(model: ModelAndOptimizer) -> None:
    if _holds_first_replica():
        parts = (getattr(part, "offload", None) for chunk in model.chunks for part in chunk.modules())
        for i, offload in enumerate(part for part in parts if isinstance(part, Offload)):
            sizes_mb = offload.offloaded_bytes / _MIB, offload.kept_bytes / _MIB
            _print(log_lines.offloaded(*_model_parallel_ranks(), i, *sizes_mb))


def _model_parallel_ranks() -> tuple[int, int]:
    return (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_rank(),
    )


def _print_interval(
    arguments: TrainingArguments, summary: IntervalSummary, device: torch.device, *, with_memory: bool
) -> None:
    if _is_last_rank():
        _print(log_lines.iteration(summary, arguments, datetime.now()))
    if with_memory and device.type == "cuda" and _holds_first_replica():
        _print(log_lines.memory(dist.get_rank(), summary.iteration, _memory_mb()))


def _memory_mb() -> dict[str, float]:
    """Return sizes in MiB. Memory that graphs hold for their replays counts as allocated; torch counts it as free."""
    allocated = torch.cuda.memory_allocated() + idle_graph_bytes()
    return {
        "allocated": allocated / _MIB,
        "max allocated": max(allocated, torch.cuda.max_memory_allocated()) / _MIB,
        "reserved": torch.cuda.memory_reserved() / _MIB,
        "max reserved": torch.cuda.max_memory_reserved() / _MIB,
    }


def _print_once(line: str) -> None:
    if dist.get_rank() == 0:
        _print(line)


def _print(line: str) -> None:
    """Print the line and its end in one write, so that lines of two ranks on one pipe do not mix."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _is_last_rank() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def _holds_first_replica() -> bool:
    """Return whether this rank has data- and context-parallel rank 0. These ranks print for their model share."""
    return bool(parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0)
