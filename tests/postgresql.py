"""Private PostgreSQL server from Debian's packages: its own folder, its own Unix socket, no port, no fsync."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import sqlalchemy as sa

from tests.slurm.host import ClusterUnavailable, end_processes, install_packages, is_alive, parent_of, run
from tests.waiting import wait_until

_USER = "postgres"
_PACKAGES = ("postgresql",)
# No fsync: no data must outlive the tests, and the kernel keeps what a killed server wrote.
_OPTIONS = {"listen_addresses": "", "fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB"}
_LONGEST_FOLDER = 80
"""Characters: a Unix socket's whole path is limited to 107."""


class PostgresqlUnavailable(Exception):
    """No PostgreSQL server is available on this machine. The message is the reason, in one line."""


@dataclass
class PostgresqlServer:
    """A server in a new folder."""

    folder: Path
    _names: itertools.count[int] = field(default_factory=itertools.count)

    def up(self) -> None:
        """Install missing packages, create the server and start it. PostgresqlUnavailable has the reason."""
        if len(str(self.folder)) > _LONGEST_FOLDER:
            raise PostgresqlUnavailable(f"the folder's name is longer than {_LONGEST_FOLDER} characters: {self.folder}")
        try:
            _install()
            if os.geteuid() == 0:  # the server refuses to run as root
                shutil.chown(self.folder, _USER, _USER)
            self._run("initdb", "--auth=trust", f"--username={_USER}", "--encoding=UTF8", "--no-locale", "--no-sync")
            lines = [f"{name} = '{value}'" for name, value in _OPTIONS.items()]
            with (self._data / "postgresql.conf").open("a") as conf:
                conf.write("\n".join([*lines, f"unix_socket_directories = '{self.folder}'", ""]))
            self.start()
        except ClusterUnavailable as reason:
            raise PostgresqlUnavailable(str(reason)) from None

    def start(self) -> None:
        """Start the server, also after a kill, and wait until it answers."""
        self._run("pg_ctl", "start", "-w", "-l", str(self.folder / "log"))

    def stop(self) -> None:
        """Stop the server as an administrator does: connections are ended, no data are lost."""
        self._run("pg_ctl", "stop", "-w", "-m", "fast")

    def kill(self) -> None:
        """Kill the server and its processes, as a power failure does."""
        server = self._pid()
        assert server is not None, "the server does not run"
        # Stop the server first, because it would replace killed processes.
        os.kill(server, signal.SIGSTOP)
        started = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        theirs = [pid for pid in started if parent_of(pid)[0] == server]
        end_processes([server, *theirs])
        # Without a process that collects orphans, the id of a dead server still looks alive.
        for lock in (self._data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*.lock")):
            lock.unlink()

    def down(self) -> None:
        """Stop a running server. Never raise."""
        server = self._pid()
        if server is not None:
            with suppress(ClusterUnavailable):
                self._run("pg_ctl", "stop", "-w", "-m", "immediate")
            wait_until(lambda: not is_alive(server), what="the server's end")

    @contextmanager
    def new_database(self) -> Iterator[sa.URL]:
        """Yield the URL of an empty database. Drop the database at the end, also with open connections."""
        name = f"ledger_{next(self._names)}"
        self._administer(f"create database {name} template template0")
        yield self.url(name)
        self._administer(f"drop database {name} with (force)")

    def url(self, database: str, user: str = _USER) -> sa.URL:
        return sa.URL.create("postgresql+psycopg", user, database=database, query={"host": str(self.folder)})

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _administer(self, statement: str) -> None:
        with self._administrator.connect() as connection:
            connection.exec_driver_sql(statement)

    @cached_property
    def _administrator(self) -> sa.Engine:
        """One connection, which is opened again after a restart of the server."""
        return sa.create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT", pool_pre_ping=True)

    def _pid(self) -> int | None:
        try:
            pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            return None
        return pid if is_alive(pid) else None

    def _run(self, program: str, *arguments: str) -> None:
        """Run a program of the server as the user that owns the server."""
        as_user = ("runuser", "-u", _USER, "--") if os.geteuid() == 0 else ()
        env = {**os.environ, "PGDATA": str(self._data), "LC_ALL": "C"}
        run([*as_user, _program(program), *arguments], env=env, timeout_s=120)


def _program(name: str) -> str:
    """Return the path of a program. Debian keeps them out of PATH, in one folder per version."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(versions[-1]) if versions else name


def _install() -> None:
    if shutil.which(_program("initdb")) is None:
        install_packages(_PACKAGES)
