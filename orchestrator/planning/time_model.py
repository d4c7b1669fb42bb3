"""Time per iteration predicted from shapes and bandwidths."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from orchestrator.config.model import Hardware
from orchestrator.megatron.model import Layout, ModelShape, Training
from orchestrator.planning import time_constants
from orchestrator.planning.time_constants import FITTED, Constants, Rates, TimedJob
from orchestrator.workloads import find_workload


@dataclass(frozen=True, slots=True)
class Duration:
    """Predicted time of an iteration. The parts add up to `iteration_ms`; hidden communication is not counted.

    `compute_ms` is the compute of the slowest pipeline stage, with the wait for offloaded activations and the optimizer
    step. `uncertainty` is relative: 0.08 is plus or minus 8 %. It includes the additional time with half of each
    assumed bandwidth. `calibrated` is true if the constants were fitted on this GPU, workload and size of layers.
    """

    iteration_ms: float
    uncertainty: float
    calibrated: bool
    compute_ms: float
    tensor_parallel_ms: float
    context_parallel_ms: float
    expert_parallel_ms: float
    pipeline_bubble_ms: float
    pipeline_transfer_ms: float
    data_parallel_ms: float


DURATION_PARTS = tuple(name for name in Duration.__slots__ if name.endswith("_ms") and name != "iteration_ms")
"""Names of the parts of an iteration's time in a `Duration`."""


def predict(model: ModelShape, layout: Layout, training: Training, hardware: Hardware, program: str) -> Duration | None:
    """Return the time of one iteration; None if the peak of the dtype is unknown. The layout must be valid."""
    return predict_with(FITTED, model, layout, training, hardware, program)


def predict_with(
    constants: Constants, model: ModelShape, layout: Layout, training: Training, hardware: Hardware, program: str
) -> Duration | None:
    """Return the time of one iteration with other constants than the fitted ones."""
    duration = _predicted(constants, model, layout, training, hardware, program)
    if duration is None:
        return None
    slower = time_constants.with_halved_assumptions(hardware)
    if slower == hardware:
        return duration
    slow = _predicted(constants, model, layout, training, slower, program)
    assert slow is not None
    longer = (slow.iteration_ms - duration.iteration_ms) / duration.iteration_ms
    return replace(duration, uncertainty=duration.uncertainty + longer)


def _predicted(
    constants: Constants, model: ModelShape, layout: Layout, training: Training, hardware: Hardware, program: str
) -> Duration | None:
    """Return the prediction with its uncertainty for known bandwidths."""
    peak = hardware.peak(training.dtype)
    if peak is None:
        return None
    fit = time_constants.fit_of(hardware.gpu, program)
    machine = time_constants.rates(constants, hardware, layout.gpus, peak, fit, model.hidden / model.heads)
    job = TimedJob(model, layout, training, find_workload(program).time, machine)
    passes = _passes(job)
    layer = passes.forward + passes.backward + passes.recomputed + _offload_wait(job, passes.forward)
    tensor, context, expert = tensor_parallel(job), context_parallel(job), expert_parallel(job)
    microbatches = max(1, layout.microbatches)
    rounds = microbatches * job.layers
    compute = rounds * layer + microbatches * _output_layer(job) + _optimizer_step(job)
    communication = tensor + context + expert
    bubble = (layout.pipeline_parallel - 1) / layout.virtual_stages * job.layers * (layer + communication)
    transfer = pipeline_transfers(job, microbatches)
    last_backward_ms = job.layers * (passes.backward + passes.recomputed)
    summed = gradients(job, last_backward_ms) + shared_embedding(job)
    waiting = rounds * communication + transfer + summed
    total = compute + bubble + waiting
    gpu = None if model.experts else hardware.gpu  # no published time with experts was compared with
    fitted_size = job.layer_flops >= time_constants.smallest_layer_flops(fit, job.graphed)
    calibrated = fitted_size and time_constants.is_fitted(gpu, program)
    return Duration(
        iteration_ms=total,
        uncertainty=time_constants.uncertainty(gpu, program, calibrated, fitted_size),
        calibrated=calibrated,
        compute_ms=compute,
        tensor_parallel_ms=rounds * tensor,
        context_parallel_ms=rounds * context,
        expert_parallel_ms=rounds * expert,
        pipeline_bubble_ms=bubble,
        pipeline_transfer_ms=transfer,
        data_parallel_ms=summed,
    )


