"""The numbers of the time model that follow from no formula: six fitted ones, and given ones with their source.

`benchmarks/duration.py` fits five of them to every other row of what two papers print, the sixth to every other run of
`pretrain` on H200, and judges them on the rows between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from orchestrator.megatron.hardware import Hardware
from orchestrator.workloads.traits import traits_of

FittedGpu = Literal["A100", "H800", "H200"]


@dataclass(frozen=True, slots=True)
class Constants:
    """The fitted numbers.

    `a100_gemm_share`, `h800_gemm_share` and `h200_gemm_share` are the share of the dense peak that large matrix
    products reach, on H200 those of `pretrain` at the clocks that 700 W allow; `memory_share` and `network_share` the
    share of a nominal bandwidth that is reached; `exposed_share` the part of tensor- and context-parallel communication
    that ATC'24's overlapping does not hide.
    """

    a100_gemm_share: float
    h800_gemm_share: float
    memory_share: float
    network_share: float
    exposed_share: float
    h200_gemm_share: float

    def gemm_share(self, fit: FittedGpu) -> float:
        return {"A100": self.a100_gemm_share, "H800": self.h800_gemm_share, "H200": self.h200_gemm_share}[fit]


FITTED = Constants(0.734, 0.581, 0.842, 0.886, 0.236, 0.725)
"""Least squares of the relative error: of the first five over the odd rows of SC21 table 1 (5 of 10) and of ATC'24
figure 9 (21 of 41); with these as they are, of the last over the odd rows of `pretrain` on H200 (13 of 26).

No seventh earned its keep: the judged rows of H200, whose mean error is 2.6 %, came to 3.5 % with a time per iteration,
to 3.2 % with one per iteration of a pipeline, and to 2.5 % with a share of the accumulated bytes.
"""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Nominal bandwidths from the vendor's data sheets in GB/s, links per direction; `host_gb_s` is PCI Express x16 of
    generation 3, 4 and 5. `fit` says whose share of the peak is used by programs that were not fitted on this GPU."""

    memory_gb_s: float
    nvlink_gb_s: float
    host_gb_s: float
    fit: FittedGpu


GPUS = {
    "V100": GpuFacts(900, 150, 16, "A100"),
    "A100": GpuFacts(2039, 300, 32, "A100"),
    "A800": GpuFacts(2039, 200, 32, "A100"),
    "H100": GpuFacts(3350, 450, 64, "H800"),
    "H200": GpuFacts(4800, 450, 64, "H800"),
    "H800": GpuFacts(3350, 200, 64, "H800"),
}
"""By a part of the GPU's name."""

FLASH_SHARE: dict[FittedGpu, dict[int, tuple[float, float]]] = {
    "A100": {128: (0.73, 0.63)},
    "H800": {128: (0.34, 0.34)},
    "H200": {96: (0.448, 0.306), 128: (0.556, 0.379)},
}
"""Share of the peak that attention reaches forward and backward, by the width of a head. FlashAttention-2, used for any
width: its paper, section 4.1 (up to 73 % and 63 % on A100; up to 335 TFLOP/s for both together on H100, of 989). On
H200 cuDNN's, measured by itself: 535 to 565 and 367 to 383 TFLOP/s at 128, 443 and 303 at 96, counting the causal half,
and 2.5 times the forward pass's FLOPs backward. Other widths were not measured. With context parallelism, or where a
case asks for `flash`, `pretrain` uses FlashAttention-2; the three such rows are predicted with cuDNN's shares too."""

NVLINK_SHARE = 235 / 300
"""What a ring makes of NVLink: NCCL's tuning.cc of 2021 caps A100's 300 GB/s at 235."""
COLLECTIVE_MS, NVLINK_STEP_MS, NETWORK_STEP_MS = 8.4e-3, 3.4e-3, 9.6e-3
"""Latency of a ring, protocol Simple: once, and per step inside and between nodes (NCCL's tuning.cc of 2021)."""

ASSUMED_NVLINK_GB_S, ASSUMED_NETWORK_GB_S = 200.0, 12.5
"""Where a profile gives none and the GPU is not in the table: ATC'24's machine, the slower of the two fitted ones."""

