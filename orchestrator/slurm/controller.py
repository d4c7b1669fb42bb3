"""Identity of the Slurm cluster that the commands of this process reach."""

from __future__ import annotations

import os
import re
from functools import cache

from orchestrator.errors import Problem, Unreachable
from orchestrator.slurm.command import last_words, run_slurm

_CHOOSING = ("SLURM_CONF", "SLURM_CLUSTERS")


def cluster_identity() -> str:
    """Return the cluster as `name@host:port` of its first controller, from `scontrol show config`.

    Two clusters may have one name, and two may have one login node. Raises Unreachable if slurmctld does not answer.
    """
    return _identity(tuple(os.environ.get(name) for name in _CHOOSING))


@cache
def _identity(_chosen: tuple[str | None, ...]) -> str:
    answer = run_slurm(["scontrol", "show", "config"])
    values = dict(re.findall(r"^(\w+(?:\[0\])?)\s*=\s*(\S+)", answer.stdout, re.MULTILINE))
    name, host = values.get("ClusterName"), values.get("SlurmctldHost[0]") or values.get("ControlMachine")
    if answer.returncode != 0 or name is None or host is None:
        words = last_words(answer.stderr) or "the answer names no cluster"
        raise Unreachable(Problem(f"scontrol show config: {words}", mend="run this on a login node of the cluster"))
    return f"{name}@{host.partition('(')[0]}:{values.get('SlurmctldPort', '')}"