@dataclass(frozen=True, slots=True)
class _Passes:
    """Compute of one layer for one microbatch in ms; `recomputed` is the recomputation of the backward pass."""

    forward: float
    backward: float
    recomputed: float


def _passes(job: TimedJob) -> _Passes:
    products = _matrix_products(job)
    attention, attention_backward = _attention(job)
    norms, activation, other = _element_wise(job)
    small = norms + activation + other
    rotation, rotation_backward = _rotation(job)
    forward = products + attention + small + rotation
    # Element-wise gradients read what went in beside what comes back: three words for two.
    accumulated = _accumulated_bytes(job) * job.layer_weights / job.machine.memory
    backward = 2 * products + attention_backward + 1.5 * small + accumulated + rotation_backward
    full = forward - (_last_product(job) if job.program.skips_last_product else 0.0)
    recomputed = {"full": full, "selective": attention, "ours": norms + activation}.get(job.training.recompute, 0.0)
    return _Passes(forward, backward, recomputed)


def _matrix_products(job: TimedJob) -> float:
    """Return the forward time of one layer's matrices: 2 FLOPs per weight and token, and the memory traffic."""
    model, t = job.model, job.layout.tensor_parallel
    matrices = 3 if model.family == "llama" else 2
    copies = max(1, model.experts_per_token) if model.experts else 1
    flops = job.layer_flops
    whole = (2 + 2 * copies) * model.hidden
    split = (2 * model.hidden + 2 * model.kv_hidden + copies * matrices * model.ffn_hidden) / t
    moved = job.word * (job.layer_weights + job.tokens * (whole + split))
    return flops / job.machine.gemm + moved / job.machine.memory


def _last_product(job: TimedJob) -> float:
    """Return the forward time of the feed-forward layer's last matrix."""
    model, machine = job.model, job.machine
    ffn = model.ffn_hidden / job.layout.tensor_parallel
    moved = job.word * (model.hidden * ffn + job.tokens * (model.hidden + ffn))
    return 2 * job.tokens * model.hidden * ffn / machine.gemm + moved / machine.memory


def _attention(job: TimedJob) -> tuple[float, float]:
    """Return the forward and backward time of attention without its projections.

    Unfused as in 2021: all s x s scores (SC21's 4 b s^2 h FLOPs), and the memory traffic of 13 bytes per score forward
    (product 2, masked softmax 4, dropout 4, its mask 1, product 2) and 17 backward. Flash: the causal half, no scores
    in memory; the backward pass computes the scores again and takes 2.5 times the FLOPs.
    """
    machine, t = job.machine, job.layout.tensor_parallel
    flops = 4 * job.tokens * job.model.seq * job.model.hidden / t
    if (job.training.attention or job.program.attention) == "flash":
        copied, copied_back = _key_copies(job)
        forward = flops / 2 / machine.flash_forward
        return forward + copied, 2.5 * flops / 2 / machine.flash_backward + copied_back
    scores = job.tokens * job.model.seq * job.model.heads / t * job.word / 2
    return flops / machine.gemm + 13 * scores / machine.memory, 2 * flops / machine.gemm + 17 * scores / machine.memory


def _key_copies(job: TimedJob) -> tuple[float, float]:
    """Return the forward and backward time of ordering gathered keys and values (`pretrain`'s attention.py).

    Forward all are read and written: 2. Backward each of the two pieces of queries has a gradient in an array of zeros:
    zeros written 2, gradients copied 2, the two added 3, the sum split 2.
    """
    if not job.program.keeps_keys or job.layout.context_parallel == 1:
        return 0.0, 0.0
    pass_ms = job.gathered_key_bytes / job.machine.memory
    return 2 * pass_ms, 9 * pass_ms


def _element_wise(job: TimedJob) -> tuple[float, float, float]:
    """Return the forward time of one layer's norms, activation function and other element-wise kernels.

    Bytes per token in 16 bits: two norms 2 x 4h; two residual additions with dropout 2 x 7h; queries, keys and values
    rearranged 4 each; GELU reads and writes the ffn width, SwiGLU reads it twice and writes it once.
    """
    model, t = job.model, job.layout.tensor_parallel
    across = t if job.layout.sequence_parallel else 1
    scale = job.tokens * job.word / 2 / job.machine.memory
    width = model.ffn_hidden * max(1, model.experts_per_token if model.experts else 1)
    activation = (6 if model.family == "llama" else 4) * width / t
    rest = 14 * model.hidden / across + 4 * (model.hidden + 2 * model.kv_hidden) / t
    return scale * 8 * model.hidden / across, scale * activation, scale * rest


