"""Memory of one rank of a job, counted on tensors without data, with Megatron-Core's model, buffers and schedule.

`python -m orchestrator.megatron.meta_memory` reads jobs and writes results, one JSON line each; `exact` starts it. A
fake process group replaces the other ranks. The replacements made here are permanent for the process. The results of
operations follow from the shapes of their arguments (torch's meta device).
"""

from __future__ import annotations

import functools
import gc
import io
import json
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import asdict, dataclass, replace
from inspect import signature
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, ParamSpec, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch._ops import OpOverload
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from orchestrator.megatron.exact import ExactJob, RankMemory
from orchestrator.pretrain.arguments import RunLayout, TrainingArguments, parse_arguments, refusals
from orchestrator.pretrain.environment import quick_imports

META = torch.device("meta")
_BLOCK_BYTES = 512  # torch's CUDA allocator rounds the size of a tensor up to this


@dataclass
class Pool:
    """Bytes of a pool's live storages, and their peak."""

    now: int = 0
    peak: int = 0


class LiveBytes(TorchDispatchMode):
    """Counter of the bytes of all live storages that operations made, and of their peak.

    Storages made while a CUDA graph would be recorded count for the pool of that graph, which keeps its peak.
    """

    counting: ClassVar[LiveBytes | None] = None

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ordinary = Pool()
        self._graphs: dict[int | None, Pool] = {}
        self._current = self._ordinary
        self.compiled_depth = 0
        self._sizes: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = weakref.WeakKeyDictionary()
        self._results: dict[Hashable, object] = {}  # by operation and arguments

    def __enter__(self) -> LiveBytes:
        LiveBytes.counting = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        LiveBytes.counting = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @property
    def now(self) -> int:
        """Live bytes."""
        return self._ordinary.now + sum(pool.peak for pool in self._graphs.values())

    @property
    def peak(self) -> int:
        """Peak of the live bytes."""
        return max(self._ordinary.peak, self.now)

    def restart(self) -> None:
        """Reset the peak to the live bytes."""
        self._ordinary.peak = self._ordinary.now

    def record(self, run: Callable[[], None], *, slot: int | None = None) -> Callable[[], None]:
        """Run a function that a GPU would record as a graph, and count its memory for the graph's pool."""
        self._current = self._graphs.setdefault(slot, Pool())
        run()
        self._current = self._ordinary
        return run

    def note_peak(self) -> None:
        """Raise the peak to the live bytes, except inside a compiled function, whose intermediates a GPU frees."""
        if not self.compiled_depth:
            self._current.peak = max(self._current.peak, self._current.now)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func.namespace == "c10d":
            return _communicated(func, args)
        if func is torch.ops.aten.copy_.default and _is_meta(args[1]) and not _is_meta(args[0]):
            return args[0]  # a copy to the host, whose memory is not planned
        out = self._run(func, args, kwargs or {})
        for tensor in tree_iter(out):
            if _is_meta(tensor):
                self._count(tensor.untyped_storage())
        self.note_peak()
        return out

    def _run(self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Run an operation, or return new tensors like those of an equal operation before.

        torch computes the shapes of most results in Python, which takes a tenth of a millisecond.
        """
        if not _makes_new_tensors(func):
            return func(*args, **kwargs)
        try:
            key = func, _key(args), _key([*kwargs.items()])
        except _Unrepeatable:
            return func(*args, **kwargs)
        if key in self._results:
            return _made(self._results[key])
        out = func(*args, **kwargs)
        if not _share_storage(args, out):
            with suppress(_Unrepeatable):
                self._results[key] = _template(out)
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._sizes:
            size = -(-storage.nbytes() // _BLOCK_BYTES) * _BLOCK_BYTES
            self._sizes[storage] = size
            self._current.now += size
            weakref.finalize(storage, _free, self._current, size)


@dataclass(frozen=True, slots=True)
class _NewTensor:
    """Shape of a tensor without data that fills its storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class _Unrepeatable(Exception):
    """An operation whose results do not follow from the shapes of its arguments."""


@functools.cache
def _makes_new_tensors(func: OpOverload) -> bool:
    """Return whether an operation neither writes into its arguments nor returns views of them, by its schema."""
    return not any(value.alias_info for value in (*func._schema.arguments, *func._schema.returns))


def _key(argument: object) -> Hashable:
    """Return a key that is equal for arguments with equal results."""
    if _is_meta(argument):
        return tuple(argument.size()), argument.stride(), argument.dtype
    if isinstance(argument, (tuple, list)):
        return tuple([_key(item) for item in argument])
    if isinstance(argument, torch.Tensor):
        raise _Unrepeatable
    return type(argument), argument  # 1, 1.0 and True are equal


def _share_storage(arguments: object, results: object) -> bool:
    """Return whether results are views of arguments or of each other. Some schemas do not declare this."""
    inputs, outputs = (
        [tensor.untyped_storage()._cdata for tensor in tree_iter(values) if _is_meta(tensor)]
        for values in (arguments, results)
    )
    return len({*inputs, *outputs}) < len({*inputs}) + len(outputs)


def _template(result: object) -> object:
    """Return the description of a result from which `_made` makes an equal one."""
    if isinstance(result, tuple):
        return tuple([_template(item) for item in result])
    if _is_meta(result):
        is_whole = result.untyped_storage().nbytes() == result.numel() * result.element_size()
        if is_whole and result.storage_offset() == 0:
            return _NewTensor(tuple(result.size()), result.stride(), result.dtype)
    elif result is None or isinstance(result, int):
        return result
    raise _Unrepeatable


def _made(template: object) -> object:
    if isinstance(template, tuple):
        return tuple([_made(item) for item in template])
    if isinstance(template, _NewTensor):
        return torch.empty_strided(template.size, template.stride, dtype=template.dtype, device=META)
    return template


def _free(pool: Pool, size: int) -> None:
    pool.now -= size


def _is_meta(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.is_meta


def _communicated(func: OpOverload, args: Sequence[object]) -> object:
    """Return the results of a collective, which has no kernel for meta tensors: first argument, handle or both."""
    results = [FakeWork().boxed() if "Work" in str(result.type) else args[0] for result in func._schema.returns]
    return results[0] if len(results) == 1 else tuple(results)


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
        # The first ranks of the first and of the last pipeline stage. Ranks of a stage are consecutive.
        last = job.world_size - job.world_size // arguments.pipeline_model_parallel_size
        ranks = [asdict(plan_rank(job, arguments, rank)) for rank in sorted({0, last})]
    except Exception as error:
        lines = str(error).splitlines()
        return {"reason": f"{type(error).__name__}: {lines[0] if lines else 'no message'}"}
    return {"ranks": ranks}


if __name__ == "__main__":
    serve()
