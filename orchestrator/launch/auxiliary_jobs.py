"""Jobs that are no case of an experiment and run in the same script: a look at a node, kernels compiled beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.catalog.case import Case
from orchestrator.clusters.resolve import Cluster
from orchestrator.job_spec import Resources
from orchestrator.megatron.layout import Layout
from orchestrator.megatron.model import ModelShape
from orchestrator.megatron.training import Training
from orchestrator.planning.plan import Plan
from orchestrator.workloads.program import Program

WARM_UP_TIME = "0:30:00"


def side_plan(cluster: Cluster, program: Program, name: str, tasks: int, time_limit: str, gpus: int = 1) -> Plan:
    """One node of the cluster with this program in so many tasks, and so many GPUs."""
    case = Case(
        experiment=f"{name}/{cluster.name}",
        scale="one node",
        point=(("case", name),),
        workload=program.workload,
        model=ModelShape(layers=1, hidden=1, heads=1, seq=1, vocab=1),
        layout=Layout(gpus=tasks, tensor_parallel=tasks, pipeline_parallel=1, micro_batch_size=1, global_batch_size=1),
        training=Training(iterations=1),
        time_limit=time_limit,
    )
    resources = Resources(1, tasks, gpus, time_limit)
    return Plan(case=case, cluster=cluster.name, resources=resources, identity=name, program=program)


def task_per_gpu(cluster: Cluster) -> Cluster:
    """The same cluster with processes started by srun: what runs here is no program for torchrun."""
    slurm = cluster.profile.slurm
    assert slurm is not None
    update = {"slurm": slurm.model_copy(update={"tasks": "per-gpu"})}
    return replace(cluster, profile=cluster.profile.model_copy(update=update))


def warm_ups(plans: Sequence[Plan], cluster: Cluster, *, always: bool = False) -> list[tuple[Plan, frozenset[str]]]:
    """For each checkout into which several of these jobs would compile kernels at once: a job that does it before
    them, and their identities. None where this machine sees that they are there already, unless `always`.
    """
    groups: dict[tuple[str, str | None], list[Plan]] = {}
    for plan in plans:
        if plan.program.compiles_in and plan.program.warm_up:
            groups.setdefault((plan.program.compiles_in, plan.program.image), []).append(plan)
    return [
        (_warm_up(group[0], cluster), frozenset(plan.identity for plan in group))
        for (checkout, _), group in groups.items()
        if always or (len(group) > 1 and not _are_compiled(checkout))
    ]


def _warm_up(plan: Plan, cluster: Cluster) -> Plan:
    program = plan.program
    alone = replace(program, python=program.warm_up[0], target=program.warm_up[1:], arguments=())
    return side_plan(cluster, alone, "warm-up", 1, WARM_UP_TIME)


def _are_compiled(checkout: str) -> bool:
    return any((Path(checkout) / "megatron" / "fused_kernels" / "build").glob("*.so"))
