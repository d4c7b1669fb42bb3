"""Memory of one rank of a job, counted on tensors without data, with Megatron-Core's model, buffers and schedule.

`python -m orchestrator.planning.meta_memory` reads jobs and writes results, one JSON line each; `exact` starts it. A
fake process group replaces the other ranks. The replacements made here are permanent for the process.
"""

from __future__ import annotations

import functools
import gc
import io
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, replace
from inspect import signature
from types import ModuleType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from orchestrator.planning.exact import ExactJob, RankMemory
from orchestrator.planning.meta_tensors import META, LiveBytes
from orchestrator.pretrain.arguments import RunLayout, TrainingArguments, parse_arguments, refusals
from orchestrator.pretrain.environment import quick_imports

if TYPE_CHECKING:
    from megatron.core.distributed import DistributedDataParallel

_GPU = torch.device("cuda")  # only its name is used, to select the options for a GPU

P = ParamSpec("P")
R = TypeVar("R")


def plan_rank(job: ExactJob, arguments: TrainingArguments, rank: int) -> RankMemory:
    """Build the rank's model and run the part of an iteration that reaches the peak."""
    from megatron.core import parallel_state

    from orchestrator.pretrain import model

    layout = RunLayout.of(arguments, job.world_size)
    dist.init_process_group("cpu:fake,meta:fake", rank=rank, world_size=job.world_size, store=FakeStore())
    try:
        model.start_model_parallel(layout, arguments.seed)
        return _plan(job, arguments, layout, rank)
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _plan(job: ExactJob, arguments: TrainingArguments, layout: RunLayout, rank: int) -> RankMemory:
    from megatron.core import parallel_state
    from megatron.core.distributed import finalize_model_grads

    from orchestrator.pretrain import model

    stage = parallel_state.get_pipeline_model_parallel_rank()
    config = model.transformer_config(arguments, layout, _GPU)
    config.masked_softmax_fusion = job.attention == "unfused"
    config.deallocate_pipeline_outputs = job.frees_outputs
    config.finalize_model_grads_func = finalize_model_grads
    _choose_attention(job, arguments)
    with LiveBytes() as live:
        with META:
            chunks = model.build_chunks(arguments, layout, config, META)
        chunks = model.wrap_chunks(arguments, config, chunks)
        model.connect_overlap(arguments, config, chunks)
        gc.collect()
        live.restart()
        state = live.now
        _run(arguments, replace(layout, num_microbatches=_enough_microbatches(layout, stage)), chunks, live)
    return RankMemory(
        rank=rank,
        pipeline_rank=stage,
        parameters=sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters()),
        weights_and_gradients_bytes=state,
        optimizer_bytes=_optimizer_bytes(arguments, chunks),
        activations_peak_bytes=live.peak - state,
    )


def _run(
    arguments: TrainingArguments, layout: RunLayout, chunks: list[DistributedDataParallel], live: LiveBytes
) -> None:
    """Run one iteration in Megatron-Core's schedule, then record the graphs that a GPU would record."""
    from orchestrator.pretrain.graph import graph_scope
    from orchestrator.pretrain.train import Batches, chunk_graphs, forward_step, graphed_step, schedule

    batches = Batches(arguments, layout, META)
    if graph_scope(arguments, _GPU) != "chunk":
        schedule(arguments, layout, chunks, batches, forward_step)()
        return
    graphs = chunk_graphs(layout, chunks, batches)
    schedule(arguments, layout, chunks, batches, graphed_step(graphs))()
    gc.collect()
    for part in graphs:
        part.record(live.record)


def _enough_microbatches(layout: RunLayout, stage: int) -> int:
    """Return the number of microbatches after which further ones only repeat the steady state.

    Stage r of p runs p - r - 1 microbatches ahead of its first backward pass. With v chunks stage 0 runs (v + 1) p - 2
    passes of one chunk ahead, and a chunk's own first backward pass comes up to (v - 1) p later: together the 2 v p
    passes of 2 p microbatches.
    """
    stages = layout.pipeline_parallel
    return min(layout.num_microbatches, 2 * stages if layout.virtual_stages > 1 else stages - stage + 1)


