"""Rules for switches: recomputation, learning rate, arithmetic, data, logging, communication.

They check the further arguments of a case, also against its model, layout and training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from orchestrator.megatron.rules.rule_context import RuleContext, rule

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
        plain = "--no-async-tensor-model-parallel-allreduce" in context.flags
        if context.sequence_parallel or not plain:
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
    if "--rampup-batch-size" in context.flags and context.dialect in ("2021", "kwai", "2024"):
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
    flags = context.flags
    given = [
        next(flag for flag in source if flag in flags) for source in _DATA if any(flag in flags for flag in source)
    ]
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
