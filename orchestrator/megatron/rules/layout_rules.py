"""Rules on sizes: GPUs, batches, layers and stages, and the widths that tensor parallelism divides.

Each check yields what is wrong. Where an earlier rule is broken and the later has no meaning, the later is silent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from orchestrator.megatron.rules.rule_context import Setting

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


def gpus(setting: Setting) -> Iterator[str]:
    layout = setting.layout
    t, p, c = layout.tensor_parallel, layout.pipeline_parallel, layout.context_parallel
    if not setting.fits:
        yield (
            f"{layout.gpus} GPUs do not divide by tensor-parallel {t} x pipeline-parallel {p}"
            f"{f' x context-parallel {c}' if c > 1 else ''} = {layout.model_parallel}"
        )


def batches_positive(setting: Setting) -> Iterator[str]:
    if setting.layout.micro_batch_size < 1:
        yield f"microbatch {setting.layout.micro_batch_size} is not positive"
    if setting.layout.global_batch_size < 1:
        yield f"global batch {setting.layout.global_batch_size} is not positive"


def batch(setting: Setting) -> Iterator[str]:
    layout = setting.layout
    if setting.fits and not any(batches_positive(setting)) and not _whole_microbatches(setting):
        yield (
            f"global batch {layout.global_batch_size} does not divide by microbatch {layout.micro_batch_size} "
            f"x data-parallel {layout.data_parallel}"
        )


def layers_per_stage(setting: Setting) -> Iterator[str]:
    if not _whole_stages(setting):
        yield f"{setting.model.layers} layers do not divide by pipeline-parallel {setting.layout.pipeline_parallel}"


def layers_per_virtual_stage(setting: Setting) -> Iterator[str]:
    if not _whole_stages(setting) or _uneven(setting):
        return
    stages, layers = setting.virtual_stages, setting.layers_per_virtual_stage
    per_stage = setting.model.layers // setting.layout.pipeline_parallel
    if layers is None:
        if per_stage % stages:
            yield f"{per_stage} layers per stage do not divide by {stages} virtual stages"
    elif setting.dialect in ("2021", "kwai"):  # they compare with all layers, and round the virtual stages down
        if setting.model.layers % layers:
            yield f"{setting.model.layers} layers do not divide by {layers} layers per virtual stage"
    elif per_stage % layers:
        yield f"{per_stage} layers per stage do not divide by {layers} layers per virtual stage"


def one_virtual_argument(setting: Setting) -> Iterator[str]:
    """The layout's own number of virtual stages becomes one such argument."""
    given = [flag for flag in _VIRTUAL if flag in setting.flags]
    if setting.layout.virtual_stages > 1:
        given.insert(0, f"{setting.layout.virtual_stages} virtual stages")
    if len(given) > 1:
        yield f"{' and '.join(given)} exclude each other"


def interleaved_stages(setting: Setting) -> Iterator[str]:
    """2021 and January 2024 ask for 3 stages whatever the number of virtual stages comes to."""
    always = setting.dialect in _OLD
    if setting.virtual_stages == 1 and not (always and setting.layers_per_virtual_stage):
        return
    least = 3 if always or "--no-overlap-p2p-communication" in setting.flags else 2
    if setting.layout.pipeline_parallel < least:
        yield f"interleaving needs a pipeline-parallel size of {least} or more"


def microbatch_group(setting: Setting) -> Iterator[str]:
    """Today's only: until 2024 there was no group, and rule 9 says the rest."""
    if setting.dialect in _OLD or setting.virtual_stages == 1 or not _whole_microbatches(setting):
        return
    p, m, group = setting.layout.pipeline_parallel, setting.layout.microbatches, _microbatch_group(setting)
    if group == p and m < p:
        yield f"interleaving needs {p} microbatches or more (pipeline-parallel {p}), there are {m}"
    elif not p <= group <= m:
        yield f"microbatch group {group} is not between pipeline-parallel {p} and microbatches ({m})"


def interleaved_microbatches(setting: Setting) -> Iterator[str]:
    if setting.virtual_stages == 1 or not _whole_microbatches(setting) or any(microbatch_group(setting)):
        return
    p, m, group = setting.layout.pipeline_parallel, setting.layout.microbatches, _microbatch_group(setting)
    if group == p and m % p:
        yield f"interleaving needs microbatches ({m}) to divide by pipeline-parallel {p}"
    elif 0 < m % group < p:
        yield f"microbatch groups of {group} leave {m % group} of {m} microbatches, fewer than pipeline-parallel {p}"


def heads(setting: Setting) -> Iterator[str]:
    yield from _undivided("attention heads", setting.model.heads, "tensor-parallel", setting.layout.tensor_parallel)


def head_width(setting: Setting) -> Iterator[str]:
    if setting.model.hidden % setting.model.heads and "--kv-channels" not in setting.flags:
        yield f"hidden size {setting.model.hidden} does not divide by {setting.model.heads} attention heads"


