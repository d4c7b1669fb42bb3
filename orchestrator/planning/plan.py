"""A case bound to a cluster: how many nodes, which program, and every reason why it cannot run there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.catalog.expand import Case, expand
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.catalog.library import Entry
from orchestrator.clusters.profile import HardwareFields
from orchestrator.clusters.resolve import Cluster
from orchestrator.documents.source import shown
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import Folders
from orchestrator.megatron.layout import layout_problems
from orchestrator.planning.identity import identity
from orchestrator.workloads.program import Program, image_of, program_for


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
    for scale in scale_names(entry.experiment):
        case = expand(entry, scale)[0]
        if not list(_fit_problems(case, cluster)):
            return scale
    names = ", ".join(scale_names(entry.experiment))
    raise ReproError(Problem(f"no scale of {entry.short_name} ({names}) fits {cluster.name}"))


def plan_cases(entry: Entry, cases: list[Case], cluster: Cluster, folders: Folders) -> list[Plan]:
    """A plan for each case, or ReproError with every reason of every case that cannot run."""
    reasons: dict[str, list[Case]] = {}
    plans: list[Plan] = []
    for case in cases:
        found = list(_fit_problems(case, cluster)) + list(layout_problems(case.model, case.layout))
        for reason in found:
            reasons.setdefault(reason, []).append(case)
        if not found:
            plans.append(_plan(entry, case, cluster, folders))
    problems = [_refusal(entry, reason, refused, len(cases)) for reason, refused in reasons.items()]
    problems += _site_problems(entry, cases[0], cluster)
    if problems:
        raise ReproError(*problems)
    return plans


def _plan(entry: Entry, case: Case, cluster: Cluster, folders: Folders) -> Plan:
    program = program_for(case, entry.paper, cluster, folders)
    resources = resources_of(case, cluster)
    warnings = tuple(_warnings(case, cluster.hardware))
    return Plan(identity(case, program, cluster.name), case, cluster.name, program, resources, warnings)


def resources_of(case: Case, cluster: Cluster) -> Resources:
    """Whole nodes, with as many tasks on each as it has places."""
    per_node = min(case.layout.gpus, _places_per_node(case, cluster))
    slurm = cluster.profile.slurm
    return Resources(
        nodes=-(-case.layout.gpus // per_node),
        tasks_per_node=per_node,
        gpus_per_node=per_node if case.device == "gpu" else 0,
        time_limit=case.time_limit or (slurm.time_limit if slurm else "0:30:00"),
    )


def _places_per_node(case: Case, cluster: Cluster) -> int:
    """GPUs; for processes on CPU cores as many as the profile's gpus_per_node, or as this machine has places for."""
    if case.device == "cpu" and cluster.machine is not None:
        return cluster.machine.processes
    return cluster.hardware.gpus_per_node


def _fit_problems(case: Case, cluster: Cluster) -> Iterator[str]:
    """Why this cluster's hardware cannot hold the case."""
    hardware, machine = cluster.hardware, cluster.machine
    if case.device == "gpu" and machine is not None and machine.gpus == 0:
        yield f"needs {case.layout.gpus} GPUs, {cluster.name} has none"
        return
    needs = f"{case.layout.gpus} {'GPUs' if case.device == 'gpu' else 'processes'}"
    per_node = _places_per_node(case, cluster)
    there = hardware.nodes * per_node
    if case.layout.gpus > there:
        what = "" if case.device == "gpu" else "places for "
        yield f"needs {needs}, {cluster.name} has {what}{hardware.nodes} x {per_node} = {there}"
    elif case.layout.gpus > per_node and case.layout.gpus % per_node:
        yield f"{needs} are no whole number of nodes of {per_node}"
    if case.device == "cpu":
        return
    dtype = case.training.dtype
    if hardware.peak_tflops and dtype not in hardware.peak_tflops:
        has = ", ".join(sorted(hardware.peak_tflops))
        yield f"{hardware.gpu or 'the GPU'} of {cluster.name} has no {dtype} (it has {has})"
    if machine is not None and case.gpu_memory_gb and (hardware.gpu_memory_gb or 0) < case.gpu_memory_gb:
        yield f"needs GPUs of {case.gpu_memory_gb} GB, {cluster.name} has {hardware.gpu_memory_gb} GB"


def _warnings(case: Case, hardware: HardwareFields) -> Iterator[str]:
    if case.device == "gpu" and case.layout.tensor_parallel > hardware.gpus_per_node:
        yield f"tensor-parallel {case.layout.tensor_parallel} spans nodes of {hardware.gpus_per_node} GPUs"
    if case.gpu_memory_gb and hardware.gpu_memory_gb and hardware.gpu_memory_gb < case.gpu_memory_gb:
        yield f"laid out for GPUs of {case.gpu_memory_gb} GB, here they have {hardware.gpu_memory_gb} GB"


def _refusal(entry: Entry, reason: str, refused: Iterable[Case], total: int) -> Problem:
    names = [case.name for case in refused]
    which = f"all {total} cases" if len(names) == total > 1 else " and ".join(names)
    return Problem(f"{entry.short_name} {which}: {reason}")


def _site_problems(entry: Entry, case: Case, cluster: Cluster) -> list[Problem]:
    """What the profile, or this machine, lacks for the workload."""
    name, path = image_of(case.workload, entry.paper, cluster)
    problems = cluster.require_filled(case.workload, name)
    if name is not None and path is None:
        mend = f"add container: images: {name}: PATH.sqsh to {shown(cluster.overlay)}"
        problems.append(Problem(f"{cluster.name} names no container image for {name}", mend=mend))
    if cluster.profile.scheduler == "local" and case.workload == "pretrain":
        site = cluster.profile.workloads.pretrain
        absent = [m for m in ("torch", "megatron") if importlib.util.find_spec(m) is None]
        if absent and site.python in (None, sys.executable):
            mend = "pip install 'torch>=2.6,<2.14' megatron-core==0.16.1"
            problems.append(Problem(f"training here needs {' and '.join(absent)}", mend=mend))
    return problems
