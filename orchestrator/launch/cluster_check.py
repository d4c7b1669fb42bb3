"""Creation of a cluster profile, and its check against the login node, sbatch and, in a job, a compute node.

The job runs for one minute, in the profile's own script.
"""

from __future__ import annotations

import getpass
import re
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from orchestrator.catalog.case import Case
from orchestrator.catalog.library import Entry, find_experiment
from orchestrator.clusters import cluster_names
from orchestrator.clusters.check import Finding, Presence, Result, check_login, open_fields, path_findings, site_paths
from orchestrator.clusters.generate import profile_text
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.config.yaml import KeyPath, shown
from orchestrator.errors import Problem, ReproError, Unreachable, did_you_mean
from orchestrator.files import ScriptRecord, private_folder, read_record
from orchestrator.launch.denied_nodes import with_denied_nodes
from orchestrator.launch.executors import SlurmScriptExecutor, clean_env_prefix
from orchestrator.launch.preflight import require_scheduler
from orchestrator.launch.refresh import is_side_job
from orchestrator.launch.render import render_job
from orchestrator.launch.submit import side_plan, task_per_gpu
from orchestrator.paths import Folders
from orchestrator.planning.batch_plan import NO_SETTINGS, RunSettings
from orchestrator.planning.plan import Plan, SidePlan, check_case, plan_cases, refusal_problems
from orchestrator.planning.target import Target, cases_at
from orchestrator.programs.command import BoundProgram
from orchestrator.programs.record import probe_program
from orchestrator.reading.causes import cause
from orchestrator.reading.reader import reader_of
from orchestrator.slurm import site as slurm_site
from orchestrator.slurm.command import cancel_jobs, on_cluster, query_jobs, run_slurm
from orchestrator.slurm.notation import Phase
from orchestrator.slurm.reasons import explain_rejection, own_words
from orchestrator.slurm.site import parse_options
from orchestrator.text import counted

_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClusterCheck:
    """Findings of a profile check."""

    cluster: Cluster
    findings: list[Finding]

    @property
    def problems(self) -> list[Problem]:
        """Return what is wrong."""
        faults = (finding for finding in self.findings if finding.is_fault)
        return [Problem(f"{fault.check}: {fault.found}", fault.location, fault.hint) for fault in faults]


def check_cluster(
    folders: Folders,
    name: str,
    notify: Callable[[str], None],
    *,
    experiment: str | None = None,
    scale: str | None = None,
    job: bool = False,
    settings: RunSettings = NO_SETTINGS,
) -> ClusterCheck:
    """Compare a profile with the live cluster. With `job`, run a short job that checks a node.

    The job excludes the nodes of the deny list. Settings of cases apply to those of `experiment`.
    """
    cluster = with_denied_nodes(find_cluster(folders, name, settings.of_profile))
    if not cluster.is_slurm and (job or experiment):
        raise ReproError(Problem(f"{cluster.name} has no Slurm", hint="leave --job and --experiment out"))
    if scale is not None and experiment is None:
        raise ReproError(Problem("--scale needs --experiment", hint="add --experiment"))
    if experiment is None and len(settings.of_profile) < len(settings.all):
        what = "the time limit and the iterations belong to an experiment"
        raise ReproError(Problem(what, hint="add --experiment, or leave --time and --set training.iterations out"))
    if not cluster.is_slurm:
        return ClusterCheck(cluster, [*check_this_machine(cluster), *path_findings(cluster, "login")])
    entry = find_experiment(folders, experiment) if experiment is not None else None
    cases = settings.applied(cases_at(entry, cluster, scale)) if entry is not None else []
    with on_cluster(cluster.profile.slurm_cluster):
        return ClusterCheck(cluster, _slurm_findings(cluster, entry, cases, folders, notify, job=job))


