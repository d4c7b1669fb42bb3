"""Makes the ledger's tables, or brings older ones to today's schema: in one transaction, with a copy kept of a file."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.database import SCHEMA, checked_version, take_write_lock
from orchestrator.ledger.views import create_views, drop_views


def migrate(engine: sa.Engine) -> None:
    """Make or migrate the ledger unless another process just did.

    Killed in the middle, it leaves the ledger as it was, and can be repeated. Before a SQLite ledger is changed it is
    copied to `FILE.before-SCHEMA`; a PostgreSQL database has no such copy: its backup is the administrator's.
    """
    with engine.connect() as connection:
        connection.detach()  # not for later use: it does not check foreign keys
        is_sqlite = engine.dialect.name == "sqlite"
        if is_sqlite:
            # A table that is made anew, as SQLite's ALTER needs, is dropped first, and rows of others point at it.
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            connection.commit()
        with connection.begin():
            take_write_lock(connection)
            version = checked_version(connection)
            if version == SCHEMA:
                return
            if is_sqlite and version is not None:
                _refuse_damage(connection)
                _keep_copy(connection)
            _upgrade(connection)


def _upgrade(connection: sa.Connection) -> None:
    drop_views(connection)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    create_views(connection)


def _refuse_damage(connection: sa.Connection) -> None:
    """Raise as SQLite does for a damaged file: a copy of damage is no backup, and rewriting it may lose more."""
    (said,) = connection.exec_driver_sql("PRAGMA quick_check(1)").one()
    if said != "ok":
        reason = sqlite3.DatabaseError(f"database disk image is malformed: {' '.join(said.split())}")
        raise sa.exc.DatabaseError("quick_check", {}, reason)


def _keep_copy(locked: sa.Connection) -> None:
    """Copy the file beside itself, whole or not at all; the write lock that `locked` holds keeps it still.

    Through SQLite: to open and close the file ourselves would give up the lock (fcntl(2)).
    """
    (name,) = [row[2] for row in locked.exec_driver_sql("PRAGMA database_list") if row[1] == "main"]
    if not name:
        return  # it is in memory
    copy = Path(f"{name}.before-{SCHEMA}")
    unfinished = copy.with_name(f"{copy.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        reader, writer = sqlite3.connect(name), sqlite3.connect(unfinished)
        try:
            reader.backup(writer)
        finally:
            writer.close()
            reader.close()
        unfinished.chmod(Path(name).stat().st_mode)
        unfinished.replace(copy)
    except (sqlite3.Error, OSError) as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        if isinstance(error, sqlite3.Error):
            raise sa.exc.OperationalError("the copy before a migration", {}, error) from error
        what = f"{name}: older than this repro, and no copy can be written before it is migrated ({error.strerror})"
        raise ReproError(Problem(what, hint=f"{copy.parent} must be writable")) from error
