"""Closed forms of the memory of a GPU: parameters, optimizer state and activations, in bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from orchestrator.megatron.model import Attention, Layout, ModelShape, Training, padded_vocabulary, parameters_of_stage

_CHUNKS_ON_DEVICE = 3
"""Chunks that are not offloaded: one computes, one is copied to the host, one is copied back."""

MicrobatchSlots = Callable[[int, int, int, int], tuple[tuple[int, ...], ...]]
"""For each chunk of a stage, the memory slot of each microbatch of an iteration; a function of pipeline-parallel size,
virtual stages, microbatches and stage."""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Use of memory by a program. The defaults are those of Megatron-Core on a GPU."""

    attention: Attention
    shards_optimizer: bool
    """Whether the data-parallel ranks share Adam's state (Megatron-LM's distributed optimizer)."""
    gradient_bytes: int = 4
    """Bytes per parameter. With two bytes a rank makes fp32 copies for its share of the optimizer step."""
    keeps_gradient_buffers: bool = True
    """True if the gradients are one buffer for the whole run. Without it, as in SC21's scripts, the optimizer step
    frees each 16-bit gradient once its fp32 copy exists, and torch's DDP keeps its buckets beside the gradients."""
    logit_bytes: int = 10
    """Largest number of live bytes per logit: the 16-bit logits, their fp32 copy and, in the fused loss, their
    exponentials; 6 without the fused loss, as in 2021; 2 if the loss keeps only the 16-bit logits."""
    score_bytes: int = 2
    """Width of unfused attention's softmax, and at least that of its queries, keys and values: 4 with torch's math
    kernel."""
    frees_outputs: bool = True
    """Whether a stage frees the outputs that it has sent; false in 2021."""
    fills_pipeline_first: bool = False
    """True if an interleaved schedule with as many microbatches as stages runs all forward passes before the first
    backward pass; true in 2021."""
    fuses_weight_gradients: bool = True
    """Whether the matrix product accumulates the gradient of a weight; false in 2021."""
    keeps_gathered_keys: bool = False
    """Whether context parallelism keeps the keys and values of the whole sequence for the backward pass."""
    microbatch_slots: MicrobatchSlots | None = None
    """The memory slots of CUDA graphs of pipeline stages; None if the program records none. Not used with dropout or
    offloading."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of the GPU that needs most memory, in pipeline stage `stage`, at the fullest moment of an iteration.

    `activations_bytes` are kept for the backward pass. `working_bytes` are live for a moment beside them: logits, or a
    recomputed layer and its gradients. `step_bytes` are live in the optimizer step, when there are no activations.
    `offloaded_bytes` are pinned memory of the host. `calibrated` is true if the closed form was compared with published
    or measured bytes of similar cases.
    """

    stage: int
    parameters: float
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    working_bytes: float
    step_bytes: float = 0.0
    offloaded_bytes: float = 0.0
    calibrated: bool = True

    @property
    def states_bytes(self) -> float:
        """Bytes that stay for the whole run."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> float:
        """Bytes at the fullest moment."""
        return self.states_bytes + max(self.activations_bytes + self.working_bytes, self.step_bytes)


def estimate_memory(model: ModelShape, layout: Layout, training: Training, facts: MemoryFacts) -> MemoryEstimate:
    """Return the estimate of the stage that needs most: the first or the last one.

    No other stage needs more than the first: it has as many layers, no table, and no more microbatches in flight.
    """
    ends = sorted({0, layout.pipeline_parallel - 1})
    estimates = [estimate_stage(stage, model, layout, training, facts) for stage in ends]
    return max(estimates, key=lambda estimate: estimate.total_bytes)


def chunks_in_flight(layout: Layout, stage: int, *, fills_pipeline_first: bool = False) -> int:
    """Return the largest number of chunks of one microbatch whose activations a stage holds (schedules.py)."""
    p, v, m = layout.pipeline_parallel, layout.virtual_stages, max(1, layout.microbatches)
    if v == 1:
        return min(p - stage, m)
    if fills_pipeline_first and m == p:
        return m * v
    return min(2 * (p - stage - 1) + (v - 1) * p + 1, m * v)


def gradient_width(facts: MemoryFacts, training: Training) -> int:
    """Return the bytes of a parameter's gradient, with its copy in the buckets of torch's DDP if it has one."""
    in_buckets = training.ddp == "torch" and not facts.keeps_gradient_buffers
    return facts.gradient_bytes * (2 if in_buckets else 1)


def step_width(facts: MemoryFacts) -> int:
    """Return the bytes that a parameter needs in the optimizer step beside its state: the fp32 copy of its gradient."""
    if facts.gradient_bytes == 4:
        return 0
    return 4 if facts.keeps_gradient_buffers else 4 - facts.gradient_bytes


def estimate_stage(
    stage: int, model: ModelShape, layout: Layout, training: Training, facts: MemoryFacts
) -> MemoryEstimate:
    """Return the estimate of one pipeline stage, at the fullest moment of its GPUs."""
    vocabulary = padded_vocabulary(model.vocab, layout.tensor_parallel)
    dense, experts = parameters_of_stage(model, layout, stage, vocabulary)
    parameters = dense + experts
    width = training.word_bytes
    adam = 8 if width == 4 else 12  # two moments, and an fp32 copy of 16-bit weights
    if facts.shards_optimizer:
        share = layout.expert_parallel * layout.expert_tensor_size * layout.pipeline_parallel
        dense_ranks = max(1, layout.data_parallel) * layout.context_parallel
        optimizer = adam * (dense / dense_ranks + experts / max(1, layout.gpus // share))
    else:
        optimizer = adam * parameters
    layer = _LayerActivations.of(model, layout, training, facts)
    activations, working = _activations_of_stage(stage, model, layout, facts, layer, width)
    if facts.microbatch_slots and layout.pipeline_parallel > 1 and not training.dropout and not training.offload:
        activations, working = _graphs_of_stage(stage, model, layout, facts.microbatch_slots, layer, width)
    chunk = model.layers / (layout.pipeline_parallel * layout.virtual_stages) * layer.kept
    offloaded = training.offload * chunk * max(0, chunks_in_flight(layout, stage) - _CHUNKS_ON_DEVICE)
    return MemoryEstimate(
        stage=stage,
        parameters=parameters,
        weights_bytes=width * parameters,
        gradients_bytes=gradient_width(facts, training) * parameters,
        optimizer_bytes=optimizer,
        activations_bytes=activations - offloaded,
        working_bytes=working,
        offloaded_bytes=offloaded,
        step_bytes=step_width(facts) * optimizer / adam if width == 2 else 0.0,
    )


@dataclass(frozen=True, slots=True)
class _LayerActivations:
    """Bytes of one layer and one microbatch on one GPU.

    `between` is the input of a layer, `mask` its dropout mask, `kept` the part that the backward pass needs, `working`
    the part that is live beside it while a layer runs backward: recomputed activations and gradients.
    """

    between: float
    mask: float
    kept: float
    working: float
    forward: float
    """Live beside `kept` while the layer runs forward."""

    @classmethod
    def of(cls, model: ModelShape, layout: Layout, training: Training, facts: MemoryFacts) -> _LayerActivations:
        t, width = layout.tensor_parallel, training.word_bytes
        tokens = layout.micro_batch_size * model.seq / layout.context_parallel
        token = width * tokens * model.hidden
        between = token / t if layout.sequence_parallel else token  # outside the tensor-parallel regions
        mask = between / width if training.dropout else 0.0  # one byte each
        inputs, scores, score_gradients = width, 0.0, 0.0
        if facts.attention == "unfused":  # the softmax and, with dropout, its mask and its output
            inputs = max(width, facts.score_bytes)
            pairs = tokens * model.seq * model.heads / t
            scores = (2 * inputs + 1 if training.dropout else inputs) * pairs
            score_gradients = inputs * pairs  # one at a time: dropout's output is freed before the second is made
        queries_and_keys = inputs * (model.hidden + 2 * model.kv_hidden)
        attention = tokens * (queries_and_keys + width * model.hidden) / t  # and its output
        if facts.keeps_gathered_keys and layout.context_parallel > 1:
            # Keys and values of the whole sequence, beside the rank's own, whose memory the queries share. The output
            # counts again, because its two pieces are computed separately.
            gathered = 2 * model.kv_hidden * layout.context_parallel
            attention += width * tokens * (gathered + model.hidden) / t
        copies = model.active_experts
        wide = width * tokens * copies * model.ffn_hidden / t
        dispatched = copies * between if model.experts else 0.0
        inner = width * tokens * copies * model.first_ffn_width / t
        norms = 2 * between
        full = 2 * between + norms + 2 * mask + attention + scores + dispatched + inner + wide
        kept = {"full": between, "selective": full - scores, "ours": full - norms - wide}.get(training.recompute, full)
        gradients = (2 if training.dropout else 1) * token + wide
        if training.recompute == "full":
            gradients += between  # the layer's output, which nothing reads
        if not facts.fuses_weight_gradients:
            gradients += width * model.hidden * model.ffn_hidden / t
        forward = {"full": inner + wide + 2 * between + token, "ours": wide + between}.get(training.recompute, between)
        # The backward pass of unfused attention runs when that of the feed-forward layer has freed its tensors.
        in_attention = score_gradients + 2 * token - (2 * between + mask + inner + wide)
        return cls(between, mask, kept, full - kept + max(gradients, in_attention), forward)


def _activations_of_stage(
    stage: int, model: ModelShape, layout: Layout, facts: MemoryFacts, layer: _LayerActivations, width: int
) -> tuple[float, float]:
    """Return the bytes kept for the backward pass, and the bytes that are live beside them for a moment."""
    p, t = layout.pipeline_parallel, layout.tensor_parallel
    chunks = chunks_in_flight(layout, stage, fills_pipeline_first=facts.fills_pipeline_first)
    layers = model.layers / (p * layout.virtual_stages)
    kept = chunks * layers * layer.kept
    if not facts.frees_outputs:
        kept += (chunks - (stage == p - 1)) * layer.between  # the last chunk's output is the loss
    if stage == 0:  # the embedding's dropout, whatever is recomputed
        microbatches = chunks if layout.virtual_stages == 1 else min(2 * p - 1, layout.microbatches)
        kept += microbatches * layer.mask
    working = layer.working
    if stage == p - 1:
        tokens = layout.micro_batch_size * model.seq / layout.context_parallel
        rows = padded_vocabulary(model.vocab, t) / t
        loss = tokens * rows * facts.logit_bytes + 2 * layer.between  # with the final norm's input and output
        # Backward: the gradients of logits and norm, and an unused buffer for a gradient of the table.
        product = width * (tokens * rows + rows * model.hidden) + 3 * layer.between
        working = max(working, loss, product)
        if p == 1 and model.family == "gpt":
            # At the end: both gradients of the shared table, and their sum. Nothing else is kept then.
            working = max(working, 3 * width * rows * model.hidden - kept)
    return kept, working


_GRAPH_POOL_BYTES = 20 * 2**20
"""Memory that torch's allocator maps at once for a pool of large tensors: each graph rounds up to it."""
_GRAPH_GAPS = 0.075
"""Gaps between the tensors that a forward graph keeps, of their bytes. Fitted on ten ranks of five runs of `pretrain`
in two stages on H200 (tests/unit/megatron/test_memory.py), which the form meets within 0.8 %."""


