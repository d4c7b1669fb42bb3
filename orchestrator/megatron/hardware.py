"""The facts of a machine that a plan is costed with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of node. Memory in units of 10^9 bytes; `peak_tflops` is dense, by dtype; bandwidths are per GPU and
    direction in GB/s (10^9 bytes): `nvlink_gb_s` inside a node, `network_gb_s` between nodes. None is not known.
    """

    nodes: int
    gpus_per_node: int
    gpu: str | None = None
    gpu_memory_gb: float | None = None
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    nvlink_gb_s: float | None = None
    network_gb_s: float | None = None
