"""Identity of users, machines and processes, and the check that only the current user can change a path."""

from __future__ import annotations

import enum
import grp
import os
import pwd
import socket
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestrator.errors import Problem, ReproError
from orchestrator.files import PASS_THROUGH


class NotOwn(ReproError):
    """The path does not exist, or another user can change it (exit code 2)."""


def user_name() -> str:
    """Return the name of this process's user. The environment has no influence."""
    return name_of_user(os.getuid())


def name_of_user(uid: int) -> str:
    """Return the name of this user, or the number if the user has no name here, as in a container."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def why_not_own(status: os.stat_result) -> str | None:
    """Return why other users can change this file or folder; None if only the current user can.

    A group that has no other member than the current user does not count as other users.
    """
    if status.st_uid != os.getuid():
        return f"belongs to {name_of_user(status.st_uid)}"
    if status.st_mode & stat.S_IWOTH:
        return "is writable by everybody"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return "is writable by its group"
    return None


def why_not_own_path(path: Path) -> str | None:
    """Return why other users can change this path, with links followed; None if they cannot or it does not exist."""
    try:
        return why_not_own(path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def read_own_file(path: Path, runs: Iterable[Path]) -> bytes:
    """Return the bytes of a file in a run folder of the current user, below one of the folders `runs`.

    Raise NotOwn if the file is elsewhere, or if it or a folder between it and `runs` is a link or can be changed by
    another user.
    """
    parts, opened = _enter(path, runs)
    try:
        with os.fdopen(os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _refused(path, "is not a regular file")
            _require_own(path, status)
            return file.read()
    except OSError as error:
        raise _refused(path, f"cannot be read ({error.strerror})") from None
    finally:
        os.close(opened)


def require_own_folder(folder: Path, runs: Iterable[Path]) -> None:
    """Raise NotOwn unless `folder` would be in a run folder of the current user, below one of the folders `runs`.

    A folder that does not exist yet passes: the folder above it decides who can make it.
    """
    parts, opened = _enter(folder, runs)
    try:
        status = os.stat(parts[-1], dir_fd=opened, follow_symlinks=False)
    except FileNotFoundError:
        return
    finally:
        os.close(opened)
    if not stat.S_ISDIR(status.st_mode):
        raise _refused(folder, "is not a folder")
    _require_own(folder, status)


def _enter(path: Path, runs: Iterable[Path]) -> tuple[tuple[str, ...], int]:
    """Return the parts of `path` below its folder of runs, and a descriptor of its parent folder."""
    roots = tuple(runs)
    root, parts = _below(path, roots)
    if root is None or len(parts) < 2 or ".." in parts:
        raise _refused(path, f"is not in a run folder of {' or '.join(map(str, roots)) or 'this ledger'}")
    here = root
    try:
        opened = os.open(root, PASS_THROUGH | os.O_DIRECTORY)
        for name in parts[:-1]:
            here, above = here / name, opened
            try:
                opened = os.open(name, PASS_THROUGH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
            finally:
                os.close(above)
            try:
                _require_own(here, os.fstat(opened))
            except NotOwn:
                os.close(opened)
                raise
    except OSError as error:
        is_link = here.is_symlink()
        raise _refused(here, "is a link" if is_link else f"cannot be opened ({error.strerror})") from None
    return parts, opened


def _below(path: Path, roots: tuple[Path, ...]) -> tuple[Path | None, tuple[str, ...]]:
    """Return the root that contains the path, and the parts below it. A link may give home a second name."""
    for folder in path.parents:
        root = folder if folder in roots else folder.resolve() if folder.name == "runs" else None
        if root in roots:
            return root, path.relative_to(folder).parts
    return None, ()


def _require_own(path: Path, status: os.stat_result) -> None:
    why = why_not_own(status)
    if why is not None:
        raise _refused(path, why)


def _refused(path: Path, why: str) -> NotOwn:
    return NotOwn(
        Problem(f"{why}, so it is not used", f"{path}:", "run repro submit again to write scripts of your own")
    )


def _is_own_group(gid: int) -> bool:
    """Return whether it is the current user's primary group, with their name and no other member."""
    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


class ProcessLocation(enum.Enum):
    """Location of a recorded process, as seen from this process."""

    HERE = "here"
    REBOOTED = "rebooted"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class MachineIdentity:
    """Machine, boot and PID namespace of a process. A field is empty if the system does not provide it.

    `machine_id` is that of machine-id(5), `boot_id` is new at each boot, `pid_namespace` is an inode number.
    """

    machine_id: str
    boot_id: str
    pid_namespace: str

    def __str__(self) -> str:
        return f"{self.machine_id}/{self.boot_id}/{self.pid_namespace}"

    @classmethod
    def parse(cls, text: str) -> MachineIdentity:
        """Return the machine that `str` printed."""
        return cls(*f"{text}//".split("/")[:3])


@cache
def this_machine_identity() -> MachineIdentity:
    """Return the machine, boot and PID namespace of this process."""
    return MachineIdentity(
        machine_id=_text_of(Path("/etc/machine-id")),
        boot_id=_text_of(Path("/proc/sys/kernel/random/boot_id")),
        pid_namespace=_pid_namespace(),
    )


def place_of(machine: str | None, host: str) -> ProcessLocation:
    """Return where a process with this machine and host name belongs.

    Its processes are gone if this machine has been booted since. Without a recorded machine, the host name decides.
    """
    if not machine:
        return ProcessLocation.HERE if host == socket.gethostname() else ProcessLocation.ELSEWHERE
    there, here = MachineIdentity.parse(machine), this_machine_identity()
    if there.boot_id == here.boot_id:
        if not here.boot_id and host != socket.gethostname():
            return ProcessLocation.ELSEWHERE
        return ProcessLocation.HERE if there.pid_namespace == here.pid_namespace else ProcessLocation.ELSEWHERE
    # Copies of a virtual machine may share a machine id, but not their host name as well.
    if there.machine_id and there.machine_id == here.machine_id and host == socket.gethostname():
        return ProcessLocation.REBOOTED
    return ProcessLocation.ELSEWHERE


def start_ticks(pid: int) -> int | None:
    """Return when this process started, in clock ticks since boot; None if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])  # proc(5): field 22


def seconds_since_boot() -> float:
    """Return the time since boot in seconds, suspended time included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def own_start_ticks() -> int | None:
    """Return when this process started, in clock ticks since boot."""
    return start_ticks(os.getpid())


def _text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip().replace("/", "")
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""