def _graphs_of_stage(
    stage: int,
    model: ModelShape,
    layout: Layout,
    microbatch_slots: MicrobatchSlots,
    layer: _LayerActivations,
    width: int,
) -> tuple[float, float]:
    """Return the bytes of the slots, and the bytes of backward graphs and of exchanges between stages.

    A slot holds the activations of one microbatch and the working memory of forward layers until the run ends. Backward
    graphs share their memory.
    """
    p, t = layout.pipeline_parallel, layout.tensor_parallel
    # The schedule repeats after two groups of p microbatches, so that more of them need no further slot.
    microbatches = min(max(1, layout.microbatches), 2 * p)
    slots, logit_slots = _slot_counts(microbatch_slots, p, layout.virtual_stages, microbatches, stage)
    activations = model.layers / (p * layout.virtual_stages) * layer.kept
    slot_bytes = slots * (activations * (1 + _GRAPH_GAPS) + layer.forward + _GRAPH_POOL_BYTES)
    rows = padded_vocabulary(model.vocab, t) / t
    working = layer.working
    if stage in (0, p - 1):  # the gradient of the embedding table
        working = max(working, width * rows * model.hidden + 2 * layer.between)
    if stage == p - 1:
        tokens = layout.micro_batch_size * model.seq / layout.context_parallel
        slot_bytes += logit_slots * (width * tokens * rows + 2 * layer.between)
    exchanged = 3 * layer.between  # outgoing, incoming, returned
    return slot_bytes, working + exchanged


