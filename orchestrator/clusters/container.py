"""What a profile says of containers: the runtime, its images and mounts, and what crosses into them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Tag, model_validator

from orchestrator.clusters.conditions import BY_KIND, MountFields, filled_names
from orchestrator.clusters.images import read_image
from orchestrator.documents.model import Strict, Text

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
