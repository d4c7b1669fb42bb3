"""Files: safe reading of what jobs leave, start and end records of scripts, locks, and files that are written whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from orchestrator.errors import EXIT_UNREACHABLE, Problem, ReproError

FOLDER_MODE = 0o750
"""Mode of every folder of a run: the user may write, the group may read."""

_LONGEST_NAME = 255
"""Longest file name in bytes on Linux file systems."""

PASS_THROUGH: int = getattr(os, "O_PATH", os.O_RDONLY)
"""Flag that opens a folder which may be entered but not listed. macOS does not have it."""


class Unreadable(ReproError):
    """A file that exists, or may exist, cannot be read. Nothing can be concluded from it (exit code 3)."""

    exit_code = EXIT_UNREACHABLE


def single_name(name: str) -> str:
    """Return `name` if it names one entry of a folder. Raise ReproError if it leads elsewhere."""
    if name in ("", ".", "..") or any(character in "/\x7f" or character < " " for character in name):
        raise ReproError(Problem(f"{name!r} is not a valid name of a file or folder"))
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise ReproError(Problem(f"{name!r} is not a valid name of a file or folder")) from None
    if length > _LONGEST_NAME:
        raise ReproError(Problem(f"{name[:40]!r}... is longer than {_LONGEST_NAME} bytes"))
    return name


def open_job_file(folder: Path, name: str) -> BinaryIO | None:
    """Open the regular file `name` in `folder` for reading. Return None if it does not exist (yet).

    Raise Unreadable if it may not be read, and ReproError if it is not a regular file or the folder leads elsewhere.
    """
    single_name(name)
    path = folder / name
    try:
        inside = _open_folder(folder)
        try:
            # The check comes before the open: opening a device can have an effect.
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


def tail_bytes(folder: Path, name: str, last: int) -> bytes:
    """Return up to `last` bytes from the end of the file; nothing if it does not exist. Errors: `open_job_file`."""
    return read_job_file(folder, name, last) or b""


def read_job_file(folder: Path, name: str, last: int = -1) -> bytes | None:
    """Return the whole file or its last bytes; None if it does not exist. Errors are those of `open_job_file`."""
    file = open_job_file(folder, name)
    if file is None:
        return None
    with file:
        try:
            if last >= 0:
                file.seek(max(0, os.fstat(file.fileno()).st_size - last))
            return file.read(last)
        except OSError as error:
            raise _unreadable(folder / name, error) from None


def private_folder(path: Path) -> None:
    """Make a folder and its missing parents, each for user and group only, whatever the umask.

    Existing folders stay as they are. Raise OSError if a folder cannot be made.
    """
    if path.is_dir():
        return
    private_folder(path.parent)
    try:
        path.mkdir(FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():  # another process may have made it in the meantime
            raise
        return
    # A project's folder passes its group on by the set-group-id bit, which a plain chmod would remove.
    path.chmod(FOLDER_MODE | (path.stat().st_mode & stat.S_ISGID))


_KEPT_HINT = "remove this folder, then repeat the command"


def keep_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder with exactly these files, unless it exists; for user and group, and complete or not at all.

    ReproError if it cannot be written, or if it has other contents.
    """
    try:
        if not folder.exists():
            private_folder(folder.parent)
            _write_at_once(folder, files)
        _require_same(folder, files)
    except OSError as error:
        what = f"the files that jobs import cannot be copied ({error.strerror or error})"
        hint = "set REPRO_HOME to a folder that you can write to"
        raise ReproError(Problem(what, str(error.filename or folder), hint)) from None


def _write_at_once(folder: Path, files: Mapping[str, bytes]) -> None:
    unfinished = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        for name, content in files.items():
            path = unfinished / name
            private_folder(path.parent)
            path.write_bytes(content)
            path.chmod(0o640)
        unfinished.rename(folder)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not folder.exists():  # else another process was faster
            raise


def _require_same(folder: Path, files: Mapping[str, bytes]) -> None:
    """Raise ReproError if a file differs, or if the folder has another file that a job could import."""
    for name, content in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            raise ReproError(Problem("differs from the file that its jobs are recorded with", str(path), _KEPT_HINT))
    known = {name.partition("/")[0] for name in files}
    others = sorted(path for path in folder.iterdir() if path.name not in known)
    if others:
        raise ReproError(Problem("not a file of repro, and jobs could import it", str(others[0]), _KEPT_HINT))


