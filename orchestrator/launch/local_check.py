"""A cluster without Slurm, looked at from the machine that starts its jobs: this one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from orchestrator.clusters.check import open_fields
from orchestrator.clusters.check_result import Finding
from orchestrator.clusters.resolve import Cluster
from orchestrator.planning.exact import absent_packages
from orchestrator.planning.plan import INSTALL
from orchestrator.text import counted


def check_here(cluster: Cluster) -> list[Finding]:
    """What jobs that start here need, beside the profile's paths."""
    return [*open_fields(cluster), *(_mpirun(cluster) if cluster.profile.mpirun else _this_machine(cluster))]


def hosts_in(text: str) -> dict[str, int | None]:
    """Host -> slots of an Open MPI hostfile; None where it says none, which stands for the host's cores.

    That is Open MPI's default ("There are not enough slots available", orterun 3 and newer).
    """
    rows = re.findall(r"^[ \t]*([^#\s]+)(?:[^\n#]*?\bslots[ \t]*=[ \t]*([0-9]+))?", text, re.MULTILINE)
    return {host: int(slots) if slots else None for host, slots in rows}


def _mpirun(cluster: Cluster) -> list[Finding]:
    mpirun, hardware, where = cluster.profile.mpirun, cluster.hardware, cluster.layered.where
    assert mpirun is not None
    program = shutil.which("mpirun")
    hint = None if program else "run this on the machine from which jobs are started"
    found = [
        Finding(
            "mpirun", "login", "ok" if program else "wrong", program or "not on this machine", where(("mpirun",)), hint
        )
    ]
    file = Path(mpirun.hostfile)
    if "<" in mpirun.hostfile or not file.is_file():
        return found
    hosts = hosts_in(file.read_text(encoding="utf-8", errors="replace"))
    few = {host: slots for host, slots in hosts.items() if slots is not None and slots < hardware.gpus_per_node}
    place = where(("mpirun", "hostfile"))
    if len(hosts) < hardware.nodes:
        said = f"{counted(len(hosts), 'host')}, hardware: nodes: says {hardware.nodes}"
        found.append(Finding("mpirun.hostfile", "login", "wrong", said, place, f"add hosts to {mpirun.hostfile}"))
    if few:
        said = f"{', '.join(few)}: fewer slots than hardware: gpus_per_node: {hardware.gpus_per_node}"
        found.append(Finding("mpirun.hostfile", "login", "wrong", said, place, f"slots={hardware.gpus_per_node}"))
    if len(hosts) >= hardware.nodes and not few:
        said = f"{counted(len(hosts), 'host')}, each with slots for {hardware.gpus_per_node} processes"
        found.append(Finding("mpirun.hostfile", "login", "ok", said, place))
    return found


def _this_machine(cluster: Cluster) -> list[Finding]:
    machine, absent = cluster.machine, absent_packages()
    gpus = f"{machine.gpus} x {machine.gpu}" if machine and machine.gpus else "no GPUs; processes run on CPU cores"
    training = Finding("training", "login", "ok", "torch and megatron-core are here")
    if absent and cluster.profile.workloads.pretrain.python is None:
        training = Finding("training", "login", "wrong", f"no {' and '.join(absent)}", hint=INSTALL)
    return [Finding("hardware", "login", "ok", gpus), training]
