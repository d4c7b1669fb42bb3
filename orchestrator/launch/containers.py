"""Container arguments of each runtime: options of srun, and the words between srun and the task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.clusters.container import EXPANDED_BY_PYXIS, ContainerFields, MountFields, holds, read_image
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.launch.directives import program_origin
from orchestrator.launch.templates import OURS, Line
from orchestrator.planning.plan import Plan, SidePlan

INSIDE = "/repro-job"
"""Path of a job's folder in its container. No host has this path, so a task that sees it is inside."""

# These runtimes have no option for the home folder. Shifter mounts it if the site has configured that.
_NO_HOME_OPTION = ("edf", "podman-hpc")

_JOB_FOLDER = Line(("{job_folder}:" + INSIDE,), OURS, at_run=True)


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
    require_mountable(folder)
    if plan.program.image_path is None:
        raise ReproError(Problem(f"{cluster.name} has no container image for {plan.program.image}"))
    image = Line.of(plan.program.image_path, cluster.location(("container", "images", str(plan.program.image))))
    mounts = list(_mounts(plan, cluster))
    if container.runtime == "shifter":
        return _shifter(cluster, image, mounts)
    make = {"pyxis": _pyxis, "edf": _edf, "podman-hpc": _podman, "apptainer": _apptainer}[container.runtime]
    return make(container, cluster, image, mounts)


def require_mountable(folder: Path) -> None:
    """Raise ReproError if a runtime would interpret a character of this folder's name in a mount."""
    if any(character in str(folder) for character in f",:{EXPANDED_BY_PYXIS}"):
        hint = 'set REPRO_HOME to a folder without , : $ ` " and \\'
        raise ReproError(Problem("this folder cannot be mounted into containers", f"{folder}:", hint))


def _mounts(plan: Plan | SidePlan, cluster: Cluster) -> Iterator[Line]:
    """Yield SOURCE:TARGET[:FLAGS] of each mount: those of the program, then those of the profile for this job."""
    container = cluster.profile.container
    assert container is not None
    for folder in plan.program.mounts:
        origin = program_origin(plan, cluster, folder)
        if any(character in folder for character in f",:{{}}{EXPANDED_BY_PYXIS}"):
            hint = 'use a folder without , : { } $ ` " and \\'
            location = origin if plan.program.field_of(folder) else None
            raise ReproError(Problem(f"{folder} cannot be mounted into containers", location, hint))
        yield Line.of(f"{folder}:{folder}", origin)
    for i, item in enumerate(container.mounts):
        mount, when = (item.mount, item.when) if isinstance(item, MountFields) else (item, None)
        if holds(when, plan.resources.nodes):
            text = mount if ":" in mount else f"{mount}:{mount}"
            yield Line((text,), cluster.location(("container", "mounts", i)), at_run=True)
    if container.mount_home and container.runtime in _NO_HOME_OPTION:
        yield Line(("{home}:{home}",), cluster.location(("container", "mount_home")), at_run=True)


def _with(option: str, mount: Line) -> Line:
    return replace(mount, words=(f"{option}={mount.words[0]}",))


def _in_one(option: str, mounts: Sequence[Line]) -> Line:
    """Return one option with all mounts: Slurm passes only the last repetition to the nodes (seen with 22.05)."""
    text = ",".join(mount.words[0] for mount in mounts)
    return Line((f"{option}={text}",), ", ".join(dict.fromkeys(mount.origin for mount in mounts)), at_run=True)


def _pyxis(container: ContainerFields, cluster: Cluster, image: Line, mounts: list[Line]) -> Wrapping:
    location_of = cluster.location
    options = [
        Line.of(f"--container-image={read_image(image.words[0]).for_enroot}", image.origin),
        _in_one("--container-mounts", (_JOB_FOLDER, *mounts)),
        # Explicit in both cases, because the default differs between sites.
        Line.of(
            "--container-mount-home" if container.mount_home else "--no-container-mount-home",
            location_of(("container", "mount_home")) if container.mount_home else OURS,
        ),
    ]
    if container.writable:
        options.append(Line.of("--container-writable", location_of(("container", "writable"))))
    elif container.has_readonly_option:
        options.append(Line.of("--container-readonly"))
    return Wrapping(srun_options=tuple(options))


