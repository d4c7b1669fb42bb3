"""Constants and sizes of the time model, rates of a machine, and the basis of a predicted time.

The basis is what was measured of the case's program, GPU and site. Each width is such that at least 90 % of the times
are inside that were not used to predict them: those of tables, machines and sites left out of the fit in turn.
docs/explanation/predictions.md has them, and a test checks each width.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache

from orchestrator.clusters.machine import GPUS, gpu_facts
from orchestrator.config.model import Hardware
from orchestrator.megatron.model import Layout, ModelShape, Training, weight_flops_per_token
from orchestrator.megatron.programs import find_megatron
from orchestrator.megatron.programs.base import ONE_NODE, Fit, TimeFacts, has_local_layers
from orchestrator.programs.record import BasisName


class Basis(Enum):
    """Class of a prediction, from the smallest to the largest uncertainty.

    `label` is its name in JSON, `uncertainty` the relative uncertainty if all bandwidths are known, `about` what was
    measured of cases of this class.
    """

    MEASURED = "measured", 0.10, "program, GPU and site measured, or a node of this kind"
    OTHER_SITE = "other site", 0.25, "program and GPU measured, other site or network"
    OTHER_PROGRAM = "other program", 0.30, "GPU measured, other program of the family"
    NOT_COMPARED = "not compared", 0.40, "no similar case measured, or limited by the host"

    def __init__(self, label: BasisName, uncertainty: float, about: str) -> None:
        self.label, self.uncertainty, self.about = label, uncertainty, about


COMPARED_ON = ("A100", "A800", "H800", "H100")
"""Kinds of GPU on which times of several programs of the family were compared: MLSys'23 table 5, ATC'24's demo and
table 8 (A800 is A100 with less NVLink), Megatron-Core's weak scaling and the tutorials."""


def basis_of(gpu: str | None, program: str, site: str | None, nodes: int) -> Basis:
    """Return the class of a prediction for a case of which a similar one was measured on some machine.

    `site` is the name of a cluster or the folder of a paper.
    """
    facts = find_megatron(program).time
    if any(is_kind(gpu, kind) for kind in facts.fitted_on):
        sites = {name for kind, names in facts.sites.items() if is_kind(gpu, kind) for name in names}
        return Basis.MEASURED if site in sites or (ONE_NODE in sites and nodes == 1) else Basis.OTHER_SITE
    is_compared = facts.is_of_family and any(is_kind(gpu, kind) for kind in COMPARED_ON)
    return Basis.OTHER_PROGRAM if is_compared else Basis.NOT_COMPARED


@cache
def is_kind(gpu: str | None, kind: str) -> bool:
    """Return whether this is the kind of GPU. GH200, H200 NVL and H100 PCIe are other kinds than H200 and H100."""
    return re.search(rf"(?<![A-Z]){kind}", gpu or "") is not None and not is_card(gpu)


def is_card(gpu: str | None) -> bool:
    """Return whether a GPU is a PCI Express card: lower power limit, and NVLink at most by bridges."""
    return re.search(r"NVL|PCI", gpu or "", re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True)
