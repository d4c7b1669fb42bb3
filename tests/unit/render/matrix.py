"""Every shipped profile, filled in as a site would, with one case of every workload: its script, or why it has none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.clusters.machine import Machine
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.errors import ReproError
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, replace_workload
from tests.unit.catalog.entries import shipped
from tests.unit.clusters.sites import filled
from tests.unit.render.plans import RUN, planned


@dataclass(frozen=True, slots=True)
class Chosen:
    """A case of a shipped experiment; `instead` where another program than the experiment's own runs it."""

    experiment: str
    scale: str
    case: str
    instead: bool = False


# Small enough for every profile. 16 and 64 GPUs are several nodes everywhere, and 4 are one.
CHOSEN: Mapping[str, Chosen] = {
    "pretrain": Chosen("figure-13", "quad", "pp=2,tp=2,gbs=32"),
    "megatron-2021": Chosen("figure-13", "paper", "pp=8,tp=8,gbs=32"),
    "megatron-2026": Chosen("figure-11", "paper", "pp=2,gbs=128", instead=True),
    "megatron-kwai": Chosen("atc-demo", "paper", "case=ours"),
    "megatron-jan-2024": Chosen("atc-demo", "paper", "case=origin"),
    "megatron-core-0.14": Chosen("core-dp", "paper", "case=104"),
    "megatron-tutorial-fork": Chosen("tutorial-cp", "paper", "case=312"),
    "megatron-alpa": Chosen("alpa-gpt", "paper", "gpus=16"),
}

# What no shipped profile says, though its comments tell how: name -> the one that it extends, what it says, a workload.
VARIED: Mapping[str, tuple[str, str, str]] = {
    "perlmutter-podman-hpc": (
        "perlmutter",
        """\
slurm: {mpi: pmi2}
container: {runtime: podman-hpc, modules: , options: [--openmpi-pmi2], pass_env: ["NCCL_*"], mounts: [/data]}
""",
        "megatron-jan-2024",
    ),
    "jean-zay-h100-apptainer": (
        "jean-zay-h100",
        """\
setup: {add: [module load singularity]}
container: {runtime: apptainer, mounts: [/data], images: {megatron-2026: /images/megatron.sif}}
""",
        "megatron-2026",
    ),
    "leonardo-own-layers": ("leonardo", "workloads: {megatron-2026: {transformer_engine: false}}\n", "megatron-2026"),
    "selene-torchrun": ("selene", "slurm: {tasks: per-node}\n", "megatron-2021"),
    "selene-forked": ("selene", "slurm: {tasks: per-node}\n", "pretrain"),
}

MACHINE = Machine(cpus=8, gpus=8, gpu="NVIDIA A100-SXM4-80GB", gpu_memory_gb=80)
"""What `local` is, on whatever machine the tests run."""


@cache
def site(profile: str) -> Cluster:
    """A shipped profile with every blank filled, or one of VARIED."""
    with TemporaryDirectory() as text:
        folder = Path(text)
        if profile not in VARIED:
            cluster = filled(folder, profile)
        else:
            below, says, _ = VARIED[profile]
            filled(folder, below)
            file = folder / "clusters" / f"{profile}.yaml"
            file.write_text(f"extends: {below}\nabout: {below} in another way\n{says}")
            cluster = find_cluster(Folders(shipped=folder, home=folder), str(file))
    if cluster.machine is None:
        return cluster
    return replace(cluster, machine=MACHINE, hardware=MACHINE.hardware())


def chosen(workload: str) -> tuple[Entry, Case]:
    one = CHOSEN[workload]
    entry = shipped(one.experiment)
    cases = expand(entry, one.scale)
    if one.instead:
        cases = replace_workload(cases, workload)
    return entry, next(case for case in cases if case.name == one.case and case.workload == workload)


@cache
def plan_or_refusals(profile: str, workload: str) -> Plan | tuple[str, ...]:
    """The plan, or what a person is told instead of one."""
    entry, case = chosen(workload)
    try:
        (plan,) = planned(entry, [case], site(profile))
    except ReproError as error:
        return tuple(str(problem) for problem in error.problems)
    return plan


def job_folder(plan: Plan) -> Path:
    return RUN / plan.case.slug


def without_folders(origin: str) -> str:
    """The place of a value, its file named without the folder that it lay in."""
    return re.sub(r"[^\s,;]*clusters/", "clusters/", origin)
