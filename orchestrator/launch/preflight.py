"""Checks before a submission: the scheduler, images, code, data and GPUs of the jobs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from orchestrator.clusters.machine import GpuMemory, gpu_memory
from orchestrator.clusters.program import image_uri, import_record, imported_file, is_there
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError, Unreachable, for_each, require_none
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan
from orchestrator.programs.record import find_program
from orchestrator.slurm.command import on_cluster, require_controller


def require_ready(plans: Sequence[Plan], cluster: Cluster, folders: Folders) -> None:
    """Raise ReproError with all that these jobs lack; Unreachable if the scheduler does not answer."""
    from orchestrator.launch.directives import require_mountable  # it loads jinja2

    container = cluster.profile.container
    checks: tuple[Callable[[], None], ...] = (
        lambda: require_scheduler(cluster, folders),
        lambda: require_mountable(folders.runs, container) if container is not None else None,
        lambda: require_none(image_problems(plans, cluster)),
        lambda: require_none(_absent_needs(plans, cluster)),
        lambda: require_none(_other_commits(plans)),
        lambda: require_none(_without_mpirun(plans, cluster)),
        lambda: _require_readers(plans),
    )
    for_each(checks, lambda check: check())


def _require_readers(plans: Sequence[Plan]) -> None:
    described = [program for plan in plans if (program := plan.case.described) and program.output.reader is not None]
    if described:
        from orchestrator.reading.reader import reader_of  # only for these programs

        for_each(described, lambda program: reader_of("", program.stored()))


def require_scheduler(cluster: Cluster, folders: Folders) -> None:
    """Raise ReproError if this machine cannot submit jobs to the cluster, before anything is recorded."""
    missing = [name for name in cluster.profile.env_from if not os.environ.get(name)]
    if missing:  # the job would fail after hours in the queue
        what = f"env_from: {' and '.join(missing)} not set in this shell"
        raise ReproError(Problem(what, cluster.location(("env_from",)), "export it, then submit"))
    mpirun = cluster.profile.mpirun
    if mpirun is not None and shutil.which("mpirun") is None:
        hint = "run this on the machine from which jobs are started; --dry-run and `repro render` work here"
        raise Unreachable(Problem("mpirun is not on this machine", hint=hint))
    if mpirun is not None and not Path(mpirun.hostfile).is_file():
        raise ReproError(Problem("no such hostfile", f"{mpirun.hostfile}:", "correct mpirun: hostfile:"))
    if not cluster.is_slurm:
        return
    if shutil.which("sbatch") is None:
        hint = "run this on a login node of the cluster; `repro plan`, `repro render` and --dry-run work here"
        raise Unreachable(Problem("sbatch is not on this machine", hint=hint))
    if any(tag in str(folders.runs) for tag in ("%j", "%t", "%A", "%a")):  # submitit replaces them with ids
        what, hint = "Slurm would replace the % in this folder name", "set REPRO_HOME to one without %"
        raise ReproError(Problem(what, f"{folders.runs}:", hint))
    from orchestrator.launch.directives import output_pattern  # it loads jinja2

    output_pattern(folders.runs)
    with on_cluster(cluster.profile.slurm_cluster):
        require_controller()


def _without_mpirun(plans: Sequence[Plan], cluster: Cluster) -> Iterator[Problem]:
    """Yield a problem for each local program of several processes if nothing here starts them."""
    if cluster.profile.scheduler != "local" or shutil.which("mpirun") is not None:
        return
    for plan in {plan.program.name: plan for plan in plans}.values():
        if plan.program.launcher is None and plan.resources.tasks > 1:
            what = f"{plan.program.name} needs {plan.resources.tasks} processes, and mpirun is not on this machine"
            hint = "install it, or start them by words of the command, such as python3 -m torch.distributed.run"
            yield Problem(what, plan.program.origin, hint)


def _absent_needs(plans: Sequence[Plan], cluster: Cluster) -> Iterator[Problem]:
    """Yield a problem for code and data of the jobs that are missing, where this machine sees their file system."""
    if not cluster.profile.site.login_sees_paths:
        return
    names = dict.fromkeys(plan.program.name for plan in plans if plan.case.described is None)
    if names:
        from orchestrator.clusters.program import needed_paths  # a program that an experiment describes needs none
    for name in names:
        for needed in needed_paths(find_program(name), cluster):
            path = Path(needed.path)
            if not is_there(path) and is_there(Path(*path.parts[:2])):
                what = f"{needed.check}: {needed.path}: no such file or folder"
                yield Problem(what, needed.location, needed.hint)


def _other_commits(plans: Sequence[Plan]) -> Iterator[Problem]:
    """Yield a problem for each checkout that is not at the commit that its jobs are recorded with."""
    for folder, commit in dict.fromkeys((plan.program.checkout, plan.program.code) for plan in plans):
        head = git_output(Path(folder), "rev-parse", "HEAD") if folder else None
        if head is not None and not is_at(Path(str(folder)), commit):
            what = f"{folder} is at commit {head[:10]}, and the jobs are recorded with {commit[:10]}"
            yield Problem(what, hint=f"git -C {shlex.quote(str(folder))} checkout {commit}")


def image_problems(plans: Sequence[Plan], cluster: Cluster) -> Iterator[Problem]:
    """Yield a problem for each image file of a job that is missing or was imported from another source."""
    for name, file, is_imported in _image_files(plans, cluster):
        hint = f"repro images import --cluster {cluster.name} {shlex.quote(name)}"
        if is_imported and not is_there(file):
            yield Problem(f"{name} is not imported yet", hint=hint)
        elif is_imported:
            sources = import_record(file).uris
            if sources and image_uri(cluster, name) not in sources:
                yield Problem(f"{name}: {file} was imported from {' and '.join(sources)}", hint=hint)
        elif not is_there(file) and is_there(file.parent):
            location = cluster.location(("container", "images", name))
            hint = "correct the path, or put the image there; if only nodes see it, set "
            hint += "site: {login_sees_paths: false}"
            yield Problem(f"container.images.{name}: {file}: no such file", location, hint)
        elif is_there(file) and not os.access(file, os.R_OK):
            location = cluster.location(("container", "images", name))
            hint = "ask its owner for permission to read it"
            yield Problem(f"container.images.{name}: {file}: you may not read it", location, hint)


def image_warnings(plans: Sequence[Plan], cluster: Cluster) -> list[str]:
    """Return a warning for each image file whose folder this machine does not see: it cannot be looked for."""
    return [
        f"{cluster.location(('container', 'images', name))} container.images.{name}: {file} cannot be looked for, "
        f"because {file.parent} is not on this machine"
        for name, file, is_imported in _image_files(plans, cluster)
        if not is_imported and not is_there(file) and not is_there(file.parent)
    ]


def _image_files(plans: Sequence[Plan], cluster: Cluster) -> Iterator[tuple[str, Path, bool]]:
    """Yield the name and the file of each image of the jobs, and whether an import writes that file."""
    if not cluster.profile.site.login_sees_paths:
        return
    images = {plan.program.image: plan.program.image_path for plan in plans if plan.program.image}
    for name, path in images.items():
        imported, location = imported_file(cluster, name), cluster.image_location(name) or path
        if imported is not None:
            yield name, imported, True
        elif location is not None and location.startswith("/"):
            yield name, Path(location), False


LEAST_MIB = 1024
"""Least memory in use that is reported: drivers and displays use some hundred MiB."""


_MARK = b"REPRO_LOCAL_ID="
"""Variable of the jobs of local queues, which wait for one another."""


def gpu_warnings(plans: Sequence[Plan], cluster: Cluster) -> list[str]:
    """Return a warning for each GPU of these jobs that is in use, and one if nvidia-smi fails.

    Without nvidia-smi, jobs run on CPU cores or not at all.
    """
    machine = cluster.machine
    if machine is None:
        return []
    if machine.gpus == 0:
        return [f"no GPU of this machine is used: {machine.lack}"] if machine.lack else []
    gpus = max((plan.gpus for plan in plans), default=0)
    return list(gpus_in_use(gpu_memory()[:gpus])) if gpus else []


def gpus_in_use(gpus: Sequence[GpuMemory]) -> Iterator[str]:
    """Yield a line for each GPU whose memory other processes use."""
    for gpu in gpus:
        others = [process for process in gpu.processes if not _is_ours(process.pid)]
        if gpu.used_mib < LEAST_MIB or (gpu.processes and not others):
            continue
        memory = [f", {other.used_mib / 1024:.1f} GiB" if other.used_mib is not None else "" for other in others]
        listed = (f"process {other.pid} ({other.name}{used})" for other, used in zip(others, memory, strict=True))
        names = ", ".join(listed) or "nvidia-smi does not list the process"
        used = f"{gpu.used_mib / 1024:.1f} of {gpu.total_mib / 1024:.1f} GiB"
        yield f"GPU {gpu.index} is in use, {used}: {names}; jobs that it leaves too little for fail as gpu-in-use"


def _is_ours(pid: int) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone, or outside of this container
        return False
    return any(variable.startswith(_MARK) for variable in variables)


# ---- git checkouts -----------------------------------------------------------------------------------------------


def git_output(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command; None if the folder is not a checkout, or git fails."""
    if not (folder / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def is_hash(commit: str) -> bool:
    """Return whether this is a full hash, and not a branch or tag."""
    return re.fullmatch("[0-9a-f]{40}", commit) is not None


def is_at(folder: Path, commit: str) -> bool:
    """Return whether HEAD of a checkout is this commit (a hash or the start of one), or this branch or tag."""
    head = git_output(folder, "rev-parse", "HEAD")
    named = (git_output(folder, "rev-parse", "--verify", f"{name}^{{commit}}") for name in (commit, f"origin/{commit}"))
    return head is not None and (head.startswith(commit) or (not is_hash(commit) and head in named))


def require_checkout(folder: Path, url: str, commit: str) -> str:
    """Return HEAD of an existing checkout; ReproError if it is no checkout, has changes, or is at another commit."""
    location = f"{folder}:"
    head = git_output(folder, "rev-parse", "HEAD")
    if head is None:
        hint = "move it away, or name another folder"
        raise ReproError(Problem("exists, and is not a git checkout that you can read", location, hint))
    changed = git_output(folder, "status", "--porcelain", "--untracked-files=no")
    git = f"git -C {shlex.quote(str(folder))}"
    if changed is None:
        what = "git status does not end, so local changes are unknown"
        raise ReproError(Problem(what, location, f"try: {git} status"))
    if changed:
        hint = f"look at them: {git} status; or name another folder"
        raise ReproError(Problem("this checkout has local changes, so it stays as it is", location, hint))
    if not is_at(folder, commit):
        wanted = commit[:10] if is_hash(commit) else commit
        what = f"this checkout is at commit {head[:10]}, and must be at {wanted}; it stays as it is"
        hint = f"{git} fetch --depth 1 {url} {commit} && {git} checkout --detach FETCH_HEAD; or name another folder"
        raise ReproError(Problem(what, location, hint))
    return head
