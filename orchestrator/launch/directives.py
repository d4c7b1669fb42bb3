"""Slurm options of a job: the #SBATCH lines and the options of srun, each with its origin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.clusters.resolve import Cluster
from orchestrator.clusters.slurm_fields import SlurmFields
from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import Resources
from orchestrator.launch.templates import OURS, Line
from orchestrator.paths import short_name
from orchestrator.planning.plan import Plan


def directives(plan: Plan, cluster: Cluster, job_name: str | None = None) -> list[Line]:
    """Return the #SBATCH lines, without the output path."""
    slurm = slurm_of(cluster)
    case = experiment_file(plan)
    name = job_name or f"{short_name(plan.case.experiment)}-{plan.case.slug}"
    lines = [directive("job-name", name, case)]
    lines += placement(cluster, plan.resources)
    per_node = 1 if slurm.tasks == "per-node" else plan.resources.tasks_per_node
    lines.append(directive("nodes", str(plan.resources.nodes), case))
    lines.append(directive("ntasks-per-node", str(per_node), case))
    lines += named(cluster, ("cpus_per_task", "hint", "mem"))
    lines.append(directive("time", plan.resources.time_limit, time_limit_origin(plan, cluster)))
    lines += _gpus(plan, cluster)
    if slurm.exclusive:
        lines.append(Line.of("--exclusive", cluster.location(("slurm", "exclusive"))))
    # Either `repro` or Slurm repeats a failed job, never both.
    origin = cluster.location(("slurm", "requeue"))
    # A job that starts again must not truncate the output of its earlier run.
    lines += [Line.of(word, origin) for word in ("--requeue", "--open-mode=append") if slurm.requeue]
    lines += [] if slurm.requeue else [Line.of("--no-requeue")]
    return [*lines, *named(cluster, ("mail_type", "mail_user")), *free_directives(cluster)]


def srun_options(plan: Plan, cluster: Cluster) -> list[Line]:
    """Return the options of the training step. srun does not inherit these from sbatch in every Slurm release."""
    slurm, resources, case = slurm_of(cluster), plan.resources, experiment_file(plan)
    per_node = 1 if slurm.tasks == "per-node" else resources.tasks_per_node
    lines = [
        Line.of(f"--nodes={resources.nodes}", case),
        Line.of(f"--ntasks={resources.nodes * per_node}", case),
        Line.of(f"--ntasks-per-node={per_node}", case),
    ]
    for name in ("cpus_per_task", "hint", "mpi", "cpu_bind", "gpu_bind"):
        value = getattr(slurm, name)
        if value is not None:
            lines.append(Line.of(f"--{name.replace('_', '-')}={value}", cluster.location(("slurm", name))))
    if slurm.gpu_request == "gpus-per-task" and slurm.gpu_bind is None and resources.gpus_per_node:
        # A request per task would hide the other GPUs of the node, and programs select GPUs by local rank.
        lines.append(Line.of("--gpu-bind=none"))
    lines += [Line.of("--export=ALL"), Line.of("--kill-on-bad-exit=1"), Line.of("--label")]
    free = [Line.of(word, cluster.location(("slurm", "srun", i))) for i, word in enumerate(slurm.srun)]
    given = {line.words[0].partition("=")[0] for line in free}
    return [*(line for line in lines if line.words[0].partition("=")[0] not in given), *free]


def slurm_of(cluster: Cluster) -> SlurmFields:
    """Return the `slurm:` block of a cluster that has one."""
    assert cluster.profile.slurm is not None
    return cluster.profile.slurm


def directive(name: str, value: str, origin: str = OURS) -> Line:
    """Return an #SBATCH option with a quoted value."""
    return Line.of(f"--{name}={_sbatch_quoted(value)}", origin)


def output_pattern(path: Path) -> str:
    """Return a path as a Slurm file name pattern, in which % is special; ReproError for one that Slurm misreads.

    Slurm removes a backslash, and the job fails at its launch because there is no such folder.
    """
    if "\\" in str(path):
        hint = "set REPRO_HOME, or -o, to a folder without a backslash"
        raise ReproError(Problem("Slurm cannot write output below a folder with a backslash", f"{path}:", hint))
    return str(path).replace("%", "%%")


