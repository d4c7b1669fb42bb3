"""Checks before a submission, and checks of a profile from the login node."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from orchestrator.catalog.case import Case
from orchestrator.catalog.library import Entry
from orchestrator.clusters.check import Finding, Result, open_fields
from orchestrator.clusters.machine import GpuMemory, GpuProcess, gpu_memory
from orchestrator.clusters.needs import needed_paths
from orchestrator.clusters.program import image_uri, import_record, imported_file, is_there
from orchestrator.clusters.resolve import Cluster
from orchestrator.clusters.slurm_fields import MpirunFields
from orchestrator.config.yaml import KeyPath
from orchestrator.errors import Problem, ReproError, Unreachable, did_you_mean
from orchestrator.launch.checkouts import git_output, is_at
from orchestrator.launch.directives import output_pattern, require_mountable
from orchestrator.launch.executors import clean_env_prefix
from orchestrator.launch.render import render_job
from orchestrator.paths import Folders
from orchestrator.planning.exact import absent_packages, install_command
from orchestrator.planning.plan import Plan, check_case, plan_cases, refusal_problems
from orchestrator.planning.target import Target
from orchestrator.slurm.command import on_cluster, run_slurm
from orchestrator.slurm.query import require_controller
from orchestrator.slurm.reasons import explain_rejection, own_words
from orchestrator.slurm.site import parse_options
from orchestrator.text import counted
from orchestrator.workloads import find_workload
from orchestrator.workloads.needs import fetch_command


def require_ready(plans: Sequence[Plan], cluster: Cluster, folders: Folders) -> None:
    """Raise ReproError with all that these jobs lack; Unreachable if the scheduler does not answer."""
    problems: list[Problem] = []
    checks: tuple[Callable[[], None], ...] = (
        lambda: require_scheduler(cluster, folders),
        lambda: _require_mountable(cluster, folders),
        lambda: require_images(plans, cluster),
        lambda: _require_needs(plans, cluster),
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
    """Raise ReproError if this machine cannot submit jobs to the cluster, before anything is recorded."""
    _require_environment(cluster)
    if cluster.profile.mpirun is not None:
        _require_mpirun(cluster.profile.mpirun)
    if not cluster.is_slurm:
        return
    if shutil.which("sbatch") is None:
        hint = "run this on a login node of the cluster; `repro plan`, `repro render` and --dry-run work here"
        raise Unreachable(Problem("sbatch is not on this machine", hint=hint))
    if any(tag in str(folders.runs) for tag in ("%j", "%t", "%A", "%a")):  # submitit replaces them with ids
        raise ReproError(
            Problem(
                "Slurm would replace the % in this folder name", f"{folders.runs}:", "set REPRO_HOME to one without %"
            )
        )
    output_pattern(folders.runs)
    with on_cluster(cluster.profile.slurm_cluster):
        require_controller()


def _require_mountable(cluster: Cluster, folders: Folders) -> None:
    if cluster.profile.container is not None:
        require_mountable(folders.runs)


def _require_environment(cluster: Cluster) -> None:
    """Raise ReproError if a variable of `env_from` is not set: the job would fail after hours in the queue."""
    missing = [name for name in cluster.profile.env_from if not os.environ.get(name)]
    if missing:
        names = " and ".join(missing)
        location = cluster.location(("env_from",))
        raise ReproError(Problem(f"env_from: {names} not set in this shell", location, "export it, then submit"))


def _require_mpirun(mpirun: MpirunFields) -> None:
    if shutil.which("mpirun") is None:
        hint = "run this on the machine from which jobs are started; --dry-run and `repro render` work here"
        raise Unreachable(Problem("mpirun is not on this machine", hint=hint))
    if not Path(mpirun.hostfile).is_file():
        raise ReproError(Problem("no such hostfile", f"{mpirun.hostfile}:", "correct mpirun: hostfile:"))


def _require_needs(plans: Sequence[Plan], cluster: Cluster) -> None:
    """Raise ReproError for code and data of the jobs that are missing, where this machine sees their file system."""
    if not cluster.profile.site.login_sees_paths:
        return
    problems = [
        Problem(
            f"workloads.{name}.{needed.field}: {needed.path}: no such file or folder",
            needed.location,
            fetch_command(name, cluster.name),
        )
        for name in dict.fromkeys(plan.program.workload for plan in plans)
        for needed in needed_paths(find_workload(name), cluster)
        if not is_there(Path(needed.path)) and is_there(Path(*Path(needed.path).parts[:2]))
    ]
    if problems:
        raise ReproError(*problems)


def _require_commits(plans: Sequence[Plan]) -> None:
    """Raise ReproError if a checkout is not at the commit that its jobs are recorded with."""
    problems = []
    for folder, commit in dict.fromkeys((plan.program.checkout, plan.program.code) for plan in plans):
        head = git_output(Path(folder), "rev-parse", "HEAD") if folder else None
        if head is not None and not is_at(Path(str(folder)), commit):
            what = f"{folder} is at commit {head[:10]}, and the jobs are recorded with {commit[:10]}"
            problems.append(Problem(what, hint=f"git -C {shlex.quote(str(folder))} checkout {commit}"))
    if problems:
        raise ReproError(*problems)


def check_this_machine(cluster: Cluster) -> list[Finding]:
    """Return what a cluster without Slurm lacks on this machine, which starts its jobs."""
    return [*open_fields(cluster), *(_mpirun(cluster) if cluster.profile.mpirun else _this_machine(cluster))]


def hosts_in(text: str) -> dict[str, int | None]:
    """Return the slots of each host of an Open MPI hostfile; None if the file has none, which means the host's cores.

    That is Open MPI's default ("There are not enough slots available", orterun 3 and newer).
    """
    rows = re.findall(r"^[ \t]*([^#\s]+)(?:[^\n#]*?\bslots[ \t]*=[ \t]*([0-9]+))?", text, re.MULTILINE)
    return {host: int(slots) if slots else None for host, slots in rows}


def _mpirun(cluster: Cluster) -> list[Finding]:
    mpirun, hardware, location_of = cluster.profile.mpirun, cluster.hardware, cluster.location
    assert mpirun is not None
    program = shutil.which("mpirun")
    hint = None if program else "run this on the machine from which jobs are started"
    findings = [
        Finding(
            "mpirun",
            "login",
            "ok" if program else "wrong",
            program or "not on this machine",
            location_of(("mpirun",)),
            hint,
        )
    ]
    file = Path(mpirun.hostfile)
    if "<" in mpirun.hostfile or not file.is_file():
        return findings
    hosts = hosts_in(file.read_text(encoding="utf-8", errors="replace"))
    few = {host: slots for host, slots in hosts.items() if slots is not None and slots < hardware.gpus_per_node}
    location = location_of(("mpirun", "hostfile"))
    if len(hosts) < hardware.nodes:
        message = f"{counted(len(hosts), 'host')}, hardware: nodes: is {hardware.nodes}"
        findings.append(
            Finding("mpirun.hostfile", "login", "wrong", message, location, f"add hosts to {mpirun.hostfile}")
        )
    if few:
        message = f"{', '.join(few)}: fewer slots than hardware: gpus_per_node: {hardware.gpus_per_node}"
        findings.append(
            Finding("mpirun.hostfile", "login", "wrong", message, location, f"slots={hardware.gpus_per_node}")
        )
    if len(hosts) >= hardware.nodes and not few:
        message = f"{counted(len(hosts), 'host')}, each with slots for {counted(hardware.gpus_per_node, 'process')}"
        findings.append(Finding("mpirun.hostfile", "login", "ok", message, location))
    return findings


def _this_machine(cluster: Cluster) -> list[Finding]:
    machine, absent = cluster.machine, absent_packages()
    gpus = f"{machine.gpus} x {machine.gpu}" if machine and machine.gpus else "no GPUs; processes run on CPU cores"
    training = Finding("training", "login", "ok", "torch and megatron-core are installed")
    if absent and cluster.profile.workloads.pretrain_python is None:
        training = Finding("training", "login", "wrong", f"no {' and '.join(absent)}", hint=install_command())
    return [Finding("hardware", "login", "ok", gpus), training]


_ON_SRUN = ("cpu_bind", "gpu_bind")
_SIMILAR_OPTIONS = 0.75
"""Least similarity of a proposed option. srun has more than 100 options, so that each word
is a little similar to one of them."""


def option_findings(cluster: Cluster) -> list[Finding]:
    """Return whether srun and sbatch accept the profile's options.

    Each option is followed by --help, so that a command that accepts the option ends and does nothing.
    """
    return [_option(cluster, path, command, word) for path, command, word in _options(cluster)]


def submission_findings(entry: Entry, cases: Sequence[Case], cluster: Cluster, folders: Folders) -> list[Finding]:
    """Return whether sbatch would accept the smallest and the largest of these jobs that fit this hardware.

    Nothing is submitted. A case that planning refuses is a finding, and a fault if no case is left.
    """
    target = Target.of_cluster(cluster)
    checked = [check_case(case, target) for case in cases]
    fitting = [plan.case for plan in checked if not plan.refusals]
    result: Result = "not checked" if fitting else "wrong"
    findings = [
        Finding("plan", "login", result, refusal.what, hint=None if fitting else refusal.hint)
        for refusal in refusal_problems(entry, checked, target)
    ]
    plans: list[Plan] = []
    for workload in dict.fromkeys(case.workload for case in fitting):
        try:
            plans += plan_cases(entry, [case for case in fitting if case.workload == workload], cluster, folders)
        except ReproError as error:
            findings += faults("plan", error)
    by_size = sorted(plans, key=lambda plan: (plan.resources.nodes, plan.case.layout.gpus))
    ends = {plan.identity: plan for plan in (*by_size[:1], *by_size[-1:])}
    return [*findings, *(finding for plan in ends.values() for finding in _tested(plan, cluster, folders))]


def _options(cluster: Cluster) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield the location of each option in the profile, its command, and the option."""
    slurm = cluster.profile.slurm
    assert slurm is not None
    for field in _ON_SRUN:
        value = getattr(slurm, field)
        if value is not None:
            yield ("slurm", field), "srun", f"--{field.replace('_', '-')}={value}"
    for command in ("srun", "sbatch"):
        for i, word in enumerate(getattr(slurm, command)):
            if "<" not in word:
                yield ("slurm", command, i), command, word


