"""Opens the ledger: makes it on first use, migrates an older one, refuses what it cannot read."""

from __future__ import annotations

import errno
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path, PurePath

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.identity import user_name, why_not_own_path
from orchestrator.ledger.column_types import CheckedSession, WrongRows, WrongValue
from orchestrator.ledger.locks import require_locks, require_rollback_journal

SCHEMA = "0007"
"""The newest migration; alembic is loaded only when a ledger is not there yet or older."""

BUSY_TIMEOUT_S = 15.0
"""How long a writer waits for another one, and everybody for a server to answer."""

_POSTGRESQL_LOCK = 7265707
"""The advisory lock of PostgreSQL that the ledger's writers agree on; it is held until the commit."""

_URL_EXAMPLE = "for example sqlite:////path/results.db or postgresql://user@host/database"


class DiskFull(ReproError):
    """The ledger can be read, and nothing can be written to it until somebody makes room."""


def now() -> datetime:
    """UTC, without a zone: what the ledger keeps."""
    return datetime.now(timezone.utc).replace(tzinfo=None)


class Ledger:
    """A database that is known to have today's schema.

    `runs` are the folders that can contain its run folders: those in home and beside its file, as they are written and
    with their links resolved. `listener` gets a line for each cell with a wrong value.
    """

    def __init__(
        self,
        url: sa.URL,
        engine: sa.Engine,
        home: Path | None = None,
        listener: Callable[[Problem], None] | None = None,
    ) -> None:
        self.url = url
        self.engine = engine
        self._wrong = WrongRows(_shown(url), self._require_whole, listener)
        file = sqlite_file(url)
        homes = dict.fromkeys(filter(None, (home, file and file.parent)))
        folders = (one.absolute() / "runs" for one in homes)
        self.runs = tuple(dict.fromkeys(path for folder in folders for path in (folder, folder.resolve())))

    def run_folders(self) -> RunFolders:
        """Return what finds run folders after home was moved."""
        return RunFolders(self.runs)

    def is_own(self, user: str | None) -> bool:
        """Whether a row of this user is one of the current user.

        A row without a user counts only where nobody else can write to the ledger.
        """
        return self.is_private if user is None else user == user_name()

    @cached_property
    def is_private(self) -> bool:
        """Whether only the current user can write to the ledger: a SQLite file, in a folder, of their own."""
        file = sqlite_file(self.url)
        if file is None or not file.exists():
            return False
        real = file.resolve()
        return why_not_own_path(real) is None and why_not_own_path(real.parent) is None

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction, with the write lock from its start: what is read in it stays true until it is written."""
        with explained(self.url), self._session(leaves_out=False) as session, session.begin():
            take_write_lock(session.connection())
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One transaction that only reads. With a listener, rows that hold wrong values are left out."""
        with explained(self.url), self._session(leaves_out=True) as session:
            yield session

    @contextmanager
    def _session(self, *, leaves_out: bool) -> Iterator[CheckedSession]:
        with CheckedSession(self.engine, self._wrong, leaves_out=leaves_out, expire_on_commit=False) as session:
            try:
                yield session
            except WrongValue as error:
                problems = session.problems() or [Problem(str(error), f"{_shown(self.url)}:")]
                raise ReproError(*problems) from error

    def _require_whole(self) -> None:
        """Raise ReproError if SQLite's own check finds damage, or the file does not end with a page."""
        file = sqlite_file(self.url)
        if file is None:
            return
        with explained(self.url), self.engine.connect() as connection:
            page = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
            said = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if file.stat().st_size % page:
            raise _damaged(self.url, "its last page is cut off")
        if said != "ok":
            raise _damaged(self.url, _one_line(str(said)))


class RunFolders:
    """Current paths of run folders, whose recorded paths are absolute: the home folder may have been moved since."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self._runs = runs
        self._current_folders: dict[str, str] = {}
        self._current_runs: dict[PurePath, PurePath] = {}

    def current(self, recorded: str) -> str:
        """Return where the file or folder of a run is now: as recorded, or below this ledger's own runs.

        A path stays as recorded if its run folder exists there, or nowhere else.
        """
        folder, separator, name = recorded.rpartition("/")
        if folder not in self._current_folders:
            self._current_folders[folder] = self._current_folder(folder)
        return f"{self._current_folders[folder]}{separator}{name}"

    def _current_folder(self, folder: str) -> str:
        path = PurePath(folder)
        run = next((part for part in (path, *path.parents) if part.parent.name == "runs"), None)
        if run is None or run.parent in self._runs:
            return folder
        if run not in self._current_runs:
            copies = (runs / run.name for runs in self._runs if _is_folder(runs / run.name))
            self._current_runs[run] = run if _is_folder(Path(run)) else next(copies, run)
        current = self._current_runs[run]
        return folder if current == run else str(current / path.relative_to(run))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # another user's, and not readable
        return True


def take_write_lock(connection: sa.Connection) -> None:
    """Keep every other writer out until the transaction ends; wait for the one who is in."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")  # ms
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_POSTGRESQL_LOCK})")


