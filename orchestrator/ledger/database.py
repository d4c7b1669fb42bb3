"""Opens the ledger: makes it on first use, migrates an older one, refuses what it cannot read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from orchestrator.errors import Problem, ReproError, Unreachable

SCHEMA = "0002"
"""The newest migration; alembic is loaded only when a ledger is not there yet or older."""

BUSY_TIMEOUT_S = 15.0

# How one writer keeps the others waiting. PostgreSQL's lock is a number that its users agree on, held until the commit.
_WRITE_LOCK = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "select pg_advisory_xact_lock(7265707)"}

_URL_EXAMPLE = "for example sqlite:////path/results.db"


def now() -> datetime:
    """UTC, without a zone: what the ledger keeps."""
    return datetime.now(timezone.utc).replace(tzinfo=None)


class Ledger:
    """A database that is known to have today's schema."""

    def __init__(self, url: sa.URL, engine: sa.Engine) -> None:
        self.url = url
        self.engine = engine

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction, with the write lock from its start: what is read in it stays true until it is written."""
        with _explained(self.url), Session(self.engine, expire_on_commit=False) as session, session.begin():
            take_lock = _WRITE_LOCK.get(self.engine.dialect.name)
            if take_lock is not None:
                session.execute(sa.text(take_lock))
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with _explained(self.url), Session(self.engine) as session:
            yield session


def ledger_url(given: str | None, home: Path) -> sa.URL:
    """`--database` as a SQLAlchemy URL: a URL stays, a path is a SQLite file, nothing is results.db at home."""
    if not given or "://" not in given:
        file = Path(given).expanduser().resolve() if given else home / "results.db"
        return sa.URL.create("sqlite", database=str(file))
    try:
        return sa.make_url(given)
    except (sa.exc.ArgumentError, ValueError) as error:  # ValueError: a port that is no number
        raise ReproError(Problem(f"--database: no such URL ({_first_line(error)})", mend=_URL_EXAMPLE)) from None


def open_ledger(url: sa.URL, *, create: bool = True) -> Ledger | None:
    """Open (and make or migrate) the ledger; None when it does not exist and `create` is false."""
    file = _sqlite_file(url)
    if file is not None and not file.exists():
        if not create:
            return None
        if not file.parent.is_dir():
            raise ReproError(Problem(f"{file.parent}: no such folder for the ledger", mend="make it first"))
    engine = _engine(url)
    with _explained(url):
        version = _version(engine)
        if version is not None and version > SCHEMA:
            raise ReproError(
                Problem(f"{_shown(url)}: made by a newer repro (schema {version}, this knows {SCHEMA})", mend="upgrade")
            )
        if version != SCHEMA:
            _migrate(engine, file, version)
    return Ledger(url, engine)


def _engine(url: sa.URL) -> sa.Engine:
    try:
        options = {"connect_args": {"timeout": BUSY_TIMEOUT_S}} if url.get_backend_name() == "sqlite" else {}
        engine = sa.create_engine(url, **options)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError) as error:
        raise ReproError(Problem(f"--database {_shown(url)}: {_first_line(error)}", mend=_URL_EXAMPLE)) from None
    except ModuleNotFoundError as error:
        mend = f"pip install {error.name}"
        raise ReproError(Problem(f"--database {_shown(url)}: needs {error.name}", mend=mend)) from None
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _on_connect)
    return engine


def _on_connect(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]  # we say BEGIN ourselves
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _version(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        if "alembic_version" not in tables:
            if tables:
                mend = "give --database a file of its own"
                raise ReproError(Problem(f"{_shown(engine.url)}: holds something else ({tables[0]})", mend=mend))
            return None
        return connection.execute(sa.text("select version_num from alembic_version")).scalar()


def _migrate(engine: sa.Engine, file: Path | None, version: str | None) -> None:
    from alembic import command
    from alembic.config import Config

    if file is not None and version is not None:
        shutil.copy2(file, file.with_name(f"{file.name}.before-{SCHEMA}"))
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    with engine.begin() as connection:
        take_lock = _WRITE_LOCK.get(engine.dialect.name)
        if take_lock is not None:
            connection.execute(sa.text(take_lock))  # of two first users one makes the tables
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _sqlite_file(url: sa.URL) -> Path | None:
    if url.get_backend_name() != "sqlite" or url.host or "uri" in url.query:
        return None
    return Path(url.database) if url.database and url.database != ":memory:" else None


@contextmanager
def _explained(url: sa.URL) -> Iterator[None]:
    """Every fault of the database as one line that says what to do."""
    try:
        yield
    except (OperationalError, DatabaseError) as error:
        raise _explanation(url, str(error.orig)) from error
    except SQLAlchemyError as error:
        raise ReproError(Problem(f"{_shown(url)}: {_first_line(error)}")) from error


def _explanation(url: sa.URL, said: str) -> ReproError:
    name, low = _shown(url), said.lower()
    if "locked" in low or "busy" in low:
        mend = "another repro is writing; repeat the command"
        return Unreachable(Problem(f"{name}: locked for more than {BUSY_TIMEOUT_S:.0f} s", mend=mend))
    if "malformed" in low or "not a database" in low or "corrupt" in low:
        mend = f"it was left as it is; move it away to start anew, or recover it with: sqlite3 {name} .recover"
        return ReproError(Problem(f"{name}: not a readable SQLite database ({said})", mend=mend))
    if "full" in low or "no space" in low:
        return ReproError(Problem(f"{name}: the disk is full", mend="make room and repeat the command"))
    if "readonly" in low or "read-only" in low or "permission" in low:
        return ReproError(Problem(f"{name}: cannot be written ({said})", mend="check its owner and permissions"))
    if "unable to open" in low:
        return ReproError(Problem(f"{name}: cannot be opened", mend="check the path and its permissions"))
    if "connect" in low or "refused" in low:
        return Unreachable(Problem(f"{name}: does not answer ({said.splitlines()[0]})"))
    return ReproError(Problem(f"{name}: {said.splitlines()[0]}"))


def _shown(url: sa.URL) -> str:
    return str(_sqlite_file(url) or url.render_as_string(hide_password=True))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
