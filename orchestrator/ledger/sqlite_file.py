"""SQLite file of a ledger, without SQLAlchemy, which takes 0.3 s to load: its locks, and read-only connections.

SQLite excludes a second writer by locks of the file system, so that must have working ones.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import sqlite3
import struct
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from orchestrator.errors import Problem, ReproError

LOCAL = frozenset(
    ("apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs")
)
"""Types of local file systems. The kernel of the machine manages their locks."""

MOUNTS = Path("/proc/self/mountinfo")

_HINT = "keep it elsewhere: --database FILE on a local disk, or a PostgreSQL URL"

# Mount options that hide locks from other hosts: nfs(5) and, for the last, mount.lustre(8). A trial on one host
# succeeds, because its own processes exclude each other.
_NO_LOCKS_BETWEEN_HOSTS = frozenset(("nolock", "local_lock=all", "local_lock=posix", "localflock"))

# The byte that SQLite locks first (PENDING_BYTE in its os.h). A lock may be beyond the end of a file.
_LOCKED_BYTE = 0x40000000

# A lock of an open file (fcntl(2), since Linux 3.15) excludes other locks of its own process, so the check needs no
# second process. Without such locks nothing is checked.
_OWN_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)


@dataclass(frozen=True, slots=True)
class FileSystem:
    """File system of a folder."""

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
    """Return the file system of a folder by the number of its mount; None without /proc."""
    try:
        number = _mount_number(folder)
        for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
            fields = line.split(" ")
            if fields[0] == number:
                kind, _source, options = fields[fields.index("-") + 1 :][:3]
                return FileSystem(kind, _unescaped(fields[4]), frozenset([*fields[5].split(","), *options.split(",")]))
    except (OSError, ValueError):
        pass
    return None


def require_locks(file: Path, *, new: bool) -> None:
    """Raise ReproError if two processes, or two hosts, could write the ledger at the same time.

    The check tries a lock (0.1 ms), unless an existing ledger is on a local file system.
    """
    folder = file.resolve().parent
    system = file_system_of(folder)
    if system is not None and (options := sorted(system.options & _NO_LOCKS_BETWEEN_HOSTS)):
        raise ReproError(Problem(f"{system} keeps no locks between hosts ({options[0]})", f"{file}:", _HINT))
    if not new and system is not None and system.is_local:
        return
    fault = _fault_of_locks(folder)
    if fault is not None:
        name = str(system) if system is not None else f"the file system of {folder}"
        raise ReproError(Problem(f"{name} has no working locks ({fault})", f"{file}:", _HINT))


def require_rollback_journal(file: Path, journal_mode: str) -> None:
    """Raise ReproError for a ledger in WAL mode on a file system that several hosts may see.

    In WAL mode readers and writers share memory, so all must be on one host (sqlite.org/wal.html).
    """
    if journal_mode != "wal":
        return
    system = file_system_of(file.resolve().parent)
    if system is not None and not system.is_local:
        hint = f"end every repro, then: sqlite3 {shlex.quote(str(file))} 'pragma journal_mode=delete'"
        raise ReproError(Problem(f"is in WAL mode, which {system} cannot keep for several hosts", f"{file}:", hint))


def _fault_of_locks(folder: Path) -> str | None:
    """Return why locks in this folder do not exclude other processes; None if they do."""
    # Not tried on the ledger: to close any descriptor of a file releases all locks of this process on it (fcntl(2)).
    try:
        handle, name = tempfile.mkstemp(prefix=".repro-lock-", dir=folder)
    except OSError:
        return None  # nothing can be written here, which SQLite reports
    try:
        if refused := _refusal(handle):
            return os.strerror(refused)
        other = os.open(name, os.O_RDWR)
        try:
            refused = errno.EINVAL if _OWN_LOCK is None else _refusal(other, _OWN_LOCK)
        finally:
            os.close(other)
    finally:
        os.close(handle)
        with suppress(OSError):
            Path(name).unlink()
    if refused == 0:
        return "two processes got the same lock"
    return None if refused in (errno.EACCES, errno.EAGAIN, errno.EINVAL) else os.strerror(refused)


def _refusal(handle: int, command: int = fcntl.F_SETLK) -> int:
    """Request the lock without waiting. Return 0 if this process got it, else the errno."""
    wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _LOCKED_BYTE, 1, 0)  # struct flock
    try:
        fcntl.fcntl(handle, command, wanted)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _mount_number(folder: Path) -> str | None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        info = Path(f"/proc/self/fdinfo/{handle}").read_text()
    finally:
        os.close(handle)
    return next((line.split()[1] for line in info.splitlines() if line.startswith("mnt_id:")), None)


def _unescaped(word: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, letter)
    return word


SCHEMA = "0018"
"""Number of the schema. It follows those of the schemas before it, which this version does not read."""

_SHORT_WAIT_S = 1.0


def read_only(file: Path, timeout_s: float) -> sqlite3.Connection:
    """Open the file, which must exist, so that nothing can write to it. Wait so long for a writer."""
    return sqlite3.connect(f"file:{quote(str(file.resolve()))}?mode=ro", uri=True, timeout=timeout_s)


JOB_COUNTS = """
    WITH asked_for AS (
        SELECT DISTINCT runs.experiment, runs.scale, runs.cluster, run_jobs.job_id
        FROM run_jobs JOIN runs ON runs.id = run_jobs.run_id
    ), newest AS (
        SELECT job_id, max(number) AS number, max(CASE WHEN verdict = 'verified' THEN 1 ELSE 0 END) AS is_verified,
            max(CASE WHEN verdict = 'partial' THEN 1 ELSE 0 END) AS is_partial
        FROM attempts GROUP BY job_id
    )
    SELECT asked_for.experiment, asked_for.scale, asked_for.cluster, jobs.program,
        CASE WHEN is_verified = 1 THEN 'verified' WHEN is_partial = 1 THEN 'partial' ELSE attempts.verdict END,
        attempts.failure, attempts.phase, count(*)
    FROM asked_for
        JOIN jobs ON jobs.id = asked_for.job_id
        JOIN newest ON newest.job_id = jobs.id
        JOIN attempts ON attempts.job_id = jobs.id AND attempts.number = newest.number
    GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7
"""


class JobCount(NamedTuple):
    """Number of jobs of an experiment with the same program, result, and phase of the latest attempt.

    `verdict` is that of the result, `failure` the failure class of the latest attempt.
    """

    experiment: str
    scale: str
    cluster: str
    program: str
    verdict: str | None
    failure: str | None
    phase: str
    jobs: int = 1


def job_counts_in_file(file: Path) -> list[JobCount] | None:
    """Return the counts of all experiments; None if the file is not a whole ledger of this version, or is locked.

    Then `open_ledger` waits, or raises the error. ReproError as by `open_ledger` for a file system
    without locks.
    """
    require_locks(file, new=False)
    try:
        with closing(read_only(file, _SHORT_WAIT_S)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            require_rollback_journal(file, mode)
            if connection.execute("SELECT version_num FROM alembic_version").fetchall() != [(SCHEMA,)]:
                return None
            return [JobCount(*row) for row in connection.execute(JOB_COUNTS)]
    except (sqlite3.Error, UnicodeDecodeError):
        return None
