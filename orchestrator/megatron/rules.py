"""Rules of Megatron-LM, checked before a job is submitted, with messages in the paper's terms.

Line numbers of sources are those of Megatron-LM at d98e8a64dd (2026-08-22). Some checks have other conditions for older
versions, Megatron-Kwai and `pretrain`. Megatron-LM itself checks rules 8, 9, 13 and 16 only when the job runs. Each
check yields a message per violation. A rule without meaning after an earlier broken rule yields nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from orchestrator.megatron.model import Layout, ModelShape, Training, padded_vocabulary
from orchestrator.programs.command import read_flags

Dialect = Literal["2021", "kwai", "2024", "now", "pretrain"]
"""Version whose rules apply: Megatron-LM at 6985e58938 (2021-08-18, SC21's), Megatron-Kwai (ATC'24's, atc24ae-1.0.0),
Megatron-LM of January 2024 that ATC'24 compares with (2bc6cd307a), today's, or `pretrain` on megatron-core."""

_PER_VIRTUAL_STAGE = "--num-layers-per-virtual-pipeline-stage"
_VIRTUAL_STAGES = "--num-virtual-stages-per-pipeline-rank"
_DIVISOR = "--make-vocab-size-divisible-by"


@dataclass(frozen=True, slots=True)
class RuleContext:
    """Input of the rules.

    `arguments` are the further arguments of a case, not those of model, layout and training. `environment` has the
    variables of the job; `gpu` is the name of the GPU, None if unknown. `tokens` is the size of the vocabulary that the
    program pads, None if it uses the model's vocabulary unchanged.
    """

    model: ModelShape
    layout: Layout
    training: Training
    dialect: Dialect = "now"
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    gpu: str | None = None
    gpus_per_node: int | None = None
    tokens: int | None = None
    flags: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "flags", read_flags(self.arguments))

    def number(self, flag: str) -> float | None:
        """Return the number after a flag; None if the flag is absent or has none."""
        values = self.flags.get(flag)
        if not values:
            return None
        try:
            return float(values[0])
        except ValueError:
            return None

    @property
    def fits(self) -> bool:
        """Return whether whole replicas of the model fill the GPUs."""
        return self.layout.gpus % self.layout.model_parallel == 0

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding that the program builds."""
        given = self.number("--padded-vocab-size") if self.dialect == "now" else None
        if given is not None:
            return int(given)
        if self.tokens is None and _DIVISOR not in self.flags:
            return self.model.vocab
        divisor = int(self.number(_DIVISOR) or 128)
        return padded_vocabulary(self.tokens or self.model.vocab, self.layout.tensor_parallel, divisor)

    @property
    def layers_per_virtual_stage(self) -> int | None:
        """Layers per virtual stage from the arguments; None without them, or if the layout sets the virtual stages."""
        value = self.number(_PER_VIRTUAL_STAGE)
        return int(value) if value and self.layout.virtual_stages == 1 else None

    @property
    def virtual_stages(self) -> int:
        """Virtual stages of the layout or of the arguments."""
        layers, layout = self.layers_per_virtual_stage, self.layout
        if layers is not None:
            return max(1, self.model.layers // layout.pipeline_parallel // layers)
        return layout.virtual_stages if layout.virtual_stages > 1 else int(self.number(_VIRTUAL_STAGES) or 1)

    @property
    def sequence_parallel(self) -> bool:
        """Return whether sequence parallelism is on: it needs tensor parallelism (arguments.py:1433)."""
        return self.layout.sequence_parallel and self.layout.tensor_parallel > 1


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `check` yields a message for each violation; `source` is the code that enforces the rule."""

    number: int
    name: str
    source: str
    check: Callable[[RuleContext], Iterator[str]]


def rule(number: int, name: str, source: str) -> Callable[[Callable[[RuleContext], Iterator[str]]], Rule]:
    """Return a decorator that makes a rule from its check."""
    return partial(Rule, number, name, source)


_OLD = ("2021", "kwai", "2024")
_UNEVEN = (
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-layout",
)
_VIRTUAL = (_PER_VIRTUAL_STAGE, _VIRTUAL_STAGES, "--pipeline-model-parallel-layout")


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
    layout = context.layout
    for name, size in (("microbatch", layout.micro_batch_size), ("global batch", layout.global_batch_size)):
        if size < 1:
            yield f"{name} {size} is not positive"


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
    number, of, layers = context.model.layers, "", context.layers_per_virtual_stage
    if layers is None or context.dialect not in ("2021", "kwai"):  # both compare all layers, and round the stages down
        number, of = number // context.layout.pipeline_parallel, " per stage"
    if number % (layers or context.virtual_stages):
        by = f"{layers} layers per virtual stage" if layers else f"{context.virtual_stages} virtual stages"
        yield f"{_not_divisible(number, 'layer', of)} by {by}"


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
    model, layout, t = context.model, context.layout, context.layout.tensor_parallel
    if "--kv-channels" not in context.flags:
        yield from _undivided("hidden size", model.hidden, "tensor-parallel", t)
    if model.experts:
        yield from _undivided("expert size", model.ffn_hidden, "expert-tensor-parallel", layout.expert_tensor_size)
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
        return 0 if _DIVISOR in context.flags else context.model.vocab
    return int(context.number("--padded-vocab-size") or 0)


_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
# Compute capability 10 and above: B100, B200, GB200, B300, GB300, and names with the architecture.
_BLACKWELL = re.compile(r"\bG?B\d{2,3}\b|blackwell", re.IGNORECASE)
# Arguments that save a checkpoint even without --save; today's programs check it first.
_SAVING: Mapping[str, tuple[str, ...]] = {
    "2021": ("--exit-interval", "--exit-duration-in-mins"),
    "kwai": ("--exit-duration-in-mins",),
    "2024": ("--exit-duration-in-mins",),
}
# NCCL applies these to all groups; Megatron-Kwai sets them for its two context-parallel groups.
_CHANNELS = [f"NCCL_{end}_{what}" for what in ("NRINGS", "NCHANNELS", "CTAS") for end in ("MIN", "MAX")]
_EXEMPT = ("--use-torch-fsdp2", "--use-megatron-fsdp", "--overlap-moe-expert-parallel-comm")
_SAMPLES = ("--train-samples", "--lr-decay-samples", "--lr-warmup-samples")
_DATA = (
    ("--mock-data",),
    ("--data-path", "--data-args-path"),
    ("--train-data-path", "--valid-data-path", "--test-data-path", "--per-split-data-args-path"),
)


@rule(17, "overlapped tensor communication", "arguments.py:1441")
def _communication_overlap(context: RuleContext) -> Iterator[str]:
    """Check overlapped tensor communication, which needs sequence parallelism.

    Kwai drops its switches at tensor-parallel 1; January 2024 checks before it switches sequence parallelism off.
    """
    if context.dialect == "kwai":
        switches: tuple[str, ...] = ("--overlap-sp-ag", "--overlap-sp-rs")
        broken = context.layout.tensor_parallel > 1 and not context.sequence_parallel
    else:
        switches = ("--tp-comm-overlap",)
        asked = context.dialect == "2024" and context.layout.sequence_parallel
        broken = not (asked or context.sequence_parallel)
    wanted = [switch for switch in switches if switch in context.flags]
    if wanted and broken:
        yield f"{' and '.join(wanted)} without sequence parallelism, which needs tensor-parallel 2 or more"


@rule(18, "CUDA_DEVICE_MAX_CONNECTIONS", "arguments.py:1454-1479")
def _connections(context: RuleContext) -> Iterator[str]:
    """Check CUDA_DEVICE_MAX_CONNECTIONS if it is set. Today's rule needs the name of the GPU."""
    value = context.environment.get(_CONNECTIONS)
    if value in (None, "1") or context.dialect in ("2021", "kwai"):
        return
    if context.dialect == "2024":
        if context.sequence_parallel or "--no-async-tensor-model-parallel-allreduce" not in context.flags:
            yield f"{_CONNECTIONS} is {value}, this Megatron-LM starts with 1 only"
        return
    if context.gpu is None or _BLACKWELL.search(context.gpu) or any(flag in context.flags for flag in _EXEMPT):
        return
    sizes = {"tensor": context.layout.tensor_parallel, "context": context.layout.context_parallel}
    why = " and ".join(f"{name}-parallel {size}" for name, size in sizes.items() if size > 1)
    if why:
        yield f"{_CONNECTIONS} is {value}, {why} on {context.gpu} needs 1"


@rule(20, "recomputation", "arguments.py:1425, transformer_config.py:1905-1932")
def _recomputation(context: RuleContext) -> Iterator[str]:
    """Check the recomputation arguments, which did not exist in 2021; Kwai's default number of layers is 1."""
    flags, dialect = context.flags, context.dialect
    if dialect == "2021":
        return
    if "--checkpoint-activations" in flags:
        yield "--checkpoint-activations ends the program before it trains (today: --recompute-granularity)"
    granularity, method, layers = _recompute(context)
    if dialect == "pretrain":
        if granularity != "full" and (method or layers):
            yield "--recompute-method and --recompute-num-layers go with full recomputation only"
    elif granularity == "full" and not method:
        yield "full recomputation needs --recompute-method"
    elif granularity == "full" and not layers and dialect != "kwai":
        yield "full recomputation needs --recompute-num-layers"
    elif granularity == "selective" and (method or (layers and dialect != "kwai")):
        yield "selective recomputation excludes --recompute-method and --recompute-num-layers"


@rule(21, "distributed activations", "arguments.py:1410")
def _distributed_activations(context: RuleContext) -> Iterator[str]:
    flags = context.flags
    if context.dialect == "2021":
        recomputes = context.training.recompute == "full" or "--activations-checkpoint-method" in flags
        if "--distribute-checkpointed-activations" in flags and not recomputes:
            yield "--distribute-checkpointed-activations needs recomputation"
        return
    if "--distribute-saved-activations" not in flags:
        return
    needs = []
    granularity, _, _ = _recompute(context)
    if context.layout.tensor_parallel == 1:
        needs.append("tensor-parallel 2 or more")
    if granularity != "full":  # full recomputation without a method breaks rule 20
        needs.append("full recomputation")
    if context.sequence_parallel and context.dialect != "kwai":  # no effect in Kwai's program
        needs.append("no sequence parallelism")
    if needs:
        yield f"--distribute-saved-activations needs {' and '.join(needs)}"


@rule(22, "length and learning rate", "arguments.py:1275-1287,1360")
def _length(context: RuleContext) -> Iterator[str]:
    """Check arguments that contradict the length in iterations, which every case has."""
    for flag in _SAMPLES:
        if context.number(flag):
            yield f"{flag} excludes --train-iters, which every case has"
    if "--rampup-batch-size" in context.flags and context.dialect in _OLD:
        yield "--rampup-batch-size excludes --train-iters, which every case has"
    if "--lr-warmup-fraction" in context.flags and context.number("--lr-warmup-iters"):
        yield "--lr-warmup-fraction and --lr-warmup-iters exclude each other"
    lowest, highest = context.number("--min-lr"), context.number("--lr")
    if lowest is not None and highest is not None and lowest > highest:
        yield f"--min-lr {lowest:g} is over --lr {highest:g}"


@rule(23, "one arithmetic", "arguments.py:1195")
def _arithmetic(context: RuleContext) -> Iterator[str]:
    training, flags = context.training, context.flags
    dtypes = {training.dtype} | {dtype for dtype in ("fp16", "bf16") if f"--{dtype}" in flags}
    if {"fp16", "bf16"} <= dtypes:
        yield "fp16 and bf16 exclude each other"
    elif context.dialect == "pretrain":
        has_scale = "--loss-scale" in flags
        if "fp16" in dtypes and not (has_scale or training.loss_scale):
            yield "fp16 needs a static loss scale"
        if "fp16" not in dtypes and has_scale:
            yield "--loss-scale goes with fp16 only"


@rule(24, "one source of data", "arguments.py:1679")
def _data(context: RuleContext) -> Iterator[str]:
    given = [flags[0] for source in _DATA if (flags := [flag for flag in source if flag in context.flags])]
    if len(given) > 1:
        yield f"{' and '.join(given)}: data must have one source"


@rule(25, "intervals", "arguments.py:1361,1370")
def _intervals(context: RuleContext) -> Iterator[str]:
    flags = context.flags
    log = context.number("--log-interval") or context.training.log_interval
    memory = context.number("--log-memory-interval")
    if memory is not None and log and memory % log:
        yield f"--log-memory-interval {memory:.0f} does not divide by the log interval {log:.0f}"
    if "--save" in flags and (context.number("--save-interval") or 0) <= 0:
        yield "--save needs a --save-interval over 0"
    if "--save" not in flags:
        for flag in _SAVING.get(context.dialect, ()):
            if flag in flags:
                yield f"{flag} needs --save: at this commit it saves a checkpoint"


@rule(26, "overlapped parameter gather", "arguments.py:1024-1029")
def _parameter_gather(context: RuleContext) -> Iterator[str]:
    """Check overlapped parameter gathering.

    January 2024 needs the distributed optimizer; today other optimizers and FSDP are allowed too.
    """
    flags = context.flags
    if "--overlap-param-gather" not in flags:
        return
    sharded = _distributed_optimizer(context)
    if context.dialect == "now":
        sharded |= "--use-megatron-fsdp" in flags or flags.get("--optimizer") == ("dist_muon",)
    if not sharded:
        yield "--overlap-param-gather needs the distributed optimizer"
    if context.dialect != "2024" and "--overlap-grad-reduce" not in flags:
        yield "--overlap-param-gather needs --overlap-grad-reduce"


@rule(27, "stages to offload", "Megatron-Kwai")
def _offload_stages(context: RuleContext) -> Iterator[str]:
    if context.training.offload and context.layout.pipeline_parallel < 3:
        yield f"offload needs a pipeline-parallel size of 3 or more, not {context.layout.pipeline_parallel}"


@rule(28, "share to offload", "Megatron-Kwai")
def _offload_share(context: RuleContext) -> Iterator[str]:
    if not 0 <= context.training.offload <= 1:
        yield f"offload {context.training.offload:g} is not between 0 and 1"


@rule(29, "channels of context parallelism", "Megatron-Kwai, parallel_state.py:67-73")
def _channels(context: RuleContext) -> Iterator[str]:
    """Check NCCL variables that Kwai's context parallelism does not allow; an empty variable counts as not set."""
    if context.layout.context_parallel < 2 or context.number("--kaimm-cp-offload-mode"):
        return
    given = [name for name in _CHANNELS if context.environment.get(name)]
    if given:
        yield f"{' and '.join(given)} must not be set with context-parallel {context.layout.context_parallel}"


def _recompute(context: RuleContext) -> tuple[str | None, str | None, str | None]:
    """Return granularity, method and number of layers: the case's arguments, else those of full recomputation."""
    flags, kind = context.flags, context.training.recompute
    values = {
        name: (flags.get(f"--recompute-{name}") or (None,))[0] for name in ("granularity", "method", "num-layers")
    }
    granularity = values["granularity"] or (kind if kind in ("full", "selective") else None)
    if "--recompute-activations" in flags:
        granularity = "selective"
    method, layers = ("uniform", "1") if kind == "full" else (None, None)
    return granularity, values["method"] or method, values["num-layers"] or layers


def _distributed_optimizer(context: RuleContext) -> bool:
    """Return whether the distributed optimizer is on, as by default in `pretrain` and in ATC'24's scripts."""
    if "--use-distributed-optimizer" in context.flags:
        return True
    asked = context.training.distributed_optimizer
    return context.dialect in ("kwai", "2024", "pretrain") if asked is None else asked


KWAI_RULES = (_offload_stages, _offload_share, _channels)
"""Further rules of ATC'24's implementation (arguments.py at b2646e4d9f)."""


_ALL = {part for part in tuple(globals().values()) if isinstance(part, Rule)}
RULES = tuple(sorted(_ALL - set(KWAI_RULES), key=lambda rule: rule.number))
"""Rules in the order of a start of Megatron-LM: sizes, then switches."""


def broken_rules(context: RuleContext) -> list[tuple[Rule, str]]:
    """Return every violation with its rule."""
    rules = RULES + KWAI_RULES if context.dialect == "kwai" else RULES
    return [(rule, reason) for rule in rules for reason in rule.check(context)]


def layout_warnings(context: RuleContext) -> Iterator[str]:
    """Yield warnings that nothing enforces.

    They are SC21's takeaway 1 (tensor parallelism inside a node), a vocabulary that differs from the case's, and
    settings that today's Megatron-LM changes or warns of (rules 16, 19 and 23).
    """
    layout, nodes_of = context.layout, context.gpus_per_node
    if nodes_of and layout.tensor_parallel > nodes_of:
        yield f"tensor-parallel {layout.tensor_parallel} spans nodes of {nodes_of} GPU{'' if nodes_of == 1 else 's'}"
    if layout.sequence_parallel and not context.sequence_parallel:
        yield "sequence parallelism is switched off with tensor-parallel 1"
    if layout.expert_parallel > 1 and layout.tensor_parallel > 1 and not layout.sequence_parallel:
        yield "tensor-parallel with expert-parallel should use sequence parallelism"
    if context.vocabulary != context.model.vocab:
        yield f"the program makes the vocabulary {context.vocabulary:,}, the case has {context.model.vocab:,}"
    scaled = context.training.loss_scale or context.number("--loss-scale")
    if context.dialect == "now" and context.training.dtype == "fp16" and not scaled:
        yield "a dynamic loss scale switches the check for NaN off"
