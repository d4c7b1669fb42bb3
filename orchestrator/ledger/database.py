"""Opening of the ledger: creation on first use, locks, and errors of the database."""

from __future__ import annotations

import errno
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.identity import user_name, why_not_own_path
from orchestrator.ledger.sqlite_file import SCHEMA, require_locks, require_rollback_journal
from orchestrator.ledger.tables import Table, create_schema, rows_with

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from orchestrator.ledger.tables import Columns

T = TypeVar("T")

BUSY_TIMEOUT_S = 15.0
"""Time that a writer waits for another writer, and that any command waits for a server."""

_POSTGRESQL_LOCK = 7265707
"""Number of the PostgreSQL advisory lock that a writer of the ledger takes until its commit."""

_URL_EXAMPLE = "for example sqlite:////path/results.db or postgresql://user@host/database"


class DiskFull(ReproError):
    """The disk is full: the ledger can be read, but not written (exit code 2)."""


def now() -> datetime:
    """Return the current time in UTC without a zone, as the ledger stores times."""
    return datetime.now(timezone.utc).replace(tzinfo=None)


def utc(moment: datetime | None) -> datetime | None:
    """Return a time in UTC without a zone, as the ledger stores it."""
    return None if moment is None else moment.astimezone(timezone.utc).replace(tzinfo=None)


class Ledger:
    """A database with the schema of this version.

    `runs` are the folders that can contain its run folders: those in home and beside its file, as they are written and
    with their links resolved.
    """

    def __init__(self, url: sa.URL, engine: sa.Engine, home: Path | None = None) -> None:
        self.url = url
        self.engine = engine
        file = sqlite_file(url)
        homes = dict.fromkeys(filter(None, (home, file and file.parent)))
        folders = (path.absolute() / "runs" for path in homes)
        self.runs = tuple(dict.fromkeys(path for folder in folders for path in (folder, folder.resolve())))

    def run_folders(self) -> Callable[[str], str]:
        """Return a function from the recorded path of a run's file or folder to the path that it has now.

        Recorded paths are absolute, and the home folder may have been moved since. A path stays as recorded if its run
        folder exists there, or nowhere else.
        """

        @cache
        def current_run(run: Path) -> Path:
            copies = (runs / run.name for runs in self.runs if _is_folder(runs / run.name))
            return run if _is_folder(run) else next(copies, run)

        @cache
        def current_folder(folder: str) -> str:
            path = Path(folder)
            run = next((part for part in (path, *path.parents) if part.parent.name == "runs"), None)
            if run is None or run.parent in self.runs or current_run(run) == run:
                return folder
            return str(current_run(run) / path.relative_to(run))

        def current(recorded: str) -> str:
            folder, separator, name = recorded.rpartition("/")
            return f"{current_folder(folder)}{separator}{name}"

        return current

    def is_own(self, user: str | None) -> bool:
        """Return whether a row of this user belongs to the current user.

        A row without a user does only if nobody else can write to the ledger.
        """
        return self.is_private if user is None else user == user_name()

    @cached_property
    def is_private(self) -> bool:
        """Return whether only the current user can write to the ledger: they own the SQLite file and its folder."""
        file = sqlite_file(self.url)
        if file is None or not file.exists():
            return False
        real = file.resolve()
        return why_not_own_path(real) is None and why_not_own_path(real.parent) is None

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a transaction that has the write lock from its start. Nobody changes what it reads until it ends."""
        with self.reading() as session, session.begin():
            take_write_lock(session.connection())
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a transaction that only reads."""
        with explained(self.url), Session(self.engine, expire_on_commit=False) as session:
            try:
                yield session
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # perhaps of a damaged row
                if damage := self._damage():
                    raise _damaged(self.url, damage) from error
                raise

    def scalars(self, query: sa.Select[T]) -> list[T]:
        """Return the values of a query for one column."""
        with self.reading() as session:
            return list(session.scalars(query))

    def rows_with(
        self, query: sa.Select[Unpack[Columns]], column: Any, values: Iterable[Any]
    ) -> list[sa.Row[Unpack[Columns]]]:
        """Return the rows of a query that have one of these values in a column."""
        with self.reading() as session:
            return list(rows_with(session, query, column, values))

    def _damage(self) -> str | None:
        """Return the first damage that SQLite's own check finds in the file; None if there is none."""
        file = sqlite_file(self.url)
        if file is None:
            return None
        with self.engine.connect() as connection:
            page = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
            if file.stat().st_size % page:
                return "its last page is cut off"
            check = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one())
        return None if check == "ok" else _one_line(check)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # it exists, and this user may not read it
        return True


