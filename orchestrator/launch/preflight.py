"""What must be there before anything is submitted: the scheduler, variables, images, checkouts at their commits."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.clusters.resolve import Cluster
from orchestrator.clusters.slurm_options import MpirunFields
from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.launch.containers import require_mountable
from orchestrator.launch.directives import output_pattern
from orchestrator.launch.images import require_images
from orchestrator.launch.provenance import git_says
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan
from orchestrator.slurm.query import require_controller


def require_ready(plans: Sequence[Plan], cluster: Cluster, folders: Folders) -> None:
    """ReproError with everything that these jobs lack; Unreachable where the scheduler is."""
    problems: list[Problem] = []
    checks: tuple[Callable[[], None], ...] = (
        lambda: require_scheduler(cluster, folders),
        lambda: _require_mountable(cluster, folders),
        lambda: require_images(plans, cluster),
        lambda: _require_commits(plans),
    )
    for check in checks:
        try:
            check()
        except Unreachable:
            raise
        except ReproError as error:
            problems += error.problems
    if problems:
        raise ReproError(*problems)


def require_scheduler(cluster: Cluster, folders: Folders) -> None:
    """Refuse what cannot be submitted from here at all, before anything is recorded."""
    _require_environment(cluster)
    if cluster.profile.mpirun is not None:
        _require_mpirun(cluster.profile.mpirun)
    if not cluster.is_slurm:
        return
    if shutil.which("sbatch") is None:
        hint = "run this on a login node of the cluster; --dry-run and `repro render` work here"
        raise Unreachable(Problem("sbatch is not on this machine", hint=hint))
    if any(tag in str(folders.runs) for tag in ("%j", "%t", "%A", "%a")):  # submitit puts ids in their place
        raise ReproError(Problem(f"{folders.runs}: no folder for Slurm jobs", hint="set REPRO_HOME to one without %"))
    output_pattern(folders.runs)
    require_controller()


def _require_mountable(cluster: Cluster, folders: Folders) -> None:
    if cluster.profile.container is not None:
        require_mountable(folders.runs)


def _require_environment(cluster: Cluster) -> None:
    """Secrets travel from the shell that submits, and no job should wait for hours to find that one is missing."""
    missing = [name for name in cluster.profile.env_from if not os.environ.get(name)]
    if missing:
        names = " and ".join(missing)
        where = cluster.layered.where(("env_from",))
        raise ReproError(Problem(f"env_from: {names} not set in this shell", where, "export it, then submit"))


def _require_mpirun(mpirun: MpirunFields) -> None:
    if shutil.which("mpirun") is None:
        hint = "run this on the machine from which jobs are started; --dry-run and `repro render` work here"
        raise Unreachable(Problem("mpirun is not on this machine", hint=hint))
    if not Path(mpirun.hostfile).is_file():
        raise ReproError(Problem(f"hostfile {mpirun.hostfile}: no such file", hint="correct mpirun: hostfile:"))


def _require_commits(plans: Sequence[Plan]) -> None:
    """A checkout that this machine sees must be at the commit that its jobs are recorded with."""
    problems = []
    for folder, commit in dict.fromkeys((plan.program.checkout, plan.program.code) for plan in plans):
        head = git_says(Path(folder), "rev-parse", "HEAD") if folder else None
        if head is not None and not head.startswith(commit):
            what = f"{folder} is at commit {head[:10]}, and the jobs would say {commit[:10]}"
            problems.append(Problem(what, hint=f"git -C {shlex.quote(str(folder))} checkout {commit}"))
    if problems:
        raise ReproError(*problems)
