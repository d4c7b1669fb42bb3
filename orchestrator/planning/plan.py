"""A case bound to a cluster: how many nodes, which program, and every reason why it cannot run there."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.catalog.library import Entry
from orchestrator.clusters.resolve import Cluster
from orchestrator.documents.source import shown
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import Folders
from orchestrator.planning.exact import absent_packages
from orchestrator.planning.identity import identity
from orchestrator.planning.target import Target, fit_refusals, refusals, warnings
from orchestrator.workloads.program import Program, image_of, is_offered, program_for

INSTALL = "pip install 'torch>=2.6,<2.14' megatron-core==0.16.1"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a job asks the scheduler for. `gpus_per_node` is 0 where processes run on CPU cores."""

    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    time_limit: str

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked case, not yet submitted. `identity` finds the same job again."""

    identity: str
    case: Case
    cluster: str
    program: Program
    resources: Resources
    warnings: tuple[str, ...]


def choose_scale(entry: Entry, cluster: Cluster, asked: str | None) -> str:
    """The scale a person asked for, else the largest whose GPUs and memory the cluster has."""
    if asked is not None:
        return asked
    if cluster.machine is None:
        return PAPER
    target = Target.of_cluster(cluster)
    for scale in scale_names(entry.experiment):
        cases = expand(entry, scale)
        fits = not any(list(fit_refusals(case, target)) for case in cases)
        if fits and all(is_offered(case.workload, cluster) for case in cases):
            return scale
    names = ", ".join(scale_names(entry.experiment))
    raise ReproError(Problem(f"no scale of {entry.short_name} ({names}) fits {cluster.name}"))


def plan_cases(entry: Entry, cases: list[Case], cluster: Cluster, folders: Folders) -> list[Plan]:
    """A plan for each case, or ReproError with every reason of every case that cannot run."""
    if entry.experiment.reference_only:
        raise ReproError(Problem(f"{entry.short_name} is reference only: {entry.experiment.reference_only}"))
    target = Target.of_cluster(cluster)
    problems = refusal_problems(entry, [(case, refusals(case, target)) for case in cases])
    for workload in dict.fromkeys(case.workload for case in cases):
        problems += _site_problems(entry, workload, cluster)
    if problems:
        raise ReproError(*dict.fromkeys(problems))
    return [_plan(entry, case, cluster, target, folders) for case in cases]


def refusal_problems(entry: Entry, refused: Sequence[tuple[Case, Sequence[str]]]) -> list[Problem]:
    """Each reason once, with all the cases that it stops; `refused` has every case, with its reasons if it has any."""
    by_reason: dict[str, list[Case]] = {}
    for case, reasons in refused:
        for reason in reasons:
            by_reason.setdefault(reason, []).append(case)
    return [_refusal(entry, reason, cases, len(refused)) for reason, cases in by_reason.items()]


def _plan(entry: Entry, case: Case, cluster: Cluster, target: Target, folders: Folders) -> Plan:
    program = program_for(case, entry.paper, cluster, folders)
    resources = resources_of(case, target)
    found = tuple(warnings(case, target))
    return Plan(identity(case, program, cluster.name), case, cluster.name, program, resources, found)


def resources_of(case: Case, target: Target) -> Resources:
    """Whole nodes, with as many tasks on each as it has places."""
    per_node = min(case.layout.gpus, target.places_per_node(case))
    return Resources(
        nodes=target.nodes_of(case),
        tasks_per_node=per_node,
        gpus_per_node=per_node if case.device == "gpu" else 0,
        time_limit=case.time_limit or target.time_limit or "0:30:00",
    )


def _refusal(entry: Entry, reason: str, refused: Iterable[Case], total: int) -> Problem:
    names = [case.name for case in refused]
    which = f"all {total} cases" if len(names) == total > 1 else " and ".join(names)
    return Problem(f"{entry.short_name} {which}: {reason}")


def _site_problems(entry: Entry, workload: str, cluster: Cluster) -> list[Problem]:
    """What the profile, or this machine, lacks for the workload."""
    name, path = image_of(workload, entry.paper, cluster)
    problems = cluster.require_filled(workload, name)
    if name is not None and path is None:
        mend = f"add container: images: {name}: PATH.sqsh to {shown(cluster.overlay)}"
        problems.append(Problem(f"{cluster.name} names no container image for {name}", mend=mend))
    if cluster.profile.scheduler == "local" and workload == "pretrain":
        site = cluster.profile.workloads.pretrain
        absent = absent_packages()
        if absent and site.python in (None, sys.executable):
            problems.append(Problem(f"training here needs {' and '.join(absent)}", mend=INSTALL))
    return problems
