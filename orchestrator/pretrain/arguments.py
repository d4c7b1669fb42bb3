"""Arguments of a training run, its layout over processes, and the reasons why it cannot start.

The flags are a subset of Megatron-LM's, and four that Megatron-LM lacks: `--record`, and the ATC'24 artifact's
`--kaimm-...` features: `--recompute-norm`, `--recompute-activation-func` and `--offload-activation-ratio`.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Recompute = Literal["full", "selective"]
RecomputeMethod = Literal["uniform", "block"]
AttentionBackend = Literal["auto", "flash", "fused", "unfused"]
Precision = Literal["fp32", "bf16", "fp16"]
CudaGraphs = Literal["none", "local"]
Normalization = Literal["LayerNorm", "RMSNorm"]
PositionEmbedding = Literal["learned_absolute", "rope"]
RecomputeModule = Literal["core_attn", "layernorm", "mlp"]

Value = TypeVar("Value")

# Megatron-LM's default for --make-vocab-size-divisible-by, used if the flag has no number.
VOCABULARY_MULTIPLE = 128


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


def _probability(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a probability below 1")
    return value


def _flag(default: Value, help: str | None = None, **options: object) -> Value:
    """Return a field with this default and these options of argparse, beside those of its type."""
    value: Value = field(default=default, metadata={"help": help, **options})
    return value


_ON_GPUS = "for GPUs; a CPU never fuses"


@dataclass(frozen=True, kw_only=True)
class TrainingArguments:
    """Arguments of one training run, with Megatron-LM's names. Lengths in tokens, batch sizes in sequences."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    seq_length: int
    vocab_size: int
    ffn_hidden_size: int | None = _flag(None, "default: 4 times the hidden size")
    make_vocab_size_divisible_by: int | None = _flag(
        None,
        "pad the vocabulary to a multiple of this times the tensor-parallel size; default: no padding",
        nargs="?",
        const=VOCABULARY_MULTIPLE,
    )
    untie_embeddings_and_output_weights: bool = False
    group_query_attention: bool = _flag(False, "query heads share keys and values")
    num_query_groups: int | None = _flag(None, "key and value heads, with --group-query-attention")
    swiglu: bool = _flag(False, "gated linear unit with SiLU in place of GELU")
    normalization: Normalization = "LayerNorm"
    position_embedding_type: PositionEmbedding = "learned_absolute"
    disable_bias_linear: bool = _flag(False, "no biases in the linear layers")
    hidden_dropout: float = _flag(0.1, type=_probability)
    attention_dropout: float = _flag(0.1, type=_probability)

    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    num_virtual_stages_per_pipeline_rank: int | None = _flag(None, "interleaved schedule if over 1")
    context_parallel_size: int = 1
    sequence_parallel: bool = _flag(False, "no effect without tensor parallelism")
    use_distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False

    recompute_granularity: Recompute | None = _flag(None, "default: no recomputation")
    recompute_method: RecomputeMethod | None = _flag(None, "with full; default: uniform")
    recompute_num_layers: int | None = _flag(None, "with full; default: 1")
    recompute_modules: Sequence[RecomputeModule] | None = _flag(
        None, "with selective; default: core_attn", type=str, nargs="+", choices=get_args(RecomputeModule)
    )
    recompute_norm: bool = _flag(False, "ATC'24: recompute the outputs of norms")
    recompute_activation_func: bool = _flag(False, "ATC'24: recompute the outputs of activation functions")
    offload_activation_ratio: float = _flag(
        0.0, "ATC'24: share of the activations that is offloaded to host memory", type=_share, metavar="ALPHA"
    )

    micro_batch_size: int
    global_batch_size: int
    train_iters: int
    bf16: bool = False
    fp16: bool = False
    loss_scale: float | None = _flag(None, "static loss scale of --fp16")
    lr: float = _flag(1e-4, "constant learning rate")
    clip_grad: float = _flag(1.0, "largest gradient norm; 0 turns clipping off")
    seed: int = _flag(1234, type=int)

    attention_backend: AttentionBackend = "auto"
    no_bias_gelu_fusion: bool = _flag(False, _ON_GPUS)
    no_bias_swiglu_fusion: bool = _flag(False, _ON_GPUS)
    no_bias_dropout_fusion: bool = _flag(False, _ON_GPUS)
    no_cross_entropy_fusion: bool = _flag(False, _ON_GPUS)
    no_gradient_accumulation_fusion: bool = _flag(False, _ON_GPUS)
    cuda_graph_impl: CudaGraphs = _flag(
        "local",
        "local: CUDA graphs of an iteration or of a pipeline's passes (on GPUs, without dropout and offloading)",
    )

    log_interval: int = _flag(1, "iterations per printed line")
    record: Path | None = _flag(None, "file for a JSON line per interval, with unrounded numbers")

    @property
    def precision(self) -> Precision:
        """Return the type of weights and activations. Gradients are always accumulated in fp32."""
        return "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32"

    @property
    def virtual_stages(self) -> int:
        """Return the number of model chunks per pipeline rank. More than one selects the interleaved schedule."""
        return self.num_virtual_stages_per_pipeline_rank or 1

    @property
    def query_groups(self) -> int:
        """Return the number of key and value heads per layer."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def selected_modules(self) -> frozenset[RecomputeModule]:
        """Return the modules of selective recomputation. Megatron-LM's default is the core attention."""
        if self.recompute_granularity != "selective":
            return frozenset()
        return frozenset(self.recompute_modules or ("core_attn",))

    @property
    def recomputes_norms(self) -> bool:
        """Return whether norm outputs are recomputed (`--recompute-norm` or Megatron-LM's module `layernorm`)."""
        return self.recompute_norm or "layernorm" in self.selected_modules

    @property
    def padded_vocab_size(self) -> int:
        """Return the rows of the embedding over all tensor-parallel ranks, with padding if the flag is set."""
        if self.make_vocab_size_divisible_by is None:
            return self.vocab_size
        multiple = self.make_vocab_size_divisible_by * self.tensor_model_parallel_size
        return -(-self.vocab_size // multiple) * multiple


def parse_arguments(argv: Sequence[str] | None = None, *, prints: bool = True) -> TrainingArguments:
    """Parse the command line (`sys.argv` if `argv` is None). A wrong argument ends the process with exit code 2.

    All ranks parse the same arguments; the one with `prints` prints the errors.
    """
    with nullcontext() if prints else redirect_stderr(io.StringIO()):
        return TrainingArguments(**vars(_parser().parse_args(argv)))


_GROUPS = {
    "num_layers": "model",
    "tensor_model_parallel_size": "layout",
    "recompute_granularity": "recomputation and offloading",
    "micro_batch_size": "training",
    "attention_backend": "kernels",
    "log_interval": "logging",
}
"""First field of each group of flags -> title of the group."""


def _parser() -> argparse.ArgumentParser:
    """Return the parser, with a flag for each field of `TrainingArguments`."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.pretrain",
        description="Train a GPT on mock data with Megatron-Core.",
        allow_abbrev=False,  # an abbreviation would change its meaning when a longer flag is added
        argument_default=argparse.SUPPRESS,  # the defaults are those of TrainingArguments
    )
    types = get_type_hints(TrainingArguments)
    group: argparse._ActionsContainer = parser
    precision = group
    for argument in fields(TrainingArguments):
        if argument.name in _GROUPS:
            group = parser.add_argument_group(_GROUPS[argument.name])
        if argument.name == "bf16":
            precision = group.add_mutually_exclusive_group()
        options = {**_options(types[argument.name]), **argument.metadata}
        if argument.default is MISSING:
            options["required"] = True
        owner = precision if argument.name in ("bf16", "fp16") else group
        owner.add_argument(f"--{argument.name.replace('_', '-')}", **options)
    return parser


def _options(kind: Any) -> dict[str, Any]:
    """Return the options of argparse for a field of this type."""
    if type(None) in get_args(kind):
        kind = get_args(kind)[0]
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    return {"type": _positive if kind is int else kind}


@dataclass(frozen=True)
class RunLayout:
    """Sizes of the parallel groups of a run, and the number of microbatches."""

    world_size: int
    tensor_parallel: int
    pipeline_parallel: int
    virtual_stages: int
    context_parallel: int
    data_parallel: int
    num_microbatches: int
    sequence_parallel: bool

    @classmethod
    def of(cls, arguments: TrainingArguments, world_size: int) -> RunLayout:
        """Return the layout of a run for which `refusals` is empty."""
        data_parallel = world_size // model_parallel_size(arguments)
        return cls(
            world_size=world_size,
            tensor_parallel=arguments.tensor_model_parallel_size,
            pipeline_parallel=arguments.pipeline_model_parallel_size,
            virtual_stages=arguments.virtual_stages,
            context_parallel=arguments.context_parallel_size,
            data_parallel=data_parallel,
            num_microbatches=arguments.global_batch_size // (arguments.micro_batch_size * data_parallel),
            sequence_parallel=arguments.sequence_parallel and arguments.tensor_model_parallel_size > 1,
        )


def model_parallel_size(arguments: TrainingArguments) -> int:
    """Return the number of processes that hold one replica of the model."""
    return (
        arguments.tensor_model_parallel_size * arguments.pipeline_model_parallel_size * arguments.context_parallel_size
    )


def refusals(arguments: TrainingArguments, world_size: int, *, on_gpu: bool) -> list[str]:
    """Return every reason why the run cannot start, one line each."""
    return [
        *_model_refusals(arguments),
        *_attention_refusals(arguments),
        *_pipeline_refusals(arguments),
        *_batch_refusals(arguments, world_size),
        *_memory_refusals(arguments),
        *_switch_refusals(arguments, on_gpu=on_gpu),
    ]


def _model_refusals(arguments: TrainingArguments) -> Iterator[str]:
    tensor, context = arguments.tensor_model_parallel_size, arguments.context_parallel_size
    heads, length = arguments.num_attention_heads, arguments.seq_length
    if arguments.hidden_size % heads:
        yield f"hidden size {arguments.hidden_size} is not a multiple of the {heads} attention heads"
    if heads % tensor:
        yield f"{heads} attention heads do not divide over tensor-model-parallel size {tensor}"
    ffn_hidden_size = arguments.ffn_hidden_size or 4 * arguments.hidden_size
    if ffn_hidden_size % tensor:
        yield f"ffn hidden size {ffn_hidden_size} does not divide over tensor-model-parallel size {tensor}"
    if arguments.padded_vocab_size % tensor:
        yield (
            f"vocabulary of {arguments.vocab_size} does not divide over tensor-model-parallel size {tensor}"
            " (--make-vocab-size-divisible-by pads it)"
        )
    # Each context-parallel rank takes an early and a late piece, so that all ranks have equal work.
    if context > 1 and length % (2 * context):
        yield f"sequence length {length} is not a multiple of twice the context-parallel size {context}"
    elif arguments.sequence_parallel and (length // context) % tensor:
        yield (
            f"sequence length {length} over context-parallel size {context} does not divide"
            f" over tensor-model-parallel size {tensor}, as sequence parallelism needs"
        )


def _attention_refusals(arguments: TrainingArguments) -> Iterator[str]:
    tensor, heads, groups = arguments.tensor_model_parallel_size, arguments.num_attention_heads, arguments.query_groups
    if arguments.group_query_attention != (arguments.num_query_groups is not None):
        yield "--group-query-attention and --num-query-groups go together"
    elif heads % groups:
        yield f"{heads} attention heads do not divide over {groups} query groups"
    elif heads % tensor == 0 and groups % tensor:
        yield f"{groups} query groups do not divide over tensor-model-parallel size {tensor}"
    if arguments.position_embedding_type == "rope" and arguments.hidden_size // heads % 2:
        yield f"rotary positions need heads of an even width, and {arguments.hidden_size // heads} is odd"


def _pipeline_refusals(arguments: TrainingArguments) -> Iterator[str]:
    stages, chunks = arguments.pipeline_model_parallel_size, arguments.virtual_stages
    if arguments.num_layers % (stages * chunks):
        by = f"{stages} pipeline stages" + (f" of {chunks} virtual stages" if chunks > 1 else "")
        yield f"{arguments.num_layers} layers do not divide over {by}"
    if chunks > 1 and stages == 1:
        yield f"{chunks} virtual stages need a pipeline-model-parallel size over 1"


def _batch_refusals(arguments: TrainingArguments, world_size: int) -> Iterator[str]:
    replica = model_parallel_size(arguments)
    if world_size % replica:
        yield f"world size {world_size} is not a multiple of tensor x pipeline x context parallel size {replica}"
        return
    data_parallel = world_size // replica
    if arguments.global_batch_size % (arguments.micro_batch_size * data_parallel):
        yield (
            f"global batch size {arguments.global_batch_size} is not a multiple of micro batch size"
            f" {arguments.micro_batch_size} times data-parallel size {data_parallel}"
        )
        return
    num_microbatches = arguments.global_batch_size // (arguments.micro_batch_size * data_parallel)
    stages = arguments.pipeline_model_parallel_size
    if arguments.virtual_stages > 1 and num_microbatches % stages:
        yield (
            f"the interleaved schedule needs a multiple of pipeline-model-parallel size {stages} microbatches"
            f" per data-parallel rank, and there are {num_microbatches}"
        )


def _switch_refusals(arguments: TrainingArguments, *, on_gpu: bool) -> Iterator[str]:
    if arguments.fp16 and not on_gpu:
        yield "--fp16 needs a GPU; on CPU fp32 and --bf16 work"
    if arguments.fp16 and arguments.loss_scale is None:
        yield "--fp16 needs a static --loss-scale"
    if arguments.loss_scale is not None and not arguments.fp16:
        yield "--loss-scale goes with --fp16 only"
    replaced = arguments.offload_activation_ratio or arguments.recomputes_norms or arguments.recompute_activation_func
    fused = on_gpu and not arguments.no_gradient_accumulation_fusion
    if replaced and fused and arguments.overlap_grad_reduce:
        # Megatron-Core marks the reduced gradient on the weight that it saved, which is no longer the weight itself.
        yield (
            "--overlap-grad-reduce with recomputed norms or activation functions, or offloaded activations,"
            " needs --no-gradient-accumulation-fusion"
        )
    if arguments.overlap_param_gather and not (arguments.use_distributed_optimizer and arguments.overlap_grad_reduce):
        yield "--overlap-param-gather needs --use-distributed-optimizer and --overlap-grad-reduce"


def _memory_refusals(arguments: TrainingArguments) -> Iterator[str]:
    if arguments.recompute_granularity != "full" and (arguments.recompute_method or arguments.recompute_num_layers):
        yield "--recompute-method and --recompute-num-layers go with --recompute-granularity full only"
    if arguments.recompute_modules and arguments.recompute_granularity != "selective":
        yield "--recompute-modules goes with --recompute-granularity selective only"
    parts = arguments.recomputes_norms or arguments.recompute_activation_func
    if parts and arguments.recompute_granularity == "full":
        yield "--recompute-granularity full leaves nothing to --recompute-norm and --recompute-activation-func"
    if parts and "mlp" in arguments.selected_modules:
        yield "the recomputed module mlp goes with no recomputation of norms or activation functions"
    # Megatron-Core's checkpoint holds its inputs on the device, even if they were offloaded.
    checkpoints = arguments.recompute_granularity == "full" or arguments.selected_modules - {"layernorm"}
    if arguments.offload_activation_ratio and checkpoints:
        yield (
            "--offload-activation-ratio goes with --recompute-norm and --recompute-activation-func,"
            " not with full recomputation nor with that of core_attn or mlp"
        )


def communication_options(layout: RunLayout, *, on_gpu: bool) -> dict[str, bool]:
    """Return the fields of Megatron-Core's TransformerConfig that suit the schedule and the backend."""
    interleaved = layout.virtual_stages > 1
    return {
        # With two stages both neighbours are the same rank, and a batch mixes up their messages: wrong gradients.
        "batch_p2p_comm": not interleaved,
        "overlap_p2p_comm": interleaved,
        "batch_p2p_sync": False,
        # gloo may still be sending an output when its memory is freed: wrong gradients.
        "deallocate_pipeline_outputs": on_gpu,
    }


def microbatch_slots(
    pipeline_parallel: int, virtual_stages: int, num_microbatches: int, stage: int
) -> tuple[tuple[int, ...], ...]:
    """Return, for each chunk of a stage, the memory slot of each microbatch of an iteration.

    A slot holds the activations of one microbatch of one chunk from its forward to its backward pass. The number of
    slots is the largest number that the stage needs at once. A chunk reuses its earlier slots if one is free. The chunk
    that computes the loss has slots of its own: each of them needs room for logits.

    Follows the order of Megatron-Core 0.16.1's schedules (pipeline_parallel/schedules.py). Interleaved, a stage runs
    groups of p microbatches through its v chunks in turn, and begins 2 (p - stage - 1) + (v - 1) p passes before its
    first backward pass; backward passes visit the chunks in reverse.
    """
    p, v, m = pipeline_parallel, virtual_stages, num_microbatches
    order = [chunk for first in range(0, m, p) for chunk in range(v) for _ in range(first, min(first + p, m))]
    ahead = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * p
    ahead = min(ahead, len(order))
    slots: list[list[int]] = [[] for _ in range(v)]
    ended = [0] * v
    shared, with_logits = set[int](), set[int]()
    free = [shared] * (v - 1) + [with_logits if stage == p - 1 else shared]
    count = 0
    pause: list[int | None] = [None] * ahead
    for begins, ends in zip([*order, *pause], [*pause, *order], strict=True):
        if begins is not None:
            if not free[begins]:
                free[begins].add(count)
                count += 1
            slot = min(free[begins].intersection(slots[begins]) or free[begins])
            free[begins].remove(slot)
            slots[begins].append(slot)
        if ends is not None:
            chunk = v - 1 - ends
            free[chunk].add(slots[chunk][ended[chunk]])
            ended[chunk] += 1
    return tuple(tuple(numbers) for numbers in slots)
