"""A cluster without Slurm, looked at from the machine that starts its jobs: this one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from orchestrator.clusters.check import open_fields
from orchestrator.clusters.finding import Finding
from orchestrator.clusters.resolve import Cluster
from orchestrator.planning.exact import absent_packages
from orchestrator.planning.plan import INSTALL


def check_here(cluster: Cluster) -> list[Finding]:
    """What jobs that start here need, beside the profile's paths."""
    return [*open_fields(cluster), *(_mpirun(cluster) if cluster.profile.mpirun else _this_machine(cluster))]


def hosts_in(text: str) -> dict[str, int]:
    """Host -> slots of an Open MPI hostfile; a host without slots= has one."""
    rows = re.findall(r"^[ \t]*([^#\s]+)(?:[^\n#]*?slots\s*=\s*([0-9]+))?", text, re.MULTILINE)
    return {host: int(slots or 1) for host, slots in rows}


def _mpirun(cluster: Cluster) -> list[Finding]:
    mpirun, hardware, where = cluster.profile.mpirun, cluster.hardware, cluster.layered.where
    assert mpirun is not None
    program = shutil.which("mpirun")
    found = [
        Finding("mpirun", "login", "ok" if program else "wrong", program or "not on this machine", where(("mpirun",)))
    ]
    file = Path(mpirun.hostfile)
    if "<" in mpirun.hostfile or not file.is_file():
        return found
    hosts = hosts_in(file.read_text(encoding="utf-8", errors="replace"))
    right = len(hosts) >= hardware.nodes and all(slots >= hardware.gpus_per_node for slots in hosts.values())
    slots = " or ".join(map(str, sorted(set(hosts.values())))) or "no"
    said = f"{len(hosts)} hosts with {slots} slots, hardware: says {hardware.nodes} x {hardware.gpus_per_node}"
    return [
        *found,
        Finding("mpirun.hostfile slots", "login", "ok" if right else "wrong", said, where(("mpirun", "hostfile"))),
    ]


def _this_machine(cluster: Cluster) -> list[Finding]:
    machine, absent = cluster.machine, absent_packages()
    gpus = f"{machine.gpus} x {machine.gpu}" if machine and machine.gpus else "no GPUs; processes run on CPU cores"
    training = Finding("training", "login", "ok", "torch and megatron-core are here")
    if absent and cluster.profile.workloads.pretrain.python is None:
        training = Finding("training", "login", "wrong", f"no {' and '.join(absent)}", mend=INSTALL)
    return [Finding("hardware", "login", "ok", gpus), training]
