"""A plan -> the script that runs it. Pure: text in, text out; every value is quoted by a filter."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import short_name
from orchestrator.planning.plan import Plan

# Exported for every rank. Megatron-LM wants CUDA_DEVICE_MAX_CONNECTIONS=1 with tensor parallelism before Blackwell.
RANK_ENVIRONMENT: Mapping[str, str] = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


def render_job(plan: Plan, cluster: Cluster, folder: Path, templates: Path, output: Path | None = None) -> str:
    """The complete script of one job; `folder` is where its log and records go.

    What the script itself prints goes to `output`, else to batch.txt in the folder; Slurm opens it before the script
    runs, so its folder must be there already.
    """
    shared = {
        "case": plan.case,
        "title": _title(plan),
        "folder": str(folder),
        "resources": plan.resources,
        "environment": _environment(plan, cluster),
        "python_path": plan.program.python_path,
        "setup": cluster.profile.setup,
    }
    if cluster.profile.scheduler == "local":
        return _template(templates, "local.sh.j2").render(
            **shared,
            launcher="bash",
            needs="",
            time_limit_s=seconds(plan.resources.time_limit),
            command=_lines(plan.program.torchrun(plan.resources.tasks)),
        )
    pyxis = cluster.profile.container is not None
    return _template(templates, "sbatch_pyxis.sh.j2" if pyxis else "sbatch.sh.j2").render(
        **shared,
        launcher="sbatch",
        needs=", Slurm and pyxis" if pyxis else " and Slurm",
        directives=[*directives(plan, cluster), _directive("output", _pattern(output or folder / "batch.txt"))],
        leftovers=["PYXIS_"] if pyxis else [],
        where_tasks_run=", inside the container" if pyxis else "",
        srun_options=_srun_options(plan, cluster),
        container_options=_container_options(plan, cluster),
        command=_lines(plan.program.per_rank()),
    )


def render_array(
    plans: Sequence[Plan], cluster: Cluster, scripts: Sequence[Path], folder: Path, templates: Path
) -> str:
    """One submission for jobs that ask for the same: element i runs script i."""
    assert cluster.profile.slurm is not None
    name = short_name(plans[0].case.experiment)
    own = [
        _directive("array", f"0-{len(plans) - 1}%{cluster.profile.slurm.max_running}"),
        _directive("output", _pattern(folder) + "/%A_%a.txt"),
    ]
    shared = directives(plans[0], cluster, job_name=f"{name}-{plans[0].case.scale}")
    return _template(templates, "array.sh.j2").render(directives=[*shared, *own], jobs=[str(path) for path in scripts])


def render_queue(scripts: Sequence[Path], lock: Path, templates: Path) -> str:
    """What the local machine runs: the scripts, one after another."""
    return _template(templates, "queue.sh.j2").render(jobs=[str(path) for path in scripts], lock=str(lock))


def directives(plan: Plan, cluster: Cluster, job_name: str | None = None) -> list[str]:
    """What stands behind #SBATCH, but for the output's path."""
    slurm, resources = cluster.profile.slurm, plan.resources
    assert slurm is not None
    given: dict[str, str | int | None] = {
        "job-name": job_name or f"{short_name(plan.case.experiment)}-{plan.case.slug}",
        "account": slurm.account,
        "partition": slurm.partition,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "nodes": resources.nodes,
        "ntasks-per-node": resources.tasks_per_node,
        "cpus-per-task": slurm.cpus_per_task,
        "mem": slurm.mem,
        "time": resources.time_limit,
    }
    if resources.gpus_per_node and slurm.gpu_request != "none":
        kind = f"{slurm.gres_type}:" if slurm.gres_type else ""
        name, prefix = ("gres", "gpu:") if slurm.gpu_request == "gres" else ("gpus-per-node", "")
        given[name] = f"{prefix}{kind}{resources.gpus_per_node}"
    result = [_directive(name, str(value)) for name, value in given.items() if value is not None]
    if slurm.exclusive:
        result.append("--exclusive")
    # One fault, one retry: whether to run again is decided by who reads the log, not by the scheduler as well.
    return [*result, "--no-requeue", *(_free_directive(argument) for argument in slurm.sbatch)]


