"""Scripts of a case of each program on each shipped profile, with open values set, and on variants of profiles."""

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
from orchestrator.launch.render import render_job
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan
from orchestrator.planning.target import replace_program
from tests.unit.catalog.entries import shipped
from tests.unit.clusters.sites import filled, shipped_names
from tests.unit.render.golden_files import Rendered
from tests.unit.render.plans import RUN, TEMPLATES, planned


@dataclass(frozen=True, slots=True)
class ShippedCase:
    """A case of a shipped experiment. With `replaces_program`, the program is not the experiment's own."""

    experiment: str
    scale: str
    name: str
    replaces_program: bool = False


# Small enough for every profile. 16 and 64 GPUs are several nodes on every profile, and 4 are a single node.
CASES: Mapping[str, ShippedCase] = {
    "pretrain": ShippedCase("figure-13", "quad", "pp=2,tp=2,gbs=32"),
    "megatron-2021": ShippedCase("figure-13", "paper", "pp=8,tp=8,gbs=32"),
    "megatron-2026": ShippedCase("figure-11", "paper", "pp=2,gbs=128", replaces_program=True),
    "megatron-kwai": ShippedCase("atc-demo", "paper", "case=ours"),
    "megatron-jan-2024": ShippedCase("atc-demo", "paper", "case=origin"),
    "megatron-core-0.14": ShippedCase("core-dp", "paper", "case=104"),
    "megatron-tutorial-fork": ShippedCase("tutorial-cp", "paper", "case=312"),
    "megatron-alpa": ShippedCase("alpa-gpt", "paper", "gpus=16"),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A profile that extends a shipped one with fields that the shipped one only mentions in a comment."""

    extends: str
    fields: str
    program: str


VARIANTS: Mapping[str, Variant] = {
    "perlmutter-podman-hpc": Variant(
        "perlmutter",
        """\
slurm: {mpi: pmi2}
container: {runtime: podman-hpc, modules: , options: [--openmpi-pmi2], pass_env: ["NCCL_*"], mounts: [/data]}
""",
        "megatron-jan-2024",
    ),
    "jean-zay-h100-docker": Variant(
        "jean-zay-h100",
        """\
slurm: {comment: '{"IdleGPUs": {"minutes": 60}}'}
container:
  {runtime: docker, mounts: [/data], images: {megatron-2026: team/megatron:1}, options: [--device=/dev/infiniband]}
""",
        "megatron-2026",
    ),
    "jean-zay-h100-apptainer": Variant(
        "jean-zay-h100",
        """\
setup: {add: [module load singularity]}
container: {runtime: apptainer, mounts: [/data], images: {megatron-2026: /images/megatron.sif}}
""",
        "megatron-2026",
    ),
    "leonardo-own-layers": Variant(
        "leonardo", "programs: {megatron-2026: {transformer_engine: false}}\n", "megatron-2026"
    ),
    "selene-torchrun": Variant("selene", "slurm: {tasks: per-node}\n", "megatron-2021"),
    "selene-forked": Variant("selene", "slurm: {tasks: per-node}\n", "pretrain"),
}

SHIPPED = [(profile, program) for profile in shipped_names() for program in CASES]
"""Each shipped profile with each program. Some of them are refused."""
SITES = [*SHIPPED, *((name, variant.program) for name, variant in VARIANTS.items())]

STORED_IN_FULL = (
    "alps",
    "jean-zay-h100-apptainer",
    "jean-zay-h100-docker",
    "kwai-h800",
    "leonardo",
    "local",
    "perlmutter-podman-hpc",
    "selene",
)
"""Profiles whose golden scripts are stored in full: at least one per scheduler and container runtime."""

MACHINE = Machine(cpus=8, gpus=8, gpu="NVIDIA A100-SXM4-80GB", gpu_memory_gb=80)
"""The machine of the profile `local`, whatever machine runs the tests."""


@cache
def site(profile: str) -> Cluster:
    """Return a shipped profile with its open values set, or a variant."""
    with TemporaryDirectory() as text:
        folder = Path(text)
        if profile not in VARIANTS:
            cluster = filled(folder, profile)
        else:
            variant = VARIANTS[profile]
            filled(folder, variant.extends)
            file = folder / "clusters" / f"{profile}.yaml"
            file.write_text(f"extends: {variant.extends}\nabout: a variant of {variant.extends}\n{variant.fields}")
            cluster = find_cluster(Folders(shipped=folder, home=folder), str(file))
    if cluster.machine is None:
        return cluster
    return replace(cluster, machine=MACHINE, hardware=MACHINE.hardware())


def case_of(program: str) -> tuple[Entry, Case]:
    """Return the case of a program, and its experiment."""
    shipped_case = CASES[program]
    entry = shipped(shipped_case.experiment)
    cases = expand(entry, shipped_case.scale)
    if shipped_case.replaces_program:
        cases = replace_program(cases, program)
    return entry, next(case for case in cases if case.name == shipped_case.name and case.program == program)


@cache
def plan_or_refusals(profile: str, program: str) -> Plan | tuple[str, ...]:
    """Return the plan, or the error messages if the case cannot run on this profile."""
    entry, case = case_of(program)
    try:
        (plan,) = planned(entry, [case], site(profile))
    except ReproError as error:
        return tuple(str(problem) for problem in error.problems)
    return plan


def plan_of(profile: str, program: str) -> Plan:
    """Return the plan of a case that can run on this profile."""
    plan = plan_or_refusals(profile, program)
    assert isinstance(plan, Plan), plan
    return plan


def runs(profile: str, program: str) -> bool:
    """Return whether the case of this program can run on this profile."""
    return isinstance(plan_or_refusals(profile, program), Plan)


@cache
def site_script(profile: str, program: str) -> str:
    """Return the rendered script."""
    plan = plan_of(profile, program)
    return render_job(plan, site(profile), job_folder(plan), TEMPLATES)


def rendered_site_script(profile: str, program: str) -> Rendered:
    """Return the rendered script and the base of its golden file."""
    base = base_profile(profile, program)
    return Rendered(
        f"{profile}/{program}.sh",
        without_folders(site_script(profile, program)),
        None if base is None else rendered_site_script(base, program),
    )


def base_profile(profile: str, program: str) -> str | None:
    """Return the profile whose script is the base of this golden script, None for a script that is stored in full.

    A site with containers differs least from selene, another site least from leonardo.
    """
    if profile in STORED_IN_FULL:
        return None
    base = "leonardo" if site(profile).profile.container is None else "selene"
    return base if runs(base, program) else None


def job_folder(plan: Plan) -> Path:
    """Return the folder of the log and records of the job."""
    return RUN / plan.case.slug


def without_folders(text: str) -> str:
    """Return the text with the names of cluster profiles relative to the folder above `clusters`."""
    return re.sub(r"[^\s,;]*clusters/", "clusters/", text)