def _option(cluster: Cluster, path: KeyPath, command: str, word: str) -> Finding:
    check, location = f"slurm.{path[1]}", cluster.location(path)
    if word == "--":  # --help after it would be the program to run
        return Finding(check, "login", "wrong", "-- is not an option", location, "remove it")
    answer = run_slurm([*clean_env_prefix(), command, word, "--help"])
    if answer.returncode == 0:
        return Finding(check, "login", "ok", word, location)
    name = word.partition("=")[0]
    if "unrecognized option" not in answer.stderr and "invalid option" not in answer.stderr:
        message = f"{word}: {command} reports: {own_words(answer.stderr)}"
        return Finding(check, "login", "wrong", message, location, f"{command} --help lists its options")
    options = parse_options(run_slurm([command, "--help"]).stdout).names
    hint = did_you_mean(name, [f"--{option_name}" for option_name in sorted(options)], _SIMILAR_OPTIONS) or "remove it"
    return Finding(check, "login", "wrong", f"{command} has no {name}", location, hint)


def _tested(plan: Plan, cluster: Cluster, folders: Folders) -> list[Finding]:
    check = f"sbatch --test-only {plan.case.experiment} {plan.case.name}"
    nodes = plan.resources.nodes
    size = f"{counted(nodes, 'node')} for {plan.resources.time_limit}"
    with tempfile.TemporaryDirectory(prefix="repro-check-") as base:
        script = Path(base) / "job.sh"
        try:
            text = render_job(plan, cluster, Path(base) / "job", folders.templates)
        except ReproError as error:
            return faults(check, error)
        script.write_text(text, encoding="utf-8")
        answer = run_slurm([*clean_env_prefix(), "sbatch", "--test-only", str(script)])
    if answer.returncode == 0:
        return [Finding(check, "login", "ok", f"{size}: {own_words(answer.stderr)}")]
    return [refused(check, cluster, explain_rejection(answer.stderr), f"{size}: ")]


