"""Options of a job, each with its origin: the #SBATCH lines, those of srun, and those of the container runtime."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.clusters.container import EXPANDED_BY_PYXIS, ContainerFields, MountFields, holds, read_image
from orchestrator.clusters.profile import SlurmFields
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import Resources
from orchestrator.launch.templates import OURS, Line
from orchestrator.paths import short_name
from orchestrator.planning.plan import Plan, SidePlan
from orchestrator.programs.plug_ins import called


def directives(plan: Plan | SidePlan, cluster: Cluster, job_name: str | None = None) -> list[Line]:
    """Return the #SBATCH lines, without the output path."""
    slurm = slurm_of(cluster)
    case = experiment_file(plan)
    name = job_name or f"{short_name(plan.case.experiment)}-{plan.case.slug}"
    lines = [directive("job-name", name, case)]
    lines += placement(cluster, plan.resources)
    per_node = tasks_per_node(plan, slurm)
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


def srun_options(plan: Plan | SidePlan, cluster: Cluster) -> list[Line]:
    """Return the options of the training step. srun does not inherit these from sbatch in every Slurm release."""
    slurm, resources, case = slurm_of(cluster), plan.resources, experiment_file(plan)
    per_node = tasks_per_node(plan, slurm)
    lines = [
        Line.of(f"--nodes={resources.nodes}", case),
        Line.of(f"--ntasks={resources.nodes * per_node}", case),
        Line.of(f"--ntasks-per-node={per_node}", case),
    ]
    for name in ("cpus_per_task", "hint", "mpi", "cpu_bind", "gpu_bind"):
        lines += [_with(f"--{name.replace('_', '-')}", line) for line in field_lines(cluster, "slurm", name)]
    if unfit_masks(slurm, per_node):
        lines = [
            line if "--cpu-bind=" not in line.words[0] else Line.of("--cpu-bind=none", line.origin) for line in lines
        ]
    if slurm.gpu_request == "gpus-per-task" and slurm.gpu_bind is None and resources.gpus_per_node:
        # A request per task would hide the other GPUs of the node, and programs select GPUs by local rank.
        lines.append(Line.of("--gpu-bind=none"))
    lines += [Line.of("--export=ALL"), Line.of("--kill-on-bad-exit=1")]
    # Patterns of a described program read its output as it is.
    lines += [Line.of("--label")] if plan.program.origin is None else []
    free = field_lines(cluster, "slurm", "srun")
    given = {line.words[0].partition("=")[0] for line in free}
    return [*(line for line in lines if line.words[0].partition("=")[0] not in given), *free]


def unfit_masks(slurm: SlurmFields, per_node: int) -> int | None:
    """Return the length of the list in `cpu_bind` if a node has another number of tasks; each CPU is near one GPU."""
    found = re.search("(?:mask|map)_(?:cpu|ldom):(.+)", slurm.cpu_bind or "")
    length = found[1].count(",") + 1 if found else per_node
    return length if length != per_node else None


def srun_notes(plan: Plan | SidePlan, cluster: Cluster, options: Sequence[Line]) -> Iterator[str]:
    """Yield why the training step has options that a reader may not expect."""
    slurm, words = slurm_of(cluster), [line.words[0] for line in options]
    if any(word.startswith("--mpi=") for word in words):
        yield "--mpi is for programs with MPI, such as nccl-tests; torch needs none. If srun refuses it, remove mpi:."
    per_node = tasks_per_node(plan, slurm)
    length = unfit_masks(slurm, per_node)
    if length is not None and "--cpu-bind=none" in words:
        yield f"--cpu-bind=none, because cpu_bind of the profile is for {length} tasks, and a node has {per_node}."


_PLACEMENT = ("--nodes", "--ntasks", "--ntasks-per-node", "--distribution", "--nodelist", "--relative")


def rank_placement(srun_lines: Sequence[Line]) -> list[Line]:
    """Return those options of the training step that decide on which node its rank 0 runs."""
    return [line for line in srun_lines if line.words[0].partition("=")[0] in _PLACEMENT]


def tasks_per_node(plan: Plan | SidePlan, slurm: SlurmFields) -> int:
    """Return the tasks that srun starts on a node: one launcher, or each process."""
    has_launcher = slurm.tasks == "per-node" and plan.program.launcher is not None
    return 1 if has_launcher else plan.resources.tasks_per_node


def field_lines(cluster: Cluster, *path: str) -> list[Line]:
    """Return the value of a field of the profile, or each item of a list, with its location; empty if it is not set."""
    value: object = cluster.profile
    for name in path:
        value = getattr(value, name)
    if isinstance(value, list):
        return [Line.of(str(item), cluster.location((*path, i))) for i, item in enumerate(value)]
    return [] if value is None else [Line.of(str(value), cluster.location(path))]


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


