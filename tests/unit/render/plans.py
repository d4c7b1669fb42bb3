"""Plans to render: made by the planner, with values in place of those that differ between machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.clusters.machine import Machine
from orchestrator.clusters.resolve import Cluster
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, plan_cases
from tests.unit.catalog.entries import CHECKOUT, shipped
from tests.unit.clusters.sites import SELENE_FILLED, cluster_of
from tests.unit.clusters.sites import selene as shipped_selene

TEMPLATES = CHECKOUT / "templates"
RUN = Path("/runs/20261121-092041-bd57")
PROGRAM = "/runs/programs/pretrain-000000000000"

PLAIN_SLURM = """\
about: a Slurm cluster without containers
scheduler: slurm
hardware: {nodes: 4, gpus_per_node: 4, gpu: H100, gpu_memory_gb: 94, peak_tflops: {bf16: 989, fp32: 67}}
slurm:
  account: "proj #7"
  qos: normal
  constraint: h100&ib
  time_limit: 1-02:00:00
  cpus_per_task: 12
  gpu_request: gres
  gres_type: h100
  sbatch: ["--mail-type=FAIL", "--mcs-label=it's \\"ours\\""]
  srun: ["--cpu-bind=cores"]
environment: {NCCL_DEBUG: WARN, TITLE: "it's $HOME, `here`", RETRIES: 3}
setup:
  - module load cuda/12.4
  - umask 027
programs:
  pretrain: {python: "/opt/my env/bin/python"}
"""

KWAI = """\
about: a cluster like that of ATC'24, under Slurm
scheduler: slurm
hardware: {nodes: 32, gpus_per_node: 8, gpu: H800, gpu_memory_gb: 80, peak_tflops: {bf16: 989.4}}
slurm: {time_limit: 1:00:00, exclusive: true, mem: "0", srun: ["--mpi=pmix"]}
environment: {NCCL_IB_HCA: mlx5}
programs:
  megatron-kwai: {checkout: /code/Megatron-Kwai, data_path: /data/enwiki-100m_text_document}
  megatron-jan-2024: {checkout: /code/Megatron-LM-Jan-1-2024, data_path: /data/enwiki-100m_text_document}
"""

LOCAL = """\
about: this machine
scheduler: local
environment: {TITLE: "it's $HOME"}
programs:
  pretrain: {python: /opt/venv/bin/python}
"""


def selene(folder: Path) -> Cluster:
    return shipped_selene(folder, SELENE_FILLED)


def plain_slurm(folder: Path) -> Cluster:
    return cluster_of(folder, PLAIN_SLURM, name="plain")


def kwai(folder: Path) -> Cluster:
    return cluster_of(folder, KWAI, name="kwai")


EIGHT_CORES = Machine(cpus=8)
H200S = Machine(cpus=64, gpus=4, gpu="NVIDIA H200", gpu_memory_gb=140)


def local(folder: Path, text: str = LOCAL, machine: Machine = EIGHT_CORES) -> Cluster:
    return replace(cluster_of(folder, text, name="local"), machine=machine, hardware=machine.hardware())


def plans(cluster: Cluster, scale: str, experiment: str = "figure-13") -> list[Plan]:
    """Return the plans of all cases of an experiment at this scale."""
    entry = shipped(experiment)
    return planned(entry, expand(entry, scale), cluster)


def planned(entry: Entry, cases: list[Case], cluster: Cluster) -> list[Plan]:
    """Return a plan for each case, with an identity and a package folder that do not depend on the machine."""
    case_plans = plan_cases(entry, cases, cluster, Folders(shipped=CHECKOUT, home=CHECKOUT))
    return [_on_any_machine(plan, f"{number:012x}") for number, plan in enumerate(case_plans, 1)]


def _on_any_machine(plan: Plan, identity: str) -> Plan:
    if plan.program.name != "pretrain":
        return replace(plan, identity=identity)
    program = replace(plan.program, python_path=PROGRAM, mounts=(PROGRAM,))
    return replace(plan, identity=identity, program=program)