def ledger_url(given: str | None, home: Path) -> sa.URL:
    """`--database` as a SQLAlchemy URL: a URL stays, a path is a SQLite file, nothing is results.db at home."""
    if not given or "://" not in given:
        file = Path(given).expanduser().resolve() if given else home / "results.db"
        return sa.URL.create("sqlite", database=str(file))
    try:
        url = sa.make_url(given)
    except (sa.exc.ArgumentError, ValueError) as error:  # ValueError: a port that is no number
        why = _without_secrets(_first_line(error))
        raise ReproError(Problem(f"--database: no such URL ({why})", hint=_URL_EXAMPLE)) from None
    # As libpq writes it; SQLAlchemy 2.0 would take it for psycopg2, whose successor is psycopg.
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgresql", "postgres") else url


def open_ledger(
    url: sa.URL,
    *,
    create: bool = True,
    home: Path | None = None,
    listener: Callable[[Problem], None] | None = None,
) -> Ledger | None:
    """Open the ledger, and make or migrate it. Return None if it does not exist and `create` is false.

    Its run folders are in `home`, or beside its file.

    A row that holds a wrong value is an error of whoever reads it. With a `listener`, which gets a line for each such
    cell, readers go on without the row.

    Raises Unreachable for a server that does not answer or a lock that is not given up, else ReproError: a file
    system without locks, a newer schema, another program's database, a damaged file. None of these is changed.
    """
    file = sqlite_file(url)
    if file is not None:
        if not file.exists():
            if not create:
                return None
            if not file.parent.is_dir():
                raise ReproError(Problem("no such folder for the ledger", f"{file.parent}:", "make it first"))
        require_locks(file, new=not file.exists() or file.stat().st_size == 0)
    engine = _engine(url)
    with explained(url):
        with engine.connect() as connection:
            version = checked_version(connection)
            if file is not None:
                require_rollback_journal(file, connection.exec_driver_sql("PRAGMA journal_mode").scalar_one())
        if version != SCHEMA:
            _upgrade(engine)
    return Ledger(url, engine, home, listener)


def _upgrade(engine: sa.Engine) -> None:
    """Create or upgrade the tables, unless another process has just done it."""
    from orchestrator.ledger.migrations import upgrade

    with engine.connect() as connection:
        connection.detach()  # not for later use: it does not check foreign keys
        if engine.dialect.name == "sqlite":
            # A table that is made anew, as SQLite's ALTER needs, is dropped first, and rows of others point at it.
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            connection.commit()
        with connection.begin():
            take_write_lock(connection)
            version = checked_version(connection)
            if version != SCHEMA:
                upgrade(connection, is_new=version is None, copy_name=f"before-{SCHEMA}")


def checked_version(connection: sa.Connection) -> str | None:
    """Return the ledger's schema; None for an empty database. Raise ReproError for a newer or foreign one."""
    name = _shown(connection.engine.url)
    tables = set(sa.inspect(connection).get_table_names())
    if not tables:
        return None
    version = None
    if {"alembic_version", "run_jobs", "attempts"} <= tables:
        version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    if version is None or not re.fullmatch(r"\d{4}", version):
        found = min(tables - {"alembic_version"} or tables)
        raise ReproError(Problem(f"holds something else ({found})", f"{name}:", "give --database one of its own"))
    if version > SCHEMA:
        raise ReproError(
            Problem(f"made by a newer repro (schema {version}, this knows {SCHEMA})", f"{name}:", "upgrade")
        )
    return str(version)


def _engine(url: sa.URL) -> sa.Engine:
    try:
        kind, driver = url.get_backend_name(), url.get_driver_name()
        if kind == "sqlite":
            engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
            sa.event.listen(engine, "connect", _on_connect)
            return engine
        patience = {"connect_timeout": int(BUSY_TIMEOUT_S)} if driver in ("psycopg", "psycopg2") else {}
        given = {name: seconds for name, seconds in patience.items() if name not in url.query}
        # A writer reads what the one before it has written, whatever the server's default is. pool_pre_ping: `--wait`
        # takes hours, and the server may be started again meanwhile.
        return sa.create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True, connect_args=given)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError) as error:
        raise ReproError(Problem(f"--database {_shown(url)}: {_first_line(error)}", hint=_URL_EXAMPLE)) from None
    except ImportError as error:  # psycopg without its C library is there, and cannot be imported
        package = "'psycopg[binary]'" if "psycopg" in (error.name or "psycopg") else error.name
        missing = error.name or _first_line(error)
        raise ReproError(Problem(f"--database {_shown(url)}: needs {missing}", hint=f"pip install {package}")) from None


def _on_connect(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]  # we say BEGIN ourselves
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def sqlite_file(url: sa.URL) -> Path | None:
    """Return the file of a SQLite ledger; None for a server and for a ledger in memory."""
    if url.get_backend_name() != "sqlite" or url.host or "uri" in url.query:
        return None
    return Path(url.database) if url.database and url.database != ":memory:" else None


