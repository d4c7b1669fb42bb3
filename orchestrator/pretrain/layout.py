"""Layout of a run over its processes: parallel sizes, order of a pipeline, and reasons why a run cannot start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.pretrain.arguments import TrainingArguments


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