def time_limit_origin(plan: Plan | SidePlan, cluster: Cluster) -> str:
    """Return the origin of the time limit."""
    scheduler = cluster.profile.scheduler
    for setting in cluster.settings:
        if setting.path == ("time_limit",):
            return str(setting.location)
    if plan.case.time_limit:
        return experiment_file(plan)
    return OURS if scheduler == "local" else cluster.location((scheduler, "time_limit"))


def own_origin(plan: Plan | SidePlan) -> str:
    """Return the origin of what the program itself adds to the command, or the place of a described program."""
    return plan.program.origin or f"program {plan.program.name}"


def program_origin(plan: Plan | SidePlan, cluster: Cluster, *words: str) -> str:
    """Return the profile's lines that these words of the program come from, else the program."""
    fields = filter(None, map(plan.program.field_of, words))
    return ", ".join(dict.fromkeys(map(cluster.location, fields))) or own_origin(plan)


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
    yield from named(cluster, ("constraint", "reservation", "nodelist", "comment"))
    if excluded := field_lines(cluster, "slurm", "exclude"):
        names, origins = [line.words[0] for line in excluded], [line.origin for line in excluded]
        yield directive("exclude", ",".join(dict.fromkeys(names)), ", ".join(dict.fromkeys(origins)))


def named(cluster: Cluster, names: tuple[str, ...]) -> Iterator[Line]:
    """Yield the directives of fields that have the name of an sbatch option."""
    for name in names:
        for line in field_lines(cluster, "slurm", name):
            yield directive(name.replace("_", "-"), line.words[0], line.origin)


def free_directives(cluster: Cluster) -> Iterator[Line]:
    """Yield the profile's further options of sbatch."""
    for line in field_lines(cluster, "slurm", "sbatch"):
        option, equals, value = line.words[0].partition("=")
        yield Line.of(f"{_sbatch_quoted(option)}{equals}{_sbatch_quoted(value)}", line.origin)


def _gpus(plan: Plan | SidePlan, cluster: Cluster) -> Iterator[Line]:
    slurm, per_node = slurm_of(cluster), plan.resources.gpus_per_node
    if not per_node or slurm.gpu_request == "none":
        return
    kind = f"{slurm.gres_type}:" if slurm.gres_type else ""
    of_task, rest = divmod(per_node, plan.resources.tasks_per_node)
    request = "gpus-per-node" if rest and slurm.gpu_request == "gpus-per-task" else slurm.gpu_request
    name, value = {
        "gres": ("gres", f"gpu:{kind}{per_node}"),
        "gpus-per-node": ("gpus-per-node", f"{kind}{per_node}"),
        "gpus-per-task": ("gpus-per-task", f"{kind}{of_task}"),
    }[request]
    yield directive(name, value, cluster.location(("slurm", "gpu_request")))


def experiment_file(plan: Plan | SidePlan) -> str:
    """Return the file of the experiment that a plan belongs to."""
    return f"experiments/{plan.case.experiment}.yaml"