def _edf(container: ContainerFields, cluster: Cluster, image: Line, mounts: list[Line]) -> Wrapping:
    lines = [
        Line.of(f"image = {_toml(read_image(image.words[0]).for_enroot)}", image.origin),
        Line.of(f"writable = {'true' if container.writable else 'false'}"),
        Line.of("mounts = ["),
        *(replace(mount, words=(f"  {_toml(mount.words[0])},",)) for mount in (_JOB_FOLDER, *mounts)),
        Line.of("]"),
    ]
    if container.annotations:
        lines.append(Line.of("[annotations]"))
        for name, value in container.annotations.items():
            origin = cluster.location(("container", "annotations", name))
            lines.append(Line.of(f"{name} = {_toml(value)}", origin))
    return Wrapping(description=tuple(lines))


def _shifter(cluster: Cluster, image: Line, mounts: list[Line]) -> Wrapping:
    container = cluster.profile.container
    assert container is not None
    image_name = read_image(image.words[0])
    if image_name.path:
        raise ReproError(Problem(f"{cluster.name}: Shifter cannot use an image file", image.origin))
    argv = [Line.of("shifter"), Line.of(f"--image={image_name.for_docker}", image.origin)]
    if container.modules:
        argv.append(Line.of(f"--module={','.join(container.modules)}", cluster.location(("container", "modules"))))
    argv += [_with("--volume", mount) for mount in mounts]
    # Shifter creates no folders in an image, so its own variable is tested.
    return Wrapping(
        argv=(*argv, *_options(container, cluster)),
        inside_test='[ -n "${SHIFTER_RUNTIME:-}" ]',
        inside_folder=None,
    )


def _podman(container: ContainerFields, cluster: Cluster, image: Line, mounts: list[Line]) -> Wrapping:
    image_name = read_image(image.words[0])
    if image_name.path:
        raise ReproError(Problem(f"{cluster.name}: podman-hpc cannot use an image file", image.origin))
    fixed = ("podman-hpc", "run", "--rm", "--gpu", "--net=host", "--ipc=host")
    argv = [Line(fixed, OURS)]
    argv += [_with("--volume", mount) for mount in (_JOB_FOLDER, *mounts)]
    argv.append(Line.of("--env=SLURM_*"))
    for path, names in ((("container", "pass_env"), container.pass_env), (("env_from",), cluster.profile.env_from)):
        argv += [Line.of(f"--env={name}", cluster.location((*path, i))) for i, name in enumerate(names)]
    return Wrapping(argv=(*argv, *_options(container, cluster), Line.of(image_name.for_docker, image.origin)))


def _apptainer(container: ContainerFields, cluster: Cluster, image: Line, mounts: list[Line]) -> Wrapping:
    image_name = read_image(image.words[0])
    argv = [Line(("apptainer", "exec", "--nv"), OURS)]
    if not container.mount_home:
        argv.append(Line.of("--no-home"))
    if container.writable:
        argv.append(Line.of("--writable-tmpfs", cluster.location(("container", "writable"))))
    argv += [_with("--bind", mount) for mount in (_JOB_FOLDER, *mounts)]
    argv += [*_options(container, cluster)]
    return Wrapping(argv=(*argv, Line.of(image_name.path or f"docker://{image_name.for_docker}", image.origin)))


def _options(container: ContainerFields, cluster: Cluster) -> Iterator[Line]:
    for i, word in enumerate(container.options):
        yield Line.of(word, cluster.location(("container", "options", i)))


def _toml(text: str) -> str:
    if "\x7f" in text or any(ord(character) < 32 for character in text):
        raise ReproError(
            Problem(f"{text!r} contains a control character and cannot be a value of an environment definition file")
        )
    return json.dumps(text, ensure_ascii=False)