def _title(plan: Plan) -> str:
    case = plan.case
    return f"{case.experiment} {case.name} at scale {case.scale} on {plan.cluster}: job {plan.identity}"


def _srun_options(plan: Plan, cluster: Cluster) -> list[str]:
    slurm, resources = cluster.profile.slurm, plan.resources
    assert slurm is not None
    options = [f"--nodes={resources.nodes}", f"--ntasks={resources.tasks}"]
    options.append(f"--ntasks-per-node={resources.tasks_per_node}")
    if slurm.cpus_per_task:
        options.append(f"--cpus-per-task={slurm.cpus_per_task}")  # srun does not take it over from sbatch since 22.05
    return [*options, "--export=ALL", "--kill-on-bad-exit=1", "--label", *slurm.srun]


def _container_options(plan: Plan, cluster: Cluster) -> list[str]:
    container = cluster.profile.container
    if container is None:
        return []
    if plan.program.image_path is None:
        raise ReproError(Problem(f"{cluster.name} names no container image for {plan.program.image}"))
    for folder in plan.program.mounts:
        if any(character in folder for character in ",:"):
            raise ReproError(Problem(f"{folder!r} cannot be mounted: pyxis divides at , and :"))
    mounts = [mount if ":" in mount else f"{mount}:{mount}" for mount in (*plan.program.mounts, *container.mounts)]
    options = [f"--container-image={plan.program.image_path}", f"--container-mounts={','.join(mounts)}"]
    # Said either way: the default differs from site to site.
    options.append("--container-mount-home" if container.mount_home else "--no-container-mount-home")
    if container.writable:
        options.append("--container-writable")
    return options


def _environment(plan: Plan, cluster: Cluster) -> dict[str, str]:
    """What every job gets, then what its program asks for, then the site's own word."""
    site = {name: str(value) for name, value in cluster.profile.environment.items()}
    return {**RANK_ENVIRONMENT, **dict(plan.program.environment), **site}


def _lines(argv: Sequence[str]) -> list[list[str]]:
    """A command as lines of a flag and its values, so that a script can be read and compared."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return [line for line in lines if line]


def seconds(limit: str) -> int:
    """`[D-]H:MM:SS` in seconds."""
    days, _, clock = limit.rpartition("-")
    hours, minutes, rest = (int(part) for part in clock.split(":"))
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + rest


def _directive(name: str, value: str) -> str:
    return f"--{name}={_sbatch_quoted(value)}"


def _free_directive(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return f"{name}={_sbatch_quoted(value)}" if equals else name


def _sbatch_quoted(value: str) -> str:
    """sbatch reads its lines with quotes and backslashes of its own, and takes # for a comment."""
    if any(character in value for character in "\n\r\0"):
        raise ReproError(Problem(f"{value!r} cannot stand in an #SBATCH line"))
    if all(character.isalnum() or character in "-_./:,%@=+&|*()[]" for character in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pattern(path: Path) -> str:
    """A path as a Slurm file name pattern, in which % is special."""
    return str(path).replace("%", "%%")


def _quoted(value: object) -> str:
    text = str(value)
    if "\0" in text:
        raise ReproError(Problem(f"{text!r} cannot be given to a command"))
    return shlex.quote(text)


def _template(templates: Path, name: str) -> jinja2.Template:
    return _templates(templates).get_template(name)


@lru_cache
def _templates(templates: Path) -> jinja2.Environment:
    """The folder's templates, each compiled once however many jobs are rendered."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    filters: dict[str, Any] = {
        "q": _quoted,
        "inside": lambda text: text.replace("'", "'\\''"),  # a quoted word within a single-quoted script
        "comment": lambda text: " ".join(str(text).split()),
    }
    environment.filters.update(filters)
    return environment
