"""The largest machine of SC21 as a real Slurm on this host: 384 nodes with 8 GPUs each, without hardware behind them.

    python -m benchmarks.at_384_nodes

`sbatch --test-only` checks every case of SC21 at scale `paper`. Then the script of Table 1's largest job, 3,072 GPUs,
runs a program in which each process prints its rank. Its time is compared with a plain srun of as many processes. Needs
root on Debian or Ubuntu, 3 GB of memory, and two to three minutes.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.catalog.experiment import PAPER
from orchestrator.catalog.library import Entry, find_entries
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.files import read_record
from orchestrator.launch.executors import clean_env_prefix
from orchestrator.launch.render import render_job
from orchestrator.paths import Folders, find_folders
from orchestrator.planning.plan import Plan, plan_cases
from orchestrator.slurm.command import run_slurm
from orchestrator.slurm.notation import Phase, phase_of
from tests.slurm.cluster import SlurmCluster
from tests.slurm.configuration import Shape
from tests.waiting import wait_until

SHAPE = Shape(nodes=384, gpus_per_node=8, gpu_type="a100", accounting=False)
RANKS = SHAPE.nodes * SHAPE.gpus_per_node
ROUNDS = 3
MOST = 2.5
"""Largest ratio of our script's time to that of a plain srun: each process is a shell that starts another process."""

PROFILE = f"""\
about: {SHAPE.nodes} nodes on one machine
scheduler: slurm
hardware: {{nodes: {SHAPE.nodes}, gpus_per_node: {SHAPE.gpus_per_node}, gpu: A100-SXM4-80GB, gpu_memory_gb: 80}}
slurm:
  partition: batch
  time_limit: "0:30:00"
  gpu_request: gres
  gres_type: {SHAPE.gpu_type}
  exclusive: true
  mem: "0"
programs:
  megatron-2021:
    checkout: /nowhere/Megatron-LM
    data_path: /nowhere/data
    vocab_file: /nowhere/vocab.json
    merge_file: /nowhere/merges.txt
"""
# What each process says instead of training.
WHO = 'echo "rank=$RANK of=$WORLD_SIZE on=$SLURMD_NODENAME as=$LOCAL_RANK gpus=$CUDA_VISIBLE_DEVICES at=$MASTER_ADDR"'


@dataclass(frozen=True)
class Tested:
    """Answers of Slurm for several jobs."""

    refused: list[str]
    seconds: float


@dataclass(frozen=True)
class Ended:
    """A job that ran, and the faults of its files."""

    state: str
    seconds: float
    faults: list[str]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="sf") as folder, pytest.MonkeyPatch.context() as patch:
        home = Path(folder)
        slurm = SlurmCluster(home / "slurm", SHAPE)
        patch.setenv("SLURM_CONF", str(slurm.conf))
        try:
            start = time.perf_counter()
            slurm.up()
            print(f"{SHAPE.nodes} nodes of {SHAPE.gpus_per_node} GPUs are up after {time.perf_counter() - start:.1f} s")
            return measure(home, slurm)
        finally:
            slurm.down()


def measure(home: Path, slurm: SlurmCluster) -> int:
    (home / "site.yaml").write_text(PROFILE)
    folders = replace(find_folders(), home=home)
    cluster = find_cluster(folders, str(home / "site.yaml"))
    entries = [entry for entry in find_entries(folders, "sc21") if not entry.experiment.reference_only]
    by_name = {entry.short_name: planned(entry, cluster, folders) for entry in entries}

    print(f"\n{'experiment':<12}{'cases':>7}{'accepted':>10}{'largest: nodes':>16}{'GPUs':>7}{'ms a test':>11}")
    missed = 0
    for name, plans in by_name.items():
        tested = ask(plans, cluster, folders)
        largest = max(plans, key=lambda plan: plan.resources.nodes).resources
        count, each_ms = len(plans), tested.seconds / len(plans) * 1e3
        gpus = largest.nodes * largest.gpus_per_node
        print(f"{name:<12}{count:>7}{count - len(tested.refused):>10}{largest.nodes:>16}{gpus:>7}{each_ms:>11.1f}")
        for why in tested.refused:
            print(f"  {why}")
        missed += len(tested.refused)

    largest_plan = max((plan for plans in by_name.values() for plan in plans), key=lambda plan: plan.resources.tasks)
    missed += one_node_too_many(largest_plan, cluster, folders)
    missed += beside_srun(largest_plan, cluster, folders, slurm)
    print(f"everything accepted, every rank seen, within {MOST} times srun: {'no' if missed else 'yes'}")
    return 1 if missed else 0


def planned(entry: Entry, cluster: Cluster, folders: Folders) -> list[Plan]:
    return plan_cases(entry, expand(entry, PAPER), cluster, folders)