def _rotation(job: TimedJob) -> tuple[float, float]:
    """Return the forward and backward time of the rotary positions of queries and keys."""
    model = job.model
    if model.family != "llama":
        return 0.0, 0.0
    elements = job.tokens * (model.hidden + model.kv_hidden) / job.layout.tensor_parallel
    scale = elements * job.word / 2 / job.machine.memory
    forward, backward = job.program.rotary_bytes
    return forward * scale, backward * scale


def _accumulated_bytes(job: TimedJob) -> float:
    """Return the exposed bytes per weight of adding its gradient to the sum."""
    return job.program.accumulated_bytes * job.machine.accumulated_share


def _offload_wait(job: TimedJob, forward: float) -> float:
    """Return the time by which offloading a layer's activations exceeds its forward pass (ATC'24).

    It is 0 for all published layouts. Kept activations in units of b s h / (t c) words: 4 + 2k + 2r with ATC'24's
    recomputation, 6 + 2k + 4r without, 1 with full recomputation; k = kv_hidden / h, r = ffn / h.
    """
    k, r = job.model.kv_hidden / job.model.hidden, job.model.ffn_hidden / job.model.hidden
    kept = {"full": 1.0, "ours": 4 + 2 * k + 2 * r}.get(job.training.recompute, 6 + 2 * k + 4 * r)
    moved = job.training.offload * kept * job.hidden_bytes / job.layout.tensor_parallel
    return max(0.0, moved / job.machine.host - forward)


def _output_layer(job: TimedJob) -> float:
    """Return the time of logits and loss of one microbatch on the last stage: 6 T h V FLOPs and memory traffic.

    If the embedding shares the weights, its gradient is a separate array: 2 bytes per weight written, 2 zeros for the
    output layer's, both added 6, and the sum added to the fp32 gradient 10 (megatron-core 0.16.1).
    """
    program, t = job.program, job.layout.tensor_parallel
    logits, weights = job.tokens * job.model.vocab / t, job.embedding_weights
    shared = program.sums_shared_embedding and job.model.family == "gpt" and job.layout.pipeline_parallel == 1
    moved = (program.logit_bytes + (program.sharded_logit_bytes if t > 1 else 0)) * logits
    moved += (_accumulated_bytes(job) + (20 if shared else 0)) * weights
    return 6 * logits * job.model.hidden / job.machine.gemm + moved / job.machine.memory


def _optimizer_step(job: TimedJob) -> float:
    """Return the time of mixed-precision Adam, with the host's time to start its kernels."""
    layout = job.layout
    shares = layout.data_parallel * layout.context_parallel if job.shards_optimizer else 1
    started = job.machine.step_ms if job.program.starts_step_by_host else 0.0
    return job.program.optimizer_bytes * job.parameters / max(1, shares) / job.machine.memory + started


def tensor_parallel(job: TimedJob) -> float:
    """Return the exposed communication of one layer and microbatch.

    Each pass has two all-reduces, each a reduce-scatter and an all-gather (a half). With sequence parallelism the
    backward pass gathers the two inputs again. Full recomputation repeats the halves of the forward pass (SC21 3.2)
    except for a skipped product. Four halves of the backward pass may overlap with products.
    """
    t = job.layout.tensor_parallel
    repeated = 4 if not job.program.skips_last_product else 3 if job.layout.sequence_parallel else 2
    halves = 4 + (2 if job.layout.sequence_parallel else 0) + (repeated if job.recomputes_all else 0)
    half = _collective(job.machine, job.hidden_bytes, t, math.gcd(t, job.machine.node))
    if not job.program.overlaps_backward_communication:
        return (halves + 4) * half * _exposed(job)
    return halves * half + _beside_products(job, half)


def _beside_products(job: TimedJob, half: float) -> float:
    """Return the exposed backward communication of one layer's two column-parallel products.

    These are queries, keys and values, and the first product of the feed-forward layer. The all-reduce of the input's
    gradient overlaps with the product of the weights' gradient. With sequence parallelism the input is gathered during
    the product of its gradient, which is scattered during the product of the weights' gradient.
    """
    model, machine, t = job.model, job.machine, job.layout.tensor_parallel
    first = (2 if model.family == "llama" else 1) * model.ffn_hidden
    exposed = 0.0
    for width in (model.hidden + 2 * model.kv_hidden, first):
        product = 2 * job.tokens * model.hidden * width / t / machine.gemm
        for sent in (half, half) if job.layout.sequence_parallel else (2 * half,):
            exposed += max(0.0, sent - product) + machine.overlap_cost * min(sent, product)
    return exposed