def take_write_lock(connection: sa.Connection) -> None:
    """Take the lock that excludes other writers until the transaction ends. Wait for the current writer."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")  # ms
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_POSTGRESQL_LOCK})")


def ledger_url(given: str | None, home: Path) -> sa.URL:
    """Return `--database` as a URL: a path becomes that of a SQLite file. The default is results.db in `home`."""
    if not given or "://" not in given:
        file = Path(given).expanduser().resolve() if given else home / "results.db"
        return sa.URL.create("sqlite", database=str(file))
    try:
        url = sa.make_url(given)
    except (sa.exc.ArgumentError, ValueError) as error:  # ValueError: the port is not a number
        why = _without_secrets(_one_line(error))
        raise ReproError(Problem(f"--database: no such URL ({why})", hint=_URL_EXAMPLE)) from None
    # libpq accepts both names. SQLAlchemy would load psycopg2, the predecessor of psycopg.
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgresql", "postgres") else url


def open_ledger(url: sa.URL, *, create: bool = True, home: Path | None = None) -> Ledger | None:
    """Open the ledger, and create its tables in an empty database. Its run folders are in `home`, or beside its file.

    Return None if it does not exist and `create` is false.

    Raise Unreachable for a server that does not answer or a lock that is not released. Raise ReproError for a file
    system without locks, another schema, a database of another program, or a damaged file. None of these is changed.
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
            is_new = is_empty(connection)
            if file is not None:
                require_rollback_journal(file, connection.exec_driver_sql("PRAGMA journal_mode").scalar_one())
        if is_new:
            with engine.begin() as connection:
                take_write_lock(connection)
                if is_empty(connection):  # else another process has just created the tables
                    create_schema(connection)
    return Ledger(url, engine, home)


def is_empty(connection: sa.Connection) -> bool:
    """Return whether the database has no tables. Raise ReproError unless they are those of a ledger of this version."""
    url = connection.engine.url
    tables = set(sa.inspect(connection).get_table_names())
    if not tables:
        return True
    missing = Table.metadata.tables.keys() - tables
    # A ledger has one row with one value. A damaged one may have any.
    rows = connection.exec_driver_sql("SELECT * FROM alembic_version") if "alembic_version" in tables else ()
    versions = sorted(" ".join(map(str, row)) for row in rows)
    if versions == [SCHEMA] and not missing:
        return False
    hint = f"name a new ledger with --database or REPRO_DATABASE; the results in this one: {_query_of_results(url)}"
    is_number = len(versions) == 1 and re.fullmatch(r"\d{4}", versions[0])
    if not (is_number and {"run_jobs", "attempts"} <= tables) and len(missing) > len(Table.metadata.tables) / 2:
        other = min(tables - {"alembic_version"} or tables)
        what, hint = f"is a database of another program (table {other})", "name another file with --database"
    elif not is_number:
        found = ", ".join(map(repr, versions[:3])) or "nothing"
        what = f"a ledger of an unknown schema (alembic_version contains {found}, this knows {SCHEMA})"
    elif versions == [SCHEMA]:
        what, hint = f"a ledger without its table {min(missing)}", "restore it from a copy, or name another --database"
    elif versions[0] > SCHEMA:
        what, hint = f"made by a newer repro (schema {versions[0]}, this knows {SCHEMA})", "upgrade"
    else:
        what = f"made by an older repro (schema {versions[0]}, this knows {SCHEMA})"
    raise ReproError(Problem(what, f"{_shown(url)}:", hint))


