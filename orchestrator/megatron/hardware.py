"""The facts of a machine that a plan is costed with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

USABLE_SHARE = 0.9375
"""Share of a GPU's memory that tensors can have; the rest is the context, NCCL's buffers and fragments. ATC'24's
Figure 7 brackets it on 80 GB: 72.8e9 bytes allocated fit, 77.8e9 do not."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of node. Memory in units of 10^9 bytes; `peak_tflops` is dense, by dtype; bandwidths are per GPU and
    direction in GB/s (10^9 bytes): `nvlink_gb_s` inside a node, `network_gb_s` between nodes. None is not known."""

    nodes: int
    gpus_per_node: int
    gpu: str | None = None
    gpu_memory_gb: float | None = None
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    nvlink_gb_s: float | None = None
    network_gb_s: float | None = None

    @property
    def usable_memory_bytes(self) -> float | None:
        return None if self.gpu_memory_gb is None else self.gpu_memory_gb * 1e9 * USABLE_SHARE
