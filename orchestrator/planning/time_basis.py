"""Basis of a predicted time: what was measured of the case's program, GPU and site, and the uncertainty that follows.

Each width is such that at least 90 % of the times are inside that were not used to predict them: those of tables,
machines and sites left out of the fit in turn. docs/explanation/predictions.md has them, and a test checks each width.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache

from orchestrator.workloads import find_workload
from orchestrator.workloads.base import ONE_NODE


@dataclass(frozen=True, slots=True)
class _Class:
    """Name of a class, its relative uncertainty, and its description in a plan."""

    name: str
    uncertainty: float
    about: str


class Basis(Enum):
    """Class of a prediction, from the smallest to the largest uncertainty."""

    MEASURED = _Class("measured", 0.10, "program, GPU and site measured, or a node of this kind")
    OTHER_SITE = _Class("other site", 0.25, "program and GPU measured, other site or network")
    OTHER_PROGRAM = _Class("other program", 0.30, "GPU measured, other program of the family")
    NOT_COMPARED = _Class("not compared", 0.40, "no similar case measured, or limited by the host")

    @property
    def label(self) -> str:
        """Return the name in JSON."""
        return self.value.name

    @property
    def uncertainty(self) -> float:
        """Return the relative uncertainty if all bandwidths are known."""
        return self.value.uncertainty

    @property
    def about(self) -> str:
        """Return what was measured of cases of this class."""
        return self.value.about


COMPARED_ON = ("A100", "A800", "H800", "H100")
"""Kinds of GPU on which times of several programs of the family were compared: MLSys'23 table 5, ATC'24's demo and
table 8 (A800 is A100 with less NVLink), Megatron-Core's weak scaling and the tutorials."""


@dataclass(frozen=True, slots=True)
class JobTraits:
    """Properties of a job on which its basis depends.

    `site` is the name of a cluster or the folder of a paper. `is_similar` is False if no similar case was measured on
    any machine: the model has experts, the layers are smaller than the fitted ones, the host limits the time, or
    the program uses its own layers without transformer-engine.
    """

    gpu: str | None
    program: str
    site: str | None
    nodes: int
    is_similar: bool


def basis_of(job: JobTraits) -> Basis:
    """Return the class of a prediction."""
    if not job.is_similar:
        return Basis.NOT_COMPARED
    facts = find_workload(job.program).time
    if any(is_kind(job.gpu, kind) for kind in facts.fitted_on):
        sites = {site for kind, names in facts.sites.items() if is_kind(job.gpu, kind) for site in names}
        is_measured = job.site in sites or (ONE_NODE in sites and job.nodes == 1)
        return Basis.MEASURED if is_measured else Basis.OTHER_SITE
    is_compared = facts.is_of_family and any(is_kind(job.gpu, kind) for kind in COMPARED_ON)
    return Basis.OTHER_PROGRAM if is_compared else Basis.NOT_COMPARED


@cache
def is_kind(gpu: str | None, kind: str) -> bool:
    """Return whether this is the kind of GPU. GH200, H200 NVL and H100 PCIe are other kinds than H200 and H100."""
    return re.search(rf"(?<![A-Z]){kind}", gpu or "") is not None and not is_card(gpu)


def is_card(gpu: str | None) -> bool:
    """Return whether a GPU is a PCI Express card: lower power limit, and NVLink at most by bridges."""
    return re.search(r"NVL|PCI", gpu or "", re.IGNORECASE) is not None
