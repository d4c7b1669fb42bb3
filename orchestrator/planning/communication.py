"""Time that a job's GPUs wait for communication, in ms: what its compute does not hide."""

from __future__ import annotations

import math

from orchestrator.planning import calibration
from orchestrator.planning.calibration import Rates
from orchestrator.planning.timed_job import TimedJob


def tensor_parallel(job: TimedJob) -> float:
    """Exposed communication of one layer and microbatch: two all-reduces a pass, each a reduce-scatter and all-gather.

    With sequence parallelism the backward pass gathers the two inputs once more. Full recomputation repeats those of
    the forward pass (SC21 3.2), but those of a product that is left out. Four halves of the backward pass may run
    beside products.
    """
    t = job.layout.tensor_parallel
    again = 4 if not job.habits.skips_last_product else 3 if job.layout.sequence_parallel else 2
    halves = 4 + (2 if job.layout.sequence_parallel else 0) + (again if job.recomputes_all else 0)
    one = _collective(job.machine, job.hidden_bytes, t, math.gcd(t, job.machine.node))
    if not job.habits.overlaps_backward_communication:
        return (halves + 4) * one * _exposed(job)
    return halves * one + _beside_products(job, one)


def _beside_products(job: TimedJob, half: float) -> float:
    """Exposed part of the backward communication of one layer's two split products, queries and keys with values and
    the first of the feed-forward layer.

    An all-reduce of the input's gradient runs beside the product of the weights' gradient. With sequence parallelism
    the input is gathered beside the product of its gradient, which is scattered beside that of the weights' gradient.
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
    """Keys and values of the whole sequence to every GPU, again in the backward pass unless they were kept, and their
    gradients back."""
    layout = job.layout
    t, c = layout.tensor_parallel, layout.context_parallel
    times = 3 - job.habits.keeps_keys + job.recomputes_all
    return times * _collective(job.machine, job.gathered_key_bytes, c, _members(job.machine, t * c, t)) * _exposed(job)


def expert_parallel(job: TimedJob) -> float:
    """Tokens to their experts and back, in both passes."""
    layout = job.layout
    t, e = layout.tensor_parallel, layout.expert_parallel
    size = job.hidden_bytes * job.model.experts_per_token / t
    times = 6 if job.recomputes_all else 4
    return times * _collective(job.machine, size, e, _members(job.machine, t * e, t))


def _exposed(job: TimedJob) -> float:
    return job.machine.exposed_share if job.habits.hides_layer_communication else 1.0


def pipeline_transfers(job: TimedJob, microbatches: int) -> float:
    """Activations to the next stage and gradients back: b s h words, or 1/t of them with scatter/gather (SC21 4.1).

    Filling and draining the pipeline always waits for them; the microbatches between do unless an interleaving program
    sends while it computes.
    """
    layout, machine = job.layout, job.machine
    if layout.pipeline_parallel == 1:
        return 0.0
    divided = layout.sequence_parallel or job.training.scatter_gather
    size = job.hidden_bytes / (layout.tensor_parallel if divided else 1)
    # The slowest hop sets the pace: any pipeline over several nodes has one between nodes.
    link = machine.nvlink if layout.gpus == machine.node else min(machine.network, machine.nvlink)
    hidden = job.habits.hides_interleaved_transfers and layout.virtual_stages > 1
    hops = 2 * (layout.pipeline_parallel - 1) + (0 if hidden else 2 * layout.virtual_stages * microbatches)
    return hops * (size / link + calibration.COLLECTIVE_MS)


def gradients(job: TimedJob, last_backward_ms: float) -> float:
    """Gradients summed over the data- and context-parallel GPUs, and with a distributed optimizer the weights back.

    `last_backward_ms` is how long the backward pass of one microbatch takes on a stage.
    """
    layout = job.layout
    group = layout.data_parallel * layout.context_parallel
    members = _members(job.machine, layout.gpus // layout.pipeline_parallel, layout.tensor_parallel)
    gradient = 4 if job.habits.fp32_gradients else job.word
    if job.shards_optimizer:
        return _collective(job.machine, (gradient + job.word) * job.parameters, group, members)
    exposed = 2 * _collective(job.machine, gradient * job.parameters, group, members)
    if job.training.ddp == "torch" and layout.pipeline_parallel == 1:
        # PyTorch's own DDP reduces during the last microbatch's backward pass.
        exposed = max(0.0, exposed - last_backward_ms)
    return exposed


def shared_embedding(job: TimedJob) -> float:
    """The gradients of the embedding that a pipeline's first and last stage share, summed by an all-reduce."""
    layout = job.layout
    if not job.habits.sums_shared_embedding or job.model.family != "gpt" or layout.pipeline_parallel == 1:
        return 0.0
    gradient = 4 if job.habits.fp32_gradients else job.word
    members = 2 if layout.gpus == job.machine.node else 1
    return 2 * _collective(job.machine, gradient * job.embedding_weights, 2, members)


def _members(machine: Rates, block: int, tensor_parallel: int) -> int:
    """How many of a group's GPUs share a node, where they are fewest.

    Ranks count tensor-parallel first, pipeline last, so a stage is a block of consecutive GPUs. A block that is no
    whole number of nodes starts or ends inside one, and the ring is as narrow as there.
    """
    return max(1, math.gcd(block, machine.node) // tensor_parallel)


def _collective(machine: Rates, size: float, group: int, members: int) -> float:
    """An all-gather or reduce-scatter of `size` bytes as a ring; between nodes it has one network card per member."""
    if group <= 1:
        return 0.0
    nodes = -(-group // members)
    link = machine.nvlink if nodes == 1 else min(machine.nvlink, members * machine.network)
    steps = (nodes - 1) * calibration.NETWORK_STEP_MS + (group - nodes) * calibration.NVLINK_STEP_MS
    return (group - 1) / group * size / link + steps + calibration.COLLECTIVE_MS
