"""Upgrade of a ledger to the newest migration by alembic. An older SQLite file is copied first."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.views import create_views, drop_views


def upgrade(connection: sa.Connection, *, is_new: bool, copy_name: str) -> None:
    """Upgrade the tables to the newest migration, in the transaction that the caller has opened with the write lock.

    If the process is killed, the ledger stays as it was. Before an existing SQLite ledger is changed it is copied to
    `FILE.COPY_NAME`; the backup of a PostgreSQL database is the administrator's task.
    """
    if connection.dialect.name == "sqlite" and not is_new:
        _refuse_damage(connection)
        _keep_copy(connection, copy_name)
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


def _keep_copy(locked: sa.Connection, copy_name: str) -> None:
    """Copy the file beside itself, whole or not at all; the write lock that `locked` holds keeps it still.

    Through SQLite: to open and close the file ourselves would give up the lock (fcntl(2)).
    """
    (name,) = [row[2] for row in locked.exec_driver_sql("PRAGMA database_list") if row[1] == "main"]
    if not name:
        return  # it is in memory
    copy = Path(f"{name}.{copy_name}")
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
