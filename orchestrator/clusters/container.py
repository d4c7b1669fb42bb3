"""Container settings of a profile, conditions on the size of a job, and the syntax of image names."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal

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

from orchestrator.config.model import Strict, Text

When = Literal["nodes > 1", "nodes == 1"]
"""Several nodes need what connects them; one node is often slower, or broken, with it."""

_NAME = re.compile(r"\{([^{}]*)\}")


def holds(when: When | None, nodes: int) -> bool:
    return when is None or (nodes > 1) == (when == "nodes > 1")


def _kind(value: Any) -> str:
    if isinstance(value, (dict, BaseModel)):
        return "fields"
    return "list" if isinstance(value, list) else "plain"


# Which of its forms a value has is seen from its kind, so that a fault is one complaint and not one for each form.
BY_KIND = Discriminator(_kind)


def _text(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and any(character in value for character in "\n\r\0"):
        raise ValueError("must be one line of text")
    return value


class MountFields(Strict):
    """A mount that only some jobs have: `SOURCE`, `SOURCE:TARGET` or `SOURCE:TARGET:FLAGS`."""

    mount: Text
    when: When


class SetupFields(Strict):
    """A line of the script that only some jobs have."""

    run: Text
    when: When


class VariableFields(Strict):
    """A variable that only some jobs have."""

    value: Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": ["string", "integer"]})]
    when: When


SetupLine = Annotated[Annotated[Text, Tag("plain")] | Annotated[SetupFields, Tag("fields")], BY_KIND]


def filled_names(text: str, known: Collection[str]) -> str:
    """`text`, which may name these in braces; ValueError for another."""
    for name in _NAME.findall(text):
        if name not in known:
            there = ", ".join(f"{{{one}}}" for one in known)
            raise ValueError(f"{{{name}}} is not known here, only {there}")
    return text


RUN_NAMES = ("job_id", "user")
"""What a mount may name in braces; filled in where the job runs."""

Runtime = Literal["pyxis", "edf", "shifter", "podman-hpc", "apptainer"]

EXPANDED_BY_PYXIS = '$`"\\'
"""Characters that a mount must not contain. pyxis writes mounts into a shell script that enroot runs on the node."""

# The oldest pyxis with each thing that a profile can ask of it (its changelog).
_PYXIS_SINCE = {"writable": (0, 11), "pass_env": (0, 15)}


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
        raise ValueError("one mount to a line: pyxis divides its list at commas")
    if any(character in value for character in EXPANDED_BY_PYXIS):
        names = " and ".join(f"{{{name}}}" for name in RUN_NAMES)
        raise ValueError(f'a mount must not contain $, `, " or \\, which a shell on the node expands; use {names}')
    if value.count(":") > 2:
        raise ValueError("a mount is SOURCE:TARGET:FLAGS")
    return filled_names(value, RUN_NAMES)


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


class ContainerFields(Strict):
    """`images` says which image stands for one that a paper names: a file, or a place in a registry.

    `edf` is CSCS's `--environment`. `pass_env` names variables of the host that win over the image's own, `NCCL_*` all
    that start so; `modules` are Shifter's, `annotations` the EDF's, `options` further words for podman-hpc, Shifter or
    Apptainer. The script passes `mount_home` and `writable` to the runtime also where they are false, because the
    defaults differ from site to site. pyxis has no option for a read-only image before 0.11.
    """

    runtime: Runtime
    version: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)*$")] | None = None
    images: dict[Text, Annotated[Text, AfterValidator(_image)]] = {}
    mounts: list[Mount] = []
    pass_env: list[PassedName] = []
    writable: bool = False
    mount_home: bool = False
    modules: list[Text] = []
    annotations: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")], Text] = {}
    options: list[Annotated[str, Field(pattern=r"^-[^\n\r\x00]*$")]] = []

    @property
    def has_readonly_option(self) -> bool:
        """Whether this pyxis has an option for read-only images. True if `version` is not given."""
        return self.version is None or _release(self.version) >= _PYXIS_SINCE["writable"]

    @model_validator(mode="after")
    def _runtime_knows_it(self) -> ContainerFields:
        if self.runtime == "pyxis" and self.version:
            have = _release(self.version)
            for name, since in _PYXIS_SINCE.items():
                if getattr(self, name) and have < since:
                    oldest = ".".join(map(str, since))
                    raise ValueError(f"{name} needs pyxis {oldest} or newer, version says {self.version}")
        for name, runtimes in _ONLY_FOR.items():
            if getattr(self, name) and self.runtime not in runtimes:
                raise ValueError(f"{name} is for {' and '.join(runtimes)}, not for {self.runtime}")
        return self


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


_ONLY_FOR: dict[str, tuple[Runtime, ...]] = {
    "pass_env": ("pyxis", "podman-hpc"),  # the others hand all of the host's on
    "writable": ("pyxis", "edf", "apptainer"),
    "mount_home": ("pyxis", "edf", "podman-hpc", "apptainer"),  # Shifter mounts it where its site says so
    "modules": ("shifter",),
    "annotations": ("edf",),
    "options": ("podman-hpc", "shifter", "apptainer"),
}


FILE_ENDINGS = (".sqsh", ".squashfs", ".sif")


@dataclass(frozen=True, slots=True)
class Image:
    """`path` is a file's. Of an image in a registry `host` is "" for the runtime's own default registry; `name` has
    the tag and the digest, as in `nvidia/pytorch:20.12-py3@sha256:...`.
    """

    path: str | None = None
    host: str = ""
    name: str = ""

    @property
    def for_enroot(self) -> str:
        """As pyxis and enroot read it in every version: HOST#NAME."""
        return self.path or (f"{self.host}#{self.name}" if self.host else self.name)

    @property
    def for_docker(self) -> str:
        """As Docker, Podman, Shifter and Apptainer read it: HOST/NAME."""
        return self.path or (f"{self.host}/{self.name}" if self.host else self.name)

    @property
    def file_stem(self) -> str:
        """What an imported copy is called: `nvidia+pytorch+20.12-py3`."""
        return re.sub(r"[^A-Za-z0-9._-]+", "+", self.name).strip("+")


def read_image(text: str) -> Image:
    """A path, or a registry's name for an image in any of the ways it is written; ValueError for what is neither, such
    as `dockerd://`, which is an image of one node's own Docker.

    >>> read_image("docker://registry.example/team/torch:1").for_enroot
    'registry.example#team/torch:1'
    """
    if text.startswith(("/", "./")):
        return Image(path=text)
    if text.endswith(FILE_ENDINGS):
        # pyxis takes foo.sqsh without ./ for the name of an image in a registry.
        raise ValueError("an image's file must be given with its path, /... or ./...")
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