def time_limit_origin(plan: Plan, cluster: Cluster) -> str:
    """Return the origin of the time limit."""
    scheduler = cluster.profile.scheduler
    for setting in cluster.settings:
        if setting.path == ("time_limit",):
            return str(setting.location)
    if plan.case.time_limit:
        return experiment_file(plan)
    return OURS if scheduler == "local" else cluster.location((scheduler, "time_limit"))


def workload_origin(plan: Plan) -> str:
    """Return the origin of what the workload itself adds to the command."""
    return f"workload {plan.program.workload}"


def program_origin(plan: Plan, cluster: Cluster, *words: str) -> str:
    """Return the profile's lines that these words of the program come from, else the workload."""
    fields = filter(None, map(plan.program.field_of, words))
    return ", ".join(dict.fromkeys(map(cluster.location, fields))) or workload_origin(plan)


def placement(cluster: Cluster, resources: Resources) -> Iterator[Line]:
    """Yield account, partition, QOS, constraint, reservation and nodes for a job of this size."""
    slurm, location_of = slurm_of(cluster), cluster.location
    if slurm.account_name is not None:
        fields = ("account", "project") if "{project}" in (slurm.account or "") else ("account",)
        yield directive("account", slurm.account_name, ", ".join(location_of(("slurm", name)) for name in fields))
    if slurm.partition is not None:
        yield directive("partition", slurm.partition, location_of(("slurm", "partition")))
    qos = slurm.qos_for(resources.nodes, resources.nodes * resources.gpus_per_node, resources.time_limit)
    if qos is not None:
        names = [limits.name for limits in slurm.qos] if isinstance(slurm.qos, list) else []
        yield directive("qos", qos, location_of(("slurm", "qos", names.index(qos)) if names else ("slurm", "qos")))
    yield from named(cluster, ("constraint", "reservation", "nodelist"))
    yield from _excluded(cluster)


def _excluded(cluster: Cluster) -> Iterator[Line]:
    excluded = slurm_of(cluster).exclude
    origins = [cluster.location(("slurm", "exclude", i)) for i in range(len(excluded))]
    if excluded:
        yield directive("exclude", ",".join(dict.fromkeys(excluded)), ", ".join(dict.fromkeys(origins)))


def named(cluster: Cluster, names: tuple[str, ...]) -> Iterator[Line]:
    """Yield the directives of fields that have the name of an sbatch option."""
    for name in names:
        value = getattr(slurm_of(cluster), name)
        if value is not None:
            yield directive(name.replace("_", "-"), str(value), cluster.location(("slurm", name)))


def free_directives(cluster: Cluster) -> Iterator[Line]:
    """Yield the profile's further options of sbatch."""
    for i, argument in enumerate(slurm_of(cluster).sbatch):
        option, equals, value = argument.partition("=")
        text = f"{_sbatch_quoted(option)}{equals}{_sbatch_quoted(value)}"
        yield Line.of(text, cluster.location(("slurm", "sbatch", i)))


def _gpus(plan: Plan, cluster: Cluster) -> Iterator[Line]:
    slurm, per_node = slurm_of(cluster), plan.resources.gpus_per_node
    if not per_node or slurm.gpu_request == "none":
        return
    kind = f"{slurm.gres_type}:" if slurm.gres_type else ""
    name, value = {
        "gres": ("gres", f"gpu:{kind}{per_node}"),
        "gpus-per-node": ("gpus-per-node", f"{kind}{per_node}"),
        "gpus-per-task": ("gpus-per-task", f"{kind}1"),
    }[slurm.gpu_request]
    yield directive(name, value, cluster.location(("slurm", "gpu_request")))


def experiment_file(plan: Plan) -> str:
    """Return the file of the experiment that a plan belongs to."""
    return f"experiments/{plan.case.experiment}.yaml"


def _sbatch_quoted(value: str) -> str:
    """Return a value quoted for an #SBATCH line: sbatch interprets quotes, backslashes and #."""
    if any(character in value for character in "\n\r\0"):
        raise ReproError(Problem(f"{value!r} contains a line end and cannot be a value of an #SBATCH line"))
    if all(character.isalnum() or character in "-_./:,%@=+&|*()[]" for character in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
