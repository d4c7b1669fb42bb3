"""Stand-ins on PATH for the programs that a rendered script calls.

Each records its arguments and its environment. Then it does what matters of the real program: start the tasks, pass
the environment on, show the job's folder inside the image.
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

from orchestrator.clusters.profile import profile_model
from orchestrator.clusters.resolve import Cluster
from orchestrator.launch.render import render_job
from orchestrator.planning.plan import Plan
from tests.unit.clusters.sites import cluster_of
from tests.unit.render.plans import TEMPLATES, local, plain_slurm, plans

RUNTIMES = ("pyxis", "edf", "shifter", "podman-hpc", "docker", "apptainer")
ON_SLURM = ("slurm", "per-node", *RUNTIMES)
KINDS = ("local", "mpirun", *ON_SLURM)
"""Kinds of clusters: a scheduler, Slurm with a task per node, or Slurm with a container runtime."""

_WITH_CONTAINERS = """\
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
programs: {pretrain: {python: python}}
"""

_STAND_IN = r"""#!PYTHON -IS
import os, sys

name, arguments, environment = os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ)


def record(file, parts):
    with open(os.path.join(environment["RECORDS"], file), "wb") as output:
        output.write(b"".join(os.fsencode(part) + b"\0" for part in parts))


def split(arguments):
    # Options, and the command after them.
    count = next((i for i, argument in enumerate(arguments) if not argument.startswith("-")), len(arguments))
    return arguments[:count], arguments[count:]


def inside(options, command):
    # The command, with the job's folder in place of /repro-job if the options mount it.
    for option in options:
        if option.startswith("--environment="):
            with open(option.partition("=")[2], encoding="utf-8", errors="surrogateescape") as file:
                options = ["=" + line.strip(' ",\n') for line in file]
    for option in options:
        source, mark, _ = option.partition("=")[2].partition(":/repro-job")
        if mark and "NOT_INSIDE" not in environment:
            quoted = "'" + source.replace("'", "'\"'\"'") + "'"
            task = command[2].replace("/repro-job/start ", quoted + "/start ")
            task = task.replace("cd -- /repro-job ", "cd -- " + quoted + " ")
            return [*command[:2], task, *command[3:]]
    return command


def start(command, environment, tasks, names):
    # Run the tasks one after the other. A task is the values of these variables.
    codes = []
    for task in os.environ.get("TASKS", tasks).split():
        variables = dict(zip(names, task.split(":")))
        codes.append(os.spawnvpe(os.P_WAIT, command[0], command, {**environment, **variables}))
    return max(codes)


record(name, arguments)
record(name + ".environment", [f"{key}={value}" for key, value in environment.items()])
bare = {key: environment[key] for key in ("PATH", "RECORDS", "NOT_INSIDE") if key in environment}
if name == "srun":
    options, command = split(arguments)
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
    sys.exit(start(inside(options, command), environment, "5:1:0", names))
