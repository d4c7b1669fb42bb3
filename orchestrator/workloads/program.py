"""A case -> the program that runs it on a cluster; and which workloads can run where."""

from __future__ import annotations

from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import Paper
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import Folders
from orchestrator.workloads.base import Binding, Program, image_of
from orchestrator.workloads.makers import MAKERS
from orchestrator.workloads.traits import traits_of

__all__ = ["Program", "image_of", "is_offered", "program_for"]


def program_for(case: Case, paper: Paper, cluster: Cluster, folders: Folders) -> Program:
    """The program of a case on a cluster; ReproError says what the site or the paper leaves open, or what of the case
    the program cannot be told.
    """
    traits_of(case.workload)  # a workload that nobody knows is refused with the nearest that somebody does
    maker = MAKERS.get(case.workload)
    if maker is None:
        hint = f"it can be planned; what runs is: {', '.join(MAKERS)}"
        raise ReproError(Problem(f"{case.workload}: repro cannot write its arguments yet", hint=hint))
    return maker(Binding(case, paper, cluster, folders))


def is_offered(workload: str, cluster: Cluster) -> bool:
    """Whether this site says where the workload's code is, and we can write its arguments."""
    return workload == "pretrain" or (workload in MAKERS and cluster.profile.workloads.megatron(workload) is not None)
