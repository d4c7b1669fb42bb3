"""Rows of JSON documents about files, sites, programs and bundles: plain values, with units in their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict  # pydantic cannot read the one of Python 3.10


class WrittenFile(TypedDict):
    """The path of a file that a command has written."""

    file: str


class FileRow(TypedDict):
    """A file that a command has written. `kind` is its content."""

    file: Path
    kind: str
    bytes: int


class CheckRow(TypedDict):
    """A check of a profile: `ok`, `wrong`, `open`, ... `location` is the place in the profile."""

    result: str
    place: str
    check: str
    found: str
    location: str | None
    hint: str | None


class ClusterRow(TypedDict):
    """A cluster profile. `open` are the fields without a value."""

    cluster: str
    about: str
    scheduler: str
    nodes: int | None
    gpus_per_node: int | None
    gpu: str | None
    container: str | None
    open: Sequence[str]


class Setting(TypedDict):
    """A field of a profile and its value."""

    field: str
    value: Any


class ProfileField(Setting):
    """A field of a profile with its place."""

    location: str


class ImageFile(TypedDict):
    """An image of a profile. `there` is whether its file exists; `value` is the profile's value."""

    image: str
    value: str
    source: str | None
    there: str | None
    digest: str | None
    digest_of: str | None
    imported: str | None
    user: str | None
    bytes: int | None
    location: str


class ImageImport(TypedDict):
    """An import of an image, by a job or by this machine. `error` is set if it failed."""

    image: str
    file: Path
    job: str | None
    error: str | None


class WorkloadRow(TypedDict):
    """A program, its commit, and the profile's fields that it needs."""

    workload: str
    program: str
    commit: str | None
    needs: Sequence[str]


class NeedRow(TypedDict):
    """Code or data that a program needs, and its state on a cluster."""

    field: str
    what: str
    required: bool
    state: str | None
    path: str | None
    fetched: str | None
    commit: str | None
    source: str
    sha256: str | None


class FetchedFile(TypedDict):
    """Code or data that was fetched, or was there."""

    field: str
    how: str
    files: Sequence[Path]


class ScriptRow(TypedDict):
    """A batch script. `file` is where it was written."""

    name: str
    file: Path | None
    text: str


class ScriptLine(TypedDict):
    """A line of a script, with the files and lines that it comes from."""

    text: str
    origins: Sequence[str]


class BundleCheckRow(TypedDict):
    """A check of a bundle. `proven` is false if there was nothing to compare with."""

    check: str
    what: str
    proven: bool
    differences: Sequence[str]
    notes: Sequence[str]
