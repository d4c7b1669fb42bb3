"""Time per iteration predicted from shapes and bandwidths, with the communication that an iteration waits for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from orchestrator.config.model import Hardware
from orchestrator.megatron import time_constants
from orchestrator.megatron.memory import units_of_layer
from orchestrator.megatron.model import Layout, ModelShape, Training, attention_flops_per_token
from orchestrator.megatron.programs import find_megatron
from orchestrator.megatron.programs.base import Fit
from orchestrator.megatron.time_constants import FITTED, Basis, Constants, Rates, TimedJob, basis_of


@dataclass(frozen=True, slots=True)
class Duration:
    """Predicted time of an iteration. The parts add up to `iteration_ms`; hidden communication is not counted.

    `compute_ms` is the compute of the slowest pipeline stage, with the wait for offloaded activations and the optimizer
    step. `basis` is what was measured of the case's program, GPU and site. `uncertainty` is relative: 0.1 is plus or
    minus 10 %. It is that of the basis, with the additional time with half of each assumed bandwidth.
    `gpu_ms` is the time of an iteration on a host that never delays the GPUs.
    """

    iteration_ms: float
    gpu_ms: float
    uncertainty: float
    basis: Basis
    compute_ms: float
    tensor_parallel_ms: float
    context_parallel_ms: float
    expert_parallel_ms: float
    pipeline_bubble_ms: float
    pipeline_transfer_ms: float
    data_parallel_ms: float


DURATION_PARTS = tuple(
    name for name in Duration.__slots__ if name.endswith("_ms") and name not in ("iteration_ms", "gpu_ms")
)
"""Names of the parts of an iteration's time in a `Duration`."""