def refused(check: str, cluster: Cluster, problem: Problem, size: str = "") -> Finding:
    """Return a finding for a rejection of Slurm, with the location of the profile field that the hint names."""
    named = [word for i, word in enumerate((problem.hint or "").split("`")) if i % 2]
    slurm = cluster.profile.slurm
    field = next((name for name in named if getattr(slurm, name, None)), None)
    location = cluster.location(("slurm", field)) if field else problem.location
    return Finding(check, "login", "wrong", f"{size}{problem.what}", location, problem.hint)


def faults(check: str, error: ReproError) -> list[Finding]:
    """Return the problems as findings; raise Unreachable again."""
    if isinstance(error, Unreachable):
        raise error
    return [
        Finding(check, "login", "wrong", problem.what, problem.location, problem.hint) for problem in error.problems
    ]


def require_images(plans: Sequence[Plan], cluster: Cluster) -> None:
    """Raise ReproError if the image file of a job is missing or was imported from another source."""
    if not cluster.profile.site.login_sees_paths:
        return
    problems: list[Problem] = []
    for name in dict.fromkeys(plan.program.image for plan in plans if plan.program.image):
        file = imported_file(cluster, name)
        if file is None:
            problems += _absent_file(cluster, name)
            continue
        hint = f"repro images import --cluster {cluster.name} {shlex.quote(name)}"
        uri = image_uri(cluster, name)
        sources = import_record(file).uris or (uri,)
        if not is_there(file):
            problems.append(Problem(f"{name} is not imported yet", hint=hint))
        elif uri not in sources:
            problems.append(Problem(f"{name}: {file} was imported from {' and '.join(sources)}", hint=hint))
    if problems:
        raise ReproError(*problems)