@lru_cache(maxsize=4096)
def _slot_counts(
    microbatch_slots: MicrobatchSlots, stages: int, virtual_stages: int, microbatches: int, stage: int
) -> tuple[int, int]:
    """Return the number of memory slots of a stage, and of those of its last chunk, which has the logits."""
    chunks = microbatch_slots(stages, virtual_stages, microbatches, stage)
    return len({slot for numbers in chunks for slot in numbers}), len(set(chunks[-1]))


_MIB = 2**20
_ATC24_CHUNKS_ON_DEVICE = 4
"""Chunks that offloading does not reduce: one computes, one is copied to the host, two are buffers for reloads."""
_WORKING_UNITS = 37.1
"""Fitted to Figure 7: live memory beside states and activations, in units of one bf16 tensor [s/c, b, h/t]."""
_SOLVER_LIMIT_BYTES = 63.484 * 2**30
"""Fitted to Figure 9's alphas: the authors' limit for states and activations on 80 GB."""


def estimate_memory_atc24(model: ModelShape, layout: Layout, training: Training) -> MemoryEstimate:
    """Return the memory of the first stage of ATC'24's program.

    The sizes of tensors are inferred from its code, and the working memory is fitted to Figure 7's 19 published counts
    (torch.cuda.max_memory_allocated). The fit meets them within 1.2 %. Calibrated for recomputation `none` and `ours`
    with tensor parallelism; no bytes of other cases were published.
    """
    t, p, chunks = layout.tensor_parallel, layout.pipeline_parallel, chunks_in_flight(layout, 0)
    matrices = (model.attention_weights() + model.ffn_weights()) / t
    table = padded_vocabulary(model.vocab, t) / t * model.hidden
    parameters = model.layers / p * (matrices + 2 * model.hidden) + table
    unit = 2 * model.seq / layout.context_parallel * layout.micro_batch_size * model.hidden / t
    chunk = model.layers / (p * layout.virtual_stages) * units_of_layer(model, training) * unit
    offloaded_chunks = max(0, chunks - _ATC24_CHUNKS_ON_DEVICE)
    return MemoryEstimate(
        stage=0,
        parameters=parameters,
        weights_bytes=2 * parameters,
        gradients_bytes=4 * parameters,
        optimizer_bytes=12 * parameters / (max(1, layout.data_parallel) * layout.context_parallel),
        activations_bytes=chunks * chunk - training.offload * offloaded_chunks * chunk,
        working_bytes=_WORKING_UNITS * unit,
        offloaded_bytes=chunks * math.ceil(training.offload * chunk / _MIB) * _MIB,
        calibrated=training.recompute in ("none", "ours") and t > 1,
    )


