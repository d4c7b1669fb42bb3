"""The job that looks at a node: what its script does, and what is made of what it left."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from orchestrator.clusters.check import Finding
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.files import ScriptRecord, read_record
from orchestrator.launch import cluster_check
from orchestrator.launch.cluster_check import Probed, job_findings, probe_findings, probe_plan, with_probe_lines
from orchestrator.launch.executors import SlurmScriptExecutor
from orchestrator.launch.render import render_job
from orchestrator.megatron.programs.pretrain import code_version
from orchestrator.paths import Folders
from orchestrator.slurm.command import QueryAnswer
from orchestrator.slurm.notation import JobRecord
from tests.unit.clusters.sites import CHECKOUT, cluster_of, filled

TEMPLATES = CHECKOUT / "templates"

PLAIN = """\
about: a cluster of the tests
scheduler: slurm
hardware: {nodes: 2, gpus_per_node: 4}
slurm: {time_limit: 1:00:00, partition: gpus, mem: 10G}
"""

IMAGE = "container: {runtime: pyxis, images: {pretrain: /images/torch.sqsh, other: /images/other.sqsh}}\n"

SRUN = """#!/bin/bash
for word; do case $word in --ntasks=*) tasks=${word#*=} ;; --output=*) output=${word#*=} ;; esac; done
while [[ $1 == --* ]]; do shift; done
for ((i = 0; i < tasks; i++)); do
  SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_NODEID=0 SLURMD_NODENAME=n1 "$@" 2>&1 | sed "s/^/$i: /"
  code=${PIPESTATUS[0]}
  [ "$code" = 0 ] || exit "$code"
done >"$output"
"""


def script_of(cluster: Cluster, folder: Path) -> str:
    return render_job(
        probe_plan(cluster, Folders(shipped=CHECKOUT, home=folder.parent)), with_probe_lines(cluster), folder, TEMPLATES
    )


def run(cluster: Cluster, base: Path, **variables: str) -> Probed:
    """The probe's script with stand-ins for srun and scontrol, and what it left."""
    programs = {"srun": SRUN, "scontrol": "#!/bin/sh\necho n1\n"}
    (base / "bin").mkdir()
    for name, text in programs.items():
        (base / "bin" / name).write_text(text)
        (base / "bin" / name).chmod(0o755)
    folder = base / "a'job"
    folder.mkdir()
    (base / "job.sh").write_text(script_of(cluster, folder))
    environment = {"PATH": f"{base}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", **variables}
    with (folder / "batch.txt").open("w") as batch:
        done = subprocess.run(
            ["bash", base / "job.sh"], env=environment, cwd=base, stdout=batch, stderr=batch, check=False
        )
    texts = {
        name: (folder / name).read_text() for name in ("log.txt", "batch.txt", "host.txt") if (folder / name).exists()
    }
    log = texts.get("log.txt", "") + texts["batch.txt"]
    state = "FAILED" if done.returncode else "COMPLETED"
    return Probed(folder, state, read_record(folder / "end"), texts.get("host.txt", ""), log)


def told(found: list[Finding]) -> dict[str, tuple[str, str]]:
    return {one.check: (one.result, one.found) for one in found}


# ---- the script ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["selene", "alps", "perlmutter", "leonardo", "jean-zay-h100"])
def test_the_script_of_every_runtime_passes_bash_and_shellcheck(tmp_path: Path, name: str) -> None:
    file = tmp_path / "job.sh"
    file.write_text(script_of(filled(tmp_path, name), tmp_path / "job"))
    assert subprocess.run(["bash", "-n", file], capture_output=True, check=False).stderr == b""
    if shutil.which("shellcheck") is None:
        assert os.environ.get("CI") != "true", "shellcheck is not installed: apt-get install shellcheck"
        warnings.warn("shellcheck is not installed, so the probe was not checked by it", stacklevel=1)
        return
    answer = subprocess.run(["shellcheck", "--shell=bash", file], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "")


def test_the_probe_asks_for_one_node_its_gpus_and_one_minute(tmp_path: Path) -> None:
    text = script_of(cluster_of(tmp_path, PLAIN), tmp_path)
    asked = re.findall(r"^#SBATCH --(\S+)", text, re.MULTILINE)
    assert {"nodes=1", "ntasks-per-node=4", "time=0:01:00", "gpus-per-node=4", "partition=gpus", "mem=10G"} <= set(
        asked
    )


def test_where_jobs_have_one_task_for_a_node_so_has_the_probe_and_all_its_gpus(tmp_path: Path) -> None:
    text = script_of(cluster_of(tmp_path, PLAIN, "slurm: {tasks: per-node, cpus_per_task: 96}\n"), tmp_path)
    asked = re.findall(r"^#SBATCH --(\S+)", text, re.MULTILINE)
    assert {"ntasks-per-node=1", "cpus-per-task=96", "gpus-per-node=4"} <= set(asked)
    assert "torch.distributed" not in text


def test_the_script_has_the_import_path_and_the_mount_of_a_job(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN, IMAGE)
    script = script_of(cluster, tmp_path / "runs" / "check")
    program = tmp_path / "runs" / "runs" / "programs" / code_version()
    assert f"\nexport PYTHONPATH={program}${{PYTHONPATH:+:$PYTHONPATH}}\n" in script
    assert f'\n  --container-mounts="$folder":/repro-job,{program}:{program} \\\n' in script


@pytest.mark.slow
def test_the_script_looks_at_paths_counts_gpus_and_tries_the_python_of_pretrain(tmp_path: Path) -> None:
    (tmp_path / "it's $HOME").mkdir()
    checkout = f"programs: {{pretrain: {{python: '{sys.executable}'}}, megatron-2026: {{checkout: /no/such}}}}\n"
    chdir = f'slurm: {{sbatch: ["--chdir={tmp_path}/it\'s $HOME"]}}\n'
    cluster = cluster_of(tmp_path, PLAIN, checkout + chdir)
    found = told(probe_findings(cluster, run(cluster, tmp_path, CUDA_VISIBLE_DEVICES="0,1,2,3")))
    assert found.pop("torch")[1].startswith(("torch ", "python on the nodes: "))
    assert found == {
        "programs.pretrain.python": ("ok", sys.executable),
        "programs.megatron-2026.checkout": ("wrong", "/no/such: no such file or folder"),
        "slurm.sbatch --chdir": ("ok", f"{tmp_path}/it's $HOME"),
        "folder for runs": ("ok", "the files of the job are visible here"),
        "job": ("ok", "ran on a node, without a container"),
        "hardware.gpus_per_node": ("ok", "each task sees 4 GPUs"),
    }


def test_a_python_without_torch_is_named_with_what_it_said(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho Traceback >&2\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n"
    )
    python.chmod(0o755)
    cluster = cluster_of(tmp_path, PLAIN, f"programs: {{pretrain: {{python: '{python}'}}}}\n")
    found = told(probe_findings(cluster, run(cluster, tmp_path)))
    assert found["torch"] == ("wrong", "python on the nodes: ModuleNotFoundError: No module named 'torch'")
    assert found["hardware.gpus_per_node"] == ("unknown", "the node has no means to count GPUs")


def test_a_task_outside_its_image_ends_the_script_and_is_named(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN, IMAGE)
    probed = run(cluster, tmp_path)
    assert probed.end is not None and (probed.end.exit_code, probed.end.inside_image) == (97, "0/1")
    last = probe_findings(cluster, replace(probed, host=""))[-1]
    assert last.found == "FAILED with exit code 97: 0 of 1 node ran it inside pretrain"
    assert last.location == cluster.location(("container", "images", "pretrain"))


# ---- what is made of it --------------------------------------------------------------------------------------


def end_of(code: int = 0, inside: str | None = "1/1") -> ScriptRecord:
    return ScriptRecord(code, datetime(2026, 1, 1), "n1", "7", 1, "pretrain" if inside else None, inside)


def log_of(
    gpus: str = "4", tasks: int = 4, torch: str = "probe python=yes 2.9.0 12.8 4", machine: str = "x86_64"
) -> str:
    rows = [f"{rank}: probe rank={rank} machine={machine} gpus={gpus}" for rank in range(tasks)]
    return "\n".join([*rows, f"0: {torch}"])


HOST = "path=yes /images/torch.sqsh\npath=yes /images/other.sqsh\n"


def probed(log: str = "", state: str = "COMPLETED", end: ScriptRecord | None = None, host: str = HOST) -> Probed:
    return Probed(Path("/runs/check"), state, end or end_of(), host, log or log_of())


def test_a_probe_inside_its_image_with_all_gpus_is_right_in_everything(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN, f"{IMAGE}site: {{architecture: x86_64}}\n")
    found = probe_findings(cluster, probed())
    assert {(one.place, one.result) for one in found} == {("compute", "ok")}
    assert [one.check for one in found] == [
        *("container.images.pretrain", "container.images.other", "folder for runs", "container.images.pretrain"),
        *("hardware.gpus_per_node", "site.architecture", "torch"),
    ]
    assert found[-1].found == "torch 2.9.0 sees 4 GPUs"


@pytest.mark.parametrize(
    ("log", "check", "said"),
    [
        (log_of(gpus="1"), "hardware.gpus_per_node", "each task sees 1 GPU"),
        (log_of(tasks=3), "tasks", "3 of 4 tasks were started"),
        (log_of(machine="aarch64"), "site.architecture", "the node is aarch64"),
        (log_of(torch="probe python=yes 2.9.0 12.8 0"), "torch", "torch 2.9.0 sees 0 of 4 GPUs"),
        (log_of(torch="probe python=no sh: python: not found"), "torch", "image pretrain: sh: python: not found"),
    ],
)  # fmt: skip
def test_what_a_task_says_against_the_profile_is_a_fault(tmp_path: Path, log: str, check: str, said: str) -> None:
    cluster = cluster_of(tmp_path, PLAIN, f"{IMAGE}site: {{architecture: x86_64}}\n")
    (fault,) = [one for one in probe_findings(cluster, probed(log)) if one.is_fault]
    assert (fault.check, fault.place) == (check, "compute") and said in fault.found and fault.location


@pytest.mark.parametrize(
    ("overlay", "result"),
    [
        ("programs: {pretrain: {python: /x/python}}\n", "wrong"),
        (IMAGE, "wrong"),
        ("container: {runtime: pyxis, images: {other: /images/other.sqsh}}\n", "later"),
        ("", "later"),
    ],
    ids=["a python is named", "an image of pretrain", "other images only", "nothing said of it"],
)
def test_no_torch_is_a_fault_only_where_the_profile_offers_pretrain(tmp_path: Path, overlay: str, result: str) -> None:
    log = log_of(torch="probe python=no ModuleNotFoundError: No module named 'torch'")
    found = probe_findings(cluster_of(tmp_path, PLAIN, overlay or "{}"), probed(log, host=""))
    assert [one.result for one in found if one.check == "torch"] == [result]


CPU_TORCH = log_of(torch="probe python=yes 2.9.0+cpu None 0")
PYTHON = "programs: {pretrain: {python: /x/python}}\n"


def test_a_torch_for_cpus_is_right_where_the_profile_names_no_gpu(tmp_path: Path) -> None:
    found = probe_findings(cluster_of(tmp_path, PLAIN), probed(CPU_TORCH, host=""))
    assert (found[-1].result, found[-1].found) == ("ok", "torch 2.9.0+cpu is made for CPUs")


@pytest.mark.parametrize(
    ("overlay", "result", "where"),
    [
        (PYTHON, "wrong", ("programs", "pretrain", "python")),
        (f"{PYTHON}{IMAGE}", "wrong", ("programs", "pretrain", "python")),
        (IMAGE, "wrong", ("container", "images", "pretrain")),
        ("container: {runtime: pyxis, images: {other: /images/other.sqsh}}\n", "later", None),
    ],
    ids=["a python is named", "a python of an image", "an image of pretrain", "other images only"],
)
def test_a_torch_for_cpus_is_a_fault_of_a_profile_that_names_a_gpu(
    tmp_path: Path, overlay: str, result: str, where: tuple[str, ...] | None
) -> None:
    cluster = cluster_of(tmp_path, PLAIN, f"hardware: {{gpu: H100-SXM5-80GB}}\n{overlay}")
    found = probe_findings(cluster, probed(CPU_TORCH, host=""))[-1]
    assert (found.check, found.result) == ("torch", result)
    assert found.found == "torch 2.9.0+cpu is made for CPUs, the nodes have 4 GPUs"
    assert where is None or found.location == cluster.location(where)


@pytest.mark.parametrize(
    ("overlay", "check", "found", "where"),
    [
        (
            f"{PYTHON}{IMAGE}",
            "programs.pretrain.python",
            "/x/python: no such program in image pretrain",
            ("programs", "pretrain", "python"),
        ),
        (IMAGE, "torch", "python: no such program in image pretrain", ("container", "images", "pretrain")),
        (
            PYTHON,
            "programs.pretrain.python",
            "/x/python: no such program on the nodes",
            ("programs", "pretrain", "python"),
        ),
    ],
    ids=["named, in an image", "not named", "named, on the node"],
)
def test_a_python_that_is_missing_is_at_the_line_that_names_it(
    tmp_path: Path, overlay: str, check: str, found: str, where: tuple[str, ...]
) -> None:
    cluster = cluster_of(tmp_path, PLAIN, overlay)
    log = log_of(torch=f"probe python=missing {found.partition(':')[0]}")
    (fault,) = [one for one in probe_findings(cluster, probed(log, host="")) if one.is_fault]
    assert (fault.check, fault.found, fault.location) == (check, found, cluster.location(where))


def test_the_script_finds_a_program_that_is_missing(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN, "programs: {pretrain: {python: nosuchpython}}\n")
    found = told(probe_findings(cluster, run(cluster, tmp_path)))
    assert found["programs.pretrain.python"] == ("wrong", "nosuchpython: no such program on the nodes")


def test_the_script_tells_a_file_that_its_user_may_not_read(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        folder, image = Path(place), Path(place, "private.sqsh")
        folder.chmod(0o777)
        image.touch()
        image.chmod(0)
        overlay = f"container: {{runtime: pyxis, images: {{pretrain: '{image}', other: '{folder}/no.sqsh'}}}}\n"
        cluster = cluster_of(tmp_path, PLAIN, overlay)
        (look,) = [line for line in script_of(cluster, folder).splitlines() if "path=$seen" in line]
        user = "nobody" if os.geteuid() == 0 else None  # root may read every file
        subprocess.run(["bash", "-uc", f"folder={folder}; {look}"], check=True, user=user)
        left = probed(host=(folder / "host.txt").read_text())
    assert left.paths() == {str(image): "unreadable", f"{folder}/no.sqsh": "no"}
    faults = [one.found for one in probe_findings(cluster, left) if one.is_fault]
    assert faults[:2] == [f"{image}: you may not read it", f"{folder}/no.sqsh: no such file or folder"]


def failed(cluster: Cluster, words: str, host: str = HOST) -> list[Finding]:
    found = probe_findings(cluster, probed(words, "FAILED", end_of(1, "0/1"), host))
    return [one for one in found if one.is_fault]


@pytest.mark.parametrize(
    ("words", "check", "line"),
    [
        ("slurmstepd-n1: error: pyxis: failed to create container filesystem for image: /images/torch.sqsh\n"
         "slurmstepd-n1: error: pyxis:     [ERROR] Invalid image format: /images/torch.sqsh",
         "container.images.pretrain", "/images/torch.sqsh"),
        ("slurmstepd-n1: error: pyxis: couldn't chdir to /work: No such file or directory", "job", "chdir to /work"),
        ("slurmstepd: error: pyxis: failed to import docker image: registry.example#a:1", "job", "registry.example#a"),
    ],
    ids=["no image", "workdir", "registry"],
)  # fmt: skip
def test_pyxis_own_words_are_the_finding_at_the_image_that_they_are_about(
    tmp_path: Path, words: str, check: str, line: str
) -> None:
    cluster = cluster_of(tmp_path, PLAIN, IMAGE)
    (fault,) = failed(cluster, words)
    assert fault.check == check and line in fault.found and "FAILED with exit code 1: " in fault.found
    assert fault.location == cluster.location(("container", "images", "pretrain"))


def test_a_mount_source_that_is_missing_is_not_a_fault_of_the_image(tmp_path: Path) -> None:
    """A mount that the profile does not list, such as one of some jobs only."""
    words = (
        "slurmstepd-n1: error: pyxis: container start failed with error code: 1\n"
        "slurmstepd-n1: error: pyxis:     enroot-mount: failed to mount: /gone at /run/x/gone: No such file\n"
        "slurmstepd-n1: error: pyxis: couldn't start container\n"
    )
    (fault,) = failed(cluster_of(tmp_path, PLAIN, IMAGE), words)
    assert (fault.check, fault.location) == ("job", None)
    assert "enroot-mount: failed to mount: /gone at /run/x/gone" in fault.found


def test_a_path_that_the_node_does_not_have_is_said_once(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN, f"{IMAGE.rstrip()[:-1]}, mounts: [/gone:/data]}}\n")
    words = "slurmstepd-n1: error: pyxis: --container-mounts: source path does not exist: /gone\n"
    (fault,) = failed(cluster, words, f"{HOST}path=no /gone\n")
    assert (fault.check, fault.found) == ("container.mounts", "/gone: no such file or folder")


def test_a_job_that_failed_of_something_else_says_where_all_of_it_stands(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN)
    (fault,) = [one for one in probe_findings(cluster, probed("x", "FAILED", end_of(5, None), "")) if one.is_fault]
    assert fault.found == "FAILED with exit code 5: its log has no reason"
    assert fault.hint == "its output is in /runs/check"


@pytest.mark.parametrize("state", ["FAILED", "COMPLETED"])
def test_a_job_of_which_nothing_is_seen_wrote_where_only_the_nodes_see_it(tmp_path: Path, state: str) -> None:
    cluster = cluster_of(tmp_path, PLAIN, IMAGE)
    found = probe_findings(cluster, Probed(Path("/runs/check"), state, None, "", "\n"))
    assert [(one.check, one.result) for one in found] == [
        *(("container.images.pretrain", "not checked"), ("container.images.other", "not checked")),
        ("folder for runs", "wrong"),
    ]
    assert found[-1].hint == "set REPRO_HOME to a folder that the nodes see"


def test_a_job_that_never_ran_accuses_no_folder(tmp_path: Path) -> None:
    found = probe_findings(cluster_of(tmp_path, PLAIN), Probed(Path("/runs/check"), "CANCELLED", None, "", ""))
    assert [(one.check, one.found) for one in found if one.is_fault] == [("job", "CANCELLED: its log has no reason")]


# ---- submitting and waiting ----------------------------------------------------------------------------------


class Queue:
    """Slurm's answers, one after another; the last for ever. An error is raised."""

    def __init__(self, *answers: str | BaseException) -> None:
        self.answers = list(answers)
        self.cancelled: list[str] = []
        self.submitted: list[str] = []
        self.comment = ""

    def query(self, job_ids: list[str], is_ours: Callable[[JobRecord], bool]) -> QueryAnswer:
        assert job_ids == ["7"]
        said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(said, BaseException):
            raise said
        state, _, reason = said.partition(" ")
        row = JobRecord("7", state, reason, "", None, None, self.comment, None, None, "squeue")
        assert not is_ours(replace(row, comment="another's"))
        return QueryAnswer({"7": row} if state and is_ours(row) else {})


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Queue]:
    def answering(*answers: str | BaseException) -> Queue:
        queue = Queue(*answers)

        def submit(_: object, text: str, comment: str) -> str:
            assert comment.startswith("repro-check:")
            queue.comment = comment
            queue.submitted.append(text)
            return "7"

        def cancel(job_ids: list[str]) -> dict[str, str]:
            queue.cancelled += job_ids
            return {}

        monkeypatch.setattr(cluster_check, "require_scheduler", lambda *_: None)
        monkeypatch.setattr(cluster_check, "query_jobs", queue.query)
        monkeypatch.setattr(SlurmScriptExecutor, "submit_script", submit)
        monkeypatch.setattr(cluster_check, "cancel_jobs", cancel)
        monkeypatch.setattr(cluster_check, "POLL_S", 0.0)
        monkeypatch.setattr(cluster_check, "PATIENCE_S", 0.0)
        return queue

    return answering


def test_each_change_in_the_queue_is_said_once_with_its_reason(tmp_path: Path, waiting: Callable[..., Queue]) -> None:
    queue = waiting("", "PENDING Priority", "PENDING Priority", "PENDING Resources", "RUNNING", "TIMEOUT")
    said: list[str] = []
    found = job_findings(cluster_of(tmp_path, PLAIN), Folders(CHECKOUT, tmp_path), said.append)
    assert said[0].startswith("job 7 on site, in ") and said[1:] == [
        *("not in the queue", "PENDING (Priority)", "PENDING (Resources)", "RUNNING")
    ]
    assert found[-1].found == "TIMEOUT: its log has no reason" and len(queue.submitted) == 1 and queue.cancelled == []


def test_ctrl_c_takes_the_job_back_and_says_so(tmp_path: Path, waiting: Callable[..., Queue]) -> None:
    queue = waiting("PENDING Priority", KeyboardInterrupt())
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        job_findings(cluster_of(tmp_path, PLAIN), Folders(CHECKOUT, tmp_path), said.append)
    assert queue.cancelled == ["7"] and said[-1] == "job 7 was cancelled"


def test_a_scheduler_that_goes_away_leaves_the_command_that_ends_the_job(
    tmp_path: Path, waiting: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Unreachable(Problem("squeue: no answer"))
    waiting(away)

    def cancel(*_: object, **__: object) -> None:
        raise away

    monkeypatch.setattr(cluster_check, "cancel_jobs", cancel)
    said: list[str] = []
    with pytest.raises(Unreachable):
        job_findings(cluster_of(tmp_path, PLAIN), Folders(CHECKOUT, tmp_path), said.append)
    assert said[-1] == "job 7 could not be cancelled: scancel 7"


def test_a_job_that_slurm_has_forgotten_ended_as_its_own_record_says(
    tmp_path: Path, waiting: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting("")
    monkeypatch.setattr(cluster_check, "read_record", lambda _: end_of(3, None))
    found = job_findings(cluster_of(tmp_path, PLAIN), Folders(CHECKOUT, tmp_path), lambda _: None)
    assert found[-1].found == "FAILED with exit code 3: its log has no reason"


def test_a_job_that_slurm_refuses_is_a_finding_at_the_field_that_its_mend_names(
    tmp_path: Path, waiting: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting("")

    def refuse(*_: object, **__: object) -> str:
        raise ReproError(Problem("Memory specification can not be satisfied", hint="lower `mem` in the profile"))

    monkeypatch.setattr(SlurmScriptExecutor, "submit_script", refuse)
    cluster = cluster_of(tmp_path, PLAIN)
    (fault,) = job_findings(cluster, Folders(CHECKOUT, tmp_path), lambda _: None)
    assert (fault.check, fault.place, fault.location) == ("job", "login", cluster.location(("slurm", "mem")))