def image_warnings(plans: Sequence[Plan], cluster: Cluster) -> list[str]:
    """Return a warning for each image file whose folder this machine does not see: it cannot be looked for."""
    if not cluster.profile.site.login_sees_paths:
        return []
    names = dict.fromkeys(plan.program.image for plan in plans if plan.program.image)
    files = ((name, _own_file(cluster, name)) for name in names)
    return [
        f"{cluster.location(('container', 'images', name))} container.images.{name}: {file} cannot be looked for, "
        f"because {file.parent} is not on this machine"
        for name, file in files
        if file is not None and not is_there(file) and not is_there(file.parent)
    ]


def _absent_file(cluster: Cluster, name: str) -> Iterator[Problem]:
    file = _own_file(cluster, name)
    if file is not None and not is_there(file) and is_there(file.parent):
        location = cluster.location(("container", "images", name))
        hint = "correct the path, or put the image there; if only nodes see it, set site: {login_sees_paths: false}"
        yield Problem(f"container.images.{name}: {file}: no such file", location, hint)


def _own_file(cluster: Cluster, name: str) -> Path | None:
    """Return the absolute path that the profile names as this image; None for every other image."""
    location = cluster.image_location(name)
    own = location is not None and location.startswith("/") and imported_file(cluster, name) is None
    return Path(str(location)) if own else None


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
    gpus = max((plan.case.layout.gpus for plan in plans if plan.case.device == "gpu"), default=0)
    return list(gpus_in_use(gpu_memory()[:gpus])) if gpus else []


def gpus_in_use(gpus: Sequence[GpuMemory]) -> Iterator[str]:
    """Yield a line for each GPU whose memory other processes use."""
    for gpu in gpus:
        others = [process for process in gpu.processes if not _is_ours(process.pid)]
        if gpu.used_mib < LEAST_MIB or (gpu.processes and not others):
            continue
        names = ", ".join(map(_process_text, others)) or "nvidia-smi does not list the process"
        used = f"{gpu.used_mib / 1024:.1f} of {gpu.total_mib / 1024:.1f} GiB"
        yield f"GPU {gpu.index} is in use, {used}: {names}; jobs that it leaves too little for fail as gpu-in-use"


def _process_text(process: GpuProcess) -> str:
    memory = f", {process.used_mib / 1024:.1f} GiB" if process.used_mib is not None else ""
    return f"process {process.pid} ({process.name}{memory})"


def _is_ours(pid: int) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone, or outside of this container
        return False
    return any(variable.startswith(_MARK) for variable in variables)