def _optimizer_bytes(arguments: TrainingArguments, chunks: list[DistributedDataParallel]) -> int:
    """Return the bytes of Adam's two fp32 moments and the fp32 copy of 16-bit weights: 8 or 12 per parameter.

    With the distributed optimizer each data-parallel rank has a share of every gradient buffer, with padding.
    """
    parameter_bytes = 8 if arguments.precision == "fp32" else 12
    buffers = [buffer for chunk in chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    if arguments.use_distributed_optimizer:
        return sum(parameter_bytes * buffer.numel // buffer.data_parallel_world_size for buffer in buffers)
    return sum(parameter_bytes * parameter.numel() for chunk in chunks for parameter in chunk.parameters())


def prepare() -> None:
    """Import Megatron-Core, adapted to tensors without data and with the kernels of a GPU. Call it once."""
    warnings.filterwarnings("ignore")
    from orchestrator.pretrain import rank

    _add_extensions()
    _import_with_compiled()
    rank.redirect_cuda(META)
    _skip_other_groups()
    from orchestrator.pretrain import layers, model

    _replace(model, "fill_weights", lambda *_: None)  # meta tensors have no data
    # Each is one kernel on a GPU.
    _replace(layers.Fused, "__call__", lambda self, *tensors: _compiled(self.function)(*tensors))
    norm = layers.RootMeanSquare
    _replace(norm, "forward", staticmethod(_compiled(norm.forward)))
    _replace(norm, "backward", staticmethod(_compiled(norm.backward)))
    # Dropout on CUDA keeps a mask of one byte; on other devices the mask has the input's type.
    _DROPOUT.impl("dropout", _dropout, "AutogradMeta")  # type: ignore[no-untyped-call]


_DROPOUT = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # the registration lasts as long as the object


def _dropout(tensor: torch.Tensor, probability: float, train: bool) -> torch.Tensor:
    return torch.native_dropout(tensor, probability, train)[0] if train and probability else tensor


def _replace(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


def _import_with_compiled() -> None:
    """Import Megatron-Core with the functions that it compiles for a GPU marked as such."""
    compile_before = torch.compile
    _replace(torch, "compile", _compiled)
    try:
        import megatron.core  # noqa: F401
    finally:
        _replace(torch, "compile", compile_before)


def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Count only a function's results and the tensors kept for the backward pass, not its intermediates."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        live = LiveBytes.counting
        if live is None:
            return function(*args, **kwargs)
        live.compiled_depth += 1
        try:
            results = function(*args, **kwargs)
        finally:
            live.compiled_depth -= 1
        live.note_peak()
        return results

    return run


def _skip_other_groups() -> None:
    """Create only the process groups that contain this rank: with 3,072 ranks nearly all groups do not."""
    from megatron.core import parallel_state

    create = parallel_state.create_group

    def create_own_group(ranks: Sequence[int] | None = None, **options: object) -> object:
        return None if ranks is not None and dist.get_rank() not in ranks else create(ranks, **options)

    _replace(parallel_state, "create_group", create_own_group)


def _add_extensions() -> None:
    """Replace CUDA extensions by functions that allocate only their results."""
    # The GEMM adds the weight gradient to the fp32 buffer itself.
    _add_extension("fused_weight_gradient_mlp_cuda", wgrad_gemm_accum_fp32=_nothing, wgrad_gemm_accum_fp16=_nothing)
    # Masked softmax: a new result forward, in place of the incoming gradient backward.
    _add_extension(
        "scaled_upper_triang_masked_softmax_cuda",
        forward=lambda scores, _: torch.empty_like(scores),
        backward=lambda gradient, *_: gradient,
    )
    _add_extension("scaled_masked_softmax_cuda", get_batch_per_block=lambda *_: 1)


def _add_extension(name: str, **functions: Callable[..., object]) -> None:
    module = ModuleType(name)
    vars(module).update(functions)
    sys.modules[name] = module


def _nothing(*_: object) -> None:
    return None


def _choose_attention(job: ExactJob, arguments: TrainingArguments) -> None:
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    from orchestrator.pretrain import layers, model

    accepted = signature(DotProductAttention).parameters

    class MegatronAttention(DotProductAttention):  # type: ignore[misc]
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **{name: value for name, value in options.items() if name in accepted})

    unfused = job.attention == "unfused"
    scores = arguments.attention_backend == "unfused"
    kernel = torch.nn.functional.scaled_dot_product_attention if scores else _flash_attention
    _replace(layers, "scaled_dot_product_attention", kernel)
    # The mask over gathered keys is an object for kernels; it cannot be made without data.
    _replace(layers, "causal_lower_right", lambda *_: None)
    _replace(model, "CausalAttention", MegatronAttention if unfused else layers.CausalAttention)


def _flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: object,
    dropout_p: float = 0.0,
    scale: float | None = None,
    **_others: object,
) -> torch.Tensor:
    """Run the flash kernel, which keeps its output and a log-sum per row. Without data torch would keep the scores."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    output: torch.Tensor = flash(query, key, value, dropout_p, True, False, scale=scale)[0]
    return output


def serve() -> None:
    """Read a job from each line of stdin and write a line to stdout: its ranks, or the reason why it has none."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stderr
    with quick_imports():  # without `freeze`, each collection would visit all imported modules
        prepare()
    for line in sys.stdin:
        print(json.dumps(_answer(ExactJob(**json.loads(line)))), file=answers, flush=True)


def _answer(job: ExactJob) -> dict[str, object]:
    started = time.perf_counter()
    messages = io.StringIO()
    try:
        with redirect_stderr(messages):
            arguments = parse_arguments(job.arguments)
    except SystemExit:
        return {"reason": messages.getvalue().strip().split("\n")[-1]}
    reasons = refusals(arguments, job.world_size, on_gpu=True)
    if reasons:
        return {"reason": "; ".join(reasons)}
    try:
        ranks = [asdict(plan_rank(job, arguments, rank)) for rank in _ranks(arguments, job.world_size)]
    except Exception as error:
        lines = str(error).splitlines()
        return {"reason": f"{type(error).__name__}: {lines[0] if lines else 'no message'}"}
    return {"ranks": ranks, "seconds": time.perf_counter() - started}


def _ranks(arguments: TrainingArguments, world_size: int) -> list[int]:
    """Return the first rank of the first and of the last pipeline stage. Ranks of a stage are consecutive."""
    stages = arguments.pipeline_model_parallel_size
    return sorted({0, world_size - world_size // stages})


if __name__ == "__main__":
    serve()
