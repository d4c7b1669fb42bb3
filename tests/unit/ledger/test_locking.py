"""File systems whose locks do not work: found by trying, found in their mount options, named, and not written to."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.errors import ReproError
from orchestrator.ledger import sqlite_file
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import ledger_url, open_ledger
from orchestrator.ledger.sqlite_file import file_system_of, require_locks
from tests.recorded_jobs import new_ledger, record_jobs
from tests.unit.ledger.conftest import compiled

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[3]

# What a file system does that grants every lock, and one that has no lock server, or keeps none.
SHIM = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

static int answer(int file, int command, void *argument)
{
    if (command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK) {
        if (LOCKS_FAIL_WITH == 0)
            return 0;
        errno = LOCKS_FAIL_WITH;
        return -1;
    }
    return syscall(SYS_fcntl, file, command, argument);
}

int fcntl(int file, int command, ...)
{
    va_list words;
    va_start(words, command);
    void *argument = va_arg(words, void *);
    va_end(words);
    return answer(file, command, argument);
}

int fcntl64(int file, int command, ...)
{
    va_list words;
    va_start(words, command);
    void *argument = va_arg(words, void *);
    va_end(words);
    return answer(file, command, argument);
}
"""

OPENS = """
import sys
from orchestrator.errors import ReproError
from orchestrator.ledger.database import ledger_url, open_ledger
try:
    open_ledger(ledger_url(sys.argv[1], None))
except ReproError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.fixture(params=["0", "ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def shim(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that answers every request for a lock as a file system without locks does."""
    return compiled(tmp_path_factory.mktemp("shim"), SHIM, f"-DLOCKS_FAIL_WITH={request.param}")


def opens(file: Path, shim: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", OPENS, str(file)]
    env = {**os.environ, "LD_PRELOAD": str(shim)}
    return subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False, timeout=120)