def predict(
    model: ModelShape,
    layout: Layout,
    training: Training,
    hardware: Hardware,
    program: str,
    arguments: Sequence[str] = (),
    site: str | None = None,
    constants: Constants = FITTED,
) -> Duration | None:
    """Return the time of one iteration; None if the peak of the dtype is unknown. The layout must be valid.

    `arguments` are the further arguments of the case. Those that overlap communication (`--overlap-grad-reduce`,
    `--overlap-param-gather`, `--tp-comm-overlap`) or replace fused kernels (`--no-masked-softmax-fusion`,
    `--no-bias-gelu-fusion`, `--no-bias-dropout-fusion`, `--transformer-impl local`) change the time. So does
    `--grad-reduce-in-bf16`. `site` is the name of a cluster or the folder of a paper.
    """
    peak = hardware.peak(training.dtype)
    if peak is None:
        return None
    facts, fit = find_megatron(program).time, time_constants.fit_of(hardware.gpu, program)

    def predicted(machine: Hardware) -> Duration:
        rates = time_constants.rates(constants, machine, layout.gpus, peak, fit, model.hidden / model.heads)
        job = TimedJob(model, layout, training, facts, rates, frozenset(arguments))
        nodes = -(-layout.gpus // rates.node)
        return _predicted(job, fit, basis_of(hardware.gpu, program, site, nodes))

    duration, slower = predicted(hardware), time_constants.with_halved_assumptions(hardware)
    if slower == hardware:
        return duration
    longer = (predicted(slower).iteration_ms - duration.iteration_ms) / duration.iteration_ms
    return replace(duration, uncertainty=duration.uncertainty + longer)


def _predicted(job: TimedJob, fit: Fit | None, basis: Basis) -> Duration:
    """Return the prediction with its uncertainty for known bandwidths. `basis` is that of a similar case."""
    layout = job.layout
    forward, backward, recomputed = _passes(job)
    offload_wait = _offload_wait(job, forward, job.machine.host)
    layer = forward + backward + recomputed + offload_wait
    tensor, context, expert = tensor_parallel(job), context_parallel(job), expert_parallel(job)
    host_wait = max(0.0, _host(job) - layer - tensor - context - expert)
    layer += host_wait
    microbatches = max(1, layout.microbatches)
    rounds = microbatches * job.layers
    compute = rounds * layer + microbatches * _output_layer(job) + _optimizer_step(job)
    communication = tensor + context + expert
    idle_rounds = (layout.pipeline_parallel - 1) / layout.virtual_stages * job.layers
    bubble = idle_rounds * (layer + communication)
    transfer = pipeline_transfers(job, microbatches)
    summed = gradients(job, job.layers * forward, job.layers * (backward + recomputed)) + shared_embedding(job)
    waiting = rounds * communication + transfer + summed
    total = compute + bubble + waiting
    # A case like this was measured: large layers, no experts, a fast host, transformer-engine.
    is_large = job.layer_flops >= time_constants.smallest_layer_flops(fit, job.graphed)
    if not is_large or job.model.experts or host_wait or job.uses_local_layers:
        basis = Basis.NOT_COMPARED
    return Duration(
        iteration_ms=total,
        gpu_ms=total - (rounds + idle_rounds) * host_wait,
        # The bandwidth to the host is assumed: no measured time of a case that offloads all activations has the same.
        uncertainty=basis.uncertainty
        + rounds * (_offload_wait(job, forward, job.machine.host / 2) - offload_wait) / total,
        basis=basis,
        compute_ms=compute,
        tensor_parallel_ms=rounds * tensor,
        context_parallel_ms=rounds * context,
        expert_parallel_ms=rounds * expert,
        pipeline_bubble_ms=bubble,
        pipeline_transfer_ms=transfer,
        data_parallel_ms=summed,
    )


def _passes(job: TimedJob) -> tuple[float, float, float]:
    """Return the compute of one layer and microbatch in ms: forward, backward, and the recomputation of the latter."""
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
    return forward, backward, recomputed


def _matrix_products(job: TimedJob) -> float:
    """Return the forward time of one layer's matrices: 2 FLOPs per weight and token, and the memory traffic."""
    model, t = job.model, job.layout.tensor_parallel
    copies = model.active_experts
    whole = (2 + 2 * copies) * model.hidden
    split = (2 * model.hidden + 2 * model.kv_hidden + copies * (model.first_ffn_width + model.ffn_hidden)) / t
    moved = job.training.word_bytes * (job.layer_weights + job.tokens * (whole + split))
    return job.layer_flops / job.machine.gemm * _waves(job) + moved / job.machine.memory


def _waves(job: TimedJob) -> float:
    """Return the time of one layer's products over their time without idle multiprocessors.

    A product is computed in waves of one tile for each multiprocessor. In the last wave some are idle. `WAVE_SHARE`
    of this time counts, because kernels with smaller tiles avoid a part.
    """
    count = job.machine.multiprocessors
    if count is None:
        return 1.0
    model = job.model
    split = (model.hidden + 2 * model.kv_hidden, model.first_ffn_width)
    return 1 + time_constants.WAVE_SHARE * _idle(
        job.tokens, model.hidden, split, model.ffn_hidden, job.layout.tensor_parallel, count
    )


@lru_cache(maxsize=4096)
def _idle(tokens: float, hidden: int, split: tuple[int, int], ffn: int, tensor: int, multiprocessors: int) -> float:
    """Return the idle time over the busy time of the four products of a layer, each with its better shape of tile.

    `split` are the columns of the two products whose output is split over the tensor-parallel GPUs.
    """
    tall, wide = time_constants.TILE
    flops = idle = 0.0
    sizes = (
        (split[0] / tensor, hidden),
        (hidden, hidden / tensor),
        (split[1] / tensor, hidden),
        (hidden, ffn / tensor),
    )
    for columns, depth in sizes:
        upright = math.ceil(tokens / tall) * math.ceil(columns / wide) / multiprocessors
        lying = math.ceil(tokens / wide) * math.ceil(columns / tall) / multiprocessors
        flops += columns * depth
        idle += columns * depth * (min(math.ceil(upright) / upright, math.ceil(lying) / lying) - 1)
    return idle / flops


def _host(job: TimedJob) -> float:
    """Return the time in which the host starts the kernels of one layer and microbatch, forward and backward.

    CUDA graphs need none. Context parallelism starts more kernels: one set for each block of keys that is exchanged
    (p2p), about four in all otherwise. A router adds kernels, and each expert of the GPU its own products. A
    recomputed forward pass is assumed to take half of the time of both passes. In a pipeline the layers of a virtual
    stage share the time of its schedule and transfers.
    """
    if job.graphed or not job.program.limited_by_host:
        return 0.0
    machine, layout, experts = job.machine, job.layout, job.model.experts
    steps = layout.context_parallel if job.training.cp_comm == "p2p" else min(4, layout.context_parallel)
    layer_ms = machine.constants.host_local_ms if job.uses_local_layers else machine.constants.host_layer_ms
    started = layer_ms + (machine.constants.host_step_ms * steps if layout.context_parallel > 1 else 0.0)
    if experts:
        started += (
            machine.constants.host_router_ms + machine.constants.host_expert_ms * experts / layout.expert_parallel
        )
    started *= 1.5 if job.recomputes_all else 1.0
    if layout.pipeline_parallel > 1 and job.program.stages_cost_host:
        started += machine.constants.host_stage_ms * layout.virtual_stages / job.layers
    return started


def _last_product(job: TimedJob) -> float:
    """Return the forward time of the feed-forward layer's last matrix."""
    model, machine = job.model, job.machine
    ffn = model.ffn_hidden / job.layout.tensor_parallel
    moved = job.training.word_bytes * (model.hidden * ffn + job.tokens * (model.hidden + ffn))
    return 2 * job.tokens * model.hidden * ffn / machine.gemm + moved / machine.memory


def _attention(job: TimedJob) -> tuple[float, float]:
    """Return the forward and backward time of attention without its projections.

    Unfused as in 2021: all s x s scores (SC21's 4 b s^2 h FLOPs), and the memory traffic of 13 bytes per score forward
    (product 2, masked softmax 4, dropout 4, its mask 1, product 2) and 17 backward. Without the fused softmax 32 and 34
    more: made fp32 6, scaled 8, masked 8, normalised 8 and made 16-bit 6 in place of 4, and the same backward. Flash:
    the causal half, no scores in memory; the backward pass computes the scores again and takes 2.5 times the FLOPs.
    """
    machine, t = job.machine, job.layout.tensor_parallel
    flops = job.tokens * attention_flops_per_token(job.model) / t
    if (job.training.attention or job.program.attention) == "flash" and not job.uses_local_layers:
        copied, copied_back = _key_copies(job)
        forward = flops / 2 / machine.flash_forward
        return forward + copied, 2.5 * flops / 2 / machine.flash_backward + copied_back
    scores = job.tokens * job.model.seq * job.model.heads / t * job.training.word_bytes / 2
    forward, backward = (13, 17) if _fuses_softmax(job) else (45, 51)
    return (
        flops / machine.gemm + forward * scores / machine.memory,
        2 * flops / machine.gemm + backward * scores / machine.memory,
    )


def _fuses_softmax(job: TimedJob) -> bool:
    """Return whether one kernel scales, masks and normalises the scores (fused_softmax.py at 6985e58938).

    The separate kernels of today's own layers work in 16 bits and move no more bytes.
    """
    heads = job.model.heads / job.layout.tensor_parallel * job.layout.micro_batch_size
    return job.uses_local_layers or ("--no-masked-softmax-fusion" not in job.arguments and heads % 4 == 0)


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
    scale = job.tokens * job.training.word_bytes / 2 / job.machine.memory
    width = model.ffn_hidden * model.active_experts
    activation = (6 if model.family == "llama" else 4) * width / t
    # Separate kernels add the bias, drop and add the residual: 15 for 7. A separate bias of GELU is read and written.
    activation += 4 * width / t if "--no-bias-gelu-fusion" in job.arguments else 0
    residual = 30 if "--no-bias-dropout-fusion" in job.arguments else 14
    rest = residual * model.hidden / across + 4 * (model.hidden + 2 * model.kv_hidden) / t
    return scale * 8 * model.hidden / across, scale * activation, scale * rest


def _rotation(job: TimedJob) -> tuple[float, float]:
    """Return the forward and backward time of the rotary positions of queries and keys."""
    model = job.model
    if not model.has_rotary_positions:
        return 0.0, 0.0
    elements = job.tokens * (model.hidden + model.kv_hidden) / job.layout.tensor_parallel
    scale = elements * job.training.word_bytes / 2 / job.machine.memory
    forward, backward = job.program.rotary_bytes
    return forward * scale, backward * scale


def _accumulated_bytes(job: TimedJob) -> float:
    """Return the exposed bytes per weight of adding its gradient to the sum."""
    return job.program.accumulated_bytes * job.machine.constants.accumulated_share


def _offload_wait(job: TimedJob, forward: float, host: float) -> float:
    """Return the time by which offloading a layer's activations to the host exceeds its forward pass (ATC'24).

    `host` is the bandwidth in bytes per ms. The time is 0 for all published layouts.
    """
    kept = units_of_layer(job.model, job.training)
    moved = job.training.offload * kept * job.hidden_bytes / job.layout.tensor_parallel
    return max(0.0, moved / host - forward)


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
    started = job.machine.constants.step_ms if job.program.starts_step_by_host else 0.0
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
    if "--tp-comm-overlap" in job.arguments and job.layout.sequence_parallel:
        return (halves + 4) * half * job.machine.constants.exposed_share
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
    exposed = 0.0
    for width in (model.hidden + 2 * model.kv_hidden, model.first_ffn_width):
        product = 2 * job.tokens * model.hidden * width / t / machine.gemm
        for sent in (half, half) if job.layout.sequence_parallel else (2 * half,):
            exposed += max(0.0, sent - product) + machine.constants.overlap_cost * min(sent, product)
    return exposed


def context_parallel(job: TimedJob) -> float:
    """Return the exposed communication of keys and values of the whole sequence, and of their gradients.

    The backward pass gathers keys and values again unless they were kept. All-to-all exchanges the GPU's own queries,
    keys, values and outputs, and their gradients, in place of those of the whole sequence (DeepSpeed-Ulysses,
    arXiv:2309.14509, section 3.2).
    """
    layout = job.layout
    t, c = layout.tensor_parallel, layout.context_parallel
    members = _members(job.machine, t * c, t)
    if job.training.cp_comm == "a2a":
        own = job.hidden_bytes / t
        own_keys = own * job.model.kv_hidden / job.model.hidden
        once = 2 * _collective(job.machine, own, c, members) + 2 * _collective(job.machine, own_keys, c, members)
        return (2 + job.recomputes_all) * once * _exposed(job)
    times = 3 - job.program.keeps_keys + job.recomputes_all
    return times * _collective(job.machine, job.gathered_key_bytes, c, members) * _exposed(job)


def expert_parallel(job: TimedJob) -> float:
    """Return the communication of tokens to their experts and back, in both passes."""
    layout = job.layout
    t, e = layout.tensor_parallel, layout.expert_parallel
    size = job.hidden_bytes * job.model.experts_per_token / t
    times = 6 if job.recomputes_all else 4
    return times * _collective(job.machine, size, e, _members(job.machine, t * e, t))


def _exposed(job: TimedJob) -> float:
    return job.machine.constants.exposed_share if job.program.hides_layer_communication else 1.0


def pipeline_transfers(job: TimedJob, microbatches: int) -> float:
    """Return the exposed transfers between stages: b s h words, or 1/t of them with scatter/gather (SC21 4.1).

    Filling and draining the pipeline always waits for transfers; other microbatches wait unless an interleaved schedule
    sends while it computes. For each microbatch and virtual stage, a stage exchanges once with the next stage and once
    with the previous one. An exchange sends and receives at the same time (send_forward_recv_backward and
    send_backward_recv_forward of Megatron-LM's p2p_communication.py).
    """
    layout, machine = job.layout, job.machine
    if layout.pipeline_parallel == 1:
        return 0.0
    divided = layout.sequence_parallel or job.training.scatter_gather
    size = job.hidden_bytes / (layout.tensor_parallel if divided else 1)
    network = (machine.transfer if job.program.synchronizes_transfers else machine.network) * _card_share(job)
    between_nodes, inside_node = size / min(network, machine.nvlink), size / machine.nvlink
    wait = machine.constants.transfer_ms if job.program.synchronizes_transfers else time_constants.COLLECTIVE_MS
    hidden = job.program.hides_interleaved_transfers and layout.virtual_stages > 1
    exchanges = 0 if hidden else layout.virtual_stages * microbatches
    hops = 2 * (layout.pipeline_parallel - 1)
    stage, nodes = layout.gpus // layout.pipeline_parallel, -(-layout.gpus // machine.node)
    if stage < machine.node and machine.node % stage == 0:  # the slowest stages are those at the edge of a node
        hops_between, neighbours_between = 2 * (nodes - 1), min(1, nodes - 1)
    else:
        hops_between, neighbours_between = hops, 2
    return (
        (hops + 2 * exchanges) * wait
        + (hops_between + neighbours_between * exchanges) * between_nodes
        + (hops - hops_between + (2 - neighbours_between) * exchanges) * inside_node
    )


def _card_share(job: TimedJob) -> float:
    """Return the bandwidth of a GPU that sends to the next stage over that with all GPUs of the node sending.

    It is more than 1 if GPUs share network cards and a stage is smaller than a node.
    """
    sending = min(job.machine.node, job.layout.gpus // job.layout.pipeline_parallel)
    return max(1.0, job.machine.node / max(sending, job.machine.cards))


def gradients(job: TimedJob, forward_ms: float, backward_ms: float) -> float:
    """Return the exposed sum of gradients over data- and context-parallel GPUs, and the gather of sharded weights.

    `forward_ms` and `backward_ms` are the passes of one microbatch on a stage. torch's DDP and `--overlap-grad-reduce`
    sum during the backward pass of the last microbatch, `--overlap-param-gather` gathers during the forward pass of the
    first one. An interleaved schedule computes a chunk for as many microbatches as there are stages before the next
    chunk, so the chunks' sums and gathers overlap with that many microbatches.
    """
    layout = job.layout
    group = layout.data_parallel * layout.context_parallel
    members = _members(job.machine, layout.gpus // layout.pipeline_parallel, layout.tensor_parallel)
    if job.program.ring_uses_one_card and layout.tensor_parallel > 1 and group > members:
        members = 1
    rounds = min(layout.microbatches, layout.pipeline_parallel) if layout.virtual_stages > 1 else 1
    summed = _collective(job.machine, job.gradient_bytes * job.parameters, group, members)
    if job.shards_optimizer:
        gathered = _collective(job.machine, job.training.word_bytes * job.parameters, group, members)
    else:
        summed, gathered = 2 * summed, 0.0
    overlaps = job.training.ddp == "torch" and layout.pipeline_parallel == 1 and not job.shards_optimizer
    if overlaps or "--overlap-grad-reduce" in job.arguments:
        summed = max(0.0, summed - rounds * backward_ms)
    if "--overlap-param-gather" in job.arguments:
        gathered = max(0.0, gathered - rounds * forward_ms)
    return summed + gathered


def shared_embedding(job: TimedJob) -> float:
    """Return the all-reduce of the gradients of an embedding that the first and last stage share."""
    layout = job.layout
    if not job.program.sums_shared_embedding or job.model.family != "gpt" or layout.pipeline_parallel == 1:
        return 0.0
    members = 2 if layout.gpus == job.machine.node else 1
    return 2 * _collective(job.machine, job.gradient_bytes * job.embedding_weights, 2, members)


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
