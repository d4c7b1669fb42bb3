"""What only Slurm itself and a compute node can tell of a profile: `sbatch --test-only`, and a job of one minute."""

from __future__ import annotations

import re
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from orchestrator.clusters.finding import Finding
from orchestrator.clusters.resolve import Cluster
from orchestrator.clusters.site_paths import path_findings, site_paths
from orchestrator.folders import Folders
from orchestrator.job_record import JobRecord, read_record
from orchestrator.launch.executors import ScriptJob, SlurmScriptExecutor, without_strays
from orchestrator.launch.render import render_job
from orchestrator.launch.side_jobs import side_plan, task_per_gpu
from orchestrator.megatron.log_lines import cause
from orchestrator.planning.plan import Plan
from orchestrator.slurm.command import run_slurm
from orchestrator.slurm.query import query_jobs
from orchestrator.slurm.rejections import explain_rejection, own_words
from orchestrator.slurm.states import Phase
from orchestrator.workloads.program import Program

PROBE_TIME = "0:01:00"
POLL_S = 2.0

# Said by every task. GPUs are counted by the driver, else by what Slurm lets the job see.
_INSIDE = """\
if command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi -L | wc -l)
else gpus=$(printf %s "${CUDA_VISIBLE_DEVICES:-}" | tr , "\\n" | grep -c .); fi
echo "probe rank=$RANK of=$WORLD_SIZE machine=$(uname -m) gpus=$gpus"
[ "$RANK" != 0 ] || echo "probe torch=$("$1" -c "import torch; print(torch.__version__)" 2>/dev/null || echo no)"
"""


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe left: how Slurm says it ended, its own end record, what its first node and its tasks said."""

    state: str
    end: JobRecord | None
    host: str
    log: str

    def paths(self) -> dict[str, bool]:
        """Path -> whether the job's first node has it."""
        return {path: yes == "yes" for yes, path in re.findall(r"^path=(yes|no) (.*)$", self.host, re.MULTILINE)}


def test_submissions(plans: Sequence[Plan], cluster: Cluster, folders: Folders) -> list[Finding]:
    """Whether sbatch would take the smallest and the largest of these jobs; nothing is submitted."""
    by_size = sorted(plans, key=lambda plan: (plan.resources.nodes, plan.case.layout.gpus))
    ends = list({plan.identity: plan for plan in (by_size[0], by_size[-1])}.values())
    return [_tested(plan, cluster, folders) for plan in ends]


def _tested(plan: Plan, cluster: Cluster, folders: Folders) -> Finding:
    check = f"sbatch --test-only {plan.case.experiment} {plan.case.name}"
    with tempfile.TemporaryDirectory(prefix="repro-check-") as base:
        script = Path(base) / "job.sh"
        script.write_text(render_job(plan, cluster, Path(base) / "job", folders.templates), encoding="utf-8")
        answer = run_slurm([*without_strays(), "sbatch", "--test-only", str(script)])
    size = f"{plan.resources.nodes} nodes for {plan.resources.time_limit}"
    if answer.returncode:
        problem = explain_rejection(answer.stderr)
        return Finding(check, "login", "wrong", f"{size}: {problem.what}", mend=problem.mend)
    return Finding(check, "login", "ok", f"{size}: {own_words(answer.stderr)}")


def run_probe(cluster: Cluster, folders: Folders, say: Callable[[str], None]) -> Probed:
    """Submit the probe, wait until it has ended, and read what it left. Interrupted, it takes its job back."""
    stamp = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    folder = folders.run(f"check-{cluster.name}-{stamp}")
    folder.mkdir(parents=True)
    text = render_job(probe_plan(cluster), with_probe_lines(cluster), folder, folders.templates)
    job_id = SlurmScriptExecutor(folder).submit_script(text, comment=f"repro-check:{stamp}")
    say(f"job {job_id} on {cluster.name}, in {folder}")
    try:
        state = _ended(job_id, say)
    except BaseException:
        ScriptJob(folder, job_id).cancel(check=False)
        raise
    log = "\n".join(_text(folder / name) for name in ("log.txt", "batch.txt"))
    return Probed(state, read_record(folder / "end"), _text(folder / "host.txt"), log)


def probe_plan(cluster: Cluster) -> Plan:
    """One node, its GPUs, one minute: the profile's own script around a command that only looks."""
    name, path = _probed_image(cluster)
    python = cluster.profile.workloads.pretrain.python or ("python" if name else "python3")
    program = Program(
        workload="check",
        python="bash",  # started as `bash -u -c ...`
        target=("-c", _INSIDE, "probe", python),
        arguments=(),
        code="check",
        image=name,
        image_path=path,
    )
    return side_plan(cluster, program, "check", cluster.hardware.gpus_per_node, PROBE_TIME)