if name == "mpirun":
    command = arguments.index("bash")
    bare.update({arguments[i + 1]: environment[arguments[i + 1]] for i in range(command) if arguments[i] == "-x"})
    bare["OMPI_COMM_WORLD_SIZE"] = arguments[arguments.index("-np") + 1]
    sys.exit(start(arguments[command:], bare, "5:1", ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")))
if name == "shifter":
    options, command = split(arguments)
    if "NOT_INSIDE" not in environment:
        environment["SHIFTER_RUNTIME"] = "1"
else:
    options, (image, *command) = split(arguments[1:])
    command = inside(options, command)
    if name in ("podman-hpc", "docker"):
        import fnmatch

        passed = [option[6:] for option in options if option.startswith("--env=")]
        environment = {k: v for k, v in environment.items() if k in bare or any(fnmatch.fnmatch(k, p) for p in passed)}
os.execvpe(command[0], command, environment)
"""

# More names than a pipe holds: a script that closes the pipe after the first name must not fail.
_SCONTROL = """#!/bin/sh
printf '%s\\0' "$@" >"$RECORDS/scontrol"
exec seq --format=node-%.0f 40000
"""

_PROGRAM = """#!/bin/sh
[ "$1" != -c ] || exit 0  # asked for its packages
printf '%s\\0' "$0" "$@" >"$RECORDS/argv"
/usr/bin/env -0 >"$RECORDS/environment"
[ ! -e "$RECORDS/code" ] || exit "$(cat "$RECORDS/code")"
"""


@cache
def cluster_and_plan(kind: str) -> tuple[Cluster, Plan]:
    """Return a cluster of a kind of KINDS, and the plan of a job on it."""
    with TemporaryDirectory() as text:
        folder = Path(text)
        if kind in RUNTIMES:
            cluster = cluster_of(folder, _WITH_CONTAINERS.format(runtime=kind), name="contained")
        elif kind == "mpirun":
            cluster = cluster_of(folder, _MPIRUN, name="mpi")
        elif kind == "local":
            cluster = local(folder)
        else:
            cluster = plain_slurm(folder)
    plan = plans(cluster, "cpu" if kind == "local" else "quad")[0]
    return (with_fields(cluster, slurm={"tasks": "per-node"}) if kind == "per-node" else cluster), plan


def with_fields(cluster: Cluster, **fields: Any) -> Cluster:
    """Return the cluster with these fields in its profile. A mapping is merged with that of the profile."""
    value = dict(cluster.layered.value)
    for name, field in fields.items():
        value[name] = {**cluster.layered.mapping(name), **field} if isinstance(field, dict) else field
    layered = replace(cluster.layered, value=value)
    model = profile_model(frozenset(layered.mapping("programs")))
    return replace(cluster, profile=model.model_validate(value), layered=layered)


def with_arguments(plan: Plan, *arguments: str, python: str = "python") -> Plan:
    """Return the plan with these arguments of its program."""
    command = (python, *plan.program.command[1:])
    return replace(plan, program=replace(plan.program, python=python, command=command, arguments=arguments))


@dataclass(frozen=True)
class Stage:
    """A folder with stand-ins in which a script runs. `job` is the folder of the job."""

    base: Path
    job: Path

    @classmethod
    def at(cls, base: Path, name: str = "job") -> Stage:
        """Create the stand-ins."""
        (base / "bin").mkdir()
        for program in ("srun", "shifter", "podman-hpc", "docker", "apptainer", "mpirun"):
            executable(base / "bin" / program, _STAND_IN.replace("PYTHON", sys.executable))
        executable(base / "bin" / "scontrol", _SCONTROL)
        executable(base / "bin" / "module", "#!/bin/sh\n")
        executable(base / "bin" / "python", _PROGRAM)
        stage = cls(base, base / name)
        stage.submitting_folder.mkdir()
        return stage

    @property
    def submitting_folder(self) -> Path:
        """The folder in which scripts run; it is empty unless a test writes into it."""
        return self.base / "empty"

    def render(self, plan: Plan, cluster: Cluster) -> str:
        """Return the script of a job in this stage."""
        return render_job(plan, cluster, self.job, TEMPLATES)

    def run(
        self, script: str, environment: Mapping[str, str] | None = None, *words: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script in a folder that it must leave as it is, with a minimal environment and this one."""
        minimal = {
            "PATH": f"{self.base}/bin:/usr/bin:/bin",
            "RECORDS": str(self.base),
            "HOME": "/home/me",
            "USER": "me",
            "SLURM_JOB_ID": "12345",
            "SLURM_JOB_NODELIST": "n[1-2] x",
        }
        file, before = self.base / "job.sh", sorted(self.submitting_folder.rglob("*"))
        file.write_text(script, encoding="utf-8")
        answer = subprocess.run(
            ["bash", file, *words],
            env={**minimal, **(environment or {})},
            cwd=self.submitting_folder,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            timeout=600,
        )
        assert sorted(self.submitting_folder.rglob("*")) == before
        return answer

    def run_job(self, plan: Plan, cluster: Cluster, environment: Mapping[str, str] | None = None) -> None:
        """Render and run the script of a job. It must succeed and print nothing."""
        answer = self.run(self.render(plan, cluster), environment)
        assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")

    def recorded(self, file: str = "argv") -> list[str]:
        """Return the arguments of a stand-in, or the command line of the program."""
        return os.fsdecode((self.base / file).read_bytes()).split("\0")[:-1]

    def environment(self, stand_in: str = "") -> dict[str, str]:
        """Return the environment of the program or of a stand-in."""
        file = f"{stand_in}.environment" if stand_in else "environment"
        return dict(line.split("=", 1) for line in self.recorded(file))

    def end_record(self) -> dict[str, str]:
        """Return the record that the job writes at its end."""
        text = (self.job / "end").read_text(encoding="utf-8", errors="surrogateescape")
        return dict(line.split("=", 1) for line in text.removesuffix("\n").split("\n"))


def executable(path: Path, text: str) -> None:
    """Write an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def sbatch_arguments(line: str) -> list[str]:
    """Return the arguments that sbatch 22.05 reads from the rest of an #SBATCH line (_get_argument in its opt.c).

    There are two kinds of quotes. A backslash takes the next character as it is, also between quotes. An unquoted #
    begins a comment.
    """
    arguments: list[str] = []
    argument, quote, is_escaped, is_open = "", "", False, False
    for character in line:
        if is_escaped:
            argument, is_escaped = argument + character, False
        elif character == "\\":
            is_escaped = is_open = True
        elif quote:
            quote, argument = ("", argument) if character == quote else (quote, argument + character)
        elif character in "\"'":
            quote, is_open = character, True
        elif character == "#":
            break
        elif character in " \t\v\f\r\n":
            arguments += [argument] if is_open else []
            argument, is_open = "", False
        else:
            argument, is_open = argument + character, True
    return [*arguments, argument] if is_open else arguments
