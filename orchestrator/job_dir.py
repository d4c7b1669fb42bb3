"""Job folders: safe reading and writing of files that jobs leave, and the start and end records of a script."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from orchestrator.errors import EXIT_UNREACHABLE, Problem, ReproError

FOLDER_MODE = 0o750
"""Of every folder of a run: its user's, and its group may look."""

_LONGEST_NAME = 255
"""Bytes of a file's name on the file systems of Linux."""

# Enough to find a file in a folder that may be passed through and not be listed; macOS has no such thing.
_PASS_THROUGH: int = getattr(os, "O_PATH", os.O_RDONLY)


class Unreadable(ReproError):
    """The file is, or may be, there, and cannot be read: nothing can be concluded from it (exit code 3)."""

    exit_code = EXIT_UNREACHABLE


def single_name(name: str) -> str:
    """`name` itself, where it is the name of one thing in a folder; ReproError for everything that leads elsewhere."""
    if name in ("", ".", "..") or any(character in "/\x7f" or character < " " for character in name):
        raise ReproError(Problem(f"{name!r} is no name for a file or a folder"))
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise ReproError(Problem(f"{name!r} is no name for a file or a folder")) from None
    if length > _LONGEST_NAME:
        raise ReproError(Problem(f"{name[:40]!r}... is longer than the {_LONGEST_NAME} bytes that a name may have"))
    return name


def open_job_file(folder: Path, name: str) -> BinaryIO | None:
    """The regular file `name` in `folder`, open for reading; None where it is not there (yet).

    Unreadable where it may not be read; ReproError where it, or the folder, is something else than it should be.
    """
    single_name(name)
    path = folder / name
    try:
        inside = _open_folder(folder)
        try:
            # Looked at before it is opened: to open a device can do something.
            _require_file(os.stat(name, dir_fd=inside, follow_symlinks=False), path)
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=inside)
        finally:
            os.close(inside)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, error) from None
    try:
        _require_file(os.fstat(opened), path)
    except ReproError:
        os.close(opened)
        raise
    return os.fdopen(opened, "rb")


def read_job_file(folder: Path, name: str) -> bytes | None:
    """All of it; else as `open_job_file`."""
    file = open_job_file(folder, name)
    if file is None:
        return None
    with file:
        try:
            return file.read()
        except OSError as error:
            raise _unreadable(folder / name, error) from None


def tail_bytes(folder: Path, name: str, last: int) -> bytes:
    """At most the `last` bytes of the file, and nothing where it is not there; else as `open_job_file`."""
    file = open_job_file(folder, name)
    if file is None:
        return b""
    with file:
        try:
            file.seek(max(0, os.fstat(file.fileno()).st_size - last))
            return file.read(last)
        except OSError as error:
            raise _unreadable(folder / name, error) from None


def private_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, each for user and group only, whatever the umask.

    Those that are there stay as they are. OSError where one cannot be made.
    """
    if path.is_dir():
        return
    private_folder(path.parent)
    try:
        path.mkdir(FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():  # another process may have made it meanwhile
            raise
        return
    # A project's folder hands its group on by the set-group-id bit, which a plain chmod would take away.
    path.chmod(FOLDER_MODE | (path.stat().st_mode & stat.S_ISGID))


def _open_folder(folder: Path) -> int:
    """The folder itself, or where it is a link, the folder beside it that it names."""
    real = folder
    if folder.is_symlink():
        real = Path(os.path.realpath(folder))
        above = Path(os.path.realpath(folder.parent))
        if above not in real.parents:
            raise ReproError(Problem(f"{folder}: a link that leads out of {folder.parent}, and is not followed"))
    return os.open(real, _PASS_THROUGH | os.O_DIRECTORY | os.O_NOFOLLOW)


def _require_file(status: os.stat_result, path: Path) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
    raise ReproError(Problem(f"{path}: {kind} and not a file, so it is not read"))


def _unreadable(path: Path, error: OSError) -> Unreadable:
    return Unreadable(Problem(f"{path}: cannot be read ({error.strerror or error})"))


LONGEST_RECORD = 1 << 16
"""Bytes; a script writes a few hundred."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """`inside_image` is "2/2" where both of two nodes ran the job's task inside `image`; None without a container.

    `commit` is what the program's checkout was at when the job began; None without one, or where nobody could tell.
    """

    exit_code: int
    at: datetime
    host: str
    scheduler_id: str
    pid: int
    image: str | None = None
    inside_image: str | None = None
    commit: str | None = None

    @property
    def outside_image(self) -> str | None:
        """What is wrong with that proof; None where it is complete, or none is due."""
        if self.inside_image is None:
            return None
        seen, _, due = self.inside_image.partition("/")
        if seen == due and seen.isdecimal():
            return None
        return f"{seen or 'none'} of {due or 'its'} nodes ran it inside {self.image}"

    @property
    def nodes_inside(self) -> int | None:
        """Number of nodes that ran the job's task inside the image; None where the record does not contain it."""
        nodes = (self.inside_image or "").partition("/")[0]
        return int(nodes) if re.fullmatch("[0-9]{1,9}", nodes) else None


def read_record(path: Path) -> JobRecord | None:
    """The record at `path`; None when there is none yet (they are renamed into place, so never half of one).

    Unreadable where it may not be read; ReproError where something else is in its place.
    """
    text = tail_bytes(path.parent, path.name, LONGEST_RECORD).decode(errors="replace")
    fields: Mapping[str, str] = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    try:
        return JobRecord(
            exit_code=int(fields["exit_code"]),
            at=datetime.strptime(fields["at"], "%Y-%m-%dT%H:%M:%SZ"),
            host=fields["host"],
            scheduler_id=fields["scheduler_id"],
            pid=int(fields["pid"]),
            image=fields.get("image"),
            inside_image=fields.get("inside_image"),
            commit=fields.get("commit") or None,
        )
    except (KeyError, ValueError):
        return None
