"""Stand-ins on PATH for all that a rendered script calls. Each writes down its words and its environment, then does
what matters of the real one: start the tasks, carry over the environment, show the job's folder inside the image.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator.clusters.profile import ClusterProfile
from orchestrator.clusters.resolve import Cluster
from orchestrator.launch.render import render_job
from orchestrator.planning.plan import Plan
from tests.unit.clusters.sites import cluster_of
from tests.unit.render.plans import TEMPLATES, local, plain_slurm, plans

RUNTIMES = ("pyxis", "edf", "shifter", "podman-hpc", "apptainer")

_CONTAINED = """\
about: nodes with containers
scheduler: slurm
hardware: {{nodes: 4, gpus_per_node: 4, gpu: H100, gpu_memory_gb: 94, peak_tflops: {{bf16: 989}}}}
slurm: {{time_limit: 1:00:00}}
container: {{runtime: {runtime}, images: {{pretrain: registry.example/team/torch:1}}}}
"""
_MPIRUN = """\
about: nodes with Open MPI
scheduler: mpirun
hardware: {nodes: 4, gpus_per_node: 4, gpu: H800, gpu_memory_gb: 80, peak_tflops: {bf16: 989}}
mpirun: {hostfile: /etc/hosts, time_limit: 1:00:00}
workloads: {pretrain: {python: python}}
"""

_STAND_IN = r'''#!PYTHON -IS
import fnmatch, os, re, shlex, subprocess, sys

name, words, environment = os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ)


def write(what, parts):
    with open(os.path.join(environment["SEEN"], what), "wb") as file:
        file.write(b"".join(os.fsencode(part) + b"\0" for part in parts))


def divided(words):
    count = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    return words[:count], words[count:]


def inside(options, command):
    """The command with the job's folder where the options mount it. No test has a /repro-job of its own."""
    for option in options:
        if option.startswith("--environment="):
            with open(option.partition("=")[2], encoding="utf-8", errors="surrogateescape") as file:
                options = ["=" + line.strip(' ",\n') for line in file]
    for option in options:
        source, mark, _ = option.partition("=")[2].partition(":/repro-job")
        if mark and "LOST" not in environment:
            shown = [f"{shlex.quote(source)}/{name}" for name in ("start ", '"inside')]
            task = command[2].replace("/repro-job/start ", shown[0]).replace('/repro-job/"inside', shown[1])
            return [*command[:2], task, *command[3:]]
    return command


def started(command, environment, tasks, name):
    codes = []
    for task in os.environ.get("TASKS", tasks).split():
        place = dict(zip(name, task.split(":")))
        codes.append(subprocess.run(command, env={**environment, **place}).returncode)
    return max(codes)


write(name, words)
write(name + ".environment", [f"{key}={value}" for key, value in environment.items()])
few = {key: environment[key] for key in ("PATH", "SEEN", "LOST") if key in environment}
if name == "srun":
    options, command = divided(words)
    places = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
    sys.exit(started(inside(options, command), environment, "5:1:0", places))
