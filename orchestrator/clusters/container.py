"""Container settings of a profile, conditions on the size of a job, and the syntax of image names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticKnownError

from orchestrator.config.model import Strict, Text, optional, required
from orchestrator.programs.plug_ins import Registry

When = Literal["nodes > 1", "nodes == 1"]
"""Condition on the number of nodes. Network settings are for several nodes, and can slow down or break one node."""

_WHEN = "Number of nodes of the jobs to which this applies."

_NAME = re.compile(r"\{([^{}]*)\}")


def holds(when: When | None, nodes: int) -> bool:
    """Return whether a job on this many nodes meets the condition. No condition is always met."""
    return when is None or (nodes > 1) == (when == "nodes > 1")


def _kind(value: object) -> str:
    if isinstance(value, (dict, BaseModel)):
        return "fields"
    return "list" if isinstance(value, list) else "plain"


# The kind of a value selects one form of the union, so that a fault is one problem and not one for each form.
BY_KIND = Discriminator(_kind)


def _text(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and any(character in value for character in "\n\r\0"):
        raise ValueError("must be one line of text")
    return value


class MountFields(Strict):
    """A mount with a condition."""

    mount: Text = required("Mount, as `SOURCE[:TARGET[:FLAGS]]`.", "/var/lib/tcpxo/lib64")
    when: When = required(_WHEN)


class SetupFields(Strict):
    """A line of the script with a condition."""

    run: Text = required("One line of bash.", "source /opt/net/profile.sh")
    when: When = required(_WHEN)


class VariableFields(Strict):
    """A variable with a condition."""

    value: Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": ["string", "integer"]})] = required(
        "Value of the variable: one line of text, or an integer.", "enp0s12"
    )
    when: When = required(_WHEN)


SetupLine = Annotated[Annotated[Text, Tag("plain")] | Annotated[SetupFields, Tag("fields")], BY_KIND]


def checked_names(text: str, supported: Collection[str]) -> str:
    """Return the text unchanged. ValueError if it contains a name in braces that is not supported."""
    for name in _NAME.findall(text):
        if name not in supported:
            names = ", ".join(f"{{{name}}}" for name in supported)
            raise ValueError(f"{{{name}}} is not supported here, only {names}")
    return text


RUN_NAMES = ("job_id", "user")
"""Names in braces that a mount may contain. The job replaces them."""

EXPANDED_BY_PYXIS = '$`"\\'
"""Characters that a mount must not contain. pyxis writes mounts into a shell script that enroot runs on the node."""


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """Program that starts containers.

    `fields` are the fields of `container:` that it supports and others do not. `ending` is that of image files; a
    runtime without it has a store of its own, to which the command `pull` adds an image. `gpu_flag` is the option that
    shows the GPUs to a container. `since` is the first version with a field. `mounts_site`: containers see the file
    systems of the site without `mounts`. `refused` are further characters that paths must not contain, and `why` is the
    reason. `options` returns the options of a job (`launch.directives.Wrapping`), and `check` the findings about a
    profile; both are names of functions, `module:name`. `template` is the script of a job, by default
    `templates/sbatch_NAME.sh.j2`.
    """

    name: str
    options: str
    fields: tuple[str, ...]
    ending: str | None = None
    pull: str | None = None
    gpu_flag: str | None = None
    since: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    mounts_site: bool = True
    refused: str = ""
    why: str = ""
    check: str = "orchestrator.clusters.check:check_program"
    template: Path | None = None

    @property
    def script(self) -> str:
        """Name of the template: that of a package is a path below the root."""
        return f"sbatch_{self.name.replace('-', '_')}.sh.j2" if self.template is None else str(self.template)[1:]

    @property
    def imports_by(self) -> str:
        """Program that writes an image of a registry to a file."""
        return "apptainer" if self.ending == ".sif" else "enroot"


_LAUNCH, _CHECK = "orchestrator.launch.directives", "orchestrator.clusters.check"
_OF_STORES = ("pass_env", "mount_home", "options", "gpu_flag")
_OWN = (
    ContainerRuntime(
        "pyxis",
        f"{_LAUNCH}:pyxis",
        ("pass_env", "writable", "mount_home", "entrypoint", "remap_root", "workdir", "name"),
        ".sqsh",
        since={"remap_root": (0, 4), "entrypoint": (0, 8), "writable": (0, 11), "pass_env": (0, 15)},  # its changelog
        mounts_site=False,
        refused=" \t",
        why="pyxis writes paths into lines of a file whose fields end at blanks",
        check=f"{_CHECK}:check_pyxis",
    ),
    ContainerRuntime(
        "edf",
        f"{_LAUNCH}:edf",
        ("writable", "mount_home", "annotations"),
        ".sqsh",
        mounts_site=False,
        check=f"{_CHECK}:check_edf",
    ),
    ContainerRuntime("shifter", f"{_LAUNCH}:shifter", ("modules", "options"), pull="shifterimg pull"),
    ContainerRuntime("podman-hpc", f"{_LAUNCH}:podman", _OF_STORES, pull="podman-hpc pull", gpu_flag="--gpu"),
    ContainerRuntime("docker", f"{_LAUNCH}:docker", _OF_STORES, pull="docker pull", gpu_flag="--gpus=all"),
    ContainerRuntime(
        "apptainer", f"{_LAUNCH}:apptainer", ("writable", "mount_home", "options", "gpu_flag"), ".sif", gpu_flag="--nv"
    ),
)
_SPECIAL = tuple(dict.fromkeys(name for runtime in _OWN for name in runtime.fields))
"""Fields of `container:` that only some runtimes support."""


def _checked(name: str, found: object) -> ContainerRuntime:
    if not isinstance(found, ContainerRuntime) or found.name != name:
        raise TypeError(f"is not a clusters.container.ContainerRuntime of the name {name}")
    return found


RUNTIMES = Registry("repro.runtimes", _checked, {runtime.name: runtime for runtime in _OWN})


def _known_runtime(name: str) -> str:
    if RUNTIMES.find(name) is None:
        *names, last = map(repr, RUNTIMES.names())
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})
    return name


def _mount(value: str) -> str:
    if value.startswith("<"):
        return value
    source, _, rest = value.partition(":")
    target = rest.partition(":")[0] or source
    if source not in ("tmpfs", "umount") and not source.startswith(("/", "./")):
        raise ValueError("a mount must start with / or ./")
    if not target.startswith(("/", ".")) and source not in ("tmpfs", "umount"):
        raise ValueError("the target of a mount must start with /")
    if "," in value:
        raise ValueError("a mount must not contain a comma, where pyxis splits its list of mounts")
    if any(character in value for character in EXPANDED_BY_PYXIS):
        names = " and ".join(f"{{{name}}}" for name in RUN_NAMES)
        raise ValueError(f'a mount must not contain $, `, " or \\, which a shell on the node expands; use {names}')
    if value.count(":") > 2:
        raise ValueError("a mount is SOURCE:TARGET:FLAGS")
    return checked_names(value, RUN_NAMES)


def _conditional_mount(value: str | MountFields) -> str | MountFields:
    _mount(value if isinstance(value, str) else value.mount)
    return value


def _image(value: str) -> str:
    if not value.startswith("<"):
        read_image(value)
    return value


Mount = Annotated[
    Annotated[Text, Tag("plain")] | Annotated[MountFields, Tag("fields")], BY_KIND, AfterValidator(_conditional_mount)
]
PassedName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$")]


def _not_none(value: object) -> object:
    if value in (None, "none"):
        raise ValueError("no runtime; write `container: null` to run jobs without containers")
    return value


_RUNTIME_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string", "enum": [runtime.name for runtime in _OWN]}, {"type": "string"}]}
)


class ContainerFields(Strict):
    """Container runtime, images and mounts.

    The script also passes `mount_home` and `writable` if they are false, because the defaults differ between sites.
    """

    runtime: Annotated[str, BeforeValidator(_not_none), AfterValidator(_known_runtime), _RUNTIME_SCHEMA] = required(
        "Program that starts containers. edf is the `--environment` option of srun at CSCS.", "pyxis"
    )
    version: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)*$")] | None = optional(
        "Version of pyxis. Options that need a newer one are refused. Without it a new version is assumed.", "0.20"
    )
    images: dict[Text, Annotated[Text, AfterValidator(_image)]] = optional(
        "Image for each image name of a paper, or for the name of a program if the paper names no image: a path, "
        "`/...` or `./...`, or `HOST/NAME:TAG` in a registry.",
        {"pretrain": "/shared/images/torch.sqsh", "nvidia/pytorch:20.12-py3": "registry.example/torch:20.12"},
        default={},
    )
    mounts: list[Mount] = optional(
        "Folders of the host that jobs see, as `SOURCE[:TARGET[:FLAGS]]`. `{job_id}` and `{user}` are replaced.",
        ["/shared/data", {"mount": "/var/lib/tcpxo/lib64", "when": "nodes > 1"}],
        default=[],
    )
    pass_env: list[PassedName] = optional(
        "Variables of the host that override those of the image, for pyxis (its `--container-env`), podman-hpc and "
        "Docker. `NCCL_*` is a prefix.",
        ["NCCL_*"],
        default=[],
    )
    writable: bool = optional("true: processes can change files of the container.", default=False)
    mount_home: bool = optional("true: jobs see the home folder of the user.", default=False)
    entrypoint: bool | None = optional(
        "Whether pyxis runs the entrypoint of the image before the program. Without it the site decides. Docker and "
        "podman-hpc never run it.",
        False,
    )
    remap_root: bool | None = optional(
        "Whether the user is root inside the container of pyxis. Without it the site decides.", False
    )
    workdir: Annotated[str, Field(pattern=r"^/[^\n\r\x00]*$")] | None = optional(
        "Folder in which pyxis starts the container, before a process changes to the folder of its job. Without it "
        "that of the image.",
        "/tmp",
    )
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = optional(
        "Name under which pyxis keeps the container, so that a node unpacks the image once where the site keeps named "
        "containers between jobs. A digest of the image is added, so that another image is another container.",
        "torch",
    )
    gpu_flag: Annotated[str, Field(pattern=r"^(-[^\n\r\x00]*|none)$")] | None = optional(
        "Option that shows the GPUs to a container, or none. Without it `--nv` of Apptainer, `--gpu` of podman-hpc, "
        "`--gpus=all` of Docker.",
        "--rocm",
    )
    modules: list[Text] = optional("Modules of Shifter.", ["gpu", "nccl-2.18"], default=[])
    annotations: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")], Text] = optional(
        "Annotations of the environment file, for the runtime edf.",
        {"com.hooks.aws_ofi_nccl.enabled": "true"},
        default={},
    )
    options: list[Annotated[str, Field(pattern=r"^-[^\n\r\x00]*$")]] = optional(
        "Further options of Shifter, podman-hpc, Docker or Apptainer.", ["--nvccli"], default=[]
    )

    @property
    def record(self) -> ContainerRuntime:
        """Record of the runtime."""
        record = RUNTIMES.find(self.runtime)
        assert record is not None
        return record

    def has(self, name: str) -> bool:
        """Return whether the runtime's version has the option of a field; without `version` it has all."""
        since = self.record.since.get(name)
        return since is None or self.version is None or release(self.version) >= since

    @model_validator(mode="after")
    def _runtime_supports_fields(self) -> ContainerFields:
        for name in _SPECIAL:
            if getattr(self, name) == type(self).model_fields[name].get_default(call_default_factory=True):
                continue
            if not self.has(name):
                oldest = ".".join(map(str, self.record.since[name]))
                raise ValueError(f"{name} needs {self.runtime} {oldest} or newer, but version is {self.version}")
            if name not in self.record.fields:
                runtimes = " or ".join(runtime.name for runtime in _OWN if name in runtime.fields)
                raise ValueError(f"{name} needs runtime {runtimes}, but runtime is {self.runtime}")
        return self


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, which compare as versions do."""
    return tuple(int(part) for part in version.split("."))


FILE_ENDINGS = (".sqsh", ".squashfs", ".sif")


@dataclass(frozen=True, slots=True)
class Image:
    """A container image: a file at `path`, or `name` in the registry `host` ("" is the runtime's default).

    `name` includes tag and digest, as in `nvidia/pytorch:20.12-py3@sha256:...`.
    """

    path: str | None = None
    host: str = ""
    name: str = ""

    @property
    def for_enroot(self) -> str:
        """Image in the syntax of pyxis and enroot, HOST#NAME, which all their versions read."""
        return self.path or (f"{self.host}#{self.name}" if self.host else self.name)

    @property
    def for_docker(self) -> str:
        """Image in the syntax of Docker, Podman, Shifter and Apptainer, HOST/NAME."""
        return self.path or (f"{self.host}/{self.name}" if self.host else self.name)

    @property
    def file_stem(self) -> str:
        """File name of an imported image without its extension: `nvidia+pytorch+20.12-py3`."""
        return re.sub(r"[^A-Za-z0-9._-]+", "+", self.name).strip("+")


def read_image(text: str) -> Image:
    """Parse the path or the registry name of an image. All spellings of registry names are supported.

    ValueError for everything else, such as `dockerd://`, the image of a Docker daemon on one node.

    >>> read_image("docker://registry.example/team/torch:1").for_enroot
    'registry.example#team/torch:1'
    """
    if text.startswith(("/", "./")):
        return Image(path=text)
    if text.endswith(FILE_ENDINGS):
        # pyxis reads foo.sqsh without ./ as an image in a registry.
        raise ValueError("an image file needs a path, /... or ./...")
    name = text.removeprefix("docker://")
    host, mark, rest = name.partition("#")
    if not mark:
        first, slash, after = name.partition("/")
        is_host = slash and ("." in first or ":" in first or first == "localhost")
        host, rest = (first, after) if is_host else ("", name)
    if not re.fullmatch(r"[a-z0-9][a-z0-9._/-]*(:[\w][\w.-]*)?(@sha256:[0-9a-f]{64})?", rest):
        raise ValueError("must be a path, /... or ./..., or an image in a registry, HOST/NAME:TAG")
    if not re.fullmatch(r"([A-Za-z0-9.$@_-]+(:[0-9]+)?)?", host):
        raise ValueError("the registry must be HOST or HOST:PORT")
    return Image(host=host, name=rest)
