"""Data sheet values of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Nominal values from the vendor's data sheet.

    `peak_tflops` is the dense peak by dtype (data sheets often print the doubled, sparse number). Bandwidths are in
    GB/s, links per direction; `host_gb_s` is PCI Express x16 of generation 3, 4 or 5. Each of the `multiprocessors`
    computes a tile of a product at a time; None: predictions do without waves of tiles.
    """

    peak_tflops: Mapping[str, float]
    memory_gb_s: float
    nvlink_gb_s: float
    host_gb_s: float
    multiprocessors: int | None = None


_A100: Mapping[str, float] = {"bf16": 312, "fp16": 312, "fp32": 19.5}
_GH100: Mapping[str, float] = {"bf16": 989, "fp16": 989, "fp32": 67}

GPUS: Mapping[str, GpuFacts] = {
    "GH200": GpuFacts(_GH100, 4800, 450, 64),
    "H200": GpuFacts(_GH100, 4800, 450, 64),
    "H100 PCIe": GpuFacts({"bf16": 756, "fp16": 756, "fp32": 51}, 3350, 450, 64),
    "H100": GpuFacts(_GH100, 3350, 450, 64),
    "H800": GpuFacts({}, 3350, 200, 64),
    "A100": GpuFacts(_A100, 2039, 300, 32, 108),
    "A800": GpuFacts(_A100, 2039, 200, 32, 108),
    "V100": GpuFacts({"fp16": 125, "fp32": 15.7}, 900, 150, 16, 80),
}
"""Facts by a part of the GPU's name; the first key that the name contains applies. The bandwidths of GH200 and of
H100 PCIe are those of H200 and H100."""


def gpu_facts(gpu: str | None) -> GpuFacts | None:
    """Return the facts of a GPU by the name that its driver uses; None if the table has no such GPU."""
    return next((facts for part, facts in GPUS.items() if part in (gpu or "")), None)