class Constants:
    """Fitted constants.

    `a100_gemm_share`, `h800_gemm_share`, `h100_gemm_share`, `gh100_gemm_share` and `pretrain_h100_gemm_share` are the
    share of the dense peak that large matrix products reach: on H100 in the programs of the tutorials, and in
    `pretrain` on H200 and on H100, all at the clocks that 700 W allow. The last one also makes up for memory traffic:
    H100 has 0.7 of the bandwidth of H200, and the counted bytes would cost more time than `pretrain` loses by this.
    `memory_share` and `network_share` are the share of a nominal bandwidth that is reached.
    `exposed_share` is the part of tensor- and context-parallel communication that ATC'24's overlapping and
    `--tp-comm-overlap` do not hide. `transfer_share` is the share of the network's bandwidth that SC21's program
    reaches between pipeline stages, and `transfer_ms` the time that each of its transfers adds because the host waits
    for it.

    The next four belong to `pretrain`. `overlap_cost` is the part of tensor-parallel communication that costs time
    although it overlaps with a product. `accumulated_share` is the exposed part of the traffic of adding weight
    gradients to their sum. It is the least certain constant: between 0.35 and 0.6 if other halves of the rows are
    fitted. `step_ms` is the time per iteration that the bytes of an optimizer step do not explain, probably because the
    host starts its kernels one by one.

    The next five are the times in which Python starts kernels with transformer-engine, forward and backward: of a layer
    (`host_layer_ms`), of a step of context-parallel attention (`host_step_ms`), of a router and its exchange of tokens
    (`host_router_ms`), of an expert (`host_expert_ms`), and of the schedule and transfers of a virtual stage of a
    pipeline (`host_stage_ms`). They belong to the host of the tutorials. The fifth one applies to no other program,
    because the published times of the weak scaling exclude it. `host_local_ms` replaces `host_layer_ms` for
    Megatron-LM's own layers, without transformer-engine.
    """

    a100_gemm_share: float = 0.795
    h800_gemm_share: float = 0.593
    memory_share: float = 0.746
    network_share: float = 0.86
    exposed_share: float = 0.227
    transfer_share: float = 0.621
    transfer_ms: float = 0.918
    gh100_gemm_share: float = 0.761
    overlap_cost: float = 0.163
    accumulated_share: float = 0.371
    step_ms: float = 6.75
    host_layer_ms: float = 4.51
    host_step_ms: float = 0.75
    host_router_ms: float = 5.3
    host_expert_ms: float = 0.1934
    h100_gemm_share: float = 0.654
    host_stage_ms: float = 9.21
    pretrain_h100_gemm_share: float = 0.86
    host_local_ms: float = 7.56

    def gemm_share(self, fit: Fit) -> float:
        """Return the share of the dense peak that large matrix products reach."""
        return {
            "A100": self.a100_gemm_share,
            "H800": self.h800_gemm_share,
            "H100": self.h100_gemm_share,
            "GH100": self.gh100_gemm_share,
            "pretrain H100": self.pretrain_h100_gemm_share,
        }[fit]


FITTED = Constants()
"""Least squares of the relative error. Seven constants are fitted to the odd rows of SC21 table 1 (5 of 10), of ATC'24
figure 9 (21 of 41), and to batches 12, 36 and 60 of SC21's figures 12 and 18 (9 of 15 jobs). Those of `pretrain` are
then fitted to its odd rows on one and two H200 (13 of 26) and on four (8 of 15), and those of the host and of H100 to
the odd rows of the tutorials without core-tp-pp (31 of 61). The share of H100 agrees with products measured alone on
one: docs/explanation/predictions.md."""


FLASH_SHARE: dict[Fit, dict[int, tuple[float, float]]] = {
    "A100": {128: (0.73, 0.63)},
    "H800": {128: (0.34, 0.34)},
    "H100": {128: (0.34, 0.34)},
    "GH100": {96: (0.448, 0.306), 128: (0.556, 0.379)},
    "pretrain H100": {96: (0.448, 0.306), 128: (0.556, 0.379)},
}
"""Share of the peak that attention reaches forward and backward, by the width of a head. FlashAttention-2, used for any
width: its paper, section 4.1 (up to 73 % and 63 % on A100; up to 335 TFLOP/s for both together on H100, of 989). On
H200 cuDNN's, measured alone: 535 to 565 and 367 to 383 TFLOP/s at 128, 443 and 303 at 96, counting the causal half,
and 2.5 times the forward pass's FLOPs backward. Other widths were not measured. With context parallelism, or where a
case asks for `flash`, `pretrain` uses FlashAttention-2; the three such rows are predicted with cuDNN's shares too."""
FLASH_IN_TRAINING: dict[Fit, float] = {"A100": 1.0, "H800": 1.0, "H100": 1.0, "GH100": 0.86, "pretrain H100": 0.86}
"""Speed of attention within an iteration as a share of its speed alone. On H200 the power limit slows a GPU that
does nothing but train: a profile of SC21's 1.7B has 110 ms of attention an iteration; the shares above give 94.7."""

TILE = (256, 128)
"""Rows and columns of a tile, or columns and rows: the largest of cuBLAS on V100 and A100."""
WAVE_SHARE = 0.3
"""Part of the time of idle multiprocessors in last waves that counts; kernels with smaller tiles avoid the rest. It is
chosen by the order of SC21 figure 16 at batch 128. Times hardly determine it: fitted to them it is 0.13, and without
waves the fit's sum of squares is 1 % larger than with 0.25."""