def _query_of_results(url: sa.URL) -> str:
    """Return the command that prints the results of a ledger of any version."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite3 -readonly -header {shlex.quote(str(sqlite_file(url)))} 'select * from v_results'"
    return f"psql {shlex.quote(_shown(url.set(drivername='postgresql', password=None)))} -c 'select * from v_results'"


def _engine(url: sa.URL) -> sa.Engine:
    try:
        kind, driver = url.get_backend_name(), url.get_driver_name()
        if kind == "sqlite":
            engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
            sa.event.listen(engine, "connect", _on_connect)
            return engine
        limits = {"connect_timeout": int(BUSY_TIMEOUT_S)} if driver in ("psycopg", "psycopg2") else {}
        arguments = {name: seconds for name, seconds in limits.items() if name not in url.query}
        # READ COMMITTED: a writer must read what the writer before it wrote. pool_pre_ping: `--wait` takes hours, and
        # the server may be restarted meanwhile.
        return sa.create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True, connect_args=arguments)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError) as error:
        raise ReproError(Problem(f"--database {_shown(url)}: {_one_line(error)}", hint=_URL_EXAMPLE)) from None
    except ImportError as error:  # psycopg is missing, or installed without its C library
        package = "'psycopg[binary]'" if "psycopg" in (error.name or "psycopg") else error.name
        missing = error.name or _one_line(error)
        raise ReproError(Problem(f"--database {_shown(url)}: needs {missing}", hint=f"pip install {package}")) from None


def _on_connect(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]  # this module issues BEGIN
    connection.execute("PRAGMA foreign_keys=ON").close()  # type: ignore[attr-defined]


def sqlite_file(url: sa.URL) -> Path | None:
    """Return the file of a SQLite ledger; None for a server and for a ledger in memory."""
    if url.get_backend_name() != "sqlite" or url.host or "uri" in url.query:
        return None
    return Path(url.database) if url.database and url.database != ":memory:" else None


@contextmanager
def explained(url: sa.URL) -> Iterator[None]:
    """Raise each error of the database as a ReproError with one line and a hint."""
    try:
        yield
    except DBAPIError as error:
        if url.get_backend_name() == "sqlite":
            raise _of_sqlite(url, str(error.orig)) from error
        raise _of_server(url, error) from error
    except SQLAlchemyError as error:
        raise ReproError(Problem(f"{_shown(url)}: {_without_secrets(_one_line(error))}")) from error
    except UnicodeDecodeError as error:
        if url.get_backend_name() != "sqlite":
            raise
        raise _damaged(url, _one_line(error)) from error  # SQLite's message quotes a damaged page


def _of_sqlite(url: sa.URL, message: str) -> ReproError:
    place, low = f"{_shown(url)}:", message.lower()
    if "locked" in low or "busy" in low:
        return _locked(place)
    if any(word in low for word in ("malformed", "not a database", "corrupt", "could not decode")):
        return _damaged(url, message)
    # SQLite reports an exceeded quota as an I/O error, and a journal that cannot be created as one that does not open.
    refused = _refusal_of_folder(url) if "disk i/o" in low or "unable to open" in low else None
    if "is full" in low or (refused and refused.errno in (errno.ENOSPC, errno.EDQUOT)):
        why = f" ({refused.strerror})" if refused else ""
        return DiskFull(Problem(f"the disk is full{why}", place, "make room and repeat the command"))
    if "readonly" in low or refused:
        why = str(refused.strerror) if refused else message
        return ReproError(Problem(f"cannot be written ({why})", place, "check its owner and permissions"))
    if "unable to open" in low:
        return ReproError(Problem("cannot be opened", place, "check the path and its permissions"))
    if "disk i/o" in low:
        return ReproError(Problem(f"its disk failed ({message})", place, "check the disk and repeat the command"))
    return ReproError(Problem(message, place))


def _of_server(url: sa.URL, error: DBAPIError) -> ReproError:
    place, message = f"{_shown(url)}:", _without_secrets(_one_line(error.orig))
    low = message.lower()
    if "lock timeout" in low:
        return _locked(place)
    if "no space left" in low or "disk full" in low:
        hint = "its administrator must make room; then repeat the command"
        return DiskFull(Problem("the server's disk is full", place, hint))
    if "read-only" in low or "permission denied" in low:
        return ReproError(Problem(f"cannot be written ({message})", place, "ask for the right to write there"))
    is_temporary = any(word in low for word in _TEMPORARY)
    if "fatal:" in low and not is_temporary:
        reason = message[low.index("fatal:") + len("fatal:") :].strip()
        return ReproError(Problem(f"refused ({reason})", place, "check user, password and database in the URL"))
    is_unanswered = isinstance(error, OperationalError) and any(word in low for word in ("connection", "resolve host"))
    if error.connection_invalidated or is_temporary or is_unanswered:
        return Unreachable(Problem(f"does not answer ({message})", place, "repeat the command once it does"))
    return ReproError(Problem(message, place))


# Errors of a PostgreSQL server that is not ready: "FATAL: the database system is starting up".
_TEMPORARY = ("starting up", "shutting down", "recovery", "too many", "connection slots", "terminating connection")


def _locked(place: str) -> Unreachable:
    hint = "another repro is writing; repeat the command"
    return Unreachable(Problem(f"locked for more than {BUSY_TIMEOUT_S:.0f} s", place, hint))


def _damaged(url: sa.URL, reason: str) -> ReproError:
    name = _shown(url)
    recover = f"sqlite3 {shlex.quote(name)} .recover | sqlite3 recovered.db"
    hint = f"it was left as it is; move it away to start anew, or recover it with: {recover}"
    return ReproError(Problem(f"not a readable SQLite database ({reason})", f"{name}:", hint))


def _refusal_of_folder(url: sa.URL) -> OSError | None:
    """Return the error of a write beside the ledger; None if it succeeds."""
    file = sqlite_file(url)
    if file is None:
        return None
    try:
        with tempfile.TemporaryFile(dir=file.resolve().parent, buffering=0) as trial:
            trial.write(bytes(65536))
    except OSError as error:
        return error
    return None


def _shown(url: sa.URL) -> str:
    return str(sqlite_file(url) or _without_secrets(url.render_as_string(hide_password=True)))


def _without_secrets(message: str) -> str:
    """Return a message about a server without passwords; a URL's may also be in its query."""
    from orchestrator.masking import masked  # not needed for a ledger in a file

    return masked(message)


def _one_line(message: object) -> str:
    """Return the first line of a message, or the whole message on one line if the first line ends with a colon."""
    text = str(message).strip() or "no reason given"
    first = text.splitlines()[0]
    return " ".join(text.split()) if first.endswith(":") else first