def context_parallel(job: TimedJob) -> float:
    """Return the exposed communication of keys and values of the whole sequence, and of their gradients.

    The backward pass gathers keys and values again unless they were kept.
    """
    layout = job.layout
    t, c = layout.tensor_parallel, layout.context_parallel
    times = 3 - job.program.keeps_keys + job.recomputes_all
    return times * _collective(job.machine, job.gathered_key_bytes, c, _members(job.machine, t * c, t)) * _exposed(job)


def expert_parallel(job: TimedJob) -> float:
    """Return the communication of tokens to their experts and back, in both passes."""
    layout = job.layout
    t, e = layout.tensor_parallel, layout.expert_parallel
    size = job.hidden_bytes * job.model.experts_per_token / t
    times = 6 if job.recomputes_all else 4
    return times * _collective(job.machine, size, e, _members(job.machine, t * e, t))


def _exposed(job: TimedJob) -> float:
    return job.machine.exposed_share if job.program.hides_layer_communication else 1.0


def pipeline_transfers(job: TimedJob, microbatches: int) -> float:
    """Return the exposed transfers between stages: b s h words, or 1/t of them with scatter/gather (SC21 4.1).

    Filling and draining the pipeline always waits for transfers; other microbatches wait unless an interleaved schedule
    sends while it computes.
    """
    layout, machine = job.layout, job.machine
    if layout.pipeline_parallel == 1:
        return 0.0
    divided = layout.sequence_parallel or job.training.scatter_gather
    size = job.hidden_bytes / (layout.tensor_parallel if divided else 1)
    # The slowest hop sets the pace: any pipeline over several nodes has one between nodes.
    link = machine.nvlink if layout.gpus == machine.node else min(machine.network, machine.nvlink)
    hidden = job.program.hides_interleaved_transfers and layout.virtual_stages > 1
    hops = 2 * (layout.pipeline_parallel - 1) + (0 if hidden else 2 * layout.virtual_stages * microbatches)
    return hops * (size / link + time_constants.COLLECTIVE_MS)


def gradients(job: TimedJob, last_backward_ms: float) -> float:
    """Return the exposed sum of gradients over data- and context-parallel GPUs, and the gather of sharded weights.

    `last_backward_ms` is the backward time of one microbatch on a stage.
    """
    layout = job.layout
    group = layout.data_parallel * layout.context_parallel
    members = _members(job.machine, layout.gpus // layout.pipeline_parallel, layout.tensor_parallel)
    gradient = 4 if job.program.fp32_gradients else job.word
    if job.shards_optimizer:
        return _collective(job.machine, (gradient + job.word) * job.parameters, group, members)
    exposed = 2 * _collective(job.machine, gradient * job.parameters, group, members)
    if job.training.ddp == "torch" and layout.pipeline_parallel == 1:
        # PyTorch's own DDP reduces during the last microbatch's backward pass.
        exposed = max(0.0, exposed - last_backward_ms)
    return exposed


def shared_embedding(job: TimedJob) -> float:
    """Return the all-reduce of the gradients of an embedding that the first and last stage share."""
    layout = job.layout
    if not job.program.sums_shared_embedding or job.model.family != "gpt" or layout.pipeline_parallel == 1:
        return 0.0
    gradient = 4 if job.program.fp32_gradients else job.word
    members = 2 if layout.gpus == job.machine.node else 1
    return 2 * _collective(job.machine, gradient * job.embedding_weights, 2, members)


def _members(machine: Rates, block: int, tensor_parallel: int) -> int:
    """Return the smallest number of GPUs of a group that share a node.

    Ranks count tensor-parallel first, pipeline last, so a stage is a block of consecutive GPUs. A block that does not
    fill whole nodes starts or ends inside one, and the ring is narrowest there.
    """
    return max(1, math.gcd(block, machine.node) // tensor_parallel)


def _collective(machine: Rates, size: float, group: int, members: int) -> float:
    """Return the time of a ring all-gather or reduce-scatter of `size` bytes, with one network card per member."""
    if group <= 1:
        return 0.0
    nodes = -(-group // members)
    link = machine.nvlink if nodes == 1 else min(machine.nvlink, members * machine.network)
    steps = (nodes - 1) * time_constants.NETWORK_STEP_MS + (group - nodes) * time_constants.NVLINK_STEP_MS
    return (group - 1) / group * size / link + steps + time_constants.COLLECTIVE_MS