def _sbatch_quoted(value: str) -> str:
    """Return a value quoted for an #SBATCH line: sbatch interprets quotes, backslashes and #."""
    if any(character in value for character in "\n\r\0"):
        raise ReproError(Problem(f"{value!r} contains a line end and cannot be a value of an #SBATCH line"))
    if all(character.isalnum() or character in "-_./:,%@=+&|*()[]" for character in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


# ---- container: options of srun, and the words between srun and the task ---------------------------------------

INSIDE = "/repro-job"
"""Path of a job's folder in its container. No host has this path, so a task that sees it is inside."""

JOB_FOLDER = Line(("{job_folder}:" + INSIDE,), OURS, at_run=True)


@dataclass(frozen=True, slots=True)
class Wrapping:
    """Container arguments of a job.

    `srun_options` are options of srun, `argv` the runtime's command before the task. `description` contains the lines
    of the environment file of CSCS's engine. `inside_test` is true only inside the image, where the job's folder is
    `inside_folder`, or None if it has its own path there.
    """

    srun_options: tuple[Line, ...] = ()
    argv: tuple[Line, ...] = ()
    description: tuple[Line, ...] = ()
    inside_test: str = f"[ -e {INSIDE}/start ]"
    inside_folder: str | None = INSIDE


def wrapping_of(plan: Plan | SidePlan, cluster: Cluster, folder: Path) -> Wrapping:
    """Return the container arguments of a job; ReproError if its image or a mount cannot be expressed."""
    container = cluster.profile.container
    assert container is not None
    require_mountable(folder, container)
    if plan.program.image_path is None:
        raise ReproError(Problem(f"{cluster.name} has no container image for {plan.program.image}"))
    if set(plan.program.image_path) & set(container.record.refused):
        what = f"{plan.program.image_path} has a blank; {container.record.why}"
        raise ReproError(Problem(what, own_origin(plan), "use a path without blanks"))
    image = Line.of(plan.program.image_path, cluster.location(("container", "images", str(plan.program.image))))
    mounts = list(_mounts(plan, cluster, container))
    if container.name is not None:  # a node that keeps the container of another image must not use it
        image_identity = f"{plan.program.image_path} {plan.program.image_digest}"
        digest = hashlib.sha256(image_identity.encode()).hexdigest()[:12]
        container = container.model_copy(update={"name": f"{container.name}-{digest}"})
    return called(container.record.options, "function of options", Wrapping, container, cluster, image, mounts)


def require_mountable(folder: Path, container: ContainerFields) -> None:
    """Raise ReproError if the runtime would interpret a character of this folder's name in a mount."""
    refusal = _refusal(str(folder), f",:{EXPANDED_BY_PYXIS}", container)
    if refusal is not None:
        what, hint = refusal
        raise ReproError(Problem(f"this folder {what}", f"{folder}:", f"set REPRO_HOME to a folder {hint}"))


def _refusal(path: str, refused: str, container: ContainerFields) -> tuple[str, str] | None:
    """Return why a path cannot be mounted, and a hint; None if neither `refused` nor the runtime has its characters."""
    what = "cannot be mounted into containers"
    if set(path) & set(refused):
        return what, f"without {' '.join(refused[:-1])} and {refused[-1]}"
    if set(path) & set(container.record.refused):
        return f"{what}: it has a blank, and {container.record.why}", "without blanks"
    return None


def _mounts(plan: Plan | SidePlan, cluster: Cluster, container: ContainerFields) -> Iterator[Line]:
    """Yield SOURCE:TARGET[:FLAGS] of each mount: those of the program, then those of the profile for this job."""
    for folder in plan.program.mounts:
        origin = program_origin(plan, cluster, folder)
        refusal = _refusal(folder, f",:{{}}{EXPANDED_BY_PYXIS}", container)
        if refusal is not None:
            what, hint = refusal
            location = origin if plan.program.field_of(folder) else None
            raise ReproError(Problem(f"{folder} {what}", location, f"use a folder {hint}"))
        yield Line.of(f"{folder}:{folder}", origin)
    for i, item in enumerate(container.mounts):
        mount, when = (item.mount, item.when) if isinstance(item, MountFields) else (item, None)
        if holds(when, plan.resources.nodes):
            text = mount if ":" in mount else f"{mount}:{mount}"
            yield Line((text,), cluster.location(("container", "mounts", i)), at_run=True)


def _home(container: ContainerFields, cluster: Cluster) -> list[Line]:
    """Return the mount of the home folder, for a runtime that has no option for it."""
    line = Line(("{home}:{home}",), cluster.location(("container", "mount_home")), at_run=True)
    return [line] if container.mount_home else []


def _with(option: str, value: Line) -> Line:
    return replace(value, words=(f"{option}={value.words[0]}",))


def _in_one(option: str, mounts: Sequence[Line]) -> Line:
    """Return one option with all mounts: Slurm passes only the last repetition to the nodes (seen with 22.05)."""
    text = ",".join(mount.words[0] for mount in mounts)
    return Line((f"{option}={text}",), ", ".join(dict.fromkeys(mount.origin for mount in mounts)), at_run=True)


def pyxis(container: ContainerFields, cluster: Cluster, image: Line, mounts: list[Line]) -> Wrapping:
    """Return the options of srun."""
    location_of = cluster.location
    options = [
        Line.of(f"--container-image={read_image(image.words[0]).for_enroot}", image.origin),
        _in_one("--container-mounts", (JOB_FOLDER, *mounts)),
        # Explicit in both cases, because the default differs between sites.
        Line.of(
            "--container-mount-home" if container.mount_home else "--no-container-mount-home",
            location_of(("container", "mount_home")) if container.mount_home else OURS,
        ),
    ]
    if container.writable:
        options.append(Line.of("--container-writable", location_of(("container", "writable"))))
    elif container.has("writable"):  # since the same version as the option for read-only images
        options.append(Line.of("--container-readonly"))
    for name in ("entrypoint", "remap_root"):
        value, option = getattr(container, name), name.replace("_", "-")
        if value is not None:  # else the default of the site
            text = f"--container-{option}" if value else f"--no-container-{option}"
            options.append(Line.of(text, location_of(("container", name))))
    for name in ("workdir", "name"):
        if (value := getattr(container, name)) is not None:
            options.append(Line.of(f"--container-{name}={value}", location_of(("container", name))))
    return Wrapping(srun_options=tuple(options))


def edf(container: ContainerFields, cluster: Cluster, image: Line, mounts: list[Line]) -> Wrapping:
    """Return the lines of the environment file."""
    mounts = [JOB_FOLDER, *mounts, *_home(container, cluster)]
    lines = [
        Line.of(f"image = {_toml(read_image(image.words[0]).for_enroot)}", image.origin),
        Line.of(f"writable = {'true' if container.writable else 'false'}"),
        Line.of("mounts = ["),
        *(replace(mount, words=(f"  {_toml(mount.words[0])},",)) for mount in mounts),
        Line.of("]"),
    ]
    if container.annotations:
        lines.append(Line.of("[annotations]"))
        for name, value in container.annotations.items():
            origin = cluster.location(("container", "annotations", name))
            lines.append(Line.of(f"{name} = {_toml(value)}", origin))
    return Wrapping(description=tuple(lines))


def _registry_image(container: ContainerFields, cluster: Cluster, image: Line) -> str:
    """Return HOST/NAME of an image; ReproError for a file, which runtimes with a store of their own cannot use."""
    name = read_image(image.words[0])
    if name.path:
        raise ReproError(Problem(f"{cluster.name}: {container.runtime} cannot use an image file", image.origin))
    return name.for_docker


def shifter(container: ContainerFields, cluster: Cluster, image: Line, mounts: list[Line]) -> Wrapping:
    """Return the command of Shifter."""
    image_name = _registry_image(container, cluster, image)
    argv = [Line.of("shifter"), Line.of(f"--image={image_name}", image.origin)]
    if container.modules:
        argv.append(Line.of(f"--module={','.join(container.modules)}", cluster.location(("container", "modules"))))
    argv += [_with("--volume", mount) for mount in mounts]
    # Shifter creates no folders in an image, so its own variable is tested.
    return Wrapping(
        argv=(*argv, *field_lines(cluster, "container", "options")),
        inside_test='[ -n "${SHIFTER_RUNTIME:-}" ]',
        inside_folder=None,
    )


def _command(container: ContainerFields, cluster: Cluster, *words: str) -> list[Line]:
    """Return the command that starts a container, with the option that shows the GPUs."""
    if container.gpu_flag is None:
        return [Line((*words, str(container.record.gpu_flag)), OURS)]
    flag = Line.of(container.gpu_flag, cluster.location(("container", "gpu_flag")))
    return [Line(words, OURS), *([flag] if container.gpu_flag != "none" else [])]


def podman(container: ContainerFields, cluster: Cluster, image: Line, mounts: list[Line]) -> Wrapping:
    """Return the command of podman-hpc."""
    image_name = _registry_image(container, cluster, image)
    # Without the entrypoint of the image, which may be a program that does not run its arguments.
    argv = _command(container, cluster, "podman-hpc", "run", "--rm", "--net=host", "--ipc=host", "--entrypoint=")
    argv += [_with("--volume", mount) for mount in (JOB_FOLDER, *mounts, *_home(container, cluster))]
    argv += [Line.of("--env=SLURM_*"), Line.of("--env=CUDA_VISIBLE_DEVICES")]
    passed = field_lines(cluster, "container", "pass_env") + field_lines(cluster, "env_from")
    argv += [_with("--env", name) for name in passed]
    return Wrapping(argv=(*argv, *field_lines(cluster, "container", "options"), Line.of(image_name, image.origin)))


def docker(container: ContainerFields, cluster: Cluster, image: Line, mounts: list[Line]) -> Wrapping:
    """Return the command of Docker. The template adds the variables before the image, which is last."""
    image_name = _registry_image(container, cluster, image)
    fixed = ("docker", "run", "--rm", "--init", "--net=host", "--ipc=host", "--ulimit=memlock=-1", "--entrypoint=")
    argv = [*_command(container, cluster, *fixed), Line(("--user={ids}",), OURS, at_run=True)]
    argv += [_with("--volume", mount) for mount in (JOB_FOLDER, *mounts, *_home(container, cluster))]
    return Wrapping(argv=(*argv, *field_lines(cluster, "container", "options"), Line.of(image_name, image.origin)))


def apptainer(container: ContainerFields, cluster: Cluster, image: Line, mounts: list[Line]) -> Wrapping:
    """Return the command of Apptainer."""
    image_name = read_image(image.words[0])
    argv = _command(container, cluster, "apptainer", "exec")
    if not container.mount_home:
        argv.append(Line.of("--no-home"))
    if container.writable:
        argv.append(Line.of("--writable-tmpfs", cluster.location(("container", "writable"))))
    argv += [_with("--bind", mount) for mount in (JOB_FOLDER, *mounts)]
    argv += field_lines(cluster, "container", "options")
    return Wrapping(argv=(*argv, Line.of(image_name.path or f"docker://{image_name.for_docker}", image.origin)))


def _toml(text: str) -> str:
    if "\x7f" in text or any(ord(character) < 32 for character in text):
        raise ReproError(
            Problem(f"{text!r} contains a control character and cannot be a value of an environment definition file")
        )
    return json.dumps(text, ensure_ascii=False)