def ask(plans: Sequence[Plan], cluster: Cluster, folders: Folders) -> Tested:
    """Check each job's script with sbatch --test-only."""
    refused: list[str] = []
    seconds = 0.0
    for plan in plans:
        folder = folders.home / plan.identity
        script = folders.home / f"{plan.identity}.sh"
        script.write_text(render_job(plan, cluster, folder, folders.templates))
        start = time.perf_counter()
        answer = run_slurm([*clean_env_prefix(), "sbatch", "--test-only", str(script)])
        seconds += time.perf_counter() - start
        if answer.returncode:
            refused.append(f"{plan.case.name}: {answer.stderr.strip()}")
    return Tested(refused, seconds)


def one_node_too_many(plan: Plan, cluster: Cluster, folders: Folders) -> bool:
    """Print whether Slurm refuses a job of more nodes than it has; if not, its other answers prove nothing."""
    more = replace(plan, resources=replace(plan.resources, nodes=SHAPE.nodes + 1))
    refused = ask([more], cluster, folders).refused
    print(f"\nand one of {SHAPE.nodes + 1} nodes: {'refused, as it must be' if refused else 'ACCEPTED'}")
    return not refused


def beside_srun(plan: Plan, cluster: Cluster, folders: Folders, slurm: SlurmCluster) -> int:
    """Run our script and a plain srun of as many processes in turn; return the number of faults."""
    say_who = replace(plan.program, command=("bash", "-u", "-c", WHO), arguments=(), site_values=())
    plan = replace(plan, program=say_who)
    ours: list[Ended] = []
    plain_s: list[float] = []
    for number in range(ROUNDS):
        wait_until(lambda: is_idle(slurm), what="all nodes are idle")
        plain_s.append(by_hand())
        wait_until(lambda: is_idle(slurm), what="all nodes are idle")
        ours.append(ran(plan, cluster, folders, folders.home / f"job-{number}"))
    print(f"\n{plan.case.experiment} {plan.case.name}, {RANKS} processes on {SHAPE.nodes} nodes")
    print(f"{'round':<8}{'srun true s':>12}{'our script s':>14}{'ratio':>8}  state")
    for number, (plain, job) in enumerate(zip(plain_s, ours, strict=True)):
        print(f"{number + 1:<8}{plain:>12.1f}{job.seconds:>14.1f}{job.seconds / plain:>8.2f}  {job.state}")
        for fault in job.faults:
            print(f"  {fault}")
    ratio = statistics.median(job.seconds for job in ours) / statistics.median(plain_s)
    print(f"medians: {ratio:.2f} times srun")
    return sum(len(job.faults) for job in ours) + (ratio > MOST)


def by_hand() -> float:
    start = time.perf_counter()
    arguments = [f"--nodes={SHAPE.nodes}", f"--ntasks-per-node={SHAPE.gpus_per_node}", "--exclusive", "true"]
    subprocess.run(["srun", *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def ran(plan: Plan, cluster: Cluster, folders: Folders, folder: Path) -> Ended:
    """Submit the rendered script and return the ended job."""
    folder.mkdir()
    script = folder / "job.sh"
    script.write_text(render_job(plan, cluster, folder, folders.templates))
    start = time.perf_counter()
    answer = run_slurm([*clean_env_prefix(), "sbatch", "--parsable", str(script)])
    if answer.returncode:
        return Ended("REFUSED", 0.0, [answer.stderr.strip()])
    job = answer.stdout.strip()
    wait_until(lambda: phase_of(state_of(job)) is Phase.ENDED, what=f"job {job} ends")
    seconds = time.perf_counter() - start
    state = state_of(job)
    return Ended(state, seconds, faults(state, folder))


def state_of(job: str) -> str:
    return run_slurm(["squeue", "-h", "-t", "all", "-o", "%T", "-j", job]).stdout.strip()


def faults(state: str, folder: Path) -> list[str]:
    """Return the differences between the job's files and those of a good job."""
    end, log = read_record(folder / "end"), folder / "log.txt"
    pattern = r"rank=(\d+) of=(\d+) on=(\S+) as=(\d+) gpus=([\d,]+) at=(\S+)$"
    processes = re.findall(pattern, log.read_text(), re.MULTILINE) if log.exists() else []
    ranks, worlds, nodes, local, gpus, masters = (
        map(set, zip(*processes, strict=True)) if processes else [set[str]()] * 6
    )
    checks = {
        f"{state}, not COMPLETED": state == "COMPLETED",
        f"its end record is {end}": end is not None and end.exit_code == 0,
        f"{len(processes)} processes, {len(ranks)} ranks": len(processes) == RANKS
        and ranks == set(map(str, range(RANKS))),
        f"world sizes {worlds}": worlds == {str(RANKS)},
        f"{len(nodes)} nodes": nodes == set(SHAPE.node_names),
        f"local ranks {local}": local == set(map(str, range(SHAPE.gpus_per_node))),
        f"each sees GPUs {gpus}": gpus == {",".join(map(str, range(SHAPE.gpus_per_node)))},
        f"rendezvous at {masters}": masters == {SHAPE.node_names[0]},
    }
    return [fault for fault, is_good in checks.items() if not is_good]


def is_idle(slurm: SlurmCluster) -> bool:
    return slurm.run("sinfo", "-h", "-p", "batch", "-o", "%D %t") == f"{SHAPE.nodes} idle"


if __name__ == "__main__":
    sys.exit(main())
