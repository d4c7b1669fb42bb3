"""Check of a profile on a compute node: a job of one minute, in the profile's own script."""

from __future__ import annotations

import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from orchestrator.clusters.check import Finding, Presence, Result, path_findings, site_paths
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError, Unreachable
from orchestrator.files import ScriptRecord, private_folder, read_record
from orchestrator.launch.batches import side_plan, task_per_gpu
from orchestrator.launch.executors import SlurmScriptExecutor
from orchestrator.launch.preflight import refused, require_scheduler
from orchestrator.launch.refresh import writes_into
from orchestrator.launch.render import render_job
from orchestrator.megatron.logs.root_cause import cause
from orchestrator.paths import Folders
from orchestrator.planning.plan import SidePlan
from orchestrator.slurm.query import cancel_jobs, may_have_comment, query_jobs
from orchestrator.slurm.records import Phase
from orchestrator.text import counted
from orchestrator.workloads.base import Program
from orchestrator.workloads.pretrain import PRETRAIN, copy_program, program_folder

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
    copy_program(folders)
    private_folder(folder)
    comment = f"repro-check:{stamp}"
    job_id = SlurmScriptExecutor(folder).submit_script(text, comment)
    notify(f"job {job_id} on {cluster.name}, in {folder}")
    try:
        state = _ended(job_id, comment, folder, notify)
    except BaseException:
        _cancel(job_id, notify)
        raise
    _wait_for_files(folder)
    end = read_record(folder / "end")
    log = "\n".join(_text(folder / name) for name in ("log.txt", "batch.txt"))
    return Probed(folder, state, end, _text(folder / "host.txt"), log)