CALIBRATED: dict[tuple[str, str], FittedGpu] = {
    ("A100", "megatron-2021"): "A100",
    ("H800", "megatron-kwai"): "H800",
    ("H200", "pretrain"): "H200",
}
"""Kinds of GPU and programs that were fitted. On H200 `pretrain` was measured on one and two GPUs of a node, with GPT,
bf16 and no dropout. Not measured there: tensor-parallel size 4, four GPUs or more, pipelines of more than two stages or
with virtual ones, context parallelism over more than two, Llama, dropout."""
FITTED_GPUS = ("A100", "A800", "H800")
"""A800 is A100 with less NVLink."""
CALIBRATED_UNCERTAINTY = 0.08
"""The mean error that the benchmark allows on rows it did not fit. No row of the papers' 51 is off by more than 5 %; of
the 26 on H200 all but one are within 7.1 %: the one with context parallelism is predicted 10.8 % too fast."""
SMALLEST_LAYER_FLOPS = 8e11
"""Half of what a layer is in the smallest rows that were fitted, per microbatch, GPU and forward pass. Below it kernels
are too short for the model: SC21 figure 15 at batch 32 is predicted at 94 TFLOP/s for (2, 32), where others read 55 to
58 off the plot (unconfirmed). It is also the smallest layer that `pretrain` was measured with in a pipeline on H200."""
SMALLEST_GRAPHED_LAYER_FLOPS = 4e11
"""The same where `pretrain` on H200 starts an iteration as one CUDA graph, without gaps between kernels: the smallest
layer that was measured (hidden size 4096, tensor-parallel 2, a microbatch of one), two rows within 4.8 %."""
SAME_GPU_UNCERTAINTY = 0.1
"""Another Megatron-LM on a fitted kind of GPU: within 7 % of ATC'24's published demo and table 8, A800 and H800."""
OTHER_UNCERTAINTY = 0.4
"""Anything else. On V100 (Alpa's published results) and H200 (runs of megatron-core 0.16.1) most layouts inside a node
are within 22 %. The furthest off are tensor-parallel size 4 with a microbatch of one on H200, 39 %, and pipelines over
nodes whose GPUs share one 25 Gb/s card on V100, 35 %."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What a program does where a case leaves the choice to it.

    Bytes are those moved through a GPU's memory. `logit_bytes` of a logit, from the product that writes it to those
    that read its gradient: 16-bit written 2, made fp32 6; maximum 4, shifted 8, exponential 8, sum 4, normalised 8; the
    gradient 8, made 16-bit 6, and read by both its products 2. `sharded_logit_bytes` come on top where the vocabulary
    is split. `accumulated_bytes` of adding a weight's gradient of one microbatch to the sum. `optimizer_bytes` of
    mixed-precision Adam, for a parameter: gradient unscaled 6 and its norm 4, four fp32 read 16 and three written 12,
    the 16-bit copy 6, the gradient zeroed 4.

    `skips_last_product`: full recomputation of a layer ends before its last product. `keeps_keys`: the keys and values
    that context parallelism gathers are not gathered again, and copied into the sequence's order.
    `sums_shared_embedding`: what it costs that embedding and output layer share their weights is counted.
    """

    attention: str = "flash"
    distributed_optimizer: bool = True
    fp32_gradients: bool = True
    hides_layer_communication: bool = False
    hides_interleaved_transfers: bool = True
    records_graph: bool = False
    skips_last_product: bool = False
    keeps_keys: bool = False
    sums_shared_embedding: bool = False
    logit_bytes: int = 56
    sharded_logit_bytes: int = 0
    accumulated_bytes: int = 0
    optimizer_bytes: int = 48


_2021 = Habits("unfused", False, fp32_gradients=False, hides_interleaved_transfers=False)
_PRETRAIN = Habits(
    records_graph=True,  # pretrain/graph.py
    skips_last_product=traits_of("pretrain").skips_last_product,
    keeps_keys=True,  # pretrain/attention.py
    sums_shared_embedding=True,
    # pretrain/loss.py: written 2, read for the sums 2, read and overwritten by their gradient 4, read by both products
    # 4; the maximum of a split vocabulary is found in a pass of its own.
    logit_bytes=12,
    sharded_logit_bytes=2,
    accumulated_bytes=8,  # pretrain/weight_gradient.py: the product reads and writes the fp32 sum
    optimizer_bytes=42,  # no loss scale: the norm 4, Adam's 16 and 12, the 16-bit copy 6, the gradient zeroed 4
)
_PROGRAMS = {
    "megatron-2021": _2021,
    "megatron-alpa": _2021,
    "megatron-kwai": Habits(hides_layer_communication=True),
    "pretrain": _PRETRAIN,
}