def solve_offload(model: ModelShape, layout: Layout, training: Training) -> float:
    """Return the least share of activations to offload (ATC'24's alpha); above 1 if offloading all is not enough.

    The limit is fitted to Figure 9's 41 alphas. To three decimals the result equals 39 of them; the other two differ by
    at most 0.001.
    """
    whole = estimate_memory_atc24(model, layout, replace(training, offload=0.0))
    excess = whole.states_bytes + whole.activations_bytes - _SOLVER_LIMIT_BYTES
    if excess <= 0:
        return 0.0
    chunks = chunks_in_flight(layout, 0)
    offloadable = whole.activations_bytes / chunks * (chunks - _ATC24_CHUNKS_ON_DEVICE)
    return excess / offloadable if offloadable > 0 else math.inf


def units_of_layer(model: ModelShape, training: Training) -> float:
    """Return the activations that a layer keeps, in units of one bf16 tensor [s/c, b, h/t].

    `ours`: the layer's input, queries, attention's output and the residual; keys and values; the first matrix' output.
    `none` adds both norms' outputs, and SiLU's output and its product with the other half. `full`: the layer's input.
    """
    if training.recompute == "full":
        return 1
    keys, wide = model.kv_hidden / model.hidden, model.ffn_hidden / model.hidden
    if training.recompute == "ours":
        return 4 + 2 * keys + 2 * wide
    return 6 + 2 * keys + 4 * wide