if name == "mpirun":
    start = words.index("bash")
    few.update({words[i + 1]: environment[words[i + 1]] for i in range(start) if words[i] == "-x"})
    few["OMPI_COMM_WORLD_SIZE"] = words[words.index("-np") + 1]
    sys.exit(started(words[start:], few, "5:1", ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")))
if name == "shifter":
    options, command = divided(words)
    if "LOST" not in environment:
        environment["SHIFTER_RUNTIME"] = "1"
else:
    options, (image, *command) = divided(words[1:])
    command = inside(options, command)
    if name == "podman-hpc":
        asked = [option[6:] for option in options if option.startswith("--env=")]
        environment = {k: v for k, v in environment.items() if k in few or any(fnmatch.fnmatch(k, a) for a in asked)}
os.execvpe(command[0], command, environment)
'''

_SCONTROL = """#!/bin/bash
printf '%s\\0' "$@" >"$SEEN/scontrol"
for i in {1..40000}; do echo "node-$i"; done
"""

_PROGRAM = """#!/bin/sh
printf '%s\\0' "$0" "$@" >"$SEEN/argv"
/usr/bin/env -0 >"$SEEN/environment"
[ ! -e "$SEEN/code" ] || exit "$(cat "$SEEN/code")"
"""


@cache
def sited(kind: str) -> tuple[Cluster, Plan]:
    """A site of this kind (a container's runtime, or per-node, slurm, mpirun, local), and the plan of a job there."""
    with TemporaryDirectory() as text:
        folder = Path(text)
        if kind in RUNTIMES:
            cluster = cluster_of(folder, _CONTAINED.format(runtime=kind), name="contained")
        elif kind == "mpirun":
            cluster = cluster_of(folder, _MPIRUN, name="mpi")
        elif kind == "local":
            cluster = local(folder)
        else:
            cluster = plain_slurm(folder)
    plan = plans(cluster, "cpu" if kind == "local" else "quad")[0]
    return (saying(cluster, slurm={"tasks": "per-node"}) if kind == "per-node" else cluster), plan


def saying(cluster: Cluster, **fields: Any) -> Cluster:
    """As a profile that says this as well, all of which a profile may say."""
    value = dict(cluster.layered.value)
    for name, field in fields.items():
        value[name] = {**cluster.layered.mapping(name), **field} if isinstance(field, dict) else field
    layered = replace(cluster.layered, value=value)
    return replace(cluster, profile=ClusterProfile.model_validate(value), layered=layered)


@dataclass(frozen=True)
class Stage:
    """A folder in which one script is run. `job` is the job's own folder."""

    base: Path
    job: Path

    @classmethod
    def at(cls, base: Path, name: str = "job") -> Stage:
        (base / "bin").mkdir()
        for program in ("srun", "shifter", "podman-hpc", "apptainer", "mpirun"):
            executable(base / "bin" / program, _STAND_IN.replace("PYTHON", sys.executable))
        executable(base / "bin" / "scontrol", _SCONTROL)
        executable(base / "bin" / "module", "#!/bin/sh\n")
        executable(base / "bin" / "python", _PROGRAM)
        (base / "empty").mkdir()
        return cls(base, base / name)

    def script(self, plan: Plan, cluster: Cluster) -> str:
        return render_job(plan, cluster, self.job, TEMPLATES)

    def run(self, script: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """In an empty folder, with no more environment than this."""
        bare = {
            "PATH": f"{self.base}/bin:/usr/bin:/bin",
            "SEEN": str(self.base),
            "HOME": "/home/me",
            "USER": "me",
            "SLURM_JOB_ID": "12345",
            "SLURM_JOB_NODELIST": "n[1-2] x",
        }
        file = self.base / "job.sh"
        file.write_text(script, encoding="utf-8")
        answer = subprocess.run(
            ["bash", file],
            env={**bare, **(environment or {})},
            cwd=self.base / "empty",
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            timeout=600,
        )
        assert list((self.base / "empty").iterdir()) == []
        return answer

    def run_well(self, plan: Plan, cluster: Cluster, environment: Mapping[str, str] | None = None) -> None:
        answer = self.run(self.script(plan, cluster), environment)
        assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")

    def seen(self, what: str = "argv") -> list[str]:
        """The words of a stand-in, or of the program."""
        return os.fsdecode((self.base / what).read_bytes()).split("\0")[:-1]

    def environment(self, of: str = "") -> dict[str, str]:
        """What the program was given, or a stand-in."""
        return dict(line.split("=", 1) for line in self.seen(f"{of}.environment" if of else "environment"))

    def end(self) -> dict[str, str]:
        text = (self.job / "end").read_text(encoding="utf-8", errors="surrogateescape")
        return dict(line.split("=", 1) for line in text.removesuffix("\n").split("\n"))


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def with_words(plan: Plan, *arguments: str, python: str = "python") -> Plan:
    return replace(plan, program=replace(plan.program, python=python, arguments=arguments))
