"""The numbers of the time model that follow from no formula: five fitted ones, and given ones with their source.

`benchmarks/duration.py` fits the five to every other row of what two papers print, and judges them on the rows between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FittedGpu = Literal["A100", "H800", "H200"]


@dataclass(frozen=True, slots=True)
class Constants:
    """The fitted numbers.

    `a100_gemm_share` and `h800_gemm_share` are the share of the dense peak that large matrix products reach;
    `memory_share` and `network_share` the share of a nominal bandwidth that is reached; `exposed_share` the part of
    tensor- and context-parallel communication that ATC'24's overlapping does not hide.
    """

    a100_gemm_share: float
    h800_gemm_share: float
    memory_share: float
    network_share: float
    exposed_share: float
    h200_gemm_share: float

    def gemm_share(self, fit: FittedGpu) -> float:
        return {"A100": self.a100_gemm_share, "H800": self.h800_gemm_share, "H200": self.h200_gemm_share}[fit]


FITTED = Constants(0.734, 0.581, 0.842, 0.886, 0.236, 0.70)
"""Least squares of the relative error over the odd rows of SC21 table 1 (5 of 10) and of ATC'24 figure 9 (21 of 41)."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Nominal bandwidths from the vendor's data sheets in GB/s, links per direction; `host_gb_s` is PCI Express x16 of
    generation 3, 4 and 5. `fit` says whose share of the peak is used."""

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


def flash_share(fit, width):
    shares = FLASH_SHARE[fit]
    return shares[min((w for w in shares if w >= width), default=max(shares))]


@dataclass(frozen=True, slots=True)
class Habits:
    """What a program does where a case leaves the choice to it."""

    attention: str = "flash"
    distributed_optimizer: bool = True
    fp32_gradients: bool = True
    hides_layer_communication: bool = False
    hides_interleaved_transfers: bool = True
    skips_last_product: bool = False
    logit_bytes: float = 56
    accumulated_bytes: float = 0
    embedding_bytes: float = 0
    optimizer_bytes: float = 48


_2021 = Habits("unfused", False, fp32_gradients=False, hides_interleaved_transfers=False)
PROGRAMS = {
    "megatron-2021": _2021,
    "megatron-alpa": _2021,
    "megatron-kwai": Habits(hides_layer_communication=True),
    "pretrain": Habits(
        skips_last_product=True, logit_bytes=12, accumulated_bytes=8, embedding_bytes=8, optimizer_bytes=42
    ),
}


def habits_of(program):
    return PROGRAMS.get(program, Habits())


def fit_of(gpu, program):
    return "H200" if program == "pretrain" and "H200" in (gpu or "") else None


NVLINK_SHARE = 235 / 300
"""What a ring makes of NVLink: NCCL's tuning.cc of 2021 caps A100's 300 GB/s at 235."""
COLLECTIVE_MS, NVLINK_STEP_MS, NETWORK_STEP_MS = 8.4e-3, 3.4e-3, 9.6e-3
"""Latency of a ring, protocol Simple: once, and per step inside and between nodes (NCCL's tuning.cc of 2021)."""

ASSUMED_NVLINK_GB_S, ASSUMED_NETWORK_GB_S = 200.0, 12.5
"""Where a profile gives none and the GPU is not in the table: ATC'24's machine, the slower of the two fitted ones."""

CALIBRATED = {("A100", "megatron-2021"), ("H800", "megatron-kwai"), ("H200", "pretrain")}
FITTED_GPUS = ("A100", "A800", "H800")
"""A800 is A100 with less NVLink."""
CALIBRATED_UNCERTAINTY = 0.08
"""The mean error that the benchmark allows on rows it did not fit. No row of the 51 is off by more than 5 %."""
SMALLEST_LAYER_FLOPS = 8e11
"""Half of what a layer is in the smallest rows that were fitted, per microbatch, GPU and forward pass. Below it kernels
are too short for the model: SC21 figure 15 at batch 32 is predicted at 94 TFLOP/s for (2, 32), where others read 55 to
58 off the plot (unconfirmed)."""
SAME_GPU_UNCERTAINTY = 0.1
"""Another program on a fitted kind of GPU: within 7 % of the published demo and table 8 of ATC'24, A800 and H800."""
OTHER_UNCERTAINTY = 0.4
"""Anything else. On V100 (Alpa's published results) and H200 (runs of megatron-core 0.16.1) most layouts inside a node
are within 22 %. The furthest off are tensor-parallel size 4 with a microbatch of one on H200, 39 %, and pipelines over
nodes whose GPUs share one 25 Gb/s card on V100, 35 %."""


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


def is_calibrated(gpu: str | None, program: str) -> bool:
    return any(part in (gpu or "") and program == fitted for part, fitted in CALIBRATED)


def uncertainty(gpu: str | None, calibrated: bool, fitted_size: bool) -> float:
    """Relative, of a prediction whose bandwidths are all known."""
    if calibrated:
        return CALIBRATED_UNCERTAINTY
    same_gpu = any(part in (gpu or "") for part in FITTED_GPUS)
    return SAME_GPU_UNCERTAINTY if same_gpu and fitted_size else OTHER_UNCERTAINTY