def key_value_groups(setting: Setting) -> Iterator[str]:
    """Silent where every head has keys of its own: rule 10 says that."""
    t, groups = setting.layout.tensor_parallel, setting.model.kv_groups
    if groups in (None, setting.model.heads) or groups % t == 0:
        return
    if setting.dialect not in ("now", "pretrain"):
        yield f"{groups} key-value groups do not divide by tensor-parallel {t}"
    elif t % groups:
        yield f"{groups} key-value groups and tensor-parallel {t} do not divide either way"


def sharded_widths(setting: Setting) -> Iterator[str]:
    model, t = setting.model, setting.layout.tensor_parallel
    if "--kv-channels" not in setting.flags:
        yield from _undivided("hidden size", model.hidden, "tensor-parallel", t)
    if model.experts:
        yield from _undivided("expert size", model.ffn_hidden, "expert-tensor-parallel", _expert_tensor(setting))
    else:
        yield from _undivided("feed-forward size", model.ffn_hidden, "tensor-parallel", t)
    yield from _undivided("vocabulary", _unpadded_vocabulary(setting), "tensor-parallel", t)


def positions(setting: Setting) -> Iterator[str]:
    longest = setting.number("--max-position-embeddings")
    if longest is not None and longest < setting.model.seq:
        yield f"sequence length {setting.model.seq} is over --max-position-embeddings {longest:.0f}"


def context(setting: Setting) -> Iterator[str]:
    c = setting.layout.context_parallel
    if not _whole_pieces(setting):
        yield f"sequence length {setting.model.seq} does not divide by 2 x context-parallel {c}"
    sizes = [int(size) for size in setting.flags.get("--hierarchical-context-parallel-sizes", ()) if size.isdigit()]
    if sizes and math.prod(sizes) != c:
        product = " x ".join(map(str, sizes))
        yield f"hierarchical context-parallel sizes {product} = {math.prod(sizes)} are not context-parallel {c}"


def sequence(setting: Setting) -> Iterator[str]:
    t, c = setting.layout.tensor_parallel, setting.layout.context_parallel
    length = setting.model.seq // c
    if setting.sequence_parallel and _whole_pieces(setting) and length % t:
        what = f"sequence length {setting.model.seq}" + (f" over context-parallel {c}" if c > 1 else "")
        yield f"{what} does not divide by tensor-parallel {t} (sequence parallelism)"


def experts(setting: Setting) -> Iterator[str]:
    layout, count = setting.layout, setting.model.experts
    e, p, t = layout.expert_parallel, layout.pipeline_parallel, _expert_tensor(setting)
    if e > 1 and not count:
        yield f"expert-parallel {e} needs a model with experts"
    elif count % e:
        yield f"{count} experts do not divide by expert-parallel {e}"
    if count and layout.gpus % (t * e * p):
        yield (
            f"{layout.gpus} GPUs do not divide by expert-tensor-parallel {t} x expert-parallel {e} "
            f"x pipeline-parallel {p} = {t * e * p}"
        )


def _undivided(what: str, size: int, name: str, by: int) -> Iterator[str]:
    if size % by:
        yield f"{what} {size} does not divide by {name} {by}"


def _whole_microbatches(setting: Setting) -> bool:
    layout = setting.layout
    if not setting.fits or layout.micro_batch_size < 1 or layout.global_batch_size < 1:
        return False
    return layout.global_batch_size % (layout.micro_batch_size * layout.data_parallel) == 0


def _whole_stages(setting: Setting) -> bool:
    return _uneven(setting) or setting.model.layers % setting.layout.pipeline_parallel == 0


def _whole_pieces(setting: Setting) -> bool:
    """Each context-parallel rank has two pieces, one early and one late."""
    c = setting.layout.context_parallel
    return c == 1 or setting.model.seq % (2 * c) == 0


def _uneven(setting: Setting) -> bool:
    return any(flag in setting.flags for flag in _UNEVEN)


def _microbatch_group(setting: Setting) -> int:
    """Microbatches that a virtual stage takes in a row; until 2024 always as many as there are pipeline stages."""
    typed = setting.number("--microbatch-group-size-per-virtual-pipeline-stage")
    return setting.layout.pipeline_parallel if typed is None or setting.dialect in _OLD else int(typed)


def _expert_tensor(setting: Setting) -> int:
    return setting.layout.expert_tensor_parallel or setting.layout.tensor_parallel


def _unpadded_vocabulary(setting: Setting) -> int:
    """The rows of the embedding where they are not padded to a multiple of tensor-parallel, else 0."""
    if setting.dialect == "pretrain":
        return 0 if "--make-vocab-size-divisible-by" in setting.flags else setting.model.vocab
    return int(setting.number("--padded-vocab-size") or 0)
