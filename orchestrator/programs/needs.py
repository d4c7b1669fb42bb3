"""Code and data that a program needs: where they are public, and the fields of a profile with their paths."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pydantic import ValidationInfo, field_validator

from orchestrator.config.model import Strict

GITHUB = "https://github.com"


@dataclass(frozen=True, slots=True)
class Repository:
    """Git repository whose checkout a field of the profile names.

    `name` is OWNER/NAME on GitHub. `commit` is a full hash; a branch or tag where the paper names no commit. `code:` in
    a paper.yaml replaces both of a `checkout`; they are None if only a paper has them. `subfolder`: the field names
    this folder of the checkout.
    """

    field: str = "checkout"
    name: str | None = None
    commit: str | None = None
    subfolder: str = ""


@dataclass(frozen=True, slots=True)
class PublicFile:
    """File with a public address. `name` is its usual name, `sha256` its checksum in hexadecimal digits."""

    field: str
    name: str
    url: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TokenData:
    """Data set of tokens, PREFIX.bin and PREFIX.idx; the field of the profile names PREFIX.

    Tokens are below `vocabulary`. `published` describes the data of the paper.
    """

    vocabulary: int
    published: str
    field: str = "data_path"


Need = Repository | PublicFile | TokenData


class ProgramSite(Strict):
    """Fields of a profile's `programs: NAME:`. Texts are paths; `python` can be a name in PATH."""

    @field_validator("*")
    @classmethod
    def _absolute(cls, value: object, info: ValidationInfo) -> object:
        is_relative = isinstance(value, str) and not value.startswith(("/", "<"))
        if is_relative and (info.field_name != "python" or "/" in str(value)):
            raise ValueError("must be an absolute path, because a job runs this program in its own folder")
        return value


def fetch_command(program: str, cluster: str) -> str:
    """Return the command that fetches what a program needs to the paths of a profile."""
    return f"repro programs fetch {program} --cluster {shlex.quote(cluster)}"


def directory_hint(program: str, cluster: str) -> str:
    """Return the hint for paths that a profile lacks."""
    return f"{fetch_command(program, cluster)} --directory /SHARED/FOLDER fetches what is needed, and prints the paths"
