"""Rules for sizes: GPUs, batches, layers, stages, and widths that tensor parallelism splits.

Each check yields a message per violation. A rule without meaning after an earlier broken rule yields nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from orchestrator.megatron.rules.rule_context import RuleContext, rule

_OLD = ("2021", "kwai", "2024")
_UNEVEN = (
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-layout",
)
_VIRTUAL = (
    "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank",
    "--pipeline-model-parallel-layout",
)


def _not_divisible(number: int, noun: str, of: str = "") -> str:
    """Return `6 layers do not divide`, `1 GPU does not divide`."""
    return f"{number} {noun}{of} does not divide" if number == 1 else f"{number} {noun}s{of} do not divide"


@rule(1, "replicas fill the GPUs", "arguments.py:432, parallel_state.py:822")
def _gpus(context: RuleContext) -> Iterator[str]:
    layout = context.layout
    t, p, c = layout.tensor_parallel, layout.pipeline_parallel, layout.context_parallel
    if not context.fits:
        yield (
            f"{_not_divisible(layout.gpus, 'GPU')} by tensor-parallel {t} x pipeline-parallel {p}"
            f"{f' x context-parallel {c}' if c > 1 else ''} = {layout.model_parallel}"
        )


@rule(2, "positive batches", "arguments.py:694-706")
def _batches_positive(context: RuleContext) -> Iterator[str]:
    if context.layout.micro_batch_size < 1:
        yield f"microbatch {context.layout.micro_batch_size} is not positive"
    if context.layout.global_batch_size < 1:
        yield f"global batch {context.layout.global_batch_size} is not positive"


@rule(3, "whole microbatches", "arguments.py:715, num_microbatches_calculator.py:381-391")
def _batch(context: RuleContext) -> Iterator[str]:
    layout = context.layout
    if context.fits and not any(_batches_positive.check(context)) and not _whole_microbatches(context):
        yield (
            f"global batch {layout.global_batch_size} does not divide by microbatch {layout.micro_batch_size} "
            f"x data-parallel {layout.data_parallel}"
        )


@rule(4, "layers per stage", "arguments.py:968,997, transformer_config.py:2382")
def _layers_per_stage(context: RuleContext) -> Iterator[str]:
    if not _whole_stages(context):
        yield f"{_not_divisible(context.model.layers, 'layer')} by pipeline-parallel {context.layout.pipeline_parallel}"


@rule(5, "layers per virtual stage", "arguments.py:972-976")
def _layers_per_virtual_stage(context: RuleContext) -> Iterator[str]:
    if not _whole_stages(context) or _uneven(context):
        return
    stages, layers = context.virtual_stages, context.layers_per_virtual_stage
    per_stage = context.model.layers // context.layout.pipeline_parallel
    if layers is None:
        if per_stage % stages:
            yield f"{_not_divisible(per_stage, 'layer', ' per stage')} by {stages} virtual stages"
    elif context.dialect in ("2021", "kwai"):  # they compare with all layers, and round the virtual stages down
        if context.model.layers % layers:
            yield f"{_not_divisible(context.model.layers, 'layer')} by {layers} layers per virtual stage"
    elif per_stage % layers:
        yield f"{_not_divisible(per_stage, 'layer', ' per stage')} by {layers} layers per virtual stage"


@rule(6, "one virtual-stage argument", "arguments.py:929")
def _one_virtual_argument(context: RuleContext) -> Iterator[str]:
    """Check that one argument sets the virtual stages; those of the layout count as one."""
    given = [flag for flag in _VIRTUAL if flag in context.flags]
    if context.layout.virtual_stages > 1:
        given.insert(0, f"{context.layout.virtual_stages} virtual stages")
    if len(given) > 1:
        yield f"{' and '.join(given)} exclude each other"


@rule(7, "stages to interleave", "arguments.py:1000-1010")
def _interleaved_stages(context: RuleContext) -> Iterator[str]:
    """Check the pipeline stages that interleaving needs: at least 3 in 2021 and January 2024."""
    always = context.dialect in _OLD
    if context.virtual_stages == 1 and not (always and context.layers_per_virtual_stage):
        return
    least = 3 if always or "--no-overlap-p2p-communication" in context.flags else 2
    if context.layout.pipeline_parallel < least:
        yield f"interleaving needs a pipeline-parallel size of {least} or more"


@rule(8, "microbatch group", "schedules.py:1160-1168")
def _microbatch_group(context: RuleContext) -> Iterator[str]:
    """Check the size of the microbatch group, which exists since 2024."""
    if context.dialect in _OLD or context.virtual_stages == 1 or not _whole_microbatches(context):
        return
    p, m, group = context.layout.pipeline_parallel, context.layout.microbatches, _group_size(context)
    if group == p and m < p:
        yield f"interleaving needs {p} microbatches or more (pipeline-parallel {p}), there are {m}"
    elif not p <= group <= m:
        yield f"microbatch group {group} is not between pipeline-parallel {p} and microbatches ({m})"


@rule(9, "microbatches to interleave", "schedules.py:1172-1180")
def _interleaved_microbatches(context: RuleContext) -> Iterator[str]:
    if context.virtual_stages == 1 or not _whole_microbatches(context) or any(_microbatch_group.check(context)):
        return
    p, m, group = context.layout.pipeline_parallel, context.layout.microbatches, _group_size(context)
    if group == p and m % p:
        yield f"interleaving needs microbatches ({m}) to divide by pipeline-parallel {p}"
    elif 0 < m % group < p:
        yield f"microbatch groups of {group} leave {m % group} of {m} microbatches, fewer than pipeline-parallel {p}"


@rule(10, "heads per tensor rank", "transformer_config.py:1446")
def _heads(context: RuleContext) -> Iterator[str]:
    yield from _undivided("attention heads", context.model.heads, "tensor-parallel", context.layout.tensor_parallel)


@rule(11, "width of a head", "arguments.py:1332")
def _head_width(context: RuleContext) -> Iterator[str]:
    if context.model.hidden % context.model.heads and "--kv-channels" not in context.flags:
        yield f"hidden size {context.model.hidden} does not divide by {context.model.heads} attention heads"


@rule(12, "key-value groups per tensor rank", "transformer_config.py:1461")
def _key_value_groups(context: RuleContext) -> Iterator[str]:
    """Check that key-value groups divide by tensor-parallel. Rule 10 covers models without shared keys."""
    t, groups = context.layout.tensor_parallel, context.model.kv_groups
    if groups in (None, context.model.heads) or groups % t == 0:
        return
    if context.dialect not in ("now", "pretrain"):
        yield f"{groups} key-value groups do not divide by tensor-parallel {t}"
    elif t % groups:
        yield f"{groups} key-value groups and tensor-parallel {t} do not divide either way"


@rule(13, "sharded widths", "tensor_parallel/layers.py:1038,1408")
def _sharded_widths(context: RuleContext) -> Iterator[str]:
    model, t = context.model, context.layout.tensor_parallel
    if "--kv-channels" not in context.flags:
        yield from _undivided("hidden size", model.hidden, "tensor-parallel", t)
    if model.experts:
        yield from _undivided(
            "expert size", model.ffn_hidden, "expert-tensor-parallel", context.layout.expert_tensor_size
        )
    else:
        yield from _undivided("feed-forward size", model.ffn_hidden, "tensor-parallel", t)
    yield from _undivided("vocabulary", _unpadded_vocabulary(context), "tensor-parallel", t)


@rule(14, "positions", "arguments.py:1354")
def _positions(context: RuleContext) -> Iterator[str]:
    longest = context.number("--max-position-embeddings")
    if longest is not None and longest < context.model.seq:
        yield f"sequence length {context.model.seq} is over --max-position-embeddings {longest:.0f}"


@rule(15, "sequence per context rank", "arguments.py:582,1335")
def _context_parallel(context: RuleContext) -> Iterator[str]:
    c = context.layout.context_parallel
    if not _whole_pieces(context):
        yield f"sequence length {context.model.seq} does not divide by 2 x context-parallel {c}"
    sizes = [int(size) for size in context.flags.get("--hierarchical-context-parallel-sizes", ()) if size.isdigit()]
    if sizes and math.prod(sizes) != c:
        product = " x ".join(map(str, sizes))
        yield f"hierarchical context-parallel sizes {product} = {math.prod(sizes)} are not context-parallel {c}"


@rule(16, "sequence per tensor rank", "tensor_parallel/mappings.py:74,178")
def _sequence(context: RuleContext) -> Iterator[str]:
    t, c = context.layout.tensor_parallel, context.layout.context_parallel
    length = context.model.seq // c
    if context.sequence_parallel and _whole_pieces(context) and length % t:
        what = f"sequence length {context.model.seq}" + (f" over context-parallel {c}" if c > 1 else "")
        yield f"{what} does not divide by tensor-parallel {t} (sequence parallelism)"


@rule(19, "experts", "arguments.py:1655-1658, parallel_state.py:881")
def _experts(context: RuleContext) -> Iterator[str]:
    layout, count = context.layout, context.model.experts
    e, p, t = layout.expert_parallel, layout.pipeline_parallel, context.layout.expert_tensor_size
    if e > 1 and not count:
        yield f"expert-parallel {e} needs a model with experts"
    elif count % e:
        yield f"{_not_divisible(count, 'expert')} by expert-parallel {e}"
    if count and layout.gpus % (t * e * p):
        yield (
            f"{_not_divisible(layout.gpus, 'GPU')} by expert-tensor-parallel {t} x expert-parallel {e} "
            f"x pipeline-parallel {p} = {t * e * p}"
        )


def _undivided(what: str, size: int, name: str, by: int) -> Iterator[str]:
    if size % by:
        yield f"{what} {size} does not divide by {name} {by}"


def _whole_microbatches(context: RuleContext) -> bool:
    layout = context.layout
    if not context.fits or layout.micro_batch_size < 1 or layout.global_batch_size < 1:
        return False
    return layout.global_batch_size % (layout.micro_batch_size * layout.data_parallel) == 0


def _whole_stages(context: RuleContext) -> bool:
    return _uneven(context) or context.model.layers % context.layout.pipeline_parallel == 0


def _whole_pieces(context: RuleContext) -> bool:
    """Return whether each context-parallel rank gets its two pieces, one early and one late."""
    c = context.layout.context_parallel
    return c == 1 or context.model.seq % (2 * c) == 0


def _uneven(context: RuleContext) -> bool:
    return any(flag in context.flags for flag in _UNEVEN)


def _group_size(context: RuleContext) -> int:
    """Return the number of microbatches that a virtual stage takes in a row; until 2024 that of pipeline stages."""
    value = context.number("--microbatch-group-size-per-virtual-pipeline-stage")
    return context.layout.pipeline_parallel if value is None or context.dialect in _OLD else int(value)


def _unpadded_vocabulary(context: RuleContext) -> int:
    """Return the rows of an embedding that is not padded to a multiple of tensor-parallel, else 0."""
    if context.dialect == "pretrain":
        return 0 if "--make-vocab-size-divisible-by" in context.flags else context.model.vocab
    return int(context.number("--padded-vocab-size") or 0)
