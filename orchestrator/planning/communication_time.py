"""Time of communication that an iteration waits for: of tensor, context, expert, pipeline and data parallelism."""

from __future__ import annotations

import math

from orchestrator.planning import time_constants
from orchestrator.planning.time_constants import Rates, TimedJob


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
    first = (2 if model.family == "llama" else 1) * model.ffn_hidden
    exposed = 0.0
    for width in (model.hidden + 2 * model.kv_hidden, first):
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
        gathered = _collective(job.machine, job.word * job.parameters, group, members)
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