def with_probe_lines(cluster: Cluster) -> Cluster:
    """The cluster with a look at its paths before anything else, and a task for each GPU."""
    paths = " ".join(shlex.quote(one.path) for one in site_paths(cluster))
    look = f'for path in {paths}; do [ -e "$path" ] && echo "path=yes $path" || echo "path=no $path"; done'
    lines = [f'{{ {look}; }} >"$folder/host.txt"'] if paths else []
    update = {
        "setup": [*lines, *cluster.profile.setup],
        "container": cluster.profile.container if _probed_image(cluster)[0] else None,
    }
    return task_per_gpu(replace(cluster, profile=cluster.profile.model_copy(update=update)))


def probe_findings(cluster: Cluster, probed: Probed) -> list[Finding]:
    """What the job shows of the profile; where the step never ran, its first words say why."""
    found = path_findings(cluster, "compute", probed.paths())
    said = cause(probed.log.encode())
    if probed.state != "COMPLETED":
        mend = "correct what the lines above name" if any(one.is_fault for one in found) else None
        return [*found, Finding("job", "compute", "wrong", f"{probed.state}: {said or 'it says nothing'}", mend=mend)]
    return [*found, _image_finding(cluster, probed), *_inside_findings(cluster, probed)]


def _image_finding(cluster: Cluster, probed: Probed) -> Finding:
    name, _ = _probed_image(cluster)
    if name is None:
        return Finding("job", "compute", "ok", "ran on a node, without a container")
    where = cluster.layered.where(("container", "images", name))
    outside = probed.end.outside_image if probed.end else "it left no end record"
    if outside:
        return Finding(f"container.images.{name}", "compute", "wrong", outside, where)
    return Finding(f"container.images.{name}", "compute", "ok", "the job ran inside it", where)


def _inside_findings(cluster: Cluster, probed: Probed) -> list[Finding]:
    hardware, site = cluster.hardware, cluster.profile.site
    rows = re.findall(r"probe rank=(\d+) of=(\d+) machine=(\S+) gpus=(\d+)", probed.log)
    found = []
    ranks, gpus = len({rank for rank, *_ in rows}), {int(row[3]) for row in rows}
    where = cluster.layered.where(("hardware", "gpus_per_node"))
    if ranks != hardware.gpus_per_node:
        what = f"{ranks} of {hardware.gpus_per_node} tasks were started"
        found.append(Finding("tasks", "compute", "wrong", what, where))
    if gpus == {0}:
        found.append(Finding("hardware.gpus_per_node", "compute", "unknown", "nothing on the node counts GPUs", where))
    else:
        right = gpus == {hardware.gpus_per_node}
        seen = f"each task sees {' or '.join(map(str, sorted(gpus)))} GPUs"
        mend = None if right else "all tasks of a node must see all its GPUs: gpu_bind: none"
        found.append(Finding("hardware.gpus_per_node", "compute", "ok" if right else "wrong", seen, where, mend))
    machines = {row[2] for row in rows}
    if site.architecture and machines:
        right = machines == {site.architecture}
        place = cluster.layered.where(("site", "architecture"))
        found.append(
            Finding("site.architecture", "compute", "ok" if right else "wrong", " ".join(sorted(machines)), place)
        )
    torch = re.search(r"probe torch=(\S+)", probed.log)
    if torch:
        missing = torch[1] == "no"
        place = cluster.layered.where(("workloads", "pretrain"))
        what = "cannot be imported" if missing else torch[1]
        mend = "workloads: pretrain: python: one that has torch and megatron-core" if missing else None
        found.append(Finding("torch", "compute", "wrong" if missing else "ok", what, place, mend))
    return found


def _probed_image(cluster: Cluster) -> tuple[str | None, str | None]:
    """The image that a probe starts: pretrain's, else the first that is filled in."""
    container = cluster.profile.container
    names = sorted(container.images, key=lambda name: name != "pretrain") if container else []
    filled = [name for name in names if "<" not in (cluster.image_location(name) or "<")]
    return (filled[0], cluster.image_location(filled[0])) if filled else (None, None)


def _ended(job_id: str, say: Callable[[str], None]) -> str:
    """The state in which the job ended, whenever that is."""
    last = ""
    while True:
        record = query_jobs([job_id]).records.get(job_id)
        if record is not None and record.phase is Phase.ENDED:
            return record.state
        now = f"{record.state}{f' ({record.reason})' if record.reason else ''}" if record else "not in the queue yet"
        if now != last:
            say(now)
            last = now
        time.sleep(POLL_S)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