@contextmanager
def explained(url: sa.URL) -> Iterator[None]:
    """Every fault of the database as one line that says what to do."""
    try:
        yield
    except DBAPIError as error:
        if url.get_backend_name() == "sqlite":
            raise _of_sqlite(url, str(error.orig)) from error
        raise _of_server(url, error) from error
    except SQLAlchemyError as error:
        raise ReproError(Problem(f"{_shown(url)}: {_without_secrets(_first_line(error))}")) from error
    except UnicodeDecodeError as error:
        if url.get_backend_name() != "sqlite":
            raise
        raise _damaged(url, _first_line(error)) from error  # a complaint that quotes a damaged page


def _of_sqlite(url: sa.URL, said: str) -> ReproError:
    name, low = _shown(url), said.lower()
    if "locked" in low or "busy" in low:
        return _locked(name)
    if any(word in low for word in ("malformed", "not a database", "corrupt", "could not decode")):
        return _damaged(url, said)
    # SQLite's word for a used-up quota is an I/O error, and for a journal that cannot be made that it cannot open.
    refused = _refusal_of_folder(url) if "disk i/o" in low or "unable to open" in low else None
    if "is full" in low or (refused and refused.errno in (errno.ENOSPC, errno.EDQUOT)):
        why = f" ({refused.strerror})" if refused else ""
        return DiskFull(Problem(f"the disk is full{why}", f"{name}:", "make room and repeat the command"))
    if "readonly" in low or refused:
        why = str(refused.strerror) if refused else said
        return ReproError(Problem(f"cannot be written ({why})", f"{name}:", "check its owner and permissions"))
    if "unable to open" in low:
        return ReproError(Problem("cannot be opened", f"{name}:", "check the path and its permissions"))
    if "disk i/o" in low:
        return ReproError(Problem(f"its disk failed ({said})", f"{name}:", "check the disk and repeat the command"))
    return ReproError(Problem(said, f"{name}:"))


def _of_server(url: sa.URL, error: DBAPIError) -> ReproError:
    name, said = _shown(url), _without_secrets(_one_line(str(error.orig)))
    low = said.lower()
    if "lock timeout" in low:
        return _locked(name)
    if "no space left" in low or "disk full" in low:
        hint = "its administrator must make room; then repeat the command"
        return DiskFull(Problem("the server's disk is full", f"{name}:", hint))
    if "read-only" in low or "permission denied" in low:
        return ReproError(Problem(f"cannot be written ({said})", f"{name}:", "ask for the right to write there"))
    passing = any(word in low for word in _PASSING)
    if "fatal:" in low and not passing:
        reason = said[low.index("fatal:") + len("fatal:") :].strip()
        return ReproError(Problem(f"refused ({reason})", f"{name}:", "check user, password and database in the URL"))
    unanswered = isinstance(error, OperationalError) and any(word in low for word in ("connection", "resolve host"))
    if error.connection_invalidated or passing or unanswered:
        return Unreachable(Problem(f"does not answer ({said})", f"{name}:", "repeat the command once it does"))
    return ReproError(Problem(said, f"{name}:"))


# What a PostgreSQL server says that is there, and not ready: "FATAL: the database system is starting up".
_PASSING = ("starting up", "shutting down", "recovery", "too many", "connection slots", "terminating connection")


def _locked(name: str) -> Unreachable:
    hint = "another repro is writing; repeat the command"
    return Unreachable(Problem(f"locked for more than {BUSY_TIMEOUT_S:.0f} s", f"{name}:", hint))


def _damaged(url: sa.URL, said: str) -> ReproError:
    name = _shown(url)
    recover = f"sqlite3 {shlex.quote(name)} .recover | sqlite3 recovered.db"
    hint = f"it was left as it is; move it away to start anew, or recover it with: {recover}"
    return ReproError(Problem(f"not a readable SQLite database ({said})", f"{name}:", hint))


def _refusal_of_folder(url: sa.URL) -> OSError | None:
    """Why nothing can be written beside the ledger, in the kernel's words; None when it can."""
    file = sqlite_file(url)
    if file is None:
        return None
    try:
        with tempfile.TemporaryFile(dir=file.resolve().parent, buffering=0) as tried:
            tried.write(bytes(65536))
    except OSError as error:
        return error
    return None


def _shown(url: sa.URL) -> str:
    return str(sqlite_file(url) or _without_secrets(url.render_as_string(hide_password=True)))


def _without_secrets(message: str) -> str:
    """Return a message about a server without passwords; a URL's may also be in its query."""
    from orchestrator.masking import masked  # a ledger in a file never needs it

    return masked(message)


def _one_line(said: str) -> str:
    """Return the first line of a message, or the whole message on one line if the first line ends with a colon."""
    first = said.strip().splitlines()[0] if said.strip() else "no reason given"
    return " ".join(said.split()) if first.endswith(":") else first


def _first_line(error: Exception) -> str:
    return _one_line(str(error))
