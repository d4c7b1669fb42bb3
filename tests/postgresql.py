"""A private PostgreSQL server from Debian's packages: its own folder, its own Unix socket, no port, no fsync."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from tests.slurm.host import ClusterUnavailable, end_processes, install_packages, is_alive, parent_of, run, wait_until

_USER = "postgres"
_PACKAGES = ("postgresql",)
# Nothing outlives the tests, so nothing has to reach a disk: what a killed server wrote, the kernel has.
_OPTIONS = {"listen_addresses": "", "fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB"}
_LONGEST_FOLDER = 80
"""Characters: a Unix socket's whole path is limited to 107."""


class PostgresqlUnavailable(Exception):
    """No PostgreSQL server can be had on this machine; the message is the reason, one line."""


@dataclass
class PostgresqlServer:
    """One server in one folder, which must be new."""

    folder: Path
    _names: itertools.count[int] = field(default_factory=itertools.count)

    def up(self) -> None:
        """Install what is missing, make the server and start it; raises PostgresqlUnavailable with the reason."""
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
        """Start it, after a kill too, and return once it answers."""
        self._run("pg_ctl", "start", "-w", "-l", str(self.folder / "log"))

    def stop(self) -> None:
        """As an administrator stops it: connections are ended, nothing is lost."""
        self._run("pg_ctl", "stop", "-w", "-m", "fast")

    def kill(self) -> None:
        """End it and all it started as a power failure would."""
        server = self._pid()
        assert server is not None, "the server does not run"
        # Stopped first: it would start new ones for those that are killed.
        os.kill(server, signal.SIGSTOP)
        started = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
        theirs = [pid for pid in started if parent_of(pid)[0] == server]
        end_processes([server, *theirs])
        # Where nobody collects orphans at once, a dead server's number still counts as a running one's.
        for lock in (self._data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*.lock")):
            lock.unlink()

    def down(self) -> None:
        """End it if it runs; never raises."""
        server = self._pid()
        if server is not None:
            with suppress(ClusterUnavailable):
                self._run("pg_ctl", "stop", "-w", "-m", "immediate")
            wait_until(lambda: not is_alive(server), seconds=10, what="the server's end")

    @contextmanager
    def new_database(self) -> Iterator[sa.URL]:
        """An empty database, as a URL; dropped at the end, whoever still uses it."""
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
        engine = sa.create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def _pid(self) -> int | None:
        try:
            pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            return None
        return pid if is_alive(pid) else None

    def _run(self, program: str, *words: str) -> None:
        """Run one of the server's programs, as the user that owns the server."""
        as_user = ("runuser", "-u", _USER, "--") if os.geteuid() == 0 else ()
        env = {**os.environ, "PGDATA": str(self._data), "LC_ALL": "C"}
        run([*as_user, _program(program), *words], env=env, timeout_s=120)


def _program(name: str) -> str:
    """Debian keeps the server's own programs out of PATH, one folder for each version."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(versions[-1]) if versions else name


def _install() -> None:
    if shutil.which(_program("initdb")):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise PostgresqlUnavailable("it is not installed, and only root can install it, on Debian or Ubuntu")
    install_packages(_PACKAGES)
