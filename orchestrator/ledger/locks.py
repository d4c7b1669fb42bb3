"""Whether the ledger's file system keeps two writers apart: SQLite has nothing but its locks."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import struct
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Problem, ReproError

LOCAL = frozenset(
    ("apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs")
)
"""Types of one machine's own file systems: the kernel keeps their locks."""

MOUNTS = Path("/proc/self/mountinfo")

_MEND = "keep it elsewhere: --database FILE on a local disk, or a PostgreSQL URL"

# Mount options that keep locks from other hosts: nfs(5) and, for the last, mount.lustre(8). There one host's own
# processes do exclude each other, so that trying shows nothing.
_NO_LOCKS_BETWEEN_HOSTS = frozenset(("nolock", "local_lock=all", "local_lock=posix", "localflock"))

# The byte that SQLite locks first (PENDING_BYTE in its os.h); a lock may lie beyond the end of a file.
_LOCKED_BYTE = 0x40000000

# Linux has locks of an open file, which a lock of its own process keeps out (fcntl(2)): no second process is needed,
# whose start takes tens of milliseconds on a busy login node.
_OWN_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)


@dataclass(frozen=True, slots=True)
class FileSystem:
    """What a folder lies on."""

    type: str
    mount_point: str
    options: frozenset[str]

    @property
    def is_local(self) -> bool:
        """Return whether the file system is one of this machine."""
        return self.type in LOCAL

    def __str__(self) -> str:
        return f"{self.type} at {self.mount_point}"


def file_system_of(folder: Path) -> FileSystem | None:
    """Return the file system of a folder, found by its mount's number; None if there is no /proc."""
    try:
        number = _mount_number(folder)
        for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
            words = line.split(" ")
            if words[0] == number:
                kind, _source, options = words[words.index("-") + 1 :][:3]
                return FileSystem(kind, _unescaped(words[4]), frozenset([*words[5].split(","), *options.split(",")]))
    except (OSError, ValueError):
        pass
    return None


def require_locks(file: Path, *, new: bool) -> None:
    """Raise ReproError where two processes, or two hosts, could write the ledger at the same moment.

    A local file system is believed, except when the ledger is made: then, and wherever else the ledger lies, a lock is
    tried (0.1 ms).
    """
    folder = file.resolve().parent
    place = file_system_of(folder)
    if place is not None and (apart := sorted(place.options & _NO_LOCKS_BETWEEN_HOSTS)):
        raise ReproError(Problem(f"{file}: {place} keeps no locks between hosts ({apart[0]})", hint=_MEND))
    if not new and place is not None and place.is_local:
        return
    fault = _fault_of_locks(folder)
    if fault is not None:
        where = str(place) if place is not None else f"the file system of {folder}"
        raise ReproError(Problem(f"{file}: {where} has no working locks ({fault})", hint=_MEND))


def require_rollback_journal(file: Path, journal_mode: str) -> None:
    """Raise ReproError for a ledger that somebody set to WAL where several hosts may see it.

    Its readers and writers share memory, so all must be on one host (sqlite.org/wal.html).
    """
    if journal_mode != "wal":
        return
    place = file_system_of(file.resolve().parent)
    if place is not None and not place.is_local:
        hint = f"end every repro, then: sqlite3 {shlex.quote(str(file))} 'pragma journal_mode=delete'"
        raise ReproError(Problem(f"{file}: is in WAL mode, which {place} cannot keep for several hosts", hint=hint))


def _fault_of_locks(folder: Path) -> str | None:
    """Return what is wrong with locks in this folder: a lock that SQLite takes must exclude other processes."""
    # Never the ledger itself: closing any descriptor of a file gives up all locks this process has on it (fcntl(2)).
    try:
        handle, name = tempfile.mkstemp(prefix=".repro-lock-", dir=folder)
    except OSError:
        return None  # nothing can be written here: SQLite says so
    try:
        if refused := _refusal(handle):
            return os.strerror(refused)
        refused = _refusal_of_another(handle, name)
    finally:
        os.close(handle)
        with suppress(OSError):
            Path(name).unlink()
    if refused == 0:
        return "two got the same one"
    return None if refused in (errno.EACCES, errno.EAGAIN) else os.strerror(refused)


def _refusal_of_another(handle: int, name: str) -> int:
    """Return the result of another process that requests this process's lock: an errno, or 0 if it got the lock."""
    if _OWN_LOCK is not None:
        other = os.open(name, os.O_RDWR)
        try:
            refused = _refusal(other, _OWN_LOCK)
        finally:
            os.close(other)
        if refused != errno.EINVAL:
            return refused
        _refusal(handle)  # a kernel without such locks; and to close the other gave up ours
    return _refusal_of_a_child(handle)


def _refusal_of_a_child(handle: int) -> int:
    # Told through a pipe: where a parent of ours ignores SIGCHLD, the kernel keeps no exit status.
    answer, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(tell, str(_refusal(handle)).encode())
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(answer, encoding="ascii") as said:
        refused = said.read()
    with suppress(ChildProcessError):
        os.waitpid(child, 0)
    return int(refused or errno.EAGAIN)  # a child that was killed says nothing against the locks


def _refusal(handle: int, command: int = fcntl.F_SETLK) -> int:
    """Ask for the lock, without waiting: 0 when it is there now, else the error's number."""
    wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _LOCKED_BYTE, 1, 0)  # struct flock
    try:
        fcntl.fcntl(handle, command, wanted)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _mount_number(folder: Path) -> str | None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        said = Path(f"/proc/self/fdinfo/{handle}").read_text()
    finally:
        os.close(handle)
    return next((line.split()[1] for line in said.splitlines() if line.startswith("mnt_id:")), None)


def _unescaped(word: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, letter)
    return word
