"""How a model is spread over GPUs, and the rules a layout must keep, each said in the paper's terms.

The rules are Megatron-LM's own, from its arguments.py, transformer_config.py and schedules.py as of core_v0.16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.megatron.model import ModelShape


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel sizes and batch sizes of one job.

    `virtual_stages` is the number of model chunks per pipeline stage (SC21's v); 1 is the plain 1F1B schedule.
    Batch sizes count sequences.
    """

    gpus: int
    tensor_parallel: int
    pipeline_parallel: int
    micro_batch_size: int
    global_batch_size: int
    virtual_stages: int = 1
    context_parallel: int = 1
    sequence_parallel: bool = False

    @property
    def model_parallel(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def data_parallel(self) -> int:
        """Data-parallel size; 0 when the model-parallel sizes do not fit the number of GPUs."""
        return self.gpus // self.model_parallel

    @property
    def microbatches(self) -> int:
        """Microbatches per pipeline and iteration (SC21's m)."""
        return self.global_batch_size // max(1, self.micro_batch_size * self.data_parallel)

    def bubble(self) -> float:
        """Pipeline bubble as a fraction of ideal time: SC21 2.2, `(p - 1) / (v m)`."""
        return (self.pipeline_parallel - 1) / (self.virtual_stages * max(1, self.microbatches))


def layout_problems(model: ModelShape, layout: Layout) -> Iterator[str]:
    """Every reason why this layout cannot run, not only the first."""
    t, p, c = layout.tensor_parallel, layout.pipeline_parallel, layout.context_parallel
    if layout.gpus % layout.model_parallel:
        yield (
            f"{layout.gpus} GPUs do not divide by tensor-parallel {t} x pipeline-parallel {p}"
            f"{f' x context-parallel {c}' if c > 1 else ''} = {layout.model_parallel}"
        )
    else:
        share = layout.micro_batch_size * layout.data_parallel
        if layout.global_batch_size % share:
            yield (
                f"global batch {layout.global_batch_size} does not divide by microbatch {layout.micro_batch_size} "
                f"x data-parallel {layout.data_parallel}"
            )
        elif layout.virtual_stages > 1 and layout.microbatches % p:
            yield f"interleaving needs microbatches ({layout.microbatches}) to divide by pipeline-parallel {p}"
    if model.layers % p:
        yield f"{model.layers} layers do not divide by pipeline-parallel {p}"
    elif layout.virtual_stages > 1 and (model.layers // p) % layout.virtual_stages:
        yield f"{model.layers // p} layers per stage do not divide by {layout.virtual_stages} virtual stages"
    if layout.virtual_stages > 1 and p < 2:
        yield "interleaving needs a pipeline-parallel size of 2 or more"
    yield from _sharding_problems(model, layout)


def _sharding_problems(model: ModelShape, layout: Layout) -> Iterator[str]:
    t, c = layout.tensor_parallel, layout.context_parallel
    for name, size in (("attention heads", model.heads), ("hidden size", model.hidden)):
        if size % t:
            yield f"{name} {size} does not divide by tensor-parallel {t}"
    if model.hidden % model.heads:
        yield f"hidden size {model.hidden} does not divide by {model.heads} attention heads"
    if c > 1 and model.seq % (2 * c):
        yield f"sequence length {model.seq} does not divide by 2 x context-parallel {c}"
    if layout.sequence_parallel and model.seq % t:
        yield f"sequence length {model.seq} does not divide by tensor-parallel {t} (sequence parallelism)"