def mounted_as(folder: Path, kind: str, options: str, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's table says that the folder lies on this file system."""
    number = sqlite_file._mount_number(folder)
    table.write_text(
        f"{number} 1 0:53 / /home\\040of\\040all rw,relatime shared:7 - {kind} server:/home rw,{options}\n"
    )
    monkeypatch.setattr(sqlite_file, "MOUNTS", table)


@pytest.mark.fault(
    section="Ledger",
    fault="A file system that grants every lock, or none (the test replaces the kernel's answer)",
    promise="Refused before anything is written.",
)
def test_a_new_ledger_is_refused_where_locks_do_not_work_and_nothing_is_left_there(tmp_path: Path, shim: Path) -> None:
    done = opens(tmp_path / "results.db", shim)
    assert done.returncode == 2, done.stderr
    place = file_system_of(tmp_path)
    assert place is not None and done.stdout.startswith(f"{tmp_path}/results.db: {place} has no working locks (")
    assert done.stdout.endswith("). Hint: keep it elsewhere: --database FILE on a local disk, or a PostgreSQL URL\n")
    assert done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("own_lock", [sqlite_file._OWN_LOCK, -1, None])
def test_the_same_folder_is_taken_when_its_locks_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_lock: int | None
) -> None:
    """Also if the kernel or Python does not have locks of an open file."""
    monkeypatch.setattr(sqlite_file, "_OWN_LOCK", own_lock)
    require_locks(tmp_path / "results.db", new=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault(
    section="Ledger",
    fault="The locks of a network file system stop working",
    promise="Tested at each opening, and refused.",
)
def test_locks_are_tried_each_time_on_a_file_system_of_several_hosts_and_not_on_a_local_one(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_ledger(tmp_path)
    table = tmp_path_factory.mktemp("mounts") / "mountinfo"
    monkeypatch.setattr(sqlite_file, "_refusal", lambda *_asked: errno.ENOLCK)
    mounted_as(tmp_path, "ext4", "errors=continue", table, monkeypatch)
    assert open_ledger(ledger_url(None, tmp_path)) is not None
    mounted_as(tmp_path, "nfs4", "vers=4.2,local_lock=none", table, monkeypatch)
    with pytest.raises(ReproError, match=r"nfs4 at /home of all has no working locks \(No locks available\)") as caught:
        open_ledger(ledger_url(None, tmp_path))
    assert caught.value.exit_code == 2


@pytest.mark.fault(
    section="Ledger",
    fault="The kernel does not report the file system",
    promise="The locks are tested.",
)
def test_where_the_kernel_does_not_tell_the_file_system_locks_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_ledger(tmp_path)
    monkeypatch.setattr(sqlite_file, "MOUNTS", tmp_path / "no such table")
    assert file_system_of(tmp_path) is None
    assert open_ledger(ledger_url(None, tmp_path)) is not None
    monkeypatch.setattr(sqlite_file, "_refusal", lambda *_asked: errno.ENOLCK)
    with pytest.raises(ReproError, match=f"the file system of {tmp_path} has no working locks"):
        open_ledger(ledger_url(None, tmp_path))


@pytest.mark.fault(
    section="Ledger",
    fault="Mount options that hide locks from other hosts: NFS, Lustre (the test supplies the table of mounts)",
    promise="Refused.",
)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nfs", "vers=3,nolock,local_lock=all"),
        ("nfs4", "vers=4.2,local_lock=all"),
        ("nfs", "vers=3,local_lock=posix"),
        ("lustre", "localflock,lazystatfs"),
    ],
)
def test_locks_that_other_hosts_do_not_see_are_found_in_the_mounts_options(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    options: str,
) -> None:
    """To try a lock from one host shows nothing here."""
    mounted_as(tmp_path, kind, options, tmp_path_factory.mktemp("mounts") / "mountinfo", monkeypatch)
    with pytest.raises(ReproError, match=f"results.db: {kind} at /home of all keeps no locks between hosts .*lock"):
        new_ledger(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", ["vers=4.2,local_lock=none", "vers=3,local_lock=flock"])
def test_a_network_file_system_with_locks_is_taken(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    mounted_as(tmp_path, "nfs4", options, tmp_path_factory.mktemp("mounts") / "mountinfo", monkeypatch)
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a")
    assert [row.case_name for row in job_rows(new_ledger(tmp_path))] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["results.db"]


@pytest.mark.fault(
    section="Ledger",
    fault="The ledger is in WAL mode on a file system that several hosts share",
    promise="Refused with a hint.",
)
def test_a_ledger_that_shares_memory_between_its_users_is_refused_where_they_may_be_on_two_hosts(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = new_ledger(tmp_path)
    with ledger.engine.connect() as connection:
        assert connection.exec_driver_sql("pragma journal_mode=wal").scalar() == "wal"
    ledger.engine.dispose()
    assert open_ledger(ledger_url(None, tmp_path)) is not None  # one host's own disk
    mounted_as(tmp_path, "nfs4", "vers=4.2", tmp_path_factory.mktemp("mounts") / "mountinfo", monkeypatch)
    with pytest.raises(
        ReproError, match=r"is in WAL mode, which nfs4 at .* Hint: end every repro, then: sqlite3 .*=delete"
    ):
        open_ledger(ledger_url(None, tmp_path))


def test_trying_a_lock_does_not_give_up_the_one_that_a_writer_of_this_process_holds(tmp_path: Path) -> None:
    """To close any descriptor of a file gives up a process' locks on it: the ledger's own must not be opened."""
    ledger, file = new_ledger(tmp_path), tmp_path / "results.db"
    tries = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0.1).execute('delete from runs')"
    with ledger.writing():
        require_locks(file, new=True)
        new_ledger(tmp_path)
        other = subprocess.run([sys.executable, "-c", tries, str(file)], capture_output=True, text=True, check=False)
    assert "database is locked" in other.stderr


def test_a_folders_file_system_is_found_by_its_mount(tmp_path: Path) -> None:
    if not sqlite_file.MOUNTS.exists():
        pytest.skip("no /proc")
    (tmp_path / "link").symlink_to("/proc")
    for folder in (Path("/proc"), tmp_path / "link"):
        assert str(file_system_of(folder)) == "proc at /proc"
    assert file_system_of(tmp_path / "nowhere") is None


def test_trying_a_lock_takes_no_time_that_anybody_notices(tmp_path: Path) -> None:
    took_ms = []
    for _ in range(20):
        start = time.perf_counter()
        require_locks(tmp_path / "results.db", new=True)
        took_ms.append((time.perf_counter() - start) * 1000)
    assert min(took_ms) < 5