def habits_of(program: str) -> Habits:
    return _PROGRAMS.get(program, Habits())


PRETRAIN_START_UP_S = 25.0
"""From the start of a job of `pretrain` until its first iteration has ended: importing torch and Megatron-Core, NCCL's
connections, compiling. Measured (runs of megatron-core 0.16.1 on H200, torch 2.11); on other GPUs it is assumed."""
ASSUMED_START_UP_S = 60.0
"""The same of every other program, with its container, process groups and data index: assumed, measured nowhere."""


def start_up_s(program: str) -> float:
    """Seconds of a job beside its iterations. The first of these is in what was measured, and counted twice so."""
    return PRETRAIN_START_UP_S if program == "pretrain" else ASSUMED_START_UP_S


def gpu_facts(gpu: str | None) -> GpuFacts | None:
    """Of a GPU by its name, None where it is not in the table."""
    return next((facts for part, facts in GPUS.items() if part in (gpu or "")), None)


def fit_of(gpu: str | None, program: str) -> FittedGpu | None:
    """Which fit was made for this kind of GPU and program. A GH200 or an H200 NVL is another kind than H200."""
    return next((fit for (part, fitted), fit in CALIBRATED.items() if _is(gpu, part) and program == fitted), None)


def _is(gpu: str | None, part: str) -> bool:
    return re.search(rf"(?<![A-Z]){part}(?!.NVL)", gpu or "") is not None


def flash_share(fit: FittedGpu, head_width: float) -> tuple[float, float]:
    """Of the narrowest width that was measured and holds a head, else of the widest; forward and backward."""
    shares = FLASH_SHARE[fit]
    return shares[min((width for width in shares if width >= head_width), default=max(shares))]


def smallest_layer_flops(fit: FittedGpu | None, graphed: bool) -> float:
    """From which size on layers are as those that were fitted."""
    return SMALLEST_GRAPHED_LAYER_FLOPS if fit == "H200" and graphed else SMALLEST_LAYER_FLOPS


@dataclass(frozen=True, slots=True)
class Rates:
    """What is reached, per GPU: FLOP/ms and bytes/ms; and how many GPUs of a node a job has."""

    gemm: float
    flash_forward: float
    flash_backward: float
    memory: float
    nvlink: float
    network: float
    host: float
    node: int
    exposed_share: float


def rates(
    constants: Constants, hardware: Hardware, gpus: int, peak_tflops: float, fit: FittedGpu | None, head_width: float
) -> Rates:
    """Of a job of so many GPUs; where this kind of GPU and program has no fit, as the GPU it is most like."""
    facts = gpu_facts(hardware.gpu)
    like = facts or GPUS["H800" if peak_tflops > 600 else "A100"]
    forward, backward = flash_share(fit or like.fit, head_width)
    nvlink = hardware.nvlink_gb_s or (facts.nvlink_gb_s if facts else ASSUMED_NVLINK_GB_S)
    network = hardware.network_gb_s or ASSUMED_NETWORK_GB_S
    return Rates(
        gemm=peak_tflops * 1e9 * constants.gemm_share(fit or like.fit),
        flash_forward=peak_tflops * 1e9 * forward,
        flash_backward=peak_tflops * 1e9 * backward,
        memory=like.memory_gb_s * 1e6 * constants.memory_share,
        nvlink=nvlink * 1e6 * NVLINK_SHARE,
        network=network * 1e6 * constants.network_share,
        host=like.host_gb_s * 1e6,
        node=min(hardware.gpus_per_node, gpus),
        exposed_share=constants.exposed_share,
    )


def uncertainty(gpu: str | None, program: str, calibrated: bool, fitted_size: bool) -> float:
    """Relative, of a prediction whose bandwidths are all known."""
    if calibrated:
        return CALIBRATED_UNCERTAINTY
    megatron_lm = program != "pretrain"  # whose habits are others, and were measured on H200 alone
    same_gpu = megatron_lm and any(part in (gpu or "") for part in FITTED_GPUS)
    return SAME_GPU_UNCERTAINTY if same_gpu and fitted_size else OTHER_UNCERTAINTY
