"""Prediction of a case: the memory of its fullest GPU and the time of an iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

BasisName = Literal["measured", "other site", "other program", "not compared"]
"""Class of a predicted time: program, GPU and site measured (or a node of the same kind), another site or network,
another program of the family on a measured GPU, or no similar case."""


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """Parameters and bytes of the GPU that needs most memory. `offloaded_bytes` are pinned memory of the host.

    `calibrated`: the prediction was compared with published or measured bytes of similar cases.
    """

    parameters: float
    total_bytes: float
    offloaded_bytes: float = 0.0
    calibrated: bool = True


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """Time of an iteration, and its `parts` by name. `uncertainty` is relative: 0.1 is plus or minus 10 %.

    `basis` is what the prediction rests on, and `about` describes it.
    """

    iteration_ms: float
    uncertainty: float
    basis: BasisName
    about: str
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction of a case on a machine. None is unknown: on CPU cores, or if the profile does not describe the GPU.

    `usable_bytes` is the GPU memory that tensors can use.
    """

    memory: PredictedMemory | None = None
    usable_bytes: float | None = None
    duration: PredictedTime | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExactCase:
    """Memory of the GPU of a case that needs most, in pipeline stage `stage`, with its own `parameters`."""

    parameters: int
    stage: int
    total_bytes: int