NVLINK_SHARE = 235 / 300
"""Share of NVLink's bandwidth that a ring reaches: NCCL's tuning.cc of 2021 caps A100's 300 GB/s at 235."""
COLLECTIVE_MS, NVLINK_STEP_MS, NETWORK_STEP_MS = 8.4e-3, 3.4e-3, 9.6e-3
"""Latency of a ring, protocol Simple: once, and per step inside and between nodes (NCCL's tuning.cc of 2021)."""

ASSUMED_NVLINK_GB_S, ASSUMED_NETWORK_GB_S = 200.0, 12.5
"""Bandwidths if neither profile nor table has one: those of ATC'24's machine, the slower of the two fitted ones."""

SMALLEST_LAYER_FLOPS = 8e11
"""Half of the FLOPs of the smallest fitted layer, per microbatch, GPU and forward pass. Smaller ones were
compared only with values of SC21's figures 14 and 15, traced from plots."""
SMALLEST_EAGER_LAYER_FLOPS = 1.6e12
"""The same where Python starts every kernel of `pretrain`. Such a layer takes 12 ms of an H200 for a microbatch, with
its recomputation and backward pass. On the slowest host that was measured Python needs 6 to 9 ms to start it."""
SMALLEST_GRAPHED_LAYER_FLOPS = 1.8e11
"""The same where `pretrain` starts kernels by CUDA graphs, without gaps between them: the smallest layer that was
measured on H200 (hidden size 3840, tensor-parallel 4, a microbatch of one, an iteration as one graph)."""


@cache
def fit_of(gpu: str | None, program: str) -> Fit | None:
    """Return the fit made for this program on this kind of GPU; None without one."""
    fits = find_megatron(program).time.fitted_on
    return next((fit for kind, fit in fits.items() if is_kind(gpu, kind)), None)


def flash_share(fit: Fit, head_width: float) -> tuple[float, float]:
    """Return the forward and backward share for the narrowest measured width that fits the head, else the widest."""
    shares = FLASH_SHARE[fit]
    return shares[min((width for width in shares if width >= head_width), default=max(shares))]


