"""The names of container images: a file on the shared file system, or a place in a registry."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
