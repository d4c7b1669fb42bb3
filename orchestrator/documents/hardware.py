"""The hardware facts that a cluster's profile and a paper's own machine both state."""

from __future__ import annotations

from typing import Literal

from orchestrator.documents.model import Count, Positive, Strict, Text
from orchestrator.megatron.hardware import Hardware


class HardwareFields(Strict):
    """What the nodes are. `peak_tflops` is dense, by dtype; a dtype that is not listed the GPU does not have.

    Bandwidths are per GPU and direction, in GB/s: `nvlink_gb_s` inside a node, `network_gb_s` between nodes.
    """

    nodes: Count
    gpus_per_node: Count
    gpu: Text | None = None
    gpu_memory_gb: Count | None = None
    peak_tflops: dict[Literal["fp32", "fp16", "bf16"], Positive] = {}
    nvlink_gb_s: Positive | None = None
    network_gb_s: Positive | None = None

    def peak(self, dtype: str) -> float | None:
        """Dense peak in TFLOP/s; None when nobody said."""
        return next((peak for name, peak in self.peak_tflops.items() if name == dtype), None)

    def facts(self) -> Hardware:
        """The same as the plain value that formulas take."""
        values = self.model_dump()
        return Hardware(**values | {"peak_tflops": {str(dtype): peak for dtype, peak in self.peak_tflops.items()}})