def smallest_layer_flops(fit: Fit | None, graphed: bool) -> float:
    """Return the FLOPs of the smallest layer that is similar to a fitted one."""
    if fit in ("GH100", "pretrain H100"):
        return SMALLEST_GRAPHED_LAYER_FLOPS if graphed else SMALLEST_EAGER_LAYER_FLOPS
    return SMALLEST_LAYER_FLOPS


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a machine per GPU in FLOP/ms and bytes/ms, and the number of GPUs of a node that a job uses."""

    gemm: float
    flash_forward: float
    flash_backward: float
    memory: float
    nvlink: float
    network: float
    host: float
    node: int
    constants: Constants
    multiprocessors: int | None
    transfer: float
    cards: int


def rates(
    constants: Constants, hardware: Hardware, gpus: int, peak_tflops: float, fit: Fit | None, head_width: float
) -> Rates:
    """Return the rates for a job of `gpus` GPUs. A GPU and program without a fit use that of the most similar GPU."""
    facts = gpu_facts(hardware.gpu)
    like = facts or GPUS["H800" if peak_tflops > 600 else "A100"]
    fit = fit or ("A100" if like.multiprocessors else "H800")  # the fit of A100 is the one with waves of tiles
    in_training = FLASH_IN_TRAINING[fit]
    forward, backward = (share * in_training for share in flash_share(fit, head_width))
    nvlink = hardware.nvlink_gb_s or (facts.nvlink_gb_s if facts else ASSUMED_NVLINK_GB_S)
    network = hardware.network_gb_s or ASSUMED_NETWORK_GB_S
    return Rates(
        gemm=peak_tflops * 1e9 * constants.gemm_share(fit),
        flash_forward=peak_tflops * 1e9 * forward,
        flash_backward=peak_tflops * 1e9 * backward,
        memory=like.memory_gb_s * 1e6 * constants.memory_share,
        nvlink=nvlink * 1e6 * NVLINK_SHARE,
        network=network * 1e6 * constants.network_share,
        host=like.host_gb_s * 1e6,
        node=min(hardware.gpus_per_node, gpus),
        constants=constants,
        multiprocessors=like.multiprocessors,
        transfer=network * 1e6 * constants.transfer_share,
        cards=hardware.network_cards or hardware.gpus_per_node,
    )


def with_halved_assumptions(hardware: Hardware) -> Hardware:
    """Return the hardware with half the bandwidth of each link that neither profile nor data sheet describes.

    The NVLink of the data sheet counts as known if the GPU is in the table and is not a PCI Express card.
    """
    if hardware.nvlink_gb_s and hardware.network_gb_s:
        return hardware
    facts = gpu_facts(hardware.gpu)
    nvlink = None if facts is None else facts.nvlink_gb_s / (2 if is_card(hardware.gpu) else 1)
    links = {
        "nvlink_gb_s": hardware.nvlink_gb_s or nvlink or ASSUMED_NVLINK_GB_S / 2,
        "network_gb_s": hardware.network_gb_s or ASSUMED_NETWORK_GB_S / 2,
    }
    return hardware.model_copy(update=links)


@dataclass(frozen=True, slots=True)
class TimedJob:
    """A job, the time facts of its program and the rates of its machine: the inputs of every formula of its time."""

    model: ModelShape
    layout: Layout
    training: Training
    program: TimeFacts
    machine: Rates
    arguments: frozenset[str] = frozenset()

    @property
    def tokens(self) -> float:
        """Tokens of one microbatch on one GPU."""
        return self.layout.micro_batch_size * self.model.seq / self.layout.context_parallel

    @property
    def hidden_bytes(self) -> float:
        """Bytes of one layer's output."""
        return self.training.word_bytes * self.tokens * self.model.hidden

    @property
    def recomputes_all(self) -> bool:
        """Return whether the backward pass computes every layer again."""
        return self.training.recompute == "full"

    @property
    def graphed(self) -> bool:
        """Return whether kernels are started by CUDA graphs: of an iteration, or of the passes of a pipeline."""
        return self.program.records_graph and not self.training.offload and not self.training.dropout

    @property
    def uses_local_layers(self) -> bool:
        """Return whether Megatron-LM uses its own layers, without transformer-engine."""
        return has_local_layers(self.arguments)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient that data-parallel GPUs sum."""
        is_fp32 = self.program.fp32_gradients and "--grad-reduce-in-bf16" not in self.arguments
        return 4 if is_fp32 else self.training.word_bytes

    @property
    def layers(self) -> float:
        """Layers of one pipeline stage."""
        return self.model.layers / self.layout.pipeline_parallel

    @property
    def parameters(self) -> float:
        """Parameters of the GPU that holds most: those of a stage's layers and of one embedding."""
        return self.layers * self.layer_weights + self.embedding_weights

    @property
    def layer_weights(self) -> float:
        """Weights of one layer that one GPU holds."""
        layout = self.layout
        expert_split = layout.expert_tensor_size * layout.expert_parallel
        ffn_split = expert_split if self.model.experts else layout.tensor_parallel
        return self.model.attention_weights() / layout.tensor_parallel + self.model.ffn_weights() / ffn_split

    @property
    def embedding_weights(self) -> float:
        """Weights of the embedding, or of the output layer, that one GPU holds."""
        return self.model.vocab * self.model.hidden / self.layout.tensor_parallel

    @property
    def layer_flops(self) -> float:
        """FLOPs of one layer's weight matrices for one microbatch on one GPU, forward; of the experts a token meets."""
        return self.tokens * weight_flops_per_token(self.model) / self.layout.tensor_parallel

    @property
    def gathered_key_bytes(self) -> float:
        """Bytes of the keys and values of whole sequences on one GPU."""
        layout = self.layout
        tokens = self.tokens * layout.context_parallel
        return 2 * self.training.word_bytes * tokens * self.model.kv_hidden / layout.tensor_parallel

    @property
    def shards_optimizer(self) -> bool:
        """Return whether the data-parallel GPUs share the optimizer's state."""
        asked = self.training.distributed_optimizer
        return self.program.distributed_optimizer if asked is None else asked