def _slurm_findings(
    cluster: Cluster,
    entry: Entry | None,
    cases: Sequence[Case],
    folders: Folders,
    notify: Callable[[str], None],
    *,
    job: bool,
) -> list[Finding]:
    site = _site(notify)
    findings = [*check_login(cluster, site), *option_findings(cluster), *path_findings(cluster, "login")]
    if entry is not None:
        findings += submission_findings(entry, cases, cluster, folders)
    if job and any(finding.is_fault for finding in findings):
        notify("no job was started: correct the faults first")
    elif job:
        from_node = job_findings(cluster, folders, notify)
        unchecked = ("compute", "not checked")
        findings = [*(finding for finding in findings if (finding.place, finding.result) != unchecked), *from_node]
    return findings


def _site(notify: Callable[[str], None]) -> slurm_site.Site:
    site = slurm_site.read_site(getpass.getuser())
    for complaint in site.complaints:
        notify(f"note: {complaint}")
    return site


def new_cluster(folders: Folders, name: str, partition: str | None, notify: Callable[[str], None]) -> Path:
    """Write a commented profile from what scontrol, sacctmgr and srun report on this login node; return its path."""
    if not _NAME.fullmatch(name):
        raise ReproError(Problem(f"{name!r}: not a valid cluster name", hint="use letters, digits, - and _"))
    existing = cluster_names(folders).get(name)
    path = folders.home / "clusters" / f"{name}.yaml"
    if existing is not None and existing.parent == folders.shipped / "clusters" != path.parent:
        hint = f"use another name; private values of {name} belong to {shown(path.with_name(f'{name}.local.yaml'))}"
        raise ReproError(Problem(f"{name}: a shipped profile has this name", hint=hint))
    if existing is not None or path.exists():
        location = f"{shown(existing or path)}:"
        raise ReproError(Problem(f"a cluster {name} exists already", location, "use another name, or edit that file"))
    text = profile_text(_site(notify), name, partition, str(folders.shipped / "clusters" / "schema.json"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


_SIMILAR_OPTIONS = 0.75
"""Least similarity of a proposed option. srun has more than 100 options, so that each word
is a little similar to one of them."""


def option_findings(cluster: Cluster) -> list[Finding]:
    """Return whether srun and sbatch accept the profile's options.

    Each option is followed by --help, so that a command that accepts the option ends and does nothing.
    """
    slurm = cluster.profile.slurm
    assert slurm is not None
    fields = ((name, getattr(slurm, name)) for name in ("cpu_bind", "gpu_bind"))
    options = [(("slurm", name), f"--{name.replace('_', '-')}={value}") for name, value in fields if value is not None]
    findings = [_option(cluster, path, "srun", word) for path, word in options]
    for command, words in (("srun", slurm.srun), ("sbatch", slurm.sbatch)):
        given = ((("slurm", command, i), word) for i, word in enumerate(words) if "<" not in word)
        findings += [_option(cluster, path, command, word) for path, word in given]
    return findings


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
    for program in dict.fromkeys(case.program for case in fitting):
        try:
            plans += plan_cases(entry, [case for case in fitting if case.program == program], cluster, folders)
        except ReproError as error:
            findings += faults("plan", error)
    by_size = sorted(plans, key=lambda plan: (plan.resources.nodes, plan.case.gpus))
    ends = {plan.identity: plan for plan in (*by_size[:1], *by_size[-1:])}
    return [*findings, *(finding for plan in ends.values() for finding in _tested(plan, cluster, folders))]


def _option(cluster: Cluster, path: KeyPath, command: str, word: str) -> Finding:
    finding = partial(Finding, f"slurm.{path[1]}", "login", location=cluster.location(path))
    if word == "--":  # --help after it would be the program to run
        return finding("wrong", "-- is not an option", hint="remove it")
    answer = run_slurm([*clean_env_prefix(), command, word, "--help"])
    if answer.returncode == 0:
        return finding("ok", word)
    if "unrecognized option" not in answer.stderr and "invalid option" not in answer.stderr:
        message = f"{word}: {command} reports: {own_words(answer.stderr)}"
        return finding("wrong", message, hint=f"{command} --help lists its options")
    name = word.partition("=")[0]
    options = [f"--{name}" for name in sorted(parse_options(run_slurm([command, "--help"]).stdout).names)]
    hint = did_you_mean(name, options, _SIMILAR_OPTIONS) or "remove it"
    return finding("wrong", f"{command} has no {name}", hint=hint)


def _tested(plan: Plan, cluster: Cluster, folders: Folders) -> list[Finding]:
    check = f"sbatch --test-only {plan.case.experiment} {plan.case.name}"
    size = f"{counted(plan.resources.nodes, 'node')} for {plan.resources.time_limit}"
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


def check_this_machine(cluster: Cluster) -> list[Finding]:
    """Return what a cluster without Slurm lacks on this machine, which starts its jobs."""
    return [*open_fields(cluster), *([_mpirun(cluster)] if cluster.profile.mpirun else _this_machine(cluster))]


def _mpirun(cluster: Cluster) -> Finding:
    program, location = shutil.which("mpirun"), cluster.location(("mpirun",))
    if program is not None:
        return Finding("mpirun", "login", "ok", program, location)
    hint = "run this on the machine from which jobs are started"
    return Finding("mpirun", "login", "wrong", "not on this machine", location, hint)


def _this_machine(cluster: Cluster) -> Iterator[Finding]:
    machine, tester = cluster.machine, probe_program()
    gpus = f"{machine.gpus} x {machine.gpu}" if machine and machine.gpus else "no GPUs; processes run on CPU cores"
    yield Finding("hardware", "login", "ok", gpus)
    if tester is not None:
        absent, install_command = tester.absent_packages()
        if absent and cluster.profile.programs.python(tester.name) is None:
            yield Finding("training", "login", "wrong", f"no {' and '.join(absent)}", hint=install_command)
        else:
            yield Finding("training", "login", "ok", "torch and megatron-core are installed")


# ---- check on a compute node ----------------------------------------------------------------------------------

PROBE_TIME = "0:01:00"
POLL_S = 2.0
PATIENCE_S = 10.0
OUTSIDE_IMAGE = 97
"""Exit code of a script whose task runs outside its image (sbatch_container.sh.j2)."""

_NOT_OF_IMAGE = re.compile("mount|cannot create directory|No space left on device")
"""Reasons for a failed start of a container that the image does not cause."""

# Printed by every task. The driver counts the GPUs, else the variable that Slurm sets.
_INSIDE = """\
if command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi -L | wc -l)
else gpus=$(printf %s "${CUDA_VISIBLE_DEVICES:-}" | tr , "\\n" | grep -c .); fi
echo "probe rank=$RANK machine=$(uname -m) gpus=$gpus"
[ "$RANK" = 0 ] && [ -n "$1" ] || exit 0
command -v "$1" >/dev/null || { echo "probe python=missing $1"; exit 0; }
said=$("$1" -c "$2" 2>&1) && can=yes || can=no
echo "probe python=$can ${said##*$'\\n'}"
"""
# megatron-core is only searched: its import takes seconds.
_IMPORTS = """\
import importlib.util, torch
if importlib.util.find_spec("megatron.core") is None: raise ImportError("No module named 'megatron.core'")
print(torch.__version__, torch.version.cuda or getattr(torch.version, "hip", None), torch.cuda.device_count())
"""


@dataclass(frozen=True, slots=True)
class Probed:
    """Result of a probe: its state in Slurm, its end record, and the output of its first node and its tasks."""

    folder: Path
    state: str
    end: ScriptRecord | None
    host: str
    log: str

    def paths(self) -> dict[str, Presence] | None:
        """Return which paths the first node has; None if the job did not check them."""
        if not self.host:
            return None
        lines = re.findall(r"^path=(?:(yes)|(unreadable)|no) (.*)$", self.host, re.MULTILINE)
        return {path: "yes" if yes else "unreadable" if unreadable else "no" for yes, unreadable, path in lines}


def job_findings(cluster: Cluster, folders: Folders, notify: Callable[[str], None]) -> list[Finding]:
    """Run the probe and return its findings. A rejection by Slurm is a finding."""
    try:
        require_scheduler(cluster, folders)
        probed = run_probe(cluster, folders, notify)
    except Unreachable:
        raise
    except ReproError as error:
        return [refused("job", cluster, problem) for problem in error.problems]
    return probe_findings(cluster, probed)


def run_probe(cluster: Cluster, folders: Folders, notify: Callable[[str], None]) -> Probed:
    """Submit the probe, wait for its end, and read its files. Ctrl-C cancels the job."""
    stamp = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    folder = folders.run(f"check-{cluster.name}-{stamp}")
    text = render_job(probe_plan(cluster, folders), with_probe_lines(cluster), folder, folders.templates)
    tester = probe_program()
    if tester is not None:
        tester.write_files(folders)
    private_folder(folder)
    comment = f"repro-check:{stamp}"
    job_id = SlurmScriptExecutor(folder).submit_script(text, comment)
    notify(f"job {job_id} on {cluster.name}, in {folder}")
    try:
        state = _ended(job_id, comment, folder, notify)
    except BaseException:
        try:
            cancel_jobs([job_id])
            notify(f"job {job_id} was cancelled")
        except ReproError:
            notify(f"job {job_id} could not be cancelled: scancel {job_id}")
        raise
    late = time.monotonic() + PATIENCE_S  # a shared file system may show the files of the job some seconds late
    while not (folder / "end").exists() and not (folder / "batch.txt").exists() and time.monotonic() < late:
        time.sleep(POLL_S)
    host, *logs = (_text(folder / name) for name in ("host.txt", "log.txt", "batch.txt"))
    return Probed(folder, state, read_record(folder / "end"), host, "\n".join(logs))


def probe_plan(cluster: Cluster, folders: Folders) -> SidePlan:
    """Return the plan of a probe: one node with its GPUs for one minute, and a command that only reads.

    PYTHONPATH and mounts are those of a job of the program that tests nodes.
    """
    (name, path), tester = _probed_image(cluster), probe_program()
    package = str(tester.probe_folder(folders)) if tester is not None and tester.probe_folder is not None else None
    python = ""  # no interpreter: the image of the program that tests nodes is not filled in, or there is none
    if tester is not None and (cluster.profile.container is None or name is not None):
        python = cluster.profile.programs.python(tester.name) or ("python" if name else sys.executable)
    program = BoundProgram(
        name="check",
        command=("bash", "-u", "-c", _INSIDE, "probe", python, _IMPORTS),
        arguments=(),
        code="check",
        image=name,
        image_path=path,
        python_path=package,
        mounts=(package,) if package else (),
    )
    return side_plan(cluster, program, "check", _tasks(cluster), PROBE_TIME, cluster.hardware.gpus_per_node)


def with_probe_lines(cluster: Cluster) -> Cluster:
    """Return the cluster with a check of its paths as the first setup line, and tasks that srun starts."""
    paths = " ".join(shlex.quote(site_path.path) for site_path in site_paths(cluster))
    test = '[ -e "$path" ] || seen=no; [ "$seen" = no ] || [ -r "$path" ] || seen=unreadable'
    loop = f'for path in {paths}; do seen=yes; {test}; echo "path=$seen $path"; done'
    lines = [f'{{ {loop}; }} >"$folder/host.txt"'] if paths else []
    update = {
        "setup": [*lines, *cluster.profile.setup],
        "container": cluster.profile.container if _probed_image(cluster)[0] else None,
    }
    return task_per_gpu(replace(cluster, profile=cluster.profile.model_copy(update=update)))


def probe_findings(cluster: Cluster, probed: Probed) -> list[Finding]:
    """Return the findings of a probe; if its step did not run, its log has the reason."""
    paths = path_findings(cluster, "compute", probed.paths())
    if probed.state in ("COMPLETED", "FAILED") and probed.end is None and not probed.log.strip():
        message = f"{probed.state}, and the files of the job are not visible here"
        hint = "set REPRO_HOME to a folder that the nodes see"
        return [*paths, Finding("folder for runs", "compute", "wrong", message, hint=hint)]
    folder = Finding("folder for runs", "compute", "ok", "the files of the job are visible here")
    if probed.state == "COMPLETED":
        return [*paths, folder, _image_finding(cluster, probed), *_inside_findings(cluster, probed)]
    return [*paths, folder, *_failure(cluster, probed, [finding.found for finding in paths if finding.is_fault])]


def _failure(cluster: Cluster, probed: Probed, path_faults: Sequence[str]) -> list[Finding]:
    """Return why the job failed, with the profile path that its log names; nothing if that path is reported already."""
    tester, log = probe_program(), probed.log.encode()
    best = cause(log) if tester is None else cause(log, reader_of(tester.name).lines)
    message = str(best) if best else "its log has no reason"
    code = probed.end.exit_code if probed.end else 0
    if code == OUTSIDE_IMAGE and probed.end and probed.end.outside_image:
        message = probed.end.outside_image
    ended = f"{probed.state} with exit code {code}" if code else probed.state
    blamed = sorted((path for path in site_paths(cluster) if path.path in message), key=lambda path: -len(path.path))
    if any(fault.startswith(f"{path.path}: ") for path in blamed for fault in path_faults):
        return []
    hint = f"its output is in {probed.folder}"
    if blamed:
        return [Finding(blamed[0].check, "compute", "wrong", f"{ended}: {message}", blamed[0].location, hint)]
    name, _ = _probed_image(cluster)
    is_the_image = code == OUTSIDE_IMAGE or (message.startswith("container") and not _NOT_OF_IMAGE.search(message))
    location = cluster.location(("container", "images", name)) if name is not None and is_the_image else None
    return [Finding("job", "compute", "wrong", f"{ended}: {message}", location, hint)]


def _image_finding(cluster: Cluster, probed: Probed) -> Finding:
    name, _ = _probed_image(cluster)
    if name is None:
        no_image = ": no image is filled in" if cluster.profile.container else ""
        return Finding("job", "compute", "ok", f"ran on a node, without a container{no_image}")
    outside = probed.end.outside_image if probed.end else "it left no end record"
    result: Result = "wrong" if outside else "ok"
    location = cluster.location(("container", "images", name))
    return Finding(f"container.images.{name}", "compute", result, outside or "the job ran inside it", location)


def _inside_findings(cluster: Cluster, probed: Probed) -> Iterator[Finding]:
    hardware, site = cluster.hardware, cluster.profile.site
    rows = re.findall(r"probe rank=(\d+) machine=(\S+) gpus=(\d+)", probed.log)
    ranks, tasks = len({rank for rank, *_ in rows}), _tasks(cluster)
    location = cluster.location(("hardware", "gpus_per_node"))
    if ranks != tasks:
        yield Finding("tasks", "compute", "wrong", f"{ranks} of {tasks} tasks were started", location)
    gpus = {int(count) for *_, count in rows}
    of_gpus = partial(Finding, "hardware.gpus_per_node", "compute", location=location)
    seen = f"each task sees {' or '.join(counted(count, 'GPU') for count in sorted(gpus))}"
    if gpus == {0}:
        yield of_gpus("unknown", "the node has no means to count GPUs")
    elif gpus == {hardware.gpus_per_node}:
        yield of_gpus("ok", seen)
    else:
        yield of_gpus("wrong", seen, hint="all tasks of a node must see all its GPUs: gpu_bind: none")
    machines = {machine for _, machine, _ in rows}
    if site.architecture and machines:
        result: Result = "ok" if machines == {site.architecture} else "wrong"
        message, place = f"the node is {' and '.join(sorted(machines))}", cluster.location(("site", "architecture"))
        yield Finding("site.architecture", "compute", result, message, place)
    yield from _python_findings(cluster, probed)


def _python_findings(cluster: Cluster, probed: Probed) -> Iterator[Finding]:
    """Yield whether the Python of the program that tests nodes can run it.

    A fault only where the profile sets that program, or has an image of its name: a site may offer other programs
    only.
    """
    answer = re.search(r"probe python=(yes|no|missing) ([^\r\n]*)", probed.log)
    tester = probe_program()
    if answer is None or tester is None:
        return
    name, _ = _probed_image(cluster)
    is_offered = tester.name in cluster.layered.mapping("programs") or name == tester.name
    result: Result = "wrong" if is_offered else "later"
    python_is_named = cluster.profile.programs.python(tester.name) is not None
    of_image = cluster.location(("container", "images", str(name)))
    location = cluster.location(("programs", tester.name, "python")) if python_is_named else of_image
    other, gpus = f"programs: {tester.name}: python: one", cluster.hardware.gpus_per_node
    check, hint = "torch", f"{other} that has torch and megatron-core"
    version, platform, devices = [*answer[2].split(), "", "", ""][:3]
    if answer[1] == "missing":
        message = f"{answer[2]}: no such program {f'in image {name}' if name else 'on the nodes'}"
        check = f"programs.{tester.name}.python" if python_is_named else check
    elif answer[1] == "no":
        message = f"{f'the python of image {name}' if name else 'python on the nodes'}: {answer[2]}"
    elif platform == "None" and cluster.hardware.gpu:
        message = f"torch {version} is made for CPUs, the nodes have {counted(gpus, 'GPU')}"
        hint = f"{other} whose torch uses GPUs"
    elif platform != "None" and devices != str(gpus):
        result, message = "wrong", f"torch {version} sees {devices} of {counted(gpus, 'GPU')}"
        hint = "an image shows its GPUs only where it sets NVIDIA_VISIBLE_DEVICES" if name else ""
        location = of_image if name else location
    else:
        result, hint = "ok", ""
        message = f"torch {version} is made for CPUs" if platform == "None" else f"torch {version} sees {devices} GPUs"
    yield Finding(check, "compute", result, message, location, hint or None)


def _tasks(cluster: Cluster) -> int:
    """Return the number of tasks per node."""
    slurm = cluster.profile.slurm
    assert slurm is not None
    return cluster.hardware.gpus_per_node if slurm.tasks == "per-gpu" else 1


def _probed_image(cluster: Cluster) -> tuple[str | None, str | None]:
    """Return name and location of the image to test: of the program that tests nodes, else the first filled in."""
    container, tester = cluster.profile.container, probe_program()
    own = tester.name if tester is not None else None
    names = sorted(container.images, key=lambda name: name != own) if container else []
    filled = [name for name in names if "<" not in (cluster.image_location(name) or "<")]
    return (filled[0], cluster.image_location(filled[0])) if filled else (None, None)


def _ended(job_id: str, comment: str, folder: Path, notify: Callable[[str], None]) -> str:
    """Wait for the end of the job and return its state, from its own record if Slurm does not list it."""
    last = ""
    while True:
        answer = query_jobs([job_id], lambda job: is_side_job(job, comment, folder))
        record, now = answer.records.get(job_id), "not in the queue"
        if record is not None:
            now = f"{record.state}{f' ({record.reason})' if record.reason else ''}"
            if record.phase is Phase.ENDED:
                return record.state
        elif end := read_record(folder / "end"):
            return "COMPLETED" if end.exit_code == 0 else "FAILED"
        if now != last:
            notify(now)
            last = now
        time.sleep(POLL_S)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