def probe_plan(cluster: Cluster, folders: Folders) -> SidePlan:
    """Return the plan of a probe: one node with its GPUs for one minute, and a command that only reads.

    PYTHONPATH and mounts are those of a job of `pretrain`.
    """
    name, path = _probed_image(cluster)
    package = str(program_folder(folders))
    program = Program(
        workload="check",
        python="bash",  # started as `bash -u -c ...`
        target=("-c", _INSIDE, "probe", _python(cluster, name), _IMPORTS),
        arguments=(),
        code="check",
        image=name,
        image_path=path,
        python_path=package,
        mounts=(package,),
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
    best = cause(probed.log.encode())
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
    location = cluster.location(("container", "images", name))
    outside = probed.end.outside_image if probed.end else "it left no end record"
    if outside:
        return Finding(f"container.images.{name}", "compute", "wrong", outside, location)
    return Finding(f"container.images.{name}", "compute", "ok", "the job ran inside it", location)


def _inside_findings(cluster: Cluster, probed: Probed) -> list[Finding]:
    hardware, site = cluster.hardware, cluster.profile.site
    rows = re.findall(r"probe rank=(\d+) machine=(\S+) gpus=(\d+)", probed.log)
    findings = []
    ranks, tasks = len({rank for rank, *_ in rows}), _tasks(cluster)
    location = cluster.location(("hardware", "gpus_per_node"))
    if ranks != tasks:
        findings.append(Finding("tasks", "compute", "wrong", f"{ranks} of {tasks} tasks were started", location))
    gpus = {int(count) for *_, count in rows}
    if gpus == {0}:
        findings.append(
            Finding("hardware.gpus_per_node", "compute", "unknown", "the node has no means to count GPUs", location)
        )
    else:
        right = gpus == {hardware.gpus_per_node}
        seen = f"each task sees {' or '.join(counted(count, 'GPU') for count in sorted(gpus))}"
        hint = None if right else "all tasks of a node must see all its GPUs: gpu_bind: none"
        findings.append(Finding("hardware.gpus_per_node", "compute", "ok" if right else "wrong", seen, location, hint))
    machines = {machine for _, machine, _ in rows}
    if site.architecture and machines:
        right = machines == {site.architecture}
        message = f"the node is {' and '.join(sorted(machines))}"
        architecture_location = cluster.location(("site", "architecture"))
        findings.append(
            Finding("site.architecture", "compute", "ok" if right else "wrong", message, architecture_location)
        )
    return [*findings, *_python_findings(cluster, probed)]


def _python_findings(cluster: Cluster, probed: Probed) -> Iterator[Finding]:
    """Yield whether the Python of `pretrain` can run it.

    A fault only where the profile sets that workload, or has an image of its name: a site may offer other programs
    only.
    """
    answer = re.search(r"probe python=(yes|no|missing) ([^\r\n]*)", probed.log)
    if answer is None:
        return
    name, _ = _probed_image(cluster)
    is_offered = PRETRAIN in cluster.layered.mapping("workloads") or name == PRETRAIN
    fault: Result = "wrong" if is_offered else "later"
    python_is_named = cluster.profile.workloads.pretrain_python is not None
    of_image = cluster.location(("container", "images", str(name)))
    location = cluster.location(("workloads", PRETRAIN, "python")) if python_is_named else of_image
    check, hint = "torch", "workloads: pretrain: python: one that has torch and megatron-core"
    if answer[1] == "missing":
        check = "workloads.pretrain.python" if python_is_named else check
        place = f"in image {name}" if name else "on the nodes"
        yield Finding(check, "compute", fault, f"{answer[2]}: no such program {place}", location, hint)
        return
    if answer[1] == "no":
        place = f"the python of image {name}" if name else "python on the nodes"
        yield Finding(check, "compute", fault, f"{place}: {answer[2]}", location, hint)
        return
    version, platform, devices = [*answer[2].split(), "", "", ""][:3]
    gpus = cluster.hardware.gpus_per_node
    if platform == "None" and cluster.hardware.gpu:
        message = f"torch {version} is made for CPUs, the nodes have {counted(gpus, 'GPU')}"
        yield Finding(
            check, "compute", fault, message, location, "workloads: pretrain: python: one whose torch uses GPUs"
        )
    elif platform == "None":
        yield Finding(check, "compute", "ok", f"torch {version} is made for CPUs", location)
    elif devices != str(gpus):
        message = f"torch {version} sees {devices} of {counted(gpus, 'GPU')}"
        why = "an image shows its GPUs only where it sets NVIDIA_VISIBLE_DEVICES" if name else None
        yield Finding(check, "compute", "wrong", message, of_image if name else location, why)
    else:
        yield Finding(check, "compute", "ok", f"torch {version} sees {devices} GPUs", location)


def _python(cluster: Cluster, image: str | None) -> str:
    """Return the interpreter of `pretrain`; "" if it is in an image that is not filled in."""
    if cluster.profile.container is not None and image is None:
        return ""
    return cluster.profile.workloads.pretrain_python or ("python" if image else sys.executable)


def _tasks(cluster: Cluster) -> int:
    """Return the number of tasks per node."""
    slurm = cluster.profile.slurm
    assert slurm is not None
    return cluster.hardware.gpus_per_node if slurm.tasks == "per-gpu" else 1


def _probed_image(cluster: Cluster) -> tuple[str | None, str | None]:
    """Return name and location of the image to test: that of `pretrain`, else the first that is filled in."""
    container = cluster.profile.container
    names = sorted(container.images, key=lambda name: name != PRETRAIN) if container else []
    filled = [name for name in names if "<" not in (cluster.image_location(name) or "<")]
    return (filled[0], cluster.image_location(filled[0])) if filled else (None, None)


def _ended(job_id: str, comment: str, folder: Path, notify: Callable[[str], None]) -> str:
    """Wait for the end of the job and return its state, from its own record if Slurm does not list it."""
    last = ""
    while True:
        answer = query_jobs([job_id], lambda job: may_have_comment(job, comment) or writes_into(job, folder))
        record = answer.records.get(job_id)
        if record is not None and record.phase is Phase.ENDED:
            return record.state
        end = read_record(folder / "end") if record is None else None
        if end is not None:
            return "COMPLETED" if end.exit_code == 0 else "FAILED"
        now = f"{record.state}{f' ({record.reason})' if record.reason else ''}" if record else "not in the queue"
        if now != last:
            notify(now)
            last = now
        time.sleep(POLL_S)


def _cancel(job_id: str, notify: Callable[[str], None]) -> None:
    try:
        cancel_jobs([job_id])
    except ReproError:
        notify(f"job {job_id} could not be cancelled: scancel {job_id}")
    else:
        notify(f"job {job_id} was cancelled")


def _wait_for_files(folder: Path) -> None:
    """Wait for the files of the job: a shared file system may show them some seconds late."""
    end = time.monotonic() + PATIENCE_S
    while not (folder / "end").exists() and not (folder / "batch.txt").exists() and time.monotonic() < end:
        time.sleep(POLL_S)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