def _open_folder(folder: Path) -> int:
    """Open the folder. If it is a link, open its target, which must be below the same parent."""
    real = folder
    if folder.is_symlink():
        real = Path(os.path.realpath(folder))
        above = Path(os.path.realpath(folder.parent))
        if above not in real.parents:
            raise ReproError(
                Problem(f"is a link that leads out of {folder.parent}, so it is not followed", f"{folder}:")
            )
    return os.open(real, PASS_THROUGH | os.O_DIRECTORY | os.O_NOFOLLOW)


def _require_file(status: os.stat_result, path: Path) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
    raise ReproError(Problem(f"is {kind} and not a file, so it is not read", f"{path}:"))


def _unreadable(path: Path, error: OSError) -> Unreadable:
    return Unreadable(Problem(f"cannot be read ({error.strerror or error})", f"{path}:"))


LONGEST_RECORD = 1 << 16
"""Longest record in bytes. A script writes a few hundred."""


@dataclass(frozen=True, slots=True)
class ScriptRecord:
    """Start or end record of a job.

    `inside_image` is "2/2" if both of two nodes ran the job's task inside `image`; None without a container. `commit`
    is the commit of the program's checkout at the start of the job; None without a checkout or if it is unknown.
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
        """Return what `inside_image` lacks; None if it is complete or the job has no container."""
        if self.inside_image is None:
            return None
        inside, _, nodes = self.inside_image.partition("/")
        if inside == nodes and inside.isdecimal():
            return None
        all_nodes = f"{nodes} node{'' if nodes == '1' else 's'}" if nodes else "its nodes"
        return f"{inside or 'none'} of {all_nodes} ran it inside {self.image}"

    @property
    def nodes_inside(self) -> int | None:
        """Return the number of nodes that ran the job's task inside the image; None if it is not recorded."""
        nodes = (self.inside_image or "").partition("/")[0]
        return int(nodes) if re.fullmatch("[0-9]{1,9}", nodes) else None


def read_record(path: Path) -> ScriptRecord | None:
    """Return the record at `path`, or None if it does not exist yet. Scripts rename records into place, complete.

    Raise Unreadable if the file may not be read, and ReproError if it is not a regular file.
    """
    text = tail_bytes(path.parent, path.name, LONGEST_RECORD).decode(errors="replace")
    fields: Mapping[str, str] = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    try:
        return ScriptRecord(
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


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Exclude other processes that lock this path, which need not exist. Folders above it are made.

    ReproError if another process has the lock, unless `wait`. On a file system without locks it has no effect.
    """
    file = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _lock(file, wait=wait)
    except BlockingIOError:
        raise ReproError(Problem("another command writes this", f"{path}:", "wait until it has ended")) from None
    except OSError as error:
        raise ReproError(Problem(f"cannot be written ({error.strerror or error})", f"{path}:")) from None
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(handle)


def _lock(file: Path, *, wait: bool) -> int:
    """Return the open lock file."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o660)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                os.close(handle)
                raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), file.stat()):
                return handle
        os.close(handle)  # the process that had the lock has removed its file


@contextlib.contextmanager
def written_whole(file: Path) -> Iterator[Path]:
    """Yield a path to write to. It replaces the file at the end, so an interrupted command leaves no partial file."""
    part = file.with_name(f".{file.name}.part{file.suffix}")
    try:
        yield part
        part.replace(file)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise ReproError(Problem(f"{file}: cannot be written ({error.strerror})")) from None
        raise


def names_folder(output: Path | str | None) -> bool:
    """Return whether an output is a folder: none is named, it exists as one, or its name ends with a slash."""
    return output is None or str(output).endswith("/") or Path(output).is_dir()


def require_place(file: Path) -> None:
    """Raise ReproError if the file cannot be written. Commands check this before they compute its content."""
    folder = file.parent
    if file.is_dir():
        raise ReproError(Problem(f"{file}: a folder, not a file", hint="name a file in it"))
    if file.exists() and not file.is_file():  # a device, whose place a file would take
        raise ReproError(Problem(f"{file}: not a regular file", hint="leave -o out and redirect the output"))
    if not folder.exists():
        raise ReproError(Problem(f"{file}: there is no folder {folder}", hint=f"mkdir -p {shlex.quote(str(folder))}"))
    if not folder.is_dir():
        raise ReproError(Problem(f"{file}: {folder} is not a folder"))
    if not os.access(folder, os.W_OK):
        raise ReproError(Problem(f"{file}: {folder} is not writable for you", hint="name a file elsewhere"))


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a command has written. `kind` is its content."""

    file: Path
    kind: str
    bytes: int


def written_files(kind: str, *files: Path | None) -> list[WrittenFile]:
    """Return the files that were written, as rows."""
    return [WrittenFile(file, kind, file.stat().st_size) for file in files if file is not None]
